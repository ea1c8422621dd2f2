"""Does it depend on the measure alone, not on how the measure is written?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...measures import Measure
from ...pictures import BLUE, GREY, RED, log, plot
from ...representation import BlackBoxError
from .._case import Case, Padded
from .._look import Look, as_rows, chosen
from .._section import Section, Status
from .._subjects import QuerySubject, Refused, TokenSubject, as_tensor, finite, tried

DRAWS = 3
BLUNT = 0.05
"""Of the spread of outputs; where rounding may be more than this, nothing can be said."""

WRONG = {
    "permutation": "it depends on the order of the tokens",
    "duplication": "repeating the whole context changes its outputs",
    "weights": "a token of weight two is not a token twice",
    "equal tokens": "equal tokens get unequal outputs",
    "padding": "padding changes its outputs",
    "neighbours": "sets beside each other in a batch change each other's outputs",
    "queries": "queries see each other",
}


def symmetries(case: Case) -> Section:
    """Write contexts in other ways, and see whether outputs change."""
    worst: dict[str, tuple[float, float]] = {}
    failed: dict[str, str] = {}
    blunt, constant = 0.0, True
    for _ in range(DRAWS):
        mu = case.context()
        look = case.look(mu)
        blunt, constant = max(blunt, look.bluntness), constant and look.spread == 0
        for name, test in _tests(case, look, mu).items():
            try:
                deviation = test()
            except BlackBoxError as error:
                failed[name] = str(error)
                continue
            before = worst.get(name)
            if before is None or deviation * before[1] >= before[0] * look.allowed:
                worst[name] = deviation, look.allowed
        case.tick()
    wrong = [name for name, (deviation, allowed) in worst.items() if deviation > allowed]
    status, verdict = _verdict(wrong, failed, blunt, constant)
    numbers = {
        name: {"deviation": deviation, "tolerance": allowed, "holds": deviation <= allowed}
        for name, (deviation, allowed) in worst.items()
    }
    holds = "not seen" if blunt > BLUNT else "holds"
    lines = [
        f"{name}: {'broken' if name in wrong else holds}, outputs change by {deviation:.1e} "
        f"(tolerance {allowed:.1e})"
        for name, (deviation, allowed) in worst.items()
    ]
    lines += [f"{name}: failed, {why}" for name, why in failed.items()]
    if "padding" not in worst and "padding" not in failed:
        lines.append("padding: not tried; give `padded=`, the model on tokens and a mask")
    return Section("symmetries", status, verdict, lines, numbers, [_picture(worst)])


def _verdict(
    wrong: list[str], failed: dict[str, str], blunt: float, constant: bool
) -> tuple[Status, str]:
    if wrong:
        return "bad", "; ".join(WRONG[name] for name in wrong)
    if failed:
        return "failed", "; ".join(f"{name} could not be tried: {failed[name]}" for name in failed)
    if constant:
        return "noted", "its outputs are all the same, whatever the tokens"
    if blunt > BLUNT:
        return "noted", (
            f"cannot tell: rounding alone may change outputs by {blunt:.0%} of their spread; give "
            "it float64, or data near 0"
        )
    return "good", "its outputs depend on the measure of the tokens, not on how it is written"


def rewritings(case: Case, look: Look, mu: Measure) -> dict[str, Callable[[], float]]:
    """How far outputs move when tokens are permuted, and when all are repeated."""
    order = torch.randperm(mu.n, generator=case.generator)
    many = [torch.arange(mu.n).repeat(k) for k in (2, 3)]
    return {
        "permutation": lambda: look.deviation(chosen(mu, order), order),
        "duplication": lambda: max(look.deviation(chosen(mu, i), i) for i in many),
    }


def _tests(case: Case, look: Look, mu: Measure) -> dict[str, Callable[[], float]]:
    """Every way to write a context that applies, and how far outputs move by it."""
    subject = case.subject
    twice = torch.cat([torch.arange(1), torch.arange(mu.n)])
    found = rewritings(case, look, mu)
    if subject.weighted:
        heavy = Measure(mu.atoms, weights=_doubled(mu), times=mu.times)
        found["weights"] = lambda: look.deviation(chosen(mu, twice), twice, base=heavy)
        found["padding"] = lambda: _weightless(case, look, mu)
    elif isinstance(subject, TokenSubject) and not subject.pooled:
        found["equal tokens"] = lambda: _between(*subject.outputs(chosen(mu, twice))[:2])
    padded = case.padded
    if padded is None and isinstance(subject, TokenSubject) and subject.masks:
        padded = subject.padded
    if padded is not None and not subject.weighted:
        found["padding"] = lambda: _padding(case, look, mu, padded)
    if isinstance(subject, TokenSubject) and subject.batched and _takes_two(subject, mu):
        found["neighbours"] = lambda: _neighbours(case, subject, mu)
    if isinstance(subject, QuerySubject) and look.queries is not None:
        asked = look.queries
        found["queries"] = lambda: _between(subject.together(mu, asked), subject.alone(mu, asked))
    return found


def _between(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _doubled(mu: Measure) -> Tensor:
    """The first token twice as heavy as the others."""
    weights = torch.ones_like(mu.atoms[:, 0])
    weights[0] = 2
    return weights


def _junk(case: Case, mu: Measure) -> tuple[Tensor, Tensor]:
    """The tokens and three more that do not count, and which are real."""
    atoms = torch.cat([mu.atoms, case.population.points(3, case.generator)])
    return atoms, torch.arange(len(atoms), device=atoms.device) < mu.n


def _weightless(case: Case, look: Look, mu: Measure) -> float:
    """The change that tokens without weight make."""
    atoms, real = _junk(case, mu)
    times = None if mu.times is None else torch.cat([mu.times, mu.times[:1].expand(3)])
    changed = Measure(atoms, weights=real.to(atoms), times=times)
    return look.deviation(changed, torch.arange(mu.n))


def _padding(case: Case, look: Look, mu: Measure, padded: Padded) -> float:
    """The change that tokens make which a mask says do not count."""
    (atoms, real), before = _junk(case, mu), as_rows(look.out)
    asked = () if look.queries is None else (look.queries,)
    out = as_tensor(tried(padded, atoms.clone(), real, *asked))
    rows = len(before) if case.subject.pooled or asked else len(atoms)
    if out.numel() != rows * before.shape[1]:
        raise BlackBoxError(
            f"`padded` returned shape {tuple(out.shape)} for {len(atoms)} tokens, and without "
            f"padding it is {tuple(before.shape)}"
        )
    return _between(finite(out.reshape(rows, -1))[: len(before)], before)


def _takes_two(subject: TokenSubject, mu: Measure) -> bool:
    """Whether the model takes two sets at all."""
    try:
        subject.batch(torch.stack([mu.atoms, mu.atoms]))
    except Refused:
        return False
    except BlackBoxError:
        pass  # it takes them, and makes something bad of them
    return True


def _neighbours(case: Case, subject: TokenSubject, mu: Measure) -> float:
    """The change that another set in the batch makes."""
    other = case.population.draw(mu.n, case.generator).atoms
    return _between(subject.batch(torch.stack([mu.atoms, other]))[0], subject.raw(mu.atoms))


def _picture(worst: dict[str, tuple[float, float]]) -> dict:
    names = list(worst)
    share = lambda d, a: d / a if a > 0 else 1e6 * (d > 0)  # outputs of zeros have no tolerance
    ratios = [min(max(share(d, a), 1e-6), 1e12) for d, a in worst.values()]
    points = {
        "type": "scatter", "mode": "markers", "x": ratios, "y": names, "showlegend": False,
        "marker": {"color": [RED if r > 1 else BLUE for r in ratios], "size": 11},
        "hovertemplate": "%{y}: %{x:.2g} of the tolerance<extra></extra>",
    }  # fmt: skip
    line = {
        "type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"dash": "dash", "color": GREY},
    }  # fmt: skip
    return plot(
        "Change of outputs by another way to write a context", "change / tolerance", "",
        [points], xaxis=log(ratios, [1.0]), shapes=[line],
        caption="Right of the dashed line outputs change by more than rounding can: the symmetry "
        "is broken.",
    )  # fmt: skip
