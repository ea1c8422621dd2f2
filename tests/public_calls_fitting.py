"""A valid call of every public function, class and method of the chapter `fitting`."""

import torch
from public_calls import FOLDER, MU, NU

import pushforward as pf

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
