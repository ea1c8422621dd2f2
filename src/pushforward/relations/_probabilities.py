"""Conditionals and couplings, and how one becomes the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._tools.checks import check_floating, check_kind, check_sizes, check_sums, holds
from .._tools.precision import safe_log, safe_softmax, widen
from ..affinities import DenseScores
from ..measures import Measure
from ..sinkhorn import Problem, centre, tilted
from ._joint import Joint, Mass
from ._normaliser import TOL
from ._relation import Relation, aligned_weights, draw
from ._sinkhorn import Sinkhorn, floor


@dataclass(frozen=True, eq=False, repr=False)
class Conditional(Relation):
    r"""A conditional distribution $\kappa(x,dy)$ for every query, softmax being the example.

    $$\kappa(x,dy)=\frac{e^{A(x,y)+g(y)}\,\nu(dy)}{\int e^{A(x,z)+g(z)}\,\nu(dz)}.$$

    Rows are probabilities; what the queries weigh is not part of it, so it has no columns sums,
    no mutual information and no transpose. `joint` gives it a first marginal.

    Examples:
        >>> mu = pf.Measure(torch.randn(5, 2))
        >>> kappa = pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.Softmax())
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
        empty = cls(DenseScores(masses), torch.zeros_like(masses[..., 0, :]).log_softmax(-1), None)
        log_b = empty.log_b if nu is None else empty._weights_of("nu", nu, masses.shape[-1])
        return cls(DenseScores(_ratio(masses, log_b[..., None, :])), log_b, None)

    def matrix(self) -> Float[Tensor, "*b m n"]:
        r"""$\kappa(x_i,\{y_j\})$: rows sum to one."""
        return self._out(safe_softmax(self.scores.matrix() + self._bias[..., None, :]))

    def integrate(self, values):
        """Averages."""
        return self.scores.average(values, self._bias)

    def entropy(self) -> Float[Tensor, "*b m"]:
        r"""The Shannon entropy of every row."""
        bias = self._bias
        finite = bias.masked_fill(bias == -torch.inf, 0)[..., None]
        mean = self.scores.mean(bias) + self.scores.average(finite, bias)[..., 0]
        return self._out(self.scores.over_keys(bias) - mean)

    def sample(
        self, count: int, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "*b m s"]:
        """`count` keys for each query, as indices."""
        check_sizes(count=count)
        bias = self._bias[..., None, :]
        with torch.no_grad():
            parts = [
                draw(safe_softmax(self.scores.tile(i) + bias), count, generator)
                for i in self.scores.cuts()
            ]
        return torch.cat(parts, -2)

    def joint(self, mu: Measure) -> Coupling:
        r"""$\mu(dx)\,\kappa(x,dy)$: the coupling of $\mu$ with the second marginal it has.

        Args:
            mu: the measure of the queries.
        """
        log_a = self._weights_of("mu", mu, self.shape[-2])
        scores, dtype = self.scores, self.scores.dtype if self.dtype is None else self.dtype
        with torch.no_grad():
            narrow = scores.dtype == torch.float32 and TOL < floor(float(scores.size()))
        bias = self._bias
        if narrow:  # potentials of such size would not leave float32 any digits for the masses
            scores, bias, log_a = scores.to(torch.float64), bias.double(), log_a.double()
        f = -scores.over_keys(bias)
        reached = bias + scores.over_queries(tilted(log_a, f))
        g = (bias - reached).masked_fill(reached == -torch.inf, 0)
        return Coupling(scores, reached, g, log_a, f, dtype=dtype)

    def project(
        self,
        mu: Measure,
        nu: Measure,
        *,
        normaliser: Sinkhorn = Sinkhorn(),  # noqa: B008
    ) -> Coupling:
        r"""The coupling of $\mu$ and $\nu$ nearest to $\mu\otimes\kappa$ in $\mathrm{KL}$.

        It is the Sinkhorn normalisation of the same affinity.

        Args:
            mu: the measure of the queries.
            nu: the measure of the keys.
            normaliser: how to find it, without slack.
        """
        check_kind("normaliser", normaliser, Sinkhorn, "Only Sinkhorn projects.")
        if normaliser.keeps != "both":
            raise ValueError("A projection keeps both marginals, got a Sinkhorn with slack.")
        log_a = self._weights_of("mu", mu, self.shape[-2])
        log_b = self._weights_of("nu", nu, self.shape[-1])
        found = normaliser.find(self.scores, log_a, log_b)
        pi = Coupling.found(normaliser, self.scores, log_a, log_b, found)
        return pi if self.dtype is None else replace(pi, dtype=self.dtype)

    def _weights_of(self, name: str, mu: Measure, count: int) -> Tensor:
        check_kind(name, mu, Measure, "Points become one with `pf.Measure(points)`.")
        if mu.n != count:
            raise ValueError(f"`{name}` must have {count} atoms, as the relation has, got {mu.n}.")
        return aligned_weights(name, mu, self.scores)


@dataclass(frozen=True, eq=False, repr=False)
class Coupling(Joint):
    r"""A coupling $\pi\in\Pi(\mu,\nu)$, with a certificate of how nearly it is one.

    Masses sum to one, rows to the weights of $\mu$, columns to those of $\nu$, up to `residual`.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(30, 2)), pf.Measure(torch.rand(20, 2))
        >>> pi = pf.relate(mu.atoms, nu.atoms, mu, nu, normaliser=pf.Sinkhorn(tol=1e-5))
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
        check_sums("masses", masses.sum((-1, -2)), matrix.dtype, fix)
        log_a, log_b = (safe_log(masses.sum(axis)) for axis in (-1, -2))
        scores = _ratio(masses, log_a[..., :, None] + log_b[..., None, :])
        return cls(DenseScores(scores), log_b, None, log_a)

    @classmethod
    def found(cls, normaliser, scores, log_a, log_b, found, **more):
        """With the tolerance asked for."""
        more = {"tol": normaliser.goal, "parts": found.parts, **more}
        return super().found(normaliser, scores, log_a, log_b, found, **more)

    @cached_property
    def residual(self) -> Mass:
        r"""The larger of the two marginal errors $\sum|\cdot|$, measured on this object."""
        with torch.no_grad():
            pairs = zip(
                replace(self, dtype=None).marginals(), (self.log_a, self.log_b), strict=True
            )
            errors = [(mass - logs.exp()).abs().sum(-1) for mass, logs in pairs]
            return torch.maximum(*torch.broadcast_tensors(*errors))

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

    def integrate(self, values):
        """Averages."""
        return self.scores.average(values, self._bias)

    def transpose(self) -> Coupling:
        """The same coupling with keys asking."""
        parts = None if self.parts is None else (self.parts[1], self.parts[0])
        return Coupling(
            self.scores.T, self.log_a, self._f, self.log_b, self._g, self.steps, self.tol, parts,
            dtype=self.dtype,
        )  # fmt: skip

    def conditional(self) -> Conditional:
        r"""$\pi(dy|x)$."""
        return Conditional(self.scores, self.log_b, self.g, dtype=self.dtype)

    def mutual_information(self) -> Mass:
        r"""$\mathrm{KL}(\pi|\mu\otimes\nu)=\int(A+f\oplus g)\,d\pi$."""
        mean = self.scores.average(self._g[..., None], self._bias)[..., 0]
        return self._out(self._integral(self._f + self.scores.mean(self._bias) + mean))


def _masses(matrix: Tensor) -> Tensor:
    """Masses of a user's matrix, in float32 or better."""
    check_floating("matrix", matrix, "(..., m, n)", 2)
    matrix = widen(matrix)
    if not holds((matrix >= 0).all()):
        raise ValueError(
            f"`matrix` must hold masses, not negative and not NaN, got a minimum of "
            f"{matrix.min().item():g}. Logits become a relation with `pf.relate(logits, mu, nu)`."
        )
    return matrix


def _ratio(masses: Tensor, reference: Tensor) -> Tensor:
    """The logarithm of masses over a reference, minus infinity where there are none."""
    none = masses == 0
    return (safe_log(masses) - reference.masked_fill(reference == -torch.inf, 0)).masked_fill(
        none, -torch.inf
    )
