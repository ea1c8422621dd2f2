"""Do outputs depend on the measure of the tokens alone, and not on how it is written?

A model of sequences is asked how much the order matters instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

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
from .._case import Baseline, Case, Reading, largest_change, ordered, selected
from .._model import Padded
from .._section import Section, count
from ..findings import Finding, NotTried, found, number, share, sort_findings
from ._charts import rewriting_figure
from ._size import CLASS_TOKEN

CONTEXTS = 3
"""The number of contexts on which every symmetry is tested."""

PADDING = 3
"""The number of tokens that are added as padding."""

Tests = dict[str, Callable[[], float]]
"""Symmetries by name, each with a function that returns how far outputs move."""

SAID = {
    "permutation": "Shuffling the tokens changes the outputs by {}",
    "duplication": "Writing all tokens two or three times changes the outputs by {}",
    "weights": "Giving a token weight two instead of writing it twice changes the outputs by {}",
    "equal tokens": "The outputs of two equal tokens differ by {}",
    "padding": "Adding tokens that are marked as padding changes the outputs by {}",
    "neighbours": "Other sets in the same batch change the outputs by {}",
    "queries": "Asking queries together instead of alone changes the outputs by {}",
    "class token": "Shuffling the other tokens changes the output of the class token by {}",
}
"""Every symmetry, in the order in which it is tested, and what is seen of it."""

OF_SETS = ("permutation", "duplication", "equal tokens")
"""Symmetries that a model of sequences is expected to break."""


@dataclass(frozen=True)
class Change:
    """How far outputs moved in the test of a symmetry.

    Args:
        size: how far.
        tolerance: how far they may move.
        share: how far they moved, as a share of their size.
        allowed: how far they may move, as a share of their size.
    """

    size: float
    tolerance: float
    share: float
    allowed: float

    @property
    def broken(self) -> bool:
        """Whether the symmetry does not hold."""
        return self.size > self.tolerance


@dataclass(frozen=True)
class Seen:
    """The tests of all symmetries.

    Args:
        worst: the largest change in each test.
        failed: why a test could not be made.
        by_rounding: how far rounding may move outputs, as a share of their size.
        inconclusive: whether that is too much to tell anything.
        constant: whether all outputs are the same.
    """

    worst: dict[str, Change]
    failed: dict[str, str]
    by_rounding: float
    inconclusive: bool
    constant: bool


def symmetries(case: Case) -> Section:
    """Write contexts in other ways, and measure how far outputs move."""
    seen = _measured(case)
    findings = [f for name, c in seen.worst.items() if (f := _finding(case, seen, name, c))]
    findings += [found("symmetries", name, "unable", f"The test of this failed: {why}.")
                 for name, why in seen.failed.items()]  # fmt: skip
    if seen.constant:
        said = "All outputs are the same, whatever the tokens."
        findings.append(found("symmetries", "varied outputs", "measured", said, amiss=True))
    if case.sequence:
        findings += _of_sequences(case, seen)
    findings += _special(case.reading)
    skipped = _skipped(case, seen)
    left_out = {check.name for check in skipped} | set(OF_SETS if case.sequence else ())
    tried = tuple(name for name in seen.worst if name not in left_out)
    numbers = {
        name: {
            "deviation": c.size, "tolerance": c.tolerance, "share": c.share, "allowed": c.allowed,
            "holds": not c.broken,
        }
        for name, c in seen.worst.items()
    }  # fmt: skip
    return Section(
        "symmetries", _said(findings, seen, case.sequence), findings, _lines(case, seen), numbers,
        [_picture(seen.worst, skipped)], tried=tried, not_tried=skipped,
    )  # fmt: skip


def _measured(case: Case) -> Seen:
    """The largest change in every test, over some contexts."""
    worst: dict[str, Change] = {}
    failed: dict[str, str] = {}
    by_rounding, inconclusive, outputs = 0.0, False, []
    for _ in range(CONTEXTS):
        mu = case.context()
        baseline = case.baseline(mu)
        if baseline.spread > 0:
            by_rounding = max(by_rounding, baseline.by_rounding / baseline.spread)
        inconclusive = inconclusive or baseline.inconclusive
        outputs.append(baseline.out.atoms if isinstance(baseline.out, Measure) else baseline.out)
        for name, test in _tests(case, baseline, mu).items():
            try:
                size = test()
            except BlackBoxError as error:
                failed[name] = str(error)
                continue
            allowed = baseline.tolerance
            change = Change(size, allowed, baseline.share(size), baseline.share(allowed))
            before = worst.get(name)
            if before is None or change.size * before.tolerance >= before.size * change.tolerance:
                worst[name] = change
        case.tick()
    constant = bool((torch.cat(outputs) == outputs[0][0]).all())
    return Seen(worst, failed, by_rounding, inconclusive, constant)


def _finding(case: Case, seen: Seen, name: str, change: Change) -> Finding | None:
    """What one test has shown; None if it is inconclusive or one of sets, and this is none."""
    if case.sequence and name in OF_SETS:
        return None
    said = SAID[name].format(_amount(change.share, up=not change.broken))
    if change.broken:
        return found("symmetries", name, "refuted", f"{said}.", effect=change.share, figure=0)
    if seen.inconclusive:
        return None
    if change.share > seen.by_rounding:
        said += f", less than the tolerance of {100 * case.tolerated:g} % that was given"
    elif change.size > 0:
        said += ", no more than rounding"
    return found("symmetries", name, "open", f"{said}.", effect=change.share, figure=0)


def _amount(part: float, up: bool = False) -> str:
    """A change of outputs in words."""
    if part == 0:
        return "exactly 0"
    return f"{share(part, up)} of their size" if math.isfinite(part) else "more than their size"


def _of_sequences(case: Case, seen: Seen) -> list[Finding]:
    """What can be said of a model of sequences: does the order matter, does it look ahead?"""
    findings = []
    order = seen.worst.get("permutation")
    if order is not None:
        said = (
            "It reads the positions of its tokens: shuffling them changes the outputs by "
            f"{_amount(order.share)}"
        )
        findings.append(
            found("symmetries", "order", "measured", f"{said}.", amiss=case.reading.seen,
                  effect=order.share, figure=0)
        )  # fmt: skip
    later = _later_tokens(case)
    if later is not None:
        said = f"Changing later tokens changes earlier outputs by {_amount(later.share)}."
        findings.append(
            found("symmetries", "later tokens", "measured", said, amiss=not later.broken)
        )
    broken = [n for n in OF_SETS[1:] if n in seen.worst and seen.worst[n].broken]
    if broken:
        said = " ".join(f"{SAID[n].format(_amount(seen.worst[n].share))}." for n in broken)
        findings.append(found("symmetries", "set checks", "measured", said, figure=0))
    return findings


def _special(how: Reading) -> list[Finding]:
    """What is said of a class token."""
    if how.special is None:
        return []
    place, index = ("first", 0) if how.special == 0 else ("last", -1)
    if not how.seen or how.mode == "sequence":
        said = f"The {place} token is the class token, as was said."
        return [found("symmetries", "special token", "measured", said)]
    said = (
        f"The {place} token has a role of its own: if another stands there, the outputs change by "
        f"{_amount(how.effect)}."
    )
    seen = found("symmetries", "special token", "measured", said, amiss=True, effect=how.effect)
    return [replace(seen, change=seen.change.replace("class_token=0", f"class_token={index}"))]


def _later_tokens(case: Case) -> Change | None:
    """How far the outputs of earlier tokens move if later tokens are replaced by others."""
    box = case.box
    if not isinstance(box, TokenBox) or box.pooled:
        return None
    mu, other = case.context(), case.context()
    half = mu.n // 2
    if other.n < mu.n:
        return None
    baseline = case.baseline(mu)
    changed = mu.moved(torch.cat([mu.atoms[:half], other.atoms[half : mu.n]]))
    size = baseline.change(changed, torch.arange(half))
    allowed = baseline.tolerance
    return Change(size, allowed, baseline.share(size), baseline.share(allowed))


def _said(findings: list[Finding], seen: Seen, sequence: bool) -> str:
    """The section in a sentence or two."""
    urgent = [f.said for f in sort_findings(findings) if f.notable]
    if urgent:
        return " ".join(urgent[:2])
    if sequence:
        return "It reads the positions of its tokens, as a model of sequences does."
    if seen.inconclusive:
        return (
            f"The tests are inconclusive: rounding alone may change the outputs by "
            f"{share(seen.by_rounding, up=True)} of their size."
        )
    ways = count(len(seen.worst), "way")
    return f"None of {ways} to write the same set differently changed the outputs."


def _skipped(case: Case, seen: Seen) -> list[NotTried]:
    """Checks that were not made, with the reason and what would make them."""
    box, skipped = case.box, []
    if seen.inconclusive:
        why = (
            f"Inconclusive: rounding alone may change the outputs by "
            f"{share(seen.by_rounding, up=True)} of their size."
        )
        how = "Use float64, or data closer to 0."
        skipped = [NotTried(name, why, how) for name, c in seen.worst.items() if not c.broken]
    if not box.weighted:
        if case.padded is None:
            skipped.append(NotTried(
                "padding", "The model has no argument that is understood as a mask.",
                "Give `pf.auditing.Model(model, padded=...)`, a function of the tokens and of "
                "which of them are real.",
            ))  # fmt: skip
        skipped.append(NotTried(
            "weights", "The model takes lists of tokens, so a token of weight two can only be "
            "written as the same token twice.",
            "Weights are tried for a map of measures, `f(mu)`.",
        ))  # fmt: skip
    if case.class_token:
        skipped.append(NotTried("duplication", CLASS_TOKEN))
    if isinstance(box, TokenBox) and "neighbours" not in {*seen.worst, *seen.failed}:
        why, how = "The model was called with one set at a time.", ""
        if not box.set_axis:
            how = "If it takes several, give data of shape (b, n, d), or say `batched=True`."
        skipped.append(NotTried("neighbours", why, how))
    return skipped


def _lines(case: Case, seen: Seen) -> list[str]:
    def word(name: str, c: Change) -> str:
        if case.sequence and name in OF_SETS:
            return "measured"
        return "refuted" if c.broken else "inconclusive" if seen.inconclusive else "not refuted"

    lines = [
        f"{name}: {word(name, c)}, a change of {number(c.size, up=True)}, and "
        f"{number(c.tolerance, up=True)} counts as none"
        for name, c in seen.worst.items()
    ]
    return lines + [f"{name}: could not be tried, {why}" for name, why in seen.failed.items()]


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
    if case.class_token:
        del tests["duplication"]
    # A fixed order: tests draw random numbers when they run.
    return {name: tests[name] for name in SAID if name in tests}


def _token_tests(case: Case, box: TokenBox, mu: Measure) -> Tests:
    """Symmetries that only a model of tokens can break."""
    tests: Tests = {}
    if not box.pooled:
        first_twice = torch.cat([mu.atoms[:1], mu.atoms])
        tests["equal tokens"] = lambda: largest_change(*box.call(first_twice)[:2])
        if case.class_token:
            tests["class token"] = lambda: _of_class_token(case, box, mu)
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


def _of_class_token(case: Case, box: TokenBox, mu: Measure) -> float:
    """The change of the output of the class token if the other tokens are shuffled."""
    order = torch.randperm(mu.n, generator=case.generator).to(mu.device)
    given = [atoms[None] if box.set_axis else atoms for atoms in (mu.atoms, mu.atoms[order])]
    return largest_change(*(box.model.own_output(tokens) for tokens in given))


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


def _picture(worst: dict[str, Change], skipped: list[NotTried]) -> Figure:
    """The changes as shares of the size of the outputs."""
    changes: dict[str, float | None] = {name: c.share for name, c in worst.items()}
    untried = [check.name for check in skipped if check.name not in changes]
    allowed = max(c.allowed for c in worst.values())
    broken = [name for name, c in worst.items() if c.broken]
    return rewriting_figure({**changes, **dict.fromkeys(untried)}, allowed, broken)
