"""A valid call of every public function, class and method of the chapter `fitting`."""

from itertools import count
from pathlib import Path

import torch
from public_calls import FOLDER, GENERATOR, MU, NU
from torch import nn

import pushforward as pf
from pushforward import fitting

SIZES = {"depth": 1, "heads": 1, "width": 4, "steps": 1}
REGRESSOR = pf.MeasureRegressor(**SIZES).fit([MU, NU], [NU, MU], torch.tensor([0.0, 1.0]))
REGRESSOR.save(FOLDER / "regressor")
CONDITIONS = torch.tensor([0.0, 1.0], dtype=torch.float64)


def refitted(**params):
    """A regressor checks its arguments when it is fitted, as in scikit-learn."""
    return pf.MeasureRegressor(**params).fit([MU], [NU])


REGRESSION = {
    "MeasureRegressor": (
        lambda depth, heads, width, steps, atoms, lr, seed, loss=None: refitted(
            depth=depth, heads=heads, width=width, steps=steps, loss=loss, atoms=atoms, lr=lr,
            seed=seed,
        ),
        {**SIZES, "loss": pf.fitting.EnergyDistance(), "atoms": 3, "lr": 1e-3, "seed": 0},
    ),
    "MeasureRegressor.fit": (
        pf.MeasureRegressor(**SIZES).fit,
        {"sources": [MU, NU], "targets": [NU, MU], "conditions": CONDITIONS},
    ),
    "MeasureRegressor.predict": (
        REGRESSOR.predict, {"new": [MU, NU], "conditions": CONDITIONS}
    ),
    "MeasureRegressor.score": (
        REGRESSOR.score,
        {"sources": [MU, NU], "targets": [NU, MU], "conditions": CONDITIONS},
    ),
    "MeasureRegressor.get_params": (REGRESSOR.get_params, {"deep": True}),
    "MeasureRegressor.save": (REGRESSOR.save, {"folder": FOLDER / "again"}),
    "MeasureRegressor.load": (pf.MeasureRegressor.load, {"folder": FOLDER / "regressor"}),
}  # fmt: skip

LAW, DRAWN = fitting.Mixtures(2), {"count": 2, "n": 3, "generator": GENERATOR}
STEP = {"generator": GENERATOR, "index": 0}
SMALL = fitting.Batches((2, 4), atoms=8)
SHIFT, MODEL = pf.Pointwise(lambda x: x + 1), pf.Pointwise(nn.Linear(2, 2).double())
SIMULATION = fitting.Simulation(SHIFT, LAW, batches=SMALL)
GIVEN = fitting.FromPairs([(MU, MU), (NU, NU)], fitting.EnergyDistance())
RELATING = fitting.Relating(pf.relate, LAW, batches=SMALL)
MADE = fitting.Simulation(SHIFT, lambda n, generator: MU, batches=SMALL).batch(GENERATOR, 0)
PAIRS = [(MU, MU), (NU, NU)]
ONE = pf.Measure.stack([MU])
MET = fitting.problems.Meeting(ONE, ONE, pf.relate(ONE, ONE))
QUICK = fitting.Training(evaluation=fitting.Evaluation(sizes=(2,), measures=1), batches=SMALL)
NUMBERS = count()


def kept(out):
    """A run in a folder of its own: there may be none in it before."""
    named = out / str(next(NUMBERS)) if isinstance(out, Path) else out
    return pf.fit(MODEL, PAIRS, steps=1, training=QUICK, out=named)


def resumed(resume):
    """A run that goes on; one is begun in a folder without one, in the dtype of the test."""
    if isinstance(resume, Path) and not (resume / "state.safetensors").exists():
        pf.fit(MODEL, PAIRS, steps=1, training=QUICK, out=resume)
    return pf.fit(MODEL, PAIRS, steps=1, training=QUICK, resume=resume)


LEARNING = {
    "Mixtures": (
        fitting.Mixtures,
        {
            "dim": 2, "components": 3, "spread": 1.0, "scales": (0.1, 0.5), "radius": 2.5,
            "unequal": 0.5,
        },
    ),
    "Mixtures.draw": (LAW.draw, DRAWN),
    "Box": (fitting.Box, {"dim": 2, "radius": 1.0}),
    "Box.draw": (fitting.Box(2).draw, DRAWN),
    "Resampled": (fitting.Resampled, {"measures": [MU, NU]}),
    "Resampled.draw": (fitting.Resampled([MU, NU]).draw, DRAWN),
    "OneOf": (
        lambda laws, shares: fitting.OneOf(laws, fitting.Box(2), shares=shares),
        {"laws": LAW, "shares": [0.5, 0.5]},
    ),
    "OneOf.draw": (fitting.OneOf(LAW, LAW).draw, DRAWN),
    "Law.__call__": (LAW.__call__, {"n": 3, "generator": GENERATOR}),
    "Batches": (fitting.Batches, {"sizes": (2, 4), "atoms": 8}),
    "Batches.draw": (SMALL.draw, {"law": LAW, **STEP}),
    "Wasserstein": (fitting.Wasserstein, {"p": 2}),
    "SinkhornDivergence": (fitting.SinkhornDivergence, {"eps": 0.1, "tol": 1e-3}),
    "MMD": (fitting.MMD, {"bandwidth": 1.0}),
    "Simulation": (
        fitting.Simulation,
        {"target": SHIFT, "law": LAW, "loss": fitting.Paired(), "batches": SMALL},
    ),
    "Simulation.batch": (SIMULATION.batch, STEP),
    "Simulation.losses": (SIMULATION.losses, {"model": SHIFT, "batch": MADE}),
    "Simulation.solved": (SIMULATION.solved, {"mu": ONE}),
    "Simulation.on": (SIMULATION.on, {"device": torch.device("cpu")}),
    "Task.errors": (SIMULATION.errors, {"model": SHIFT, "batch": MADE}),
    "FromPairs": (
        fitting.FromPairs,
        {"pairs": PAIRS, "loss": fitting.Paired(), "batch_size": 2, "atoms": 3, "name": "pairs"},
    ),
    "FromPairs.example": (GIVEN.example, {"index": 0}),
    "FromPairs.batch": (GIVEN.batch, STEP),
    "FromPairs.losses": (GIVEN.losses, {"model": SHIFT, "batch": MADE}),
    "Relating.batch": (RELATING.batch, STEP),
    "Relating.losses": (RELATING.losses, {"model": pf.relate, "batch": MET}),
    "Optimiser": (
        fitting.Optimiser,
        {
            "lr": 1e-3, "matrix_lr": 1e-2, "warmup": 2, "weight_decay": 1e-4, "clip": 1.0,
            "ema": 0.9,
        },
    ),
    "Optimiser.rate": (fitting.Optimiser().rate, {"step": 0, "steps": 9}),
    "Optimiser.decay": (fitting.Optimiser().decay, {"step": 0}),
    "Evaluation": (
        fitting.Evaluation,
        {
            "every": 2, "sizes": (2, 4), "measures": 2, "laws": {"box": fitting.Box(2)},
            "pairs": PAIRS, "patience": 2,
        },
    ),
    "Adversary": (
        fitting.Adversary,
        {"count": 2, "sizes": (2, 4), "atoms": 8, "radius": 2.5, "fresh": 0.1},
    ),
    "Adversary.begin": (
        fitting.Adversary(count=2, sizes=(2,)).begin, {"task": SIMULATION, "generator": GENERATOR}
    ),
    "Training": (
        fitting.Training,
        {
            "loss": fitting.Paired(), "batches": SMALL, "optimiser": fitting.Optimiser(),
            "adversary": fitting.Adversary(), "evaluation": fitting.Evaluation(),
            "precision": "float32", "seed": 0,
        },
    ),
    "fit": (
        pf.fit,
        {"model": MODEL, "target": SHIFT, "law": LAW, "steps": 1, "training": QUICK},
    ),
    "fit, on pairs": (pf.fit, {"model": MODEL, "data": PAIRS, "steps": 1, "training": QUICK}),
    "fit, kept": (kept, {"out": FOLDER}),
    "fit, resumed": (resumed, {"resume": FOLDER / "fit"}),
    "evaluate": (
        fitting.evaluate,
        {
            "model": SHIFT, "target": SHIFT, "law": LAW, "sizes": [2], "measures": 2, "exact": 1,
            "seed": 0, "progress": False,
        },
    ),
}  # fmt: skip
