"""The supremum of Corollary 1, attacked: gradient ascent on small measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..._tools.checks import (
    check_flags,
    check_kind,
    check_listed_sizes,
    check_number,
    check_seed,
    check_shape,
    check_sizes,
    holds,
)
from ..._tools.output import bar, ticker
from ..._tools.precision import wide
from ...distances import wasserstein
from ...maps import InContextMap
from ...measures import Measure, MeasureMap, check_measures, listed
from ..problems import LARGEST_LOG, Box, Law, Simulation, as_law, centred, pushed
from ._evaluate import held_out_seed, plain

ATOM_RATE, LOG_RATE = 0.008, 0.02
"""The rates of Adam: of atoms, as a share of the radius, and of log-weights."""

PAIRS = 1 << 20
"""Pairs of atoms of the measures that climb at once; a flow keeps many numbers for each."""

TYPICAL, DRAWS, BATCH = 64, 256, 16
"""Atoms and number of the measures whose mean displacement is the unit of errors, and how many
are drawn at once: laws may choose something for a batch, such as equal weights."""

FIRST = 500_000
"""The number of the first seed of attacks; those of evaluations are smaller."""

Errors = Callable[[Measure], Tensor]
"""The error of each measure of a batch."""


@dataclass(frozen=True)
class Attack:
    r"""How hard an attack searches: gradient ascent on atoms and log-weights by Adam.

    Every start moves on its own through the box $[-r,r]^d$, with log-weights at most 12 from the
    middle of their range. Half of the starts come from the law, half from `Box(dim, radius)`. The
    worst measure of a size is a start for the next larger one, too.

    Args:
        sizes: numbers of atoms.
        starts: how many measures of each size climb, for each seed.
        steps: steps of each.
        seeds: how often new starts are drawn; the worst of all counts.
        radius: $r$.
        doubled: whether to attack a second time with twice the starts and steps. The larger error
            is reported, and by how much it is larger.
    """

    sizes: tuple[int, ...] = (2, 8, 32)
    starts: int = 128
    steps: int = 300
    seeds: int = 3
    radius: float = 2.5
    doubled: bool = False

    def __post_init__(self) -> None:
        check_listed_sizes("sizes", self.sizes)
        check_sizes(starts=self.starts, steps=self.steps, seeds=self.seeds)
        check_number("radius", self.radius)
        check_flags(doubled=self.doubled)
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"`sizes` must increase, got {self.sizes}.")


@dataclass(frozen=True)
class WorstCase:
    """The worst measure that was found with some number of atoms.

    Args:
        n: number of atoms.
        start: the largest error among the starts; the worst measure of the size before, which is
            one as well, does not count here.
        found: the largest error on the way.
        median: the median over the starts of the largest error on their way.
        measure: the measure with the largest error.
        gain: by which share `found` grew when starts and steps were doubled, if they were.
    """

    n: int
    start: float
    found: float
    median: float
    measure: Measure = field(repr=False)
    gain: float | None = None


@dataclass(frozen=True)
class Supremum:
    """What an attack found: lower bounds of the largest error on a box.

    Args:
        rows: the worst case for each number of atoms.
        displacement: the mean displacement under the law, which is the unit of errors.
        effort: how hard the attack searched.
        seed: what starts were drawn with.
    """

    rows: tuple[WorstCase, ...]
    displacement: float
    effort: Attack
    seed: int = 0

    @property
    def worst(self) -> float:
        """The largest error that was found."""
        return max(row.found for row in self.rows)

    @property
    def measures(self) -> list[Measure]:
        """The worst measures, smallest first. They are good `starts=` against another model."""
        return [row.measure for row in self.rows]

    @property
    def settled(self) -> bool | None:
        """Whether doubling starts and steps raised the largest error by less than a fifth."""
        if not self.effort.doubled:
            return None
        return self.worst <= 1.2 * max(
            row.found / (1 + max(row.gain or 0, 0)) for row in self.rows
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as data that JSON can hold, measures too; "inf" is an infinite error."""
        rows = [
            vars(row) | {"measure": {
                "atoms": row.measure.atoms.tolist(), "weights": row.measure.weights.tolist(),
            }}
            for row in self.rows
        ]  # fmt: skip
        return plain(vars(self) | {"rows": rows, "effort": vars(self.effort)})

    def __str__(self) -> str:
        """A table."""
        lines = [f"{'atoms':>9} {'worst start':>11} {'worst found':>11} {'median found':>12}"]
        lines[0] += f" {'doubled':>8}" if self.effort.doubled else ""
        for row in self.rows:
            gain = "" if row.gain is None else f" {row.gain:+8.0%}"
            lines.append(
                f"{row.n:9,} {row.start:11.2%} {row.found:11.2%} {row.median:12.2%}{gain}"
            )
        return "\n".join(lines)


def attack(
    model: nn.Module,
    target: InContextMap | MeasureMap,
    law: Law | Callable,
    effort: Attack | None = None,
    *,
    starts: Sequence[Measure] | Measure | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Supremum:
    r"""Look for the measure on a box with the largest error of a model.

    Corollary 1 bounds a supremum over all measures [A, Cor. 1], and a mean over random ones says
    little about it. Here the atoms and weights of small measures climb the error by its gradient.
    The error is $\int|\Gamma(\mu,x)-G(\mu,x)|\,d\mu$ if model and target are in-context maps, and
    exact $W_1$ of the images otherwise. It is a multiple of the mean displacement of the law, so a
    measure that hardly moves does not count much. What is found is a lower bound of the supremum.

    An error that is not a number, because the model overflowed, counts as infinite.

    Args:
        model: the learned map.
        target: the map that was to be learned, with gradients; those of a `pf.Flow` pass through
            its steps, so one with few steps is faster.
        law: where half of the starts come from, on the box. Its displacement is the unit.
        effort: sizes, starts, steps and the box.
        starts: further measures on the box to start from, such as the `measures` that an attack on
            another model found.
        seed: what starts are drawn with; those of training have other seeds.
        progress: whether to show a progress bar; by default at a terminal.

    Examples:
        >>> shift = pf.Pointwise(lambda x: x + 1)
        >>> class Bump(pf.InContextMap):  # wrong by 1 where the mean is (2, 2), right elsewhere
        ...     def evaluate(self, mu, x):
        ...         far = (mu.mean() - 2).square().sum(-1)[..., None, None]
        ...         return x + 1 + 0.5**0.5 * torch.exp(-4 * far)
        >>> law, effort = pf.fitting.Mixtures(2), pf.fitting.Attack(sizes=(2,), steps=100)
        >>> found = pf.fitting.attack(Bump(), shift, law, effort)
        >>> round(found.worst * found.displacement, 2), found.measures[0].mean().round()
        (1.0, tensor([2., 2.]))
    """
    effort = Attack() if effort is None else effort
    check_kind("effort", effort, Attack, "For example `pf.fitting.Attack(steps=100)`.")
    check_kind("model", model, nn.Module, "For example a `pf.Transformer`.")
    check_seed(seed)
    check_flags(progress=progress)
    like = _numbers(model, target)
    task = Simulation(target, as_law(law)).on(like.device)
    target = task.target
    given = [] if starts is None else _given(starts, task.law.dim, effort, like)
    paired = task.in_context and isinstance(model, InContextMap)
    twice = replace(effort, starts=2 * effort.starts, steps=2 * effort.steps, doubled=False)
    efforts = [effort, twice] if effort.doubled else [effort]
    total = sum(e.steps * len(e.sizes) for e in efforts)
    with bar("attack", total, progress) as tick, torch.autocast(like.device.type, enabled=False):
        still = _errors(lambda mu: mu, target, paired)
        unit = _displacement(still, task.law, like, seed)
        errors = _errors(partial(pushed, model), target, paired)
        step, found = ticker(tick), []
        for one in efforts:
            rows: list[WorstCase] = []
            for n in one.sizes:
                last = [row.measure for row in rows[-1:]]
                x, logs = _starts(task.law, n, one, like, [*given, *last], seed)
                rows.append(_climbed(errors, x, logs, one, unit, len(x) - len(last), step))
            found.append(rows)
    rows = found[0]
    if effort.doubled:
        rows = [_larger(row, again) for row, again in zip(*found, strict=True)]
    return Supremum(tuple(rows), unit, effort, seed)


def _climbed(
    errors: Errors, x: Tensor, logs: Tensor, effort: Attack, unit: float, own: int,
    step: Callable[[], None],
) -> WorstCase:  # fmt: skip
    """The worst measure on the way from starts; what is shown of starts is that of the `own`."""
    n = x.shape[-2]
    size = max(1, PAIRS // n**2)
    parts = zip(x.split(size), logs.split(size), strict=True)
    ways = [
        _climb(errors, x, logs, effort, step if k == 0 else None)
        for k, (x, logs) in enumerate(parts)
    ]
    first, best, x, logs = (torch.cat(t) for t in zip(*ways, strict=True))
    worst = int(best.argmax())
    start, found, median = first[:own].max(), best[worst], best[:own].median()
    return WorstCase(
        n, start.item() / unit, found.item() / unit, median.item() / unit,
        Measure.unchecked(x[worst], logs[worst].log_softmax(-1)),
    )  # fmt: skip


def _climb(
    errors: Errors, x: Tensor, logs: Tensor, effort: Attack, step: Callable[[], None] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Errors of the starts, the largest on the way of each, and where it was."""
    x, logs = x.clone().requires_grad_(), logs.clone().requires_grad_()
    rates = (x, ATOM_RATE * effort.radius), (logs, LOG_RATE)
    # A small `eps`, so that measures climb also where the error is still nearly zero.
    adam = torch.optim.Adam([{"params": [t], "lr": lr} for t, lr in rates], eps=1e-16)
    best, best_x, best_logs = logs.new_full((len(x),), -1.0), x.detach(), logs.detach()
    first = best
    for k in range(effort.steps + 1):
        with torch.enable_grad():
            now = errors(Measure.unchecked(x, logs.log_softmax(-1)))
        # An error that is no number is infinite. Nothing here waits for the device.
        value = torch.where(now.isnan(), torch.inf, now.detach())
        first = value if k == 0 else first
        higher = value > best
        best = torch.where(higher, value, best)
        best_x = torch.where(higher[:, None, None], x.detach(), best_x)
        best_logs = torch.where(higher[:, None], logs.detach(), best_logs)
        if k == effort.steps:
            break
        if now.requires_grad:
            up = torch.autograd.grad(-now.sum(), [x, logs], materialize_grads=True)
            x.grad, logs.grad = (g.nan_to_num(0.0, 0.0, 0.0) for g in up)
            adam.step()
        with torch.no_grad():
            x.clamp_(-effort.radius, effort.radius)
            logs.clamp_(-LARGEST_LOG, LARGEST_LOG)
        if step is not None:
            step()
    return first, best, best_x, best_logs


def _errors(image: MeasureMap, target: InContextMap | MeasureMap, paired: bool) -> Errors:
    """The error of each measure of a batch, with its gradient."""
    truth = target.push if isinstance(target, InContextMap) else target

    def between_points(mu: Measure) -> Tensor:
        here, right = image(mu).atoms, truth(mu).atoms
        for name, y in (("model", here), ("target", right)):
            fix = f"Its errors are multiples of how far points of R^{mu.dim} move."
            check_shape(f"the image under `{name}`", y, mu.atoms.shape, fix)
        gap = here - right
        return mu.integrate(gap.norm(dim=-1).to(mu.log_weights.dtype))

    def between_measures(mu: Measure) -> Tensor:
        here, right = image(mu), [truth(m) for m in mu]
        for name, one in (("model", here), *(("target", m) for m in right)):
            check_measures(**{f"the image under `{name}`": one})
        return torch.stack([_transport(a, b) for a, b in zip(here, right, strict=True)])

    return between_points if paired else between_measures


def _transport(image: Measure, right: Measure) -> Tensor:
    """Exact $W_1$; NaN if a measure is not finite."""
    if not all(holds(m.atoms.isfinite().all() & m.mass.isfinite()) for m in (image, right)):
        return (image.atoms.sum() + right.atoms.sum()) * torch.nan
    return wasserstein(image.normalise(), right.normalise())


def _displacement(still: Errors, law: Law, like: Tensor, seed: int) -> float:
    """How far the target moves a typical measure of the law: the error of the identity."""
    generator = torch.Generator(like.device).manual_seed(held_out_seed(seed, FIRST))
    with torch.no_grad():
        moved = torch.cat([
            still(law.draw(BATCH, TYPICAL, generator).to(like.dtype).normalise())
            for _ in range(DRAWS // BATCH)
        ]).mean().item()  # fmt: skip
    if not 0 < moved < math.inf:
        raise ValueError(
            f"The mean displacement of the target must be positive and finite, got {moved:g}: "
            "errors are multiples of it. Choose a law whose measures the target moves."
        )
    return moved


def _starts(
    law: Law, n: int, effort: Attack, like: Tensor, given: list[Measure], seed: int
) -> tuple[Tensor, Tensor]:
    """Atoms and log-weights of all starts of a size."""
    batches, half = [], effort.starts // 2
    for k in range(effort.seeds):
        generator = torch.Generator(like.device).manual_seed(held_out_seed(seed, FIRST + 1 + k))
        counts = [min(BATCH, half - done) for done in range(0, half, BATCH)]
        batches += [law.draw(count, n, generator) for count in counts]
        batches.append(Box(law.dim, effort.radius).draw(effort.starts - half, n, generator))
    for mu in given:
        if mu.n <= n:  # the same measure, its first atom split
            batches.append(Measure.stack([mu.split(n - mu.n + 1, atom=0)]))
    x = torch.cat([mu.atoms.to(like.dtype) for mu in batches])
    logs = torch.cat([centred(mu.log_weights) for mu in batches]).to(wide(like.dtype))
    reach = x.abs().max().item()
    if reach > effort.radius * (1 + 1e-6):
        raise ValueError(
            f"`law` must draw points of the box of radius {effort.radius:g}, on which the attack "
            f"searches, got a coordinate of size {reach:g}. Give `Attack(radius=...)`."
        )
    return x, logs


def _given(
    starts: Sequence[Measure] | Measure, dim: int, effort: Attack, like: Tensor
) -> list[Measure]:
    """Starts that a user gives, if they are on the box."""
    alone = isinstance(starts, Measure) and not starts.batch_shape
    members: list[Any] = [starts] if alone else listed("starts", starts)
    parts = []
    for mu in members:
        check_kind("starts", mu, Measure, "Make them with `pf.Measure(points)`.")
        if mu.batch_shape or mu.dim != dim:
            raise ValueError(f"`starts` must be single measures in R^{dim}, got {mu}.")
        mu, reach = mu.strip().to(like).normalise(), mu.strip().atoms.abs().max().item()
        if reach > effort.radius * (1 + 1e-6):
            raise ValueError(
                f"`starts` must lie on the box of radius {effort.radius:g}, got a coordinate of "
                f"size {reach:g}. Give `Attack(radius=...)`."
            )
        if mu.n > effort.sizes[-1]:
            raise ValueError(
                f"`starts` must have at most {effort.sizes[-1]} atoms, the largest of `sizes`, "
                f"got {mu.n}. Give `Attack(sizes=...)` with a larger one."
            )
        parts.append(mu)
    return parts


def _larger(row: WorstCase, again: WorstCase) -> WorstCase:
    """The worse of two, and by which share the second is larger."""
    worse = again if again.found > row.found else row
    gain = again.found / row.found - 1 if 0 < row.found < math.inf else 0.0
    if row.found == 0 < again.found:
        gain = math.inf
    return replace(worse, gain=gain)


def _numbers(model: nn.Module, target: object) -> Tensor:
    """A tensor of the dtype and device that model and target compute in."""
    for module in (model, target):
        if isinstance(module, nn.Module):
            for t in chain(module.parameters(), module.buffers()):
                if t.is_floating_point():
                    return t
    return torch.empty(0)
