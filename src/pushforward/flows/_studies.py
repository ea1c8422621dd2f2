"""Rates, measured: how a flow depends on depth, and on the number of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from .. import pictures
from .._tools.checks import (
    check_callable,
    check_floating,
    check_kind,
    check_seed,
    check_sizes,
    check_values_finite,
)
from .._tools.fits import line_slope
from .._tools.warn import each_warning_once
from ..maps import InContextMap
from ..measures import Measure, check_measures
from ._flow import Flow
from ._solvers import RK4, Euler, FixedStep, Solver
from .fields import manifold_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Law = Callable[[int, torch.Generator], Measure]
"""A law of measures: `law(n, generator)` draws one of `n` atoms."""


@dataclass(frozen=True)
class Study:
    r"""Errors at some sizes, and the rate at which they fall.

    Args:
        name: what the sizes are.
        sizes: the sizes $N$.
        errors: the error at each.
        expected: the exponent according to the theory.
    """

    name: str
    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    expected: float

    @property
    def rate(self) -> float:
        r"""The exponent $r$ of the best fit of $cN^r$; NaN if an error is zero."""
        if min(self.errors) == 0:
            return math.nan
        return line_slope([math.log(n) for n in self.sizes], [math.log(e) for e in self.errors])[0]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Each error over the one after it; infinite, or NaN, if that is zero."""
        over = lambda a, b: a / b if b else math.inf if a else math.nan
        return tuple(map(over, self.errors, self.errors[1:]))

    def plot(self) -> Figure:
        """Errors against sizes, both logarithmic, beside the slope of the theory."""
        return pictures.rates(self.name, self.sizes, self.errors, self.expected)

    def __str__(self) -> str:
        head = f"{self.name:>10}  {'error':>10}  ratio"
        ratios = ["", *(f"{r:5.2f}" for r in self.ratios)]
        rows = zip(self.sizes, self.errors, ratios, strict=True)
        lines = [f"{n:>10}  {e:>10.3e}  {r}" for n, e, r in rows]
        end = f"rate {self.rate:.3f}, theory {self.expected:g}"
        return "\n".join([head, *lines, end])


def depth_study(
    field: InContextMap,
    mu: Measure,
    depths: Sequence[int] = (8, 16, 32, 64, 128),
    *,
    t1: float = 1.0,
    solver: FixedStep | None = None,
    reference: Solver | None = None,
) -> Study:
    r"""How fast a residual network of depth $L$ tends to its flow: the largest error of an atom.

    Args:
        field: the field; for weights that vary with depth, `fields.Layers`.
        mu: the context.
        depths: numbers of steps $L$.
        t1: the end of the flow.
        solver: the solver whose error is measured, `Euler` by default; its own number of steps
            does not matter.
        reference: the solver it is compared with, by default `RK4` with eight times as many steps
            as the largest depth.

    Examples:
        >>> field = pf.fields.Pairwise(lambda x, y: torch.sin(y - x))
        >>> mu = pf.Measure(torch.randn(20, 1, dtype=torch.float64))
        >>> study = pf.flows.depth_study(field, mu, depths=[32, 64, 128])
        >>> [round(r, 1) for r in study.ratios]
        [2.0, 2.0]
    """
    _check_different("depths", depths)
    check_measures(mu=mu)
    check_kind("field", field, InContextMap, "For example `pf.Attention(2)`.")
    solver = Euler(steps=1) if solver is None else solver
    check_kind("solver", solver, FixedStep, "Depth is a number of fixed steps.")
    reference = RK4(steps=8 * max(depths)) if reference is None else reference
    check_kind("reference", reference, Solver, "For example `pf.RK4(steps=100)`.")
    with torch.no_grad(), each_warning_once(f"the flows of {len(depths)} depths"):
        end = lambda s: manifold_of(field).embed(Flow(field, t1=t1, solver=s).push(mu).atoms)
        truth = end(reference)
        ends = [end(replace(solver, steps=n)) for n in depths]
        errors = tuple(float((x - truth).norm(dim=-1).max()) for x in ends)
    return Study("depth", tuple(depths), errors, -float(solver.order))


def token_study(
    field: InContextMap,
    law: Law,
    sizes: Sequence[int] = (100, 400, 1600),
    *,
    queries: Float[Tensor, "m d"] | None = None,
    t1: float = 1.0,
    solver: Solver | None = None,
    repetitions: int = 100,
    seed: int = 0,
) -> Study:
    r"""How fast the flow of $N$ particles tends to its mean-field limit, at fixed queries.

    The error is the root mean square of $G(\mu_N,x)$ about its limit, estimated without knowing
    the limit: two independent clouds differ by $\sqrt2$ times as much. It falls as $N^{-1/2}$.

    Args:
        field: the field.
        law: `law(n, generator)` draws a measure of `n` atoms, on the default device.
        sizes: numbers of particles $N$.
        queries: the points at which it is measured; eight draws from the law by default.
        t1: the end of the flow.
        solver: `RK4(steps=100)` by default.
        repetitions: number of pairs of clouds for each size.
        seed: seed of the draws.

    Examples:
        >>> law = lambda n, generator: pf.Measure(torch.rand(n, 1, generator=generator))
        >>> field = pf.fields.Pairwise(lambda x, y: torch.sin(y - x))
        >>> study = pf.flows.token_study(field, law, [50, 200], solver=pf.Euler(steps=5))
        >>> -0.7 < study.rate < -0.3
        True
    """
    check_sizes(repetitions=repetitions)
    _check_different("sizes", sizes)
    check_callable("law", law, "a function `law(n, generator)` that draws a measure of n atoms")
    check_seed(seed)
    generator = torch.Generator(torch.empty(0).device).manual_seed(seed)
    if queries is None:
        queries = _draw(law, 8, generator).atoms
    check_floating("queries", queries, "(m, d)", 2)
    check_values_finite(queries=queries)
    G = Flow(field, t1=t1, solver=solver)
    errors = []
    flows = f"{2 * repetitions * len(sizes)} flows"
    with torch.no_grad(), each_warning_once(flows):
        for n in sizes:
            total = 0.0
            for _ in range(repetitions):
                a, b = (G(_draw(law, n, generator), queries) for _ in range(2))
                total += float((a - b).square().sum(-1).mean()) / 2
            errors.append(math.sqrt(total / repetitions))
    return Study("tokens", tuple(sizes), tuple(errors), -0.5)


def _check_different(name: str, sizes: Sequence[int]) -> None:
    """Raise unless there are two different sizes at least, all whole and positive."""
    listed = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    if listed:
        check_sizes(**{f"{name}[{k}]": n for k, n in enumerate(sizes)})
    if not listed or len(set(sizes)) < 2:
        raise ValueError(
            f"`{name}` must be a list of at least two different whole numbers, got {sizes!r}. A "
            "rate is measured between them."
        )


def _draw(law: Law, n: int, generator: torch.Generator) -> Measure:
    """A draw of a law; an error that says what is wrong with it."""
    try:
        signature(law).bind(n, generator)
    except TypeError as error:
        raise TypeError(
            f"`law` must take a number of atoms and a generator, `law(n, generator)`, got one "
            f"that does not: {error}."
        ) from None
    except ValueError:  # a function without a signature
        pass
    mu = law(n, generator)
    check_kind("law", mu, Measure, "Return `pf.Measure(points)`.", returned=True)
    if mu.n != n:
        raise ValueError(
            f"`law` must draw n atoms, got {mu.n} for n = {n}. Draw the points with "
            "`torch.randn(n, d, generator=generator)`, say."
        )
    return mu
