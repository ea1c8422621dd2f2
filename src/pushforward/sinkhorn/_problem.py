r"""What a plan must match: two marginals, prescribed or relaxed; and one Sinkhorn step.

Potentials $f,g$ of the plan $e^{A+f\oplus g}\,\mu\otimes\nu$ solve

$$f=-\tau_a\log\int e^{A+g}d\nu,\qquad g=-\tau_b\log\int e^{A+f}d\mu,$$

with $\tau=1$ for a marginal that is prescribed and $\tau=\rho/(\rho+\varepsilon)$ for one that is
relaxed. With slack the measures may have masses $m_a,m_b$ other than one. For potentials against
the normalised measures, which contain $\log m_a$ and $\log m_b$, the equations become

$$f=\log m_a-\tau_a\log\int e^{A+g}d\nu,\qquad g=\log m_b-\tau_b\log\int e^{A+f}d\mu.$$

One step does the first, then the second: a map $g\mapsto F(g)$ whose fixed point is
sought. A step needs only a `Kernel`: something that integrates $e^A$ over queries and over keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..affinities import Kernel, PointScores

CHECK_EVERY = 10
"""Steps between two checks for convergence. Reading a number makes the host wait for the device,
and the steps between two checks are queued without waiting."""


@dataclass(frozen=True, eq=False)
class Problem:
    r"""Two marginals, prescribed or relaxed.

    A marginal $\mu$ is prescribed, or deviations from it cost $\rho\,\mathrm{KL}(\pi_1|\mu)$. Then
    the half-step is damped by $\tau=\rho/(\rho+\varepsilon)$, and $\tau=1$ where it is prescribed.

    Args:
        log_a: log-weights of the queries, normalised.
        log_b: log-weights of the keys, normalised.
        slack: $\rho/\varepsilon$ of both marginals, infinite where the marginal is prescribed.
        parts: for each query and each key, the connected component of the graph of allowed pairs
            that contains it; None if there is only one.
        log_masses: logarithms of the masses of the two measures, `(*b, 1)` each, which count where
            there is slack; None for masses of one.
        symmetric: whether both marginals are one measure and the scores are symmetric, so that
            $f=g$. A step then averages the two instead of alternating. Alternating would be slow
            where atoms hardly interact: it does not know how to share a constant between $f$ and
            $g$.
    """

    log_a: Float[Tensor, "*#b m"]
    log_b: Float[Tensor, "*#b n"]
    slack: tuple[float, float] = (math.inf, math.inf)
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None
    symmetric: bool = False
    log_masses: tuple[Float[Tensor, "*#b 1"], Float[Tensor, "*#b 1"]] | None = None

    @property
    def damping(self) -> tuple[float, float]:
        r"""$\tau_a,\tau_b$, one for a prescribed marginal."""
        a, b = (1.0 if math.isinf(r) else r / (1 + r) for r in self.slack)
        return a, b

    @property
    def balanced(self) -> bool:
        """Whether both marginals are prescribed. Then $(f+c,g-c)$ gives the same plan."""
        return all(map(math.isinf, self.slack))

    def rows(self, kernel: Kernel, g: Tensor) -> Tensor:
        r"""The first half-step, $f=-\tau_a\log\int e^{A+g}d\nu$, plus $\log m_a$."""
        return -self.damping[0] * self.row_integrals(kernel, g)

    def columns(self, kernel: Kernel, f: Tensor) -> Tensor:
        r"""The second half-step, $g=-\tau_b\log\int e^{A+f}d\mu$, plus $\log m_b$."""
        return -self.damping[1] * self.column_integrals(kernel, f)

    def row_integrals(self, kernel: Kernel, g: Tensor) -> Tensor:
        r"""$\log\int e^{A+g}d\nu$, minus $\tau_a^{-1}\log m_a$."""
        integrals = kernel.over_keys(tilted(self.log_b, g))
        if self.log_masses is None:
            return integrals
        return integrals - self.log_masses[0] / self.damping[0]

    def column_integrals(self, kernel: Kernel, f: Tensor) -> Tensor:
        r"""$\log\int e^{A+f}d\mu$, minus $\tau_b^{-1}\log m_b$."""
        integrals = kernel.T.over_keys(tilted(self.log_a, f))
        if self.log_masses is None:
            return integrals
        return integrals - self.log_masses[1] / self.damping[1]

    def detach(self) -> Problem:
        """The same problem, with weights that carry no gradient."""
        masses = self.log_masses
        if masses is not None:
            masses = masses[0].detach(), masses[1].detach()
        a, b = self.log_a.detach(), self.log_b.detach()
        return replace(self, log_a=a, log_b=b, log_masses=masses)

    def at_temperature(self, temperature: float) -> Problem:
        r"""The problem for scores divided by `temperature`; slack is in units of $\varepsilon$."""
        a, b = self.slack
        return replace(self, slack=(a / temperature, b / temperature))

    def dual(self, f: Tensor, g: Tensor) -> Tensor:
        r"""The concave dual value at $g$ and the $f$ that the first half-step makes of it.

        $\int f\,d\mu+\int g\,d\nu$ minus the mass of the plan. With slack, $f$ in the integral
        becomes $\rho(1-e^{-f/\rho})$. Every plain step increases it. It is in units of the larger
        of the two masses.
        """
        if self.balanced:
            return integral(f, self.log_a) + integral(g, self.log_b)
        zero = torch.zeros_like(f[..., :1])
        log_a, log_b = (zero, zero) if self.log_masses is None else self.log_masses
        unit = torch.maximum(log_a, log_b)
        gains = (
            p if math.isinf(r) else -r * torch.expm1(-p / r)
            for p, r in zip((f - log_a, g - log_b), self.slack, strict=True)
        )
        of_a, of_b = (
            (mass - unit)[..., 0].exp() * integral(gain, logs)
            for mass, gain, logs in zip(
                (log_a, log_b), gains, (self.log_a, self.log_b), strict=True
            )
        )
        value, tau = of_a + of_b, self.damping[0]
        if tau == 1:  # rows are exact, so the mass is known, and a constant does not matter
            return value
        # A row of the plan has density e^f times the integral of e^(A + g), which is
        # e^((log m_a - f) / tau).
        return value - integral((f + (log_a - f) / tau - unit).exp(), self.log_a)

    def translation(self, f: Tensor, g: Tensor) -> Tensor:
        r"""The constant $\lambda$ for which $(f+\lambda,g-\lambda)$ has the largest dual value.

        With slack, $\lambda=\frac{r_ar_b}{r_a+r_b}\log\frac{\int e^{-f/r_a}d\mu}
        {\int e^{-g/r_b}d\nu}$, where the measures have their masses (Séjourné, Vialard and Peyré
        2022). Plain steps find it only at the rate $\tau_a\tau_b$, which is slow for much slack.
        """
        log_a, log_b = (0, 0) if self.log_masses is None else self.log_masses
        weight = 1 / sum(1 / r for r in self.slack)
        kept_a = log_a + _log_mean_exp((log_a - f) / self.slack[0], self.log_a)
        kept_b = log_b + _log_mean_exp((log_b - g) / self.slack[1], self.log_b)
        return weight * (kept_a - kept_b)


def tilted(logs: Tensor, potential: Tensor) -> Tensor:
    """`logs + potential`, minus infinity where `logs` is, whatever the potential is there."""
    return torch.where(logs == -torch.inf, logs, logs + potential)


def integral(x: Tensor, logs: Tensor) -> Tensor:
    """The integral of `x` with weights `exp(logs)`; atoms without mass count 0 whatever `x` is."""
    return (logs.exp() * x.masked_fill(logs == -torch.inf, 0)).sum(-1)


def _log_mean_exp(x: Tensor, logs: Tensor) -> Tensor:
    """The logarithm of the mean of `exp(x)`, accurate also where `x` is tiny; `(*b, 1)`."""
    x = x.masked_fill(logs == -torch.inf, -torch.inf)
    top = x.amax(-1, keepdim=True)
    return top + torch.log1p(integral(torch.expm1(x - top), logs)[..., None])


def centre(f: Tensor, g: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    r"""The potentials of the same plan with $\int f\,d\mu=\int g\,d\nu$ on every component.

    With slack nothing changes: there the potentials are unique.
    """
    if not problem.balanced:
        return f, g
    if problem.parts is None:
        shift = (integral(f, problem.log_a) - integral(g, problem.log_b))[..., None] / 2
        return f - shift, g + shift
    rows, columns = problem.parts
    excess = _by_part(f, problem.log_a, rows) - _by_part(g, problem.log_b, columns)
    mass = _by_part(torch.ones_like(f), problem.log_a, rows)
    shift = excess / (2 * torch.where(mass > 0, mass, 1))
    return f - shift.gather(-1, rows), g + shift.gather(-1, columns)


def rebalanced(problem: Problem) -> Tensor:
    """Log-weights of the keys, scaled so that every component has equal mass on both sides.

    Only then is there a coupling on the allowed pairs, and rounding alone can break it.
    """
    if problem.parts is None:
        return problem.log_b
    rows, columns = problem.parts
    mass_a = _by_part(torch.ones_like(problem.log_a), problem.log_a, rows)
    mass_b = _by_part(torch.ones_like(problem.log_b), problem.log_b, columns)
    ratio = torch.where(mass_b > 0, mass_a / torch.where(mass_b > 0, mass_b, 1), 1)
    return problem.log_b + ratio.gather(-1, columns.expand(problem.log_b.shape)).log()


def _by_part(x: Tensor, logs: Tensor, parts: Tensor) -> Tensor:
    """Integrals of `x` over every component."""
    mass = logs.exp() * x.masked_fill(logs == -torch.inf, 0)
    batch = torch.broadcast_shapes(mass.shape, parts.shape)
    total = mass.new_zeros(*batch[:-1], int(parts.max()) + 1)
    return total.scatter_add(-1, parts.expand(batch), mass.expand(batch))


def at_once(kernel: Kernel, problem: Problem, g: Tensor, steps: int) -> Tensor | None:
    """The potential of the keys after plain steps in one launch; None where that cannot be."""
    if steps == 0 or not isinstance(kernel, PointScores):
        return None
    logs, masses = (problem.log_a, problem.log_b), problem.log_masses
    return kernel.alternated(logs, g, problem.damping, masses, problem.symmetric, steps)


class Point(NamedTuple):
    """A potential `g`, and the quantities that one plain step from it gives."""

    f: Tensor
    """The potential of the queries that the first half-step gives."""
    g: Tensor
    image: Tensor
    """The next potential of the keys, $F(g)$."""
    residual: Tensor
    """The fixed-point residual $F(g)-g$, with mean zero where constants do not change the plan."""
    marginal_error: Tensor
    """The L1 error of the second marginal of the plan of `f` and `g`; its rows are exact."""
    dual: Tensor
    """The dual value, up to a constant."""


def step(kernel: Kernel, problem: Problem, g: Tensor) -> Point:
    """One plain step from `g`."""
    no_mass = problem.log_b == -torch.inf
    g = g.masked_fill(no_mass, 0)
    f = problem.rows(kernel, g)
    if problem.symmetric:
        image = (g + f).masked_fill(no_mass, 0) / 2
        residual = image - g
        # The columns of the plan of (g, g) have density e^(g - f). The plan of (f, g), which is
        # the result, has at most twice its error.
        relative_error = 2 * torch.expm1(g - f)
        dual = integral(2 * g - torch.expm1(g - f), problem.log_b)
    else:
        image = problem.columns(kernel, f)
        if not problem.balanced:
            image = image - problem.translation(f, image)
        image = image.masked_fill(no_mass, 0)
        residual = image - g
        # The column at y of the plan of (f, g) has density e^(g - F(g)).
        relative_error = torch.expm1(-residual)
        dual = problem.dual(f, g)
        if problem.balanced:
            # A shift of g by a constant is undone by f. Left in, it would dominate the residual
            # that acceleration tries to reduce.
            residual = residual - integral(residual, problem.log_b)[..., None]
    marginal_error = integral(relative_error.abs(), problem.log_b)
    return Point(f, g, image, residual, marginal_error, dual)
