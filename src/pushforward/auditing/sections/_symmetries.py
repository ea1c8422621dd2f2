"""Do outputs depend on the measure of the tokens alone, and not on how it is written?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...measures import Measure
from ...pictures import Figure
from ...representation import (
    BlackBoxError,
    CallRejected,
    QueryBox,
    TokenBox,
    call_model,
    rewritings,
)
from ...representation.boxes import as_tensor, finite
from .._case import Baseline, Case, largest_change, ordered, selected
from .._model import Padded
from .._section import Section, Status
from ._charts import rewriting_figure

CONTEXTS = 3
"""The number of contexts on which every symmetry is tested."""

PADDING = 3
"""The number of tokens that are added as padding."""

INCONCLUSIVE = 0.05
"""If rounding may exceed this share of the outputs' spread, the test is inconclusive."""

Tests = dict[str, Callable[[], float]]
"""Symmetries by name, each with a function that returns how far outputs move."""

BROKEN = {
    "permutation": "it depends on the order of the tokens",
    "duplication": "repeating all tokens changes its outputs",
    "weights": "a token of weight two and the same token twice give different outputs",
    "equal tokens": "equal tokens have different outputs",
    "padding": "padding changes its outputs",
    "neighbours": "the sets of a batch change each other's outputs",
    "queries": "the queries of one call change each other's outputs",
}
"""Every symmetry, in the order in which it is tested, and what it means if it is broken."""


@dataclass(frozen=True)
class Change:
    """How far outputs moved in the test of a symmetry.

    Args:
        size: how far.
        tolerance: how far they may move by rounding.
    """

    size: float
    tolerance: float

    @property
    def broken(self) -> bool:
        """Whether the symmetry does not hold."""
        return self.size > self.tolerance


def symmetries(case: Case) -> Section:
    """Write contexts in other ways, and measure how far outputs move."""
    worst: dict[str, Change] = {}
    failed: dict[str, str] = {}
    rounding, constant, scale = 0.0, True, 0.0
    for _ in range(CONTEXTS):
        mu = case.context()
        baseline = case.baseline(mu)
        rounding = max(rounding, baseline.relative_tolerance)
        constant = constant and baseline.spread == 0
        scale = max(scale, baseline.spread)
        for name, test in _tests(case, baseline, mu).items():
            try:
                change = Change(test(), baseline.tolerance)
            except BlackBoxError as error:
                failed[name] = str(error)
                continue
            before = worst.get(name)
            if before is None or change.size * before.tolerance >= before.size * change.tolerance:
                worst[name] = change
        case.tick()
    status, verdict = _verdict(worst, failed, rounding, constant)
    numbers = {
        name: {"deviation": c.size, "tolerance": c.tolerance, "holds": not c.broken}
        for name, c in worst.items()
    }
    skipped: dict[str, str] = {}
    if case.padded is None and not case.box.weighted:
        skipped["padding"] = "it needs `pf.auditing.Model(model, padded=...)`"
    return Section(
        "symmetries", status, verdict, _lines(worst, failed, rounding), numbers,
        [_picture(worst, skipped, scale)], tried=tuple(worst), not_tried=skipped,
    )  # fmt: skip


def _verdict(
    worst: dict[str, Change], failed: dict[str, str], rounding: float, constant: bool
) -> tuple[Status, str]:
    broken = [name for name, change in worst.items() if change.broken]
    if broken:
        return "bad", "; ".join(BROKEN[name] for name in broken)
    if failed:
        reasons = (f"{name} could not be tested: {why}" for name, why in failed.items())
        return "failed", "; ".join(reasons)
    if constant:
        return "noted", "its outputs are all the same, whatever the tokens"
    if rounding > INCONCLUSIVE:
        return "noted", (
            f"inconclusive: rounding alone may change outputs by {rounding:.0%} of their spread; "
            "use float64, or data closer to 0"
        )
    return "good", "outputs do not depend on the order or the repetition of tokens"


def _lines(worst: dict[str, Change], failed: dict[str, str], rounding: float) -> list[str]:
    holds = "inconclusive" if rounding > INCONCLUSIVE else "holds"
    lines = [
        f"{name}: {'broken' if c.broken else holds}, outputs change by {c.size:.1e} "
        f"(tolerance {c.tolerance:.1e})"
        for name, c in worst.items()
    ]
    return lines + [f"{name}: failed, {why}" for name, why in failed.items()]


def rewriting_tests(case: Case, baseline: Baseline, mu: Measure) -> Tests:
    """How far outputs move when tokens are permuted, and when all tokens are repeated."""
    written = rewritings(mu, case.generator)
    permuted, *repeated = (written[name] for name in ("permuting", "splitting", "repeating"))
    return {
        "permutation": lambda: baseline.change(*permuted),
        "duplication": lambda: max(baseline.change(*again) for again in repeated),
    }


def _tests(case: Case, baseline: Baseline, mu: Measure) -> Tests:
    """All symmetries that a model of its kind should have."""
    box, padded = case.box, case.padded
    tests = rewriting_tests(case, baseline, mu)
    if box.weighted:
        tests["weights"] = lambda: _doubled_weight(baseline, mu)
        tests["padding"] = lambda: _weight_zero(case, baseline, mu)
    elif padded is not None:
        tests["padding"] = lambda: _masked(case, baseline, mu, padded)
    if isinstance(box, TokenBox):
        tests |= _token_tests(case, box, mu)
    x = baseline.queries
    if isinstance(box, QueryBox) and x is not None:
        tests["queries"] = lambda: largest_change(box.outputs(mu, x), box.alone(mu, x))
    # A fixed order: tests draw random numbers when they run.
    return {name: tests[name] for name in BROKEN if name in tests}


def _token_tests(case: Case, box: TokenBox, mu: Measure) -> Tests:
    """Symmetries that only a model of tokens can break."""
    tests: Tests = {}
    if not box.pooled:
        first_twice = torch.cat([mu.atoms[:1], mu.atoms])
        tests["equal tokens"] = lambda: largest_change(*box.call(first_twice)[:2])
    if box.set_axis and _takes_two_sets(box, mu.atoms):
        other = lambda: case.population.draw(mu.n, case.generator).atoms
        tests["neighbours"] = lambda: largest_change(
            box.call_batch(torch.stack([mu.atoms, other()]))[0], box.call(mu.atoms)
        )
    return tests


def _takes_two_sets(box: TokenBox, atoms: Tensor) -> bool:
    """Whether it returns something for two sets at once, even if that is wrong."""
    try:
        box.call_batch(torch.stack([atoms, atoms]))
    except CallRejected:
        return False
    except BlackBoxError:
        pass  # it takes them, and returns NaN for example
    return True


def _doubled_weight(baseline: Baseline, mu: Measure) -> float:
    """The change from a token of weight two to the same token twice."""
    weights = torch.ones_like(mu.atoms[:, 0])
    weights[0] = 2
    heavy = Measure(mu.atoms, weights=weights, times=mu.times)
    twice = torch.cat([torch.arange(1), torch.arange(mu.n)])
    return baseline.change(selected(mu, twice), twice, base=heavy)


def _with_padding(case: Case, mu: Measure) -> tuple[Tensor, Tensor]:
    """The tokens and some more that are padding, and which of them are real."""
    atoms = torch.cat([mu.atoms, case.population.points(PADDING, case.generator)])
    return atoms, torch.arange(len(atoms), device=atoms.device) < mu.n


def _weight_zero(case: Case, baseline: Baseline, mu: Measure) -> float:
    """The change by additional tokens of weight zero."""
    atoms, real = _with_padding(case, mu)
    times = None if mu.times is None else torch.cat([mu.times, mu.times[:1].expand(PADDING)])
    changed = Measure(atoms, weights=real.to(atoms), times=times)
    return baseline.change(changed, torch.arange(mu.n))


def _masked(case: Case, baseline: Baseline, mu: Measure, padded: Padded) -> float:
    """The change by additional tokens that a mask declares to be padding."""
    (atoms, real), before = _with_padding(case, mu), ordered(baseline.out)
    queries = () if baseline.queries is None else (baseline.queries,)
    out = as_tensor(call_model(padded, atoms.clone(), real, *queries))
    rows = len(before) if case.box.pooled or queries else len(atoms)
    if out.numel() != rows * before.shape[1]:
        raise BlackBoxError(
            f"`padded` returned shape {tuple(out.shape)} for {len(atoms)} tokens, and without "
            f"padding it is {tuple(before.shape)}"
        )
    return largest_change(finite(out.reshape(rows, -1))[: len(before)], before)


def _picture(worst: dict[str, Change], skipped: dict[str, str], scale: float) -> Figure:
    """The changes as shares of the size of the outputs."""
    share = lambda x: x / scale if scale > 0 else x
    changes: dict[str, float | None] = {name: share(c.size) for name, c in worst.items()}
    tolerance = share(max(c.tolerance for c in worst.values()))
    broken = [name for name, c in worst.items() if c.broken]
    return rewriting_figure({**changes, **dict.fromkeys(skipped)}, tolerance, broken)
