"""Does it depend on the measure alone, not on how the measure is written?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..distances import wasserstein
from ..measures import Measure
from ..recovery import BlackBoxError
from .charts import BLUE, GREY, LOG, RED, plot
from .population import Population
from .section import Section, Status
from .subjects import BoxSubject, QuerySubject, Subject, TokenSubject, as_tensor, finite

DRAWS = 3
QUERIES = 4
COARSEST = 2.0**-7
"""The rounding unit of bfloat16, the coarsest that computes."""

ALLOWED = 50
"""How often the response to a change of one rounding unit a change may be: encoders of 24 layers
reach 1.3."""

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


def symmetries(
    subject: Subject,
    population: Population,
    queries: Tensor | None,
    generator: torch.Generator,
    padded: Callable[[Tensor, Tensor], Tensor] | None,
) -> Section:
    """Write contexts in other ways, and see whether outputs change.

    Args:
        subject: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        generator: of all that is random.
        padded: the model on tokens of which some are padding.
    """
    worst: dict[str, tuple[float, float]] = {}
    blunt = 0.0
    for _ in range(DRAWS):
        mu = population.context(generator)
        look = Look.of(subject, mu, queries, generator)
        blunt = max(blunt, look.bluntness)
        for name, deviation in _tests(look, population, generator, padded).items():
            before = worst.get(name, (0.0, math.inf))
            if deviation * before[1] >= before[0] * look.allowed or before[1] == math.inf:
                worst[name] = deviation, look.allowed
    wrong = [name for name, (deviation, allowed) in worst.items() if deviation > allowed]
    verdict = "; ".join(WRONG[name] for name in wrong)
    status: Status = "bad" if wrong else "good"
    if not wrong and blunt > BLUNT:
        status = "noted"
        verdict = (
            f"cannot tell: rounding alone may change outputs by {blunt:.0%} of their spread; give "
            "it float64, or data near 0"
        )
    numbers = {
        name: {"deviation": deviation, "allowed": allowed, "holds": deviation <= allowed}
        for name, (deviation, allowed) in worst.items()
    }
    lines = [
        f"{name}: {'broken' if name in wrong else 'holds'}, outputs change by {deviation:.1e} "
        f"({allowed:.1e} is rounding)"
        for name, (deviation, allowed) in worst.items()
    ]
    if "padding" not in worst:
        lines.append("padding: not tried; give `padded=`, the model on tokens and a mask")
    return Section(
        "symmetries",
        status,
        verdict or "its outputs depend on the measure of the tokens, not on how it is written",
        lines,
        numbers,
        [_picture(worst)],
        generator.initial_seed(),
    )


@dataclass(frozen=True, eq=False)
class Look:
    """A context, what the model makes of it, and how much of a change is rounding.

    Args:
        subject: the model.
        mu: the context.
        queries: where to ask, if that is apart from it.
        out: the outputs.
        allowed: the largest change that counts as none.
        spread: the size of outputs, less what they have in common.
    """

    subject: Subject
    mu: Measure
    queries: Tensor | None
    out: Tensor | Measure
    allowed: float
    spread: float = 0.0

    @property
    def bluntness(self) -> float:
        """What counts as no change, as a share of the spread of outputs."""
        return self.allowed / self.spread if self.spread > 0 else 0.0

    @classmethod
    def of(
        cls, subject: Subject, mu: Measure, queries: Tensor | None, generator: torch.Generator
    ) -> Look:
        """Ask, and ask again with every coordinate changed by a rounding unit.

        A model that computes in a coarser precision than its data does not feel that: the change
        is doubled until it does.
        """
        some = None
        if queries is not None:
            some = queries[torch.randperm(len(queries), generator=generator)[:QUERIES]]
        out = _outputs(subject, mu, some)
        look = cls(subject, mu, some, out, 0.0)
        points = out.atoms if isinstance(out, Measure) else out
        unit = max(torch.finfo(mu.dtype).eps, torch.finfo(points.dtype).eps)
        everyone, jitter, step = torch.arange(mu.n), 0.0, unit
        varies = mu.atoms.amax(0) > mu.atoms.amin(0)  # a model may insist on a constant
        while step <= COARSEST:
            for _ in range(3):
                signs = torch.randint(2, mu.atoms.shape, generator=generator) * 2 - 1
                nudged = mu.moved(mu.atoms * (1 + step * (varies * signs.to(mu.atoms))))
                jitter = max(jitter, look.deviation(nudged, everyone))
            if jitter > 0:
                break
            step *= 8
        unit = step if jitter > 0 else unit
        away = points - points.mean(0) if len(points) > 1 else points
        allowed = ALLOWED * (jitter + unit * float(points.abs().max()))
        return cls(subject, mu, some, out, allowed, float(away.abs().max()))

    def deviation(self, changed: Measure, index: Tensor, base: Measure | None = None) -> float:
        """How far outputs are from what they were.

        Args:
            changed: the context, written in another way.
            index: for its first tokens, which of the old ones they are.
            base: another context to compare with.
        """
        old = self.out if base is None else _outputs(self.subject, base, self.queries)
        new = _outputs(self.subject, changed, self.queries)
        if isinstance(old, Measure) and isinstance(new, Measure):
            return float(wasserstein(old, new))
        assert isinstance(old, Tensor) and isinstance(new, Tensor)
        if self.subject.pooled or self.subject.separate:
            return float((new - old).abs().max())
        return float((new[: len(index)] - old[index.to(old.device)]).abs().max())


def _outputs(subject: Subject, mu: Measure, queries: Tensor | None) -> Tensor | Measure:
    if queries is not None:
        return subject.answer(mu, queries)
    return subject.push(mu) if isinstance(subject, BoxSubject) else subject.tokens(mu)


def _tests(
    look: Look,
    population: Population,
    generator: torch.Generator,
    padded: Callable[[Tensor, Tensor], Tensor] | None,
) -> dict[str, float]:
    """How far outputs move, for every way to write a context that applies."""
    subject, mu, n = look.subject, look.mu, look.mu.n
    order = torch.randperm(n, generator=generator)
    everyone, found = torch.arange(n), {}
    found["permutation"] = look.deviation(chosen(mu, order), order)
    found["duplication"] = max(
        look.deviation(chosen(mu, everyone.repeat(k)), everyone.repeat(k)) for k in (2, 3)
    )
    twice = torch.cat([everyone[:1], everyone])
    if subject.weighted:
        heavy = Measure(mu.atoms, weights=_doubled(mu), times=mu.times)
        found["weights"] = look.deviation(chosen(mu, twice), twice, base=heavy)
    elif not subject.pooled and not subject.separate:
        out = subject.tokens(chosen(mu, twice))
        found["equal tokens"] = float((out[0] - out[1]).abs().max())
    padding = _padding(look, population, generator, padded)
    if padding is not None:
        found["padding"] = padding
    if isinstance(subject, TokenSubject) and subject.batched:
        try:
            found["neighbours"] = _neighbours(subject, mu, population, generator)
        except BlackBoxError:
            pass  # it takes one set at a time
    if isinstance(subject, QuerySubject) and look.queries is not None:
        apart = subject.together(mu, look.queries) - subject.alone(mu, look.queries)
        found["queries"] = float(apart.abs().max())
    return found


def _padding(
    look: Look,
    population: Population,
    generator: torch.Generator,
    padded: Callable[[Tensor, Tensor], Tensor] | None,
) -> float | None:
    """The change that junk tokens make which do not count; None if nobody can say so."""
    subject, mu = look.subject, look.mu
    junk = population.points(3, generator)
    atoms = torch.cat([mu.atoms, junk])
    real = torch.arange(len(atoms), device=atoms.device) < mu.n
    if subject.weighted:
        times = None
        if mu.times is not None:
            times = torch.cat([mu.times, mu.times[:1].expand(3)])
        changed = Measure(atoms, weights=real.to(atoms), times=times)
        return look.deviation(changed, torch.arange(mu.n))
    if padded is None and isinstance(subject, TokenSubject):
        padded = subject.padded
    if padded is None or subject.separate or isinstance(look.out, Measure):
        return None
    try:
        out = as_tensor(padded(atoms.clone(), real))
    except BlackBoxError:
        raise
    except Exception as error:
        raise BlackBoxError(f"with padding it raised {type(error).__name__}: {error}") from error
    rows = 1 if subject.pooled else len(atoms)
    if out.numel() % rows or out.reshape(rows, -1).shape[1] != look.out.shape[1]:
        raise BlackBoxError(
            f"`padded` returned shape {tuple(out.shape)} for {len(atoms)} tokens, and without "
            f"padding it is {tuple(look.out.shape)}"
        )
    return float((finite(out.reshape(rows, -1))[: mu.n] - look.out).abs().max())


def _neighbours(
    subject: TokenSubject, mu: Measure, population: Population, generator: torch.Generator
) -> float:
    """The change that another set in the batch makes."""
    other = population.draw(mu.n, generator).atoms
    alone = subject.raw(mu.atoms)
    both = subject.batch(torch.stack([mu.atoms, other]))
    return float((both[0] - alone).abs().max())


def chosen(mu: Measure, index: Tensor) -> Measure:
    """Tokens in another order, some perhaps twice, all of equal weight."""
    index = index.to(mu.device)
    return Measure(mu.atoms[index], times=None if mu.times is None else mu.times[index])


def _doubled(mu: Measure) -> Tensor:
    weights = torch.ones_like(mu.atoms[:, 0])
    weights[0] = 2
    return weights


def _picture(worst: dict[str, tuple[float, float]]) -> dict:
    names = list(worst)
    ratios = [max(d / a, 1e-6) if a > 0 else 1e-6 for d, a in worst.values()]
    bars = {
        "type": "bar", "orientation": "h", "x": ratios, "y": names,
        "marker": {"color": [RED if r > 1 else BLUE for r in ratios]}, "showlegend": False,
        "hovertemplate": "%{y}: %{x:.2g} of what rounding may do<extra></extra>",
    }  # fmt: skip
    line = {
        "type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"dash": "dash", "color": GREY},
    }  # fmt: skip
    return plot(
        "Change of outputs by another way to write a context", "change, 1 is rounding", "",
        [bars], xaxis=LOG, shapes=[line],
    )  # fmt: skip
