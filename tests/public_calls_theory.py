"""A valid call of every public function, class and method of the later chapters."""

import torch
from public_calls import FOLDER, GAMMA, GENERATOR, MATRIX, MODEL, MU, NU, ONCE, POINT, E, X, draws
from torch import nn

import pushforward as pf
from pushforward import approximation, auditing, fitting, flows, representation, statements
from pushforward.representation import zoo


def law(n, generator):
    return pf.Measure(torch.rand(n, 2, generator=generator, dtype=torch.float64))


def attract(x, y):
    return y - x


def add(nu):
    return nu.push(lambda x: x + 1)


def first_coordinate(y):
    return y[:, 0]


def look(result):
    return result.ok


LINE = pf.Measure(draws(5, 1))
FIELD, MOVE = pf.fields.Pairwise(attract), pf.Flow(pf.fields.Pairwise(attract), t1=1.0)
PATH = pf.flow(FIELD, MU, t1=1.0, solver=pf.Euler(2), save=2)
HATS = approximation.Hats(-4 * POINT, 4 * POINT, cells=3)
RULE = approximation.SoftNearest(1.0)
NEAR = approximation.SoftmaxApproximation(RULE, HATS)
GAUSSIAN = flows.gaussian(pf.fields.Linear(-E, E), POINT, E, t1=1.0, solver=pf.Euler(2))
FOUND = pf.recover(add)
REPORT = auditing.Audit(
    "model", "how", "data", 0, (auditing.Section("size", "The outputs settle."),)
)
POPULATION = representation.Population(X)
WITNESS = representation.Witness("shows", MU, NU)
ENERGY = pf.fields.SelfAttention(E, E, E)
SQUARE = torch.full((2, 2), 0.5, dtype=torch.float64)
QUICK = statements.Setting(quick=True)
RESULTS = [statements.run_statement("A.eq8", QUICK)]
EULER = pf.Euler(2)
SHIFT = pf.Pointwise(lambda x: x + 1)
JUDGED = {
    "model": SHIFT, "target": SHIFT, "law": fitting.Mixtures(2), "seed": 0,
    "effort": fitting.Attack(sizes=(2,), starts=2, steps=1, seeds=1),
}  # fmt: skip
pf.flow(FIELD, MU, t1=1.0, solver=EULER, folder=FOLDER / "flow")

FLOWS = {
    "flow": (
        pf.flow,
        {"field": FIELD, "mu": MU, "t0": 0.0, "t1": 1.0, "solver": EULER, "save": 2, "queries": X},
    ),
    "Flow": (
        pf.Flow,
        {"field": FIELD, "t0": 0.0, "t1": 1.0, "solver": EULER, "gradients": flows.Backprop()},
    ),
    "Flow.path": (MOVE.path, {"mu": MU, "save": 2, "queries": X, "progress": False}),
    "Path.load": (pf.Path.load, {"folder": FOLDER / "flow", "field": FIELD}),
    "Path.__getitem__": (lambda index: PATH[index], {"index": 0}),
    "Path.to_html": (PATH.to_html, {
        "title": "A cloud", "curves": {"radius": PATH.radius()}, "tol": 0.1, "progress": False}),
    "Path.save": (PATH.save, {
        "file": FOLDER / "cloud.html", "title": "A cloud", "curves": {"radius": PATH.radius()},
        "tol": 0.1}),
    "Path.animate": (PATH.animate, {"file": FOLDER / "cloud.gif", "seconds": 1.0}),
    "Path.cluster_count": (PATH.cluster_count, {"tol": 0.1}),
    "Path.clusters": (PATH.clusters, {"tol": 0.1}),
    "Path.map": (PATH.map, {"f": pf.Measure.mean}),
    "Path.wasserstein": (PATH.wasserstein, {"reference": NU, "p": 2}),
    "gaussian": (
        flows.gaussian,
        {
            "field": pf.fields.Linear(-E, E), "mean": POINT, "cov": E, "t0": 0.0, "t1": 1.0,
            "solver": EULER, "save": 2,
        },
    ),
    "GaussianPath.__call__": (GAUSSIAN, {"x": X}),
    "Backprop": (flows.Backprop, {"checkpoint": 2}),
    **{name: (getattr(flows, name), {"steps": 2}) for name in ("Euler", "Midpoint", "RK4")},
    "LieSplit": (flows.LieSplit, {"steps": 2}),
    "Dopri5": (pf.Dopri5, {"rtol": 1e-3, "atol": 1e-3, "max_steps": 9}),
    "Sphere": (pf.Sphere, {"radius": 1.0}),
    "Torus": (pf.Torus, {"period": 1.0, "axes": 2}),
    "SelfAttention": (
        pf.fields.SelfAttention,
        {
            "Q": E, "K": E, "V": E, "affinity": pf.Dot(), "normaliser": pf.Softmax(),
            "manifold": pf.Sphere(), "mask": pf.Causal(), "impl": "reference",
        },
    ),
    "SelfAttention.energy": (ENERGY.energy, {"mu": MU}),
    "SelfAttention.dissipation": (ENERGY.dissipation, {"mu": MU}),
    "Pairwise": (pf.fields.Pairwise, {"kernel": attract, "manifold": pf.Sphere()}),
    "Linear": (pf.fields.Linear, {"A": E, "B": E}),
    "Kuramoto": (pf.fields.Kuramoto, {"coupling": 1.0, "dim": 2, "frequencies": True}),
    "SecondOrder": (pf.fields.SecondOrder, {"force": FIELD}),
    "CuckerSmale": (pf.fields.CuckerSmale, {"influence": torch.exp}),
    "Decay": (pf.fields.Decay, {"power": 1.0, "strength": 3.0}),
    "Decay.__call__": (pf.fields.Decay(), {"r": X}),
    "Sum": (lambda fields: pf.fields.Sum(fields, FIELD), {"fields": GAMMA}),
    "Tangent": (pf.fields.Tangent, {"field": GAMMA, "manifold": pf.Sphere()}),
    "Layers": (pf.fields.Layers, {"layers": [GAMMA, GAMMA], "t1": 1.0}),
    "of_transformer": (pf.fields.of_transformer, {"model": MODEL}),
    "at_time": (lambda gamma, t: pf.fields.at_time(gamma, t), {"gamma": GAMMA, "t": 0.5}),
    "projection_lipschitz": (
        lambda manifold: pf.fields.projection_lipschitz(manifold, 1.0), {"manifold": pf.Sphere()}
    ),
    "attention_entropy": (flows.attention_entropy, {"field": MODEL, "mu": MU}),
    "leaders": (flows.leaders, {"field": MODEL, "mu": MU}),
    "clusters": (flows.clusters, {"mu": MU, "tol": 0.1}),
    "diameter": (flows.diameter, {"points": X}),
    "order": (flows.order, {"mu": MU, "manifold": pf.Torus()}),
    "radius": (flows.radius, {"mu": MU}),
    "depth_study": (
        flows.depth_study,
        {
            "field": FIELD, "mu": MU, "depths": [2, 4], "t1": 1.0, "solver": EULER,
            "reference": EULER,
        },
    ),
    "token_study": (
        flows.token_study,
        {
            "field": FIELD, "law": law, "sizes": [2, 3], "queries": X, "t1": 1.0,
            "solver": EULER, "repetitions": 1, "seed": 0,
        },
    ),
}  # fmt: skip

THEORY = {
    "SoftmaxApproximation": (
        approximation.SoftmaxApproximation, {"rule": RULE, "hats": HATS, "tau": 0.1, "delta": 0.1}
    ),
    "SinkhornApproximation": (
        approximation.SinkhornApproximation,
        {"rule": RULE, "hats": HATS, "tau": 0.1, "delta": 0.1, "queries": HATS},
    ),
    "Approximation.__call__": (NEAR, {"mu": MU, "nu": NU}),
    "SoftmaxApproximation.bound": (NEAR.bound, {"mu": MU, "nu": NU}),
    "SinkhornApproximation.bound": (
        approximation.SinkhornApproximation(
            approximation.QuantileCoupling(), approximation.Hats(-9 * POINT[:1], 9 * POINT[:1], 3)
        ).bound,
        {"mu": LINE, "nu": LINE},
    ),
    "Hats": (approximation.Hats, {"low": -POINT, "high": POINT, "cells": 3}),
    "Hats.__call__": (HATS, {"x": X}),
    "Hats.around": (
        lambda measures, cells: approximation.Hats.around(measures, NU, cells=cells),
        {"measures": MU, "cells": 3},
    ),
    "Hats.integrals": (HATS.integrals, {"matrix": MATRIX, "nu": NU}),
    "Hats.masses": (HATS.masses, {"nu": NU}),
    "QuantileCoupling.__call__": (approximation.QuantileCoupling(), {"mu": LINE, "nu": LINE}),
    "SoftNearest": (approximation.SoftNearest, {"eps": 1.0}),
    "SoftNearest.__call__": (RULE, {"mu": MU, "nu": NU}),
    "GaussianConditional": (
        approximation.GaussianConditional, {"slope": E, "shift": POINT, "cov": E}
    ),
    "GaussianConditional.__call__": (
        approximation.GaussianConditional(E, POINT, E), {"mu": MU, "nu": NU}
    ),
    "relation_distance": (
        approximation.relation_distance, {"first": ONCE, "second": ONCE, "mu": MU, "nu": NU}
    ),
    "conditional_rank": (approximation.conditional_rank, {"matrix": MATRIX}),
    "realise": (pf.realise, {"target": ONCE, "head_dim": 2}),
    "realise_heads": (
        approximation.realise_heads, {"matrix": MATRIX, "heads": 3, "weights": NU.weights}
    ),
    "birkhoff": (approximation.birkhoff, {"matrix": SQUARE}),
    "recover": (
        pf.recover,
        {"f": add, "by": representation.Weak(), "eta": 1e-3, "extrapolate": False},
    ),
    "RecoveredMap": (
        representation.RecoveredMap,
        {"f": add, "by": representation.Weak(), "eta": 1e-3, "extrapolate": False},
    ),
    "RecoveredMap.estimate": (FOUND.estimate, {"mu": MU, "x": X}),
    "Excess": (representation.Excess, {"radius": 0.1, "fallback": representation.Decode()}),
    "Decode": (representation.Decode, {"tol": 0.1}),
    "Probe.image": (
        representation.Excess().image, {"f": add, "mu": LINE, "x": POINT[:1], "eta": 1e-3}
    ),
    "Weak": (representation.Weak, {"radius": 0.1}),
    "derivative": (
        representation.derivative,
        {
            "f": add, "mu": LINE, "x": POINT[:1], "psi": first_coordinate,
            "extension": representation.MassPreserving(), "eta": 1e-5, "radius": 1e-3,
        },
    ),
    "characterise": (
        lambda f, law, size=2, seed=0, progress=None: pf.characterise(
            f, law, size=size, seed=seed, progress=progress
        ),
        {"f": zoo.unweighted_mean, "law": law, "size": 2, "seed": 0, "progress": False},
    ),
    "Witness.replay": (WITNESS.replay, {"f": add}),
    "MapBox": (representation.MapBox, {"f": add, "example": MU}),
    "TokenBox": (
        representation.TokenBox,
        {"model": torch.sin, "set_axis": False, "pooled": True, "tokens": 9},
    ),
    "QueryBox": (representation.QueryBox, {"model": torch.cdist, "set_axis": False}),
    "Population": (representation.Population, {"data": X, "dtype": torch.float64}),
    "Population.context": (POPULATION.context, {"n": 2, "generator": GENERATOR}),
    "Population.without_token": (POPULATION.without_token, {"index": 0}),
    "Population.draw": (POPULATION.draw, {"n": 2, "generator": GENERATOR}),
    "Population.points": (POPULATION.points, {"m": 2, "generator": GENERATOR}),
    "audit": (
        pf.audit,
        {
            "model": nn.ReLU(), "data": X, "sections": ["relations"], "require": ["relations"],
            "tokens": 32, "seed": 0, "progress": False,
        },
    ),
    "audit, with queries": (
        pf.audit,
        {"model": torch.cdist, "data": X, "queries": X, "sections": ["relations"], "tokens": 32},
    ),
    "Model": (
        auditing.Model,
        {
            "model": torch.sin, "name": "sine", "batched": False, "padded": torch.mul,
            "mode": "set", "class_token": 0, "tolerance": 0.01,
        },
    ),
    "Audit.__getitem__": (lambda name: REPORT[name], {"name": "size"}),
    "Audit.compare": (REPORT.compare, {"old": REPORT.to_dict()}),
    "Audit.save": (REPORT.save, {"file": FOLDER / "report.txt"}),
    "specimens": (zoo.specimens, {"dim": 2, "seed": 0}),
    "alice_elise": (zoo.alice_elise, {"n": 4}),
    "attention": (zoo.attention, {"dim": 2, "scale": 1.0, "seed": 0}),
    "stack": (zoo.stack, {"dim": 2, "depth": 2, "scale": 1.0, "seed": 0}),
    "mlp": (zoo.mlp, {"dim": 2, "seed": 0}),
    "vlasov": (zoo.vlasov, {"dim": 2, "seed": 0}),
    "root": (zoo.root, {"mu": MU, "exponent": 0.5}),
    "top_k": (zoo.top_k, {"mu": MU, "k": 2}),
    "verify": (
        statements.verify,
        {
            "only": "A.eq8", "family": "in_context", "quick": True, "seed": 0, "defects": False,
            "workers": 0, "show": look,
        },
    ),
    "select": (statements.select, {"only": "A.eq8", "family": "in_context"}),
    "run_statement": (
        statements.run_statement, {"id": "A.eq8", "setting": QUICK, "defects": False},
    ),
    "Setting": (statements.Setting, {"quick": True, "seed": 0}),
    "Setting.generator": (QUICK.generator, {"offset": 1}),
    "as_dict": (
        statements.as_dict,
        {"results": RESULTS, "quick": True, "seed": 0, "defects": False, "seconds": 0.1},
    ),
    "page": (
        statements.page,
        {"record": statements.as_dict(RESULTS, quick=True, seed=0, defects=False, seconds=0.1)},
    ),
    "obstructions": (fitting.obstructions, {"pairs": [(MU, MU)]}),
    "WithMass": (fitting.WithMass, {"loss": fitting.EnergyDistance()}),
    "Relating": (
        fitting.Relating,
        {
            "rule": pf.relate, "queries": fitting.Mixtures(2), "keys": fitting.Box(2),
            "batches": fitting.Batches(),
        },
    ),
    "evaluate_rule": (
        fitting.evaluate_rule,
        {
            "model": pf.relate, "task": fitting.Relating(pf.relate, fitting.Mixtures(1)),
            "sizes": [3], "pairs": 2, "seed": 0,
        },
    ),
    **{
        name: (getattr(zoo, name), {"mu": MU})
        for name in (
            "bayes", "counterexample", "half_space_mass", "heaviest_atom", "length_temperature",
            "masked_pooling", "max_pooling", "median_centring", "min_max_scaling",
            "sign_of_mean", "smooth_counterexample", "splitting", "steep", "unweighted_mean",
        )
    },
    "Attack": (
        fitting.Attack,
        {
            "sizes": (2, 8), "starts": 2, "steps": 1, "seeds": 1, "radius": 2.5, "doubled": False,
        },
    ),
    "attack": (
        fitting.attack, JUDGED | {"starts": [pf.Measure(torch.zeros(2, 2))], "progress": False}
    ),
    "report": (fitting.report, JUDGED | {"sizes": [4], "measures": 2, "exact": 1}),
}  # fmt: skip
