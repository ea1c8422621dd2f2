"""What a plan is to match: weights, slack, connected parts, and the gauge of its potentials."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..affinities import Kernel


@dataclass(frozen=True, eq=False)
class Problem:
    r"""What a plan is to match.

    Args:
        log_a: log-weights on the side of the queries, normalised.
        log_b: log-weights on the side of the keys, normalised.
        slack: $\rho/\varepsilon$ of both problem, infinite where the marginal is prescribed.
        parts: for each atom, of queries and of keys, the connected part of the pattern of allowed
            pairs it belongs to; None if there is one part.
        symmetric: whether both problem are one measure and the scores symmetric, so that $f=g$ can
            be found by averaging the two: where atoms hardly see each other, alternating would
            take for ever to find out how a constant is shared between $f$ and $g$.
    """

    log_a: Float[Tensor, "*#b m"]
    log_b: Float[Tensor, "*#b n"]
    slack: tuple[float, float] = (math.inf, math.inf)
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None
    symmetric: bool = False

    @property
    def damping(self) -> tuple[float, float]:
        r"""$\tau_a,\tau_b$."""
        a, b = (1.0 if math.isinf(r) else r / (1 + r) for r in self.slack)
        return a, b

    @property
    def balanced(self) -> bool:
        """Whether both marginals are prescribed, so that potentials are free by a constant."""
        return all(map(math.isinf, self.slack))

    def rows(self, kernel: Kernel, g: Tensor) -> Tensor:
        r"""$f=-\tau_a\log\int e^{A+g}d\nu$."""
        return -self.damping[0] * kernel.over_keys(tilted(self.log_b, g))

    def columns(self, kernel: Kernel, f: Tensor) -> Tensor:
        r"""$g=-\tau_b\log\int e^{A+f}d\mu$."""
        return -self.damping[1] * kernel.over_queries(tilted(self.log_a, f))

    def detach(self) -> Problem:
        """Without gradients."""
        return replace(self, log_a=self.log_a.detach(), log_b=self.log_b.detach())

    def at_level(self, level: float) -> Problem:
        r"""For scores divided by `level`: slack is measured in units of $\varepsilon$."""
        a, b = self.slack
        return replace(self, slack=(a / level, b / level))

    def dual(self, f: Tensor, g: Tensor) -> Tensor:
        r"""The concave dual value at $g$ and the $f$ that follows from it.

        $\int f\,d\mu+\int g\,d\nu$ less the mass of the plan; with slack, $f$ becomes
        $\rho(1-e^{-f/\rho})$. Every plain step raises it.
        """
        gain_a, gain_b = (
            p if math.isinf(r) else -r * torch.expm1(-p / r)
            for p, r in zip((f, g), self.slack, strict=True)
        )
        value = integral(gain_a, self.log_a) + integral(gain_b, self.log_b)
        tau = self.damping[0]
        if tau == 1:  # rows are exact, the mass is one
            return value
        return value - integral(((1 - 1 / tau) * f).exp(), self.log_a)  # z = -f / tau


def tilted(logs: Tensor, potential: Tensor) -> Tensor:
    """Log-weights plus a potential, which may be infinite where there is no mass."""
    return torch.where(logs == -torch.inf, logs, logs + potential)


def integral(x: Tensor, logs: Tensor) -> Tensor:
    """The integral of `x`, which may be anything where there is no mass."""
    return (logs.exp() * x.masked_fill(logs == -torch.inf, 0)).sum(-1)


def centre(f: Tensor, g: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    r"""Potentials in the gauge $\int f\,d\mu=\int g\,d\nu$ on every connected part.

    Only without slack is there a constant to choose.
    """
    if not problem.balanced:
        return f, g
    if problem.parts is None:
        shift = (integral(f, problem.log_a) - integral(g, problem.log_b))[..., None] / 2
        return f - shift, g + shift
    rows, columns = problem.parts
    excess = by_part(f, problem.log_a, rows) - by_part(g, problem.log_b, columns)
    mass = by_part(torch.ones_like(f), problem.log_a, rows)
    shift = excess / (2 * torch.where(mass > 0, mass, 1))
    return f - shift.gather(-1, rows), g + shift.gather(-1, columns)


def rebalanced(problem: Problem) -> Tensor:
    """Log-weights of the keys such that every part has one mass on both problem.

    On a pattern of allowed pairs only such marginals have a coupling, and rounding breaks it.
    """
    assert problem.parts is not None
    rows, columns = problem.parts
    one = lambda logs: torch.ones_like(logs)
    here = by_part(one(problem.log_a), problem.log_a, rows)
    there = by_part(one(problem.log_b), problem.log_b, columns)
    ratio = torch.where(there > 0, here / torch.where(there > 0, there, 1), 1)
    return problem.log_b + ratio.gather(-1, columns.expand(problem.log_b.shape)).log()


def by_part(x: Tensor, logs: Tensor, parts: Tensor) -> Tensor:
    """Integrals of `x` over every part; there are at most as many as atoms on either side."""
    mass = logs.exp() * x.masked_fill(logs == -torch.inf, 0)
    batch = torch.broadcast_shapes(mass.shape, parts.shape)
    count = int(parts.max()) + 1
    total = mass.new_zeros(*batch[:-1], count)
    return total.scatter_add(-1, parts.expand(batch), mass.expand(batch))
