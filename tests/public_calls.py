"""A valid call of every public function, class and method, small and fast.

A call is a callable and its arguments by name. `tests/test_wrong_arguments.py` replaces one
argument after the other by something wrong. Calls that take arguments by position are wrapped.
"""

import tempfile
from pathlib import Path

import torch

import pushforward as pf
from pushforward import maps, ops, pictures
from pushforward.affinities import TileScores
from pushforward.relations import Sigmoid

torch.manual_seed(0)


def draws(*shape):
    return torch.randn(*shape, dtype=torch.float64)


class Stored:
    """A class that `storable` can register without harm to others."""


def taxicab(mu, nu, x, y):
    return -(x - y).abs().sum(-1)


X, E, POINT = draws(3, 2), torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
MU, NU = pf.Measure(draws(5, 2)), pf.Measure(draws(4, 2))
MANY = pf.Measure(draws(2, 5, 2))
TIMED = pf.Measure(draws(5, 2), times=torch.arange(5))
NESTED = pf.Measure.stack([MU, NU]).to_nested()
SCRATCH = tempfile.TemporaryDirectory()
FOLDER = Path(SCRATCH.name)
MU.save(FOLDER / "measure.safetensors")
maps.save(torch.nn.Linear(2, 2), FOLDER / "model.safetensors")
GAMMA, MODEL = pf.Attention(2).double(), pf.Transformer(2, depth=1).double()
DENSITY = pf.MLP(2, 3, out_dim=1).double()
CAUSAL = pf.Attention(2, mask=pf.Causal()).double()
ONCE, TWICE = pf.relate(MU, NU), pf.relate(MU, NU, normaliser=pf.Sinkhorn(steps=2))
HEADS = pf.Attention(2, heads=2).double().relation(MU)
BOUND = maps.Lipschitz(1.0, 1.0, 1.0, 1.0)
MATRIX = draws(5, 4).softmax(-1)
GENERATOR = torch.Generator().manual_seed(0)

MEASURES = {
    "Measure": (pf.Measure, {"atoms": X, "weights": X[:, 0].exp(), "times": torch.arange(3)}),
    "Measure, by logarithms": (pf.Measure, {"atoms": X, "log_weights": X[:, 0]}),
    "Measure.from_tokens": (
        pf.Measure.from_tokens,
        {"tokens": X, "mask": torch.tensor([True, True, False]), "times": torch.arange(3)},
    ),
    "Measure.gaussian": (pf.Measure.gaussian, {"mean": POINT, "cov": E, "order": 3}),
    "Measure.gaussian, by numbers": (pf.Measure.gaussian, {"mean": 0.0, "cov": 1.0}),
    "Measure.grid": (pf.Measure.grid, {"low": -POINT, "high": POINT, "size": 2}),
    "Measure.grid, by numbers": (pf.Measure.grid, {"low": 0.0, "high": 1.0, "size": 2}),
    "Measure.stack": (pf.Measure.stack, {"measures": [MU, NU]}),
    "Measure.mixture": (pf.Measure.mixture, {"measures": [MU, NU], "weights": POINT}),
    "Measure.push": (MU.push, {"T": torch.sin}),
    "Measure.moved": (MU.moved, {"atoms": draws(5, 2)}),
    "Measure.integrate": (MU.integrate, {"f": torch.sin}),
    "Measure.integrate, of values": (MU.integrate, {"f": draws(5)}),
    "Measure.merge": (MU.merge, {"tol": 0.1}),
    "Measure.split": (MU.split, {"parts": 2, "atom": 1}),
    "Measure.split, by shares": (MU.split, {"parts": [0.5, 0.5]}),
    "Measure.sample": (MU.sample, {"size": 2, "generator": GENERATOR}),
    "Measure.restrict": (MU.restrict, {"region": lambda x: x[..., 0] < 9}),
    "Measure.restrict, by a mask": (MU.restrict, {"region": MU.atoms[:, 0] < 9}),
    "Formats.from_flat": (
        pf.Measure.from_flat,
        {
            "atoms": X, "batch": torch.tensor([0, 1, 1]), "weights": X[:, 0].exp(),
            "times": torch.arange(3),
        },
    ),
    "Formats.from_flat, by lengths": (
        pf.Measure.from_flat, {"atoms": X, "lengths": torch.tensor([1, 2])}
    ),
    "Formats.from_flat, by offsets": (
        pf.Measure.from_flat, {"atoms": X, "offsets": torch.tensor([0, 1, 3])}
    ),
    "Formats.from_nested": (pf.Measure.from_nested, {"atoms": NESTED.atoms}),
    "Formats.allclose": (MU.allclose, {"other": MU, "rtol": 1e-3, "atol": 1e-3}),
    "Formats.save": (MU.save, {"path": FOLDER / "saved.safetensors"}),
    "Formats.load": (pf.Measure.load, {"path": FOLDER / "measure.safetensors", "device": "cpu"}),
    "collate": (pf.collate, {"samples": [MU, NU]}),
    "Measure.__getitem__": (lambda index: MANY[index], {"index": 0}),
}  # fmt: skip

MAPS = {
    "InContextMap.forward": (GAMMA, {"mu": MU, "x": X}),
    "InContextMap.forward, with times": (
        CAUSAL,
        {"mu": TIMED, "x": X, "t": torch.arange(1, 4)},
    ),
    "InContextMap.at": (GAMMA.at, {"mu": MU}),
    "At.__call__": (GAMMA.at(MU), {"x": X}),
    "InContextMap.push": (MODEL.push, {"mu": MU}),
    "InContextMap.relations": (MODEL.relations, {"mu": MU}),
    "InContextMap.lipschitz": (GAMMA.lipschitz, {"radius": 1.0}),
    "InContextMap.__matmul__": (lambda first: GAMMA @ first, {"first": MODEL}),
    "Container.with_parts": (MODEL.with_parts, {"parts": list(MODEL)}),
    "AttentionMap.relation": (GAMMA.relation, {"mu": MU, "queries": NU}),
    "AttentionMap.relation, from a start": (
        pf.Attention(2, normaliser=pf.Sinkhorn(steps=2)).double().relation,
        {"mu": MU, "start": draws(1, 5)},
    ),
    "Attention": (
        pf.Attention,
        {
            "dim": 2, "heads": 2, "head_dim": 2, "context_dim": 3, "affinity": pf.Dot(),
            "normaliser": pf.Softmax(), "mask": pf.Causal(), "impl": "reference",
        },
    ),
    "Pointwise": (pf.Pointwise, {"f": torch.sin, "dim": 2, "out_dim": 2}),
    "MLP": (
        pf.MLP, {"dim": 2, "hidden": 3, "out_dim": 2, "skip": True, "activation": torch.sin}
    ),
    "Residual": (pf.Residual, {"gamma": GAMMA, "step": 0.5}),
    "Compose": (lambda maps: pf.Compose(maps, MODEL), {"maps": GAMMA}),
    "Transformer": (
        pf.Transformer,
        {
            "dim": 2, "depth": 1, "heads": 2, "hidden": 3, "width": 4, "out_dim": 2, "step": 0.5,
            "block": pf.Block(),
        },
    ),
    "Transformer.universal": (
        pf.Transformer.universal, {"dim": 2, "out_dim": 1, "depth": 1, "hidden": 3}
    ),
    "Block": (
        pf.Block,
        {
            "norm": pf.PreNorm(), "head_dim": 2, "affinity": pf.Dot(),
            "normaliser": pf.Softmax(), "mask": pf.Causal(), "impl": "reference", "dropout": 0.5,
        },
    ),
    "Dropout": (pf.Dropout, {"p": 0.5}),
    "Pool": (pf.Pool, {"features": GAMMA}),
    "Pool.forward": (pf.Pool(), {"mu": MU}),
    "save": (maps.save, {"model": torch.nn.Linear(2, 2), "path": FOLDER / "saved.safetensors"}),
    "load": (maps.load, {"path": FOLDER / "model.safetensors", "device": "cpu"}),
    "storable": (maps.storable, {"cls": Stored, "arguments": lambda layer: {}}),
    "AttentionPool": (maps.AttentionPool, {"gamma": GAMMA, "queries": 2, "features": GAMMA}),
    "AttentionPool.forward": (maps.AttentionPool(GAMMA).double(), {"mu": MU}),
    "NoiseSource": (maps.NoiseSource, {"gamma": GAMMA, "points": 3, "seed": 0}),
    "NoiseSource.push": (maps.NoiseSource(GAMMA).double().push, {"mu": MU}),
    "NoiseSource.forward": (maps.NoiseSource(GAMMA).double(), {"mu": MU}),
    "Reweighted": (maps.Reweighted, {"gamma": GAMMA, "density": DENSITY, "births": False}),
    "Reweighted.push": (maps.Reweighted(GAMMA, DENSITY).push, {"mu": MU}),
    "Reweighted.forward": (maps.Reweighted(GAMMA, DENSITY), {"mu": MU}),
    "LearnedRule": (
        maps.LearnedRule,
        {"q": GAMMA, "k": GAMMA, "affinity": pf.Dot(), "normaliser": pf.Softmax()},
    ),
    "LearnedRule.forward": (maps.LearnedRule(GAMMA, GAMMA), {"mu": MU, "nu": NU}),
    "PreNorm": (pf.PreNorm, {"eps": 1e-5}),
    "PostNorm": (pf.PostNorm, {"eps": 1e-5}),
    "from_sequence_model": (pf.from_sequence_model, {"model": torch.sin}),
    "Lipschitz": (maps.Lipschitz, {"x": 1.0, "mu": 1.0, "radius": 1.0, "reach": 1.0}),
    "Lipschitz.scaled": (BOUND.scaled, {"factor": 2.0}),
    "Lipschitz.then": (BOUND.then, {"after": BOUND}),
    "lipschitz_bound": (lambda gamma: maps.lipschitz_bound(gamma, 1.0), {"gamma": GAMMA}),
    "score_bounds": (
        lambda affinity: maps.score_bounds(affinity, E, E, 1.0), {"affinity": pf.Dot()}
    ),
    "average_bound": (
        lambda normaliser: maps.average_bound(normaliser, maps.ScoreBounds(1, 1, 1, 1), 1.0),
        {"normaliser": pf.Softmax()},
    ),
}  # fmt: skip

RELATIONS = {
    "Dot": (pf.Dot, {"scale": 1.0}),
    "SquaredDistance": (pf.SquaredDistance, {"eps": 1.0}),
    "Encoded": (pf.Encoded, {"q": draws(5, 2), "k": GAMMA, "affinity": pf.Dot()}),
    "Matrix": (pf.Matrix, {"values": draws(5, 4)}),
    "Pairs": (pf.Pairs, {"function": taxicab}),
    "TileScores.from_matrix": (TileScores.from_matrix, {"values": draws(5, 4), "unit": 1.0}),
    "TileScores.from_pairs": (
        TileScores.from_pairs, {"function": lambda x, y: (x - y).sum(-1), "x": X, "y": X}
    ),
    "TileScores.mapped": (
        TileScores.mapped, {"scores": pf.Dot().scores(MU, NU), "function": torch.sin}
    ),
    "relate": (
        pf.relate,
        {
            "mu": MU, "nu": NU, "affinity": pf.Dot(), "normaliser": pf.Sinkhorn(steps=2),
            "mask": torch.ones(5, 4, dtype=torch.bool), "start": draws(4),
        },
    ),
    "Sinkhorn": (
        pf.Sinkhorn,
        {
            "tol": 1e-3, "max_steps": 9, "slack": 1.0, "anneal": True, "accelerate": True,
            "memory": 9,
        },
    ),
    "Sinkhorn, by steps": (pf.Sinkhorn, {"steps": 2}),
    "Sigmoid": (Sigmoid, {"bias": 1.0}),
    "Relation.apply": (ONCE.apply, {"values": draws(4, 2)}),
    "Relation.at": (
        TWICE.at, {"scores": pf.Dot().scores(MU, NU), "log_a": MU.log_weights}
    ),
    "Relation.__getitem__": (lambda index: HEADS[index], {"index": 0}),
    "Conditional.from_matrix": (pf.Conditional.from_matrix, {"matrix": MATRIX, "nu": NU}),
    "Conditional.sample": (ONCE.sample, {"size": 2, "generator": GENERATOR}),
    "Conditional.joint": (ONCE.joint, {"mu": MU}),
    "Conditional.project": (
        ONCE.project, {"mu": MU, "nu": NU, "normaliser": pf.Sinkhorn(steps=2)}
    ),
    "Coupling.from_matrix": (pf.Coupling.from_matrix, {"matrix": MATRIX / 5}),
    "Joint.sample": (TWICE.sample, {"size": 2, "generator": GENERATOR}),
    "doubly_stochastic": (
        pf.doubly_stochastic, {"logits": draws(3, 3), "tol": 1e-3, "max_steps": 9}
    ),
    "log_integral": (
        ops.log_integral,
        {
            "q": X, "k": X, "bias": X[:, 0], "scale": 1.0,
            "times": (torch.arange(3), torch.arange(3)), "impl": "reference", "guard": True,
        },
    ),
    "average": (
        ops.average,
        {
            "q": X, "k": X, "v": X, "bias": X[:, 0], "scale": 1.0,
            "times": (torch.arange(3), torch.arange(3)), "impl": "reference", "guard": True,
        },
    ),
    "runnable": (ops.runnable, {"device": "cpu", "dtype": torch.float64}),
    "decaying_sum": (ops.decaying_sum, {"x": X, "y": X, "v": X, "power": 1.0}),
    "heatmap": (pictures.heatmap, {"relation": ONCE}),
    "graph": (pictures.graph, {"relation": ONCE, "least": 0.1}),
    "transported": (pictures.transported, {"relation": ONCE, "mu": MU, "nu": NU}),
    "wasserstein": (pf.wasserstein, {"mu": MU, "nu": NU, "p": 2}),
    "sliced_wasserstein": (
        pf.sliced_wasserstein,
        {"mu": MU, "nu": NU, "p": 2, "projections": 2, "generator": GENERATOR},
    ),
    "sinkhorn_divergence": (
        pf.sinkhorn_divergence,
        {"mu": MU, "nu": NU, "eps": 1.0, "normaliser": pf.Sinkhorn(tol=1e-2)},
    ),
    "barycentre": (
        pf.distances.barycentre,
        {
            "measures": [MU, NU], "weights": torch.ones(2, dtype=torch.float64), "size": 2,
            "steps": 9, "generator": GENERATOR,
        },
    ),
    "barycentre, from a start": (pf.distances.barycentre, {"measures": [MU, NU], "start": MU}),
    "energy_distance": (pf.energy_distance, {"mu": MU, "nu": NU}),
    "mmd": (pf.mmd, {"mu": MU, "nu": NU, "bandwidth": 1.0}),
}  # fmt: skip
