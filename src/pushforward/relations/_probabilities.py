"""Conditionals and couplings, and how one becomes the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._tools.checks import (
    check_floating,
    check_generator,
    check_kind,
    check_same,
    check_sizes,
    check_sums,
    holds,
)
from .._tools.precision import safe_log, safe_softmax, widen
from ..affinities import Scores, TileScores
from ..measures import Measure, check_measures
from ..sinkhorn import Problem, centre, tilted
from ._masses import Joint, Mass
from ._relation import TOL, Relation, aligned_weights, draw, precise_scores

if TYPE_CHECKING:
    from ._sinkhorn import Sinkhorn


@dataclass(frozen=True, eq=False, repr=False)
class Conditional(Relation):
    r"""A conditional distribution $\kappa(x,dy)$ for every query, softmax being the example.

    $$\kappa(x,dy)=\frac{e^{A(x,y)+g(y)}\,\nu(dy)}{\int e^{A(x,z)+g(z)}\,\nu(dz)}.$$

    Rows are probabilities; the weights of the queries are no part of it, so it has no column sums,
    no mutual information and no transpose. `joint` gives it a first marginal.

    Examples:
        >>> mu = pf.Measure(torch.randn(5, 2))
        >>> kappa = pf.relate(mu, mu, normaliser=pf.Softmax())
        >>> kappa
        Conditional(5 queries, 5 keys)
        >>> kappa.matrix().sum(-1)
        tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """

    @classmethod
    def from_matrix(
        cls, matrix: Float[Tensor, "*b m n"], nu: Measure | None = None
    ) -> Conditional:
        r"""A conditional read off a matrix whose rows are probabilities, such as attention.

        Args:
            matrix: $\kappa(x_i,\{y_j\})$, heads among the leading axes.
            nu: the measure of the keys, uniform by default: what the rows are densities against.

        Examples:
            >>> heads = torch.randn(8, 5, 5).softmax(-1)
            >>> pf.Conditional.from_matrix(heads).entropy().shape
            torch.Size([8, 5])
        """
        masses = _masses(matrix)
        fix = (
            "Attention of one head does; a sum over heads or tokens is no probability, nor is "
            "attention after dropout (`model.eval()`)."
        )
        check_sums("rows", masses.sum(-1), matrix.dtype, fix)
        if nu is not None:
            check_measures(nu=nu)
            check_same("device", ("matrix", matrix), ("nu", nu.atoms))
        uniform = torch.zeros_like(masses[..., 0, :]).log_softmax(-1)
        log_b = uniform if nu is None else _weights("nu", nu, TileScores.from_matrix(masses), -1)
        return cls(TileScores.from_matrix(_ratio(masses, log_b[..., None, :])), log_b, None)

    def matrix(self) -> Float[Tensor, "*b m n"]:
        r"""$\kappa(x_i,\{y_j\})$: rows sum to one."""
        return self._out(safe_softmax(self.scores.matrix() + self._bias[..., None, :]))

    def integrate(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        return self.scores.average(values, self._bias)

    def entropy(self) -> Float[Tensor, "*b m"]:
        r"""The Shannon entropy of every row."""
        bias = self._bias
        finite = bias.masked_fill(bias == -torch.inf, 0)[..., None]
        mean = self.scores.mean(bias) + self.scores.average(finite, bias)[..., 0]
        return self._out(self.scores.over_keys(bias) - mean)

    def sample(
        self, size: int, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "*b m s"]:
        """`size` keys for each query, as indices."""
        check_sizes(size=size)
        check_generator(generator)
        bias = self._bias[..., None, :]
        with torch.no_grad():
            parts = [
                draw(safe_softmax(self.scores.tile(i) + bias), size, generator)
                for i in self.scores.cuts()
            ]
        return torch.cat(parts, -2)

    def _order(self, rows: slice) -> Tensor:
        return self.scores.tile(rows) + self._bias[..., None, :]

    def joint(self, mu: Measure) -> Coupling:
        r"""$\mu(dx)\,\kappa(x,dy)$: the coupling of $\mu$ with the second marginal it has.

        Args:
            mu: the measure of the queries.
        """
        log_a = _weights("mu", mu, self.scores, -2)
        dtype = self.scores.dtype if self.dtype is None else self.dtype
        with torch.no_grad():
            size = float(self.scores.size())
        # Large potentials would leave float32 no digits for the masses.
        scores = precise_scores(self.scores, size, TOL)
        bias, log_a = self._bias.to(scores.dtype), log_a.to(scores.dtype)
        f = -scores.over_keys(bias)
        columns = bias + scores.over_queries(tilted(log_a, f))
        g = (bias - columns).masked_fill(columns == -torch.inf, 0)
        return Coupling(scores, columns, g, log_a, f, dtype=dtype, costs=self.costs)

    def project(self, mu: Measure, nu: Measure, *, normaliser: Sinkhorn | None = None) -> Coupling:
        r"""The coupling of $\mu$ and $\nu$ nearest to $\mu\otimes\kappa$ in $\mathrm{KL}$.

        It is the Sinkhorn normalisation of the same affinity.

        Args:
            mu: the measure of the queries.
            nu: the measure of the keys.
            normaliser: how it is computed, `Sinkhorn()` by default; without slack.
        """
        from ._sinkhorn import Sinkhorn  # not above: Sinkhorn makes couplings

        normaliser = Sinkhorn() if normaliser is None else normaliser
        fix = "Use `pf.Sinkhorn(...)`; no other normaliser computes this projection."
        check_kind("normaliser", normaliser, Sinkhorn, fix)
        if not normaliser.balanced:
            raise ValueError("A projection keeps both marginals, got a Sinkhorn with slack.")
        log_a, log_b = _weights("mu", mu, self.scores, -2), _weights("nu", nu, self.scores, -1)
        pi = cast(Coupling, normaliser.relate(self.scores, log_a, log_b))
        return replace(pi, dtype=pi.dtype if self.dtype is None else self.dtype, costs=self.costs)


@dataclass(frozen=True, eq=False, repr=False)
class Coupling(Joint):
    r"""A coupling $\pi\in\Pi(\mu,\nu)$, with a certificate of how nearly it is one.

    Masses sum to one, rows to the weights of $\mu$, columns to those of $\nu$, up to `residual`.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(30, 2)), pf.Measure(torch.rand(20, 2))
        >>> pi = pf.relate(mu, nu, normaliser=pf.Sinkhorn(tol=1e-5))
        >>> pi, bool(pi.residual < 1e-5)
        (Coupling(30 queries, 20 keys), True)
        >>> pi.apply(nu.atoms).shape, pi.transpose().apply(mu.atoms).shape
        (torch.Size([30, 2]), torch.Size([20, 2]))
    """

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*b m n"]) -> Coupling:
        """A coupling read off its matrix of masses; its marginals are the sums of the matrix.

        Args:
            matrix: joint masses, of sum one.

        Examples:
            >>> pf.Coupling.from_matrix(torch.eye(4) / 4).mutual_information()
            tensor(1.3863)
        """
        masses = _masses(matrix)
        fix = "Divide by the total, or read rows of sum one as a `Conditional`."
        total = masses.sum((-1, -2), keepdim=True)
        check_sums("masses", total, matrix.dtype, fix)
        rounded = (total - 1).abs() <= 64 * torch.finfo(masses.dtype).eps
        masses = torch.where(rounded, masses, masses / total)
        log_a, log_b = (safe_log(masses.sum(axis)) for axis in (-1, -2))
        scores = _ratio(masses, log_a[..., :, None] + log_b[..., None, :])
        return cls(TileScores.from_matrix(scores), log_b, None, log_a)

    @cached_property
    def residual(self) -> Mass:
        r"""The larger of the two marginal errors $\sum|\cdot|$, measured on this object."""
        with torch.no_grad():
            rows, columns = replace(self, dtype=None).marginals()
            error_a = (rows - self.log_a.exp()).abs().sum(-1)
            error_b = (columns - self.log_b.exp()).abs().sum(-1)
            return torch.maximum(error_a, error_b)

    @property
    def converged(self) -> Bool[Tensor, "*b"]:
        """Whether the residual is within the tolerance."""
        return self.residual <= self.tol

    @property
    def potentials(self) -> tuple[Float[Tensor, "*b m"], Float[Tensor, "*b n"]]:
        r"""$(f,g)$ in the gauge $\int f\,d\mu=\int g\,d\nu$, on every connected part."""
        alive = lambda p, logs: p.masked_fill((logs == -torch.inf) & p.isinf(), 0)
        f, g = alive(self._f, self.log_a), alive(self._g, self.log_b)
        f, g = centre(f, g, Problem(self.log_a, self.log_b, parts=self.parts))
        return self._out(f), self._out(g)

    def integrate(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        return self.scores.average(values, self._bias)

    def transpose(self) -> Coupling:
        """The same coupling with queries and keys exchanged."""
        parts = None if self.parts is None else (self.parts[1], self.parts[0])
        return Coupling(
            self.scores.T, self.log_a, self._f, self.log_b, self._g, self.steps, self.tol, parts,
            dtype=self.dtype, costs=None if self.costs is None else self.costs.T,
        )  # fmt: skip

    def conditional(self) -> Conditional:
        r"""$\pi(dy|x)$."""
        return Conditional(self.scores, self.log_b, self.g, dtype=self.dtype, costs=self.costs)

    def mutual_information(self) -> Mass:
        r"""$\mathrm{KL}(\pi|\mu\otimes\nu)=\int(A+f\oplus g)\,d\pi$."""
        mean = self.scores.average(self._g[..., None], self._bias)[..., 0]
        return self._out(self._integral(self._f + self.scores.mean(self._bias) + mean))

    def value(self) -> Mass:
        r"""The entropic value $\int c\,d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)$.

        It is `cost()` plus $\varepsilon$ times `mutual_information()`, where $\varepsilon$ is the
        `eps` of a squared distance, and 1 for a dot product. The coupling of `Sinkhorn` has the
        least value of all couplings. In POT it is `ot.solve(c, a, b, reg=eps).value`, and `cost()`
        is `value_linear`, which `ot.bregman.sinkhorn2` returns.

        Examples:
            >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
            >>> pi = pf.relate(mu, mu, affinity=pf.SquaredDistance(1.0), normaliser=pf.Sinkhorn())
            >>> pi.cost(), pi.value()
            (tensor(0.2689), tensor(0.3799))
        """
        # The exact coupling has other scores than those its costs come from, of the same unit.
        pi = replace(self, dtype=None)
        return self._out(pi.cost() + self.scores.unit * pi.mutual_information())


def _weights(name: str, mu: Measure, scores: Scores, axis: int) -> Tensor:
    """Log-weights of a measure that has as many atoms as the scores have on an axis."""
    check_measures(**{name: mu})
    if mu.device != scores.device:
        raise ValueError(
            f"`{name}` must be on the device of the relation, {scores.device}, got {mu.device}."
        )
    if mu.n != scores.shape[axis]:
        raise ValueError(
            f"`{name}` must have {scores.shape[axis]} atoms, as the relation has, got {mu.n}."
        )
    return aligned_weights(name, mu, scores)


def _masses(matrix: Tensor) -> Tensor:
    """Masses of a user's matrix, in float32 or better."""
    check_floating("matrix", matrix, "(..., m, n)", 2)
    matrix = widen(matrix)
    if not holds((matrix >= 0).all()):
        raise ValueError(
            f"`matrix` must hold masses, not negative and not NaN, got a minimum of "
            f"{matrix.min().item():g}. Logits become a relation with "
            "`pf.relate(mu, nu, affinity=pf.Matrix(logits))`."
        )
    return matrix


def _ratio(masses: Tensor, reference: Tensor) -> Tensor:
    """The logarithm of masses over a reference, minus infinity where there are none."""
    logs = safe_log(masses) - reference.masked_fill(reference == -torch.inf, 0)
    return logs.masked_fill(masses == 0, -torch.inf)
