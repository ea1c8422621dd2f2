r"""Relations between two measures: conditionals, couplings, other masses, and signed ones.

A relation is a density $e^{A+f\oplus g}$ against $\mu\otimes\nu$, both normalised. It is lazy: two
potentials and the scores, no matrix, until one is asked for. What is not defined on a type does
not exist on it; conversions are explicit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ._checks import check_broadcast, check_floating, check_kind, check_sizes, check_sums, holds
from ._precision import widen
from .marginals import Marginals, centre, charge, integral
from .measures import Measure
from .normalisers import TOL, Found, Normaliser, Sinkhorn, floor
from .scores import DenseScores, Scores, softmax

Mass = Float[Tensor, "*b"]


@dataclass(frozen=True, eq=False, repr=False)
class Relation(ABC):
    r"""What all relations share: scores and a potential on the keys.

    Args:
        scores: $A$ between queries and keys.
        log_b: log-weights of the keys, normalised.
        g: the potential on the keys, None for zero.
        dtype: of results, where computations are in a wider one; None for theirs.
    """

    scores: Scores
    log_b: Float[Tensor, "*#b n"]
    g: Float[Tensor, "*#b n"] | None
    dtype: torch.dtype | None = field(default=None, kw_only=True)

    @property
    def shape(self) -> torch.Size:
        """`(*b, m, n)`: queries and keys."""
        return self.scores.shape

    @abstractmethod
    def matrix(self) -> Float[Tensor, "*b m n"]:
        """The relation as a matrix, differentiable."""

    def apply(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        r"""Integrate values, one per key, for every query; differentiable, no matrix formed.

        For conditionals and couplings it is $\int v(y)\,\pi(dy|x)$, the mean of the values that a
        query is related to, as attention does; `coupling.matrix() @ values` is that times the
        weights of the queries. For other affinities it is $\int v(y)\,\pi(x,dy)/\mu(dx)$, sums by
        mass, per unit weight of the query.
        """
        check_floating("values", values, "(..., n, e)", 1)
        n = self.shape[-1]
        if values.ndim < 2 or values.shape[-2] != n:
            hint = ""
            if values.ndim == 1:
                hint = " One number per key is `values[:, None]`."
            elif values.shape[-2] == self.shape[-2] and not isinstance(self, Conditional):
                hint = " Functions of the queries are integrated by its `transpose()`."
            raise ValueError(
                f"`values` must have one row per key, (..., {n}, e), got {tuple(values.shape)}."
                + hint
            )
        return self.integrate(values.masked_fill((self.log_b == -torch.inf)[..., None], 0))

    @abstractmethod
    def integrate(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        """`apply` for values known to be good, finite where there is no mass."""

    @property
    def _bias(self) -> Tensor:
        return self.log_b if self.g is None else charge(self.log_b, self.g)

    def __getitem__(self, index) -> Relation:
        """Some relations of a batch, such as one head."""
        batch = self.shape[:-2]
        torch.empty(batch)[index]  # says it if there are not so many
        some = lambda t: None if t is None else t.expand(*batch, t.shape[-1])[index]
        changed: dict[str, Any] = {"scores": self.scores.at(index)}
        for name in ("log_b", "g", "log_a", "f"):
            if hasattr(self, name):
                changed[name] = some(getattr(self, name))
        if (parts := getattr(self, "parts", None)) is not None:
            changed["parts"] = tuple(map(some, parts))
        return replace(self, **changed)

    def _out(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else x.to(self.dtype)

    def assignment(self) -> Int[Tensor, "*b m"]:
        """The key that each query gives most mass to, as an index."""
        bias = self._bias[..., None, :]
        with torch.no_grad():
            parts = [(self.scores.tile(i) + bias).argmax(-1) for i in self.scores.cuts()]
        return torch.cat(parts, -1)

    def __repr__(self) -> str:
        *batch, m, n = self.shape
        many = f", batch {tuple(batch)}" if batch else ""
        return f"{type(self).__name__}({m} queries, {n} keys{many})"


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
        return self._out(softmax(self.scores.matrix() + self._bias[..., None, :]))

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
                _draw(softmax(self.scores.tile(i) + bias), count, generator)
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
        reached = bias + scores.over_queries(charge(log_a, f))
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
        dtype = self.scores.dtype if self.dtype is None else self.dtype
        pi = cast(Coupling, build(normaliser, self.scores, log_a, log_b, found))
        return replace(pi, dtype=dtype)

    def _weights_of(self, name: str, mu: Measure, count: int) -> Tensor:
        check_kind(name, mu, Measure, "Points become one with `pf.Measure(points)`.")
        if mu.n != count:
            raise ValueError(f"`{name}` must have {count} atoms, as the relation has, got {mu.n}.")
        return aligned_weights(name, mu, self.scores)


@dataclass(frozen=True, eq=False, repr=False)
class _Joint(Relation, ABC):
    r"""A relation with masses: $\pi=e^{A+f\oplus g}\mu\otimes\nu$.

    Args:
        log_a: log-weights of the queries, normalised.
        f: the potential on the queries, None for the one that normalises the rows.
        steps: iterations it took.
        tol: the error below which it counts as converged.
        parts: connected parts of the pattern of allowed pairs, None for one.
    """

    log_a: Float[Tensor, "*#b m"]
    f: Float[Tensor, "*#b m"] | None = None
    steps: int = 0
    tol: float = TOL
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None

    @property
    def _f(self) -> Tensor:
        return -self.scores.over_keys(self._bias) if self.f is None else self.f

    @property
    def _g(self) -> Tensor:
        return torch.zeros_like(self.log_b) if self.g is None else self.g

    def matrix(self) -> Float[Tensor, "*b m n"]:
        r"""Joint masses $\pi_{ij}$; rows belong to queries, columns to keys."""
        side = charge(self.log_a, self._f)[..., :, None]
        return self._out((self.scores.matrix() + side + self._bias[..., None, :]).exp())

    def marginals(self) -> tuple[Float[Tensor, "*b m"], Float[Tensor, "*b n"]]:
        """Masses of the rows and of the columns, as they are."""
        seen = self.scores.over_keys(self._bias)
        over_queries = charge(self.log_a, -seen if self.f is None else self.f)
        columns = self._bias + self.scores.over_queries(over_queries)
        rows = torch.where(self.log_a == -torch.inf, self.log_a, over_queries + seen)
        return self._out(rows.exp()), self._out(columns.exp())

    def cost(self) -> Mass:
        r"""$\int c\,d\pi$, with $c=-A$ for a dot product, $|q-k|^2$ for a squared distance."""
        return self._out(self._integral(self.scores.cost(self._bias)))

    def entropy(self) -> Mass:
        r"""$-\sum\pi_{ij}\log\pi_{ij}$."""
        zero = lambda logs: logs.masked_fill(logs == -torch.inf, 0)
        pair = zero(charge(self.log_a, self._f)) + self.scores.mean(self._bias)
        mean = self.scores.average(zero(self._bias)[..., None], self._bias)[..., 0]
        return self._out(-self._integral(pair + mean))

    def sample(
        self, count: int, *, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, "*b s"], Int[Tensor, "*b s"]]:
        """`count` independent pairs, as indices of queries and of keys."""
        check_sizes(count=count)
        with torch.no_grad():
            rows = _draw(self._row_mass(), count, generator)
            keys = torch.empty_like(rows)
            bias = self._bias
            for at in product(*map(range, rows.shape[:-1])):
                some, back = rows[at].unique(return_inverse=True)
                tile = self.scores.tile(some).expand(*self.shape[:-2], len(some), self.shape[-1])
                p = (tile[at] + bias.expand(*self.shape[:-2], self.shape[-1])[at]).softmax(-1)
                parts = back.split(max(1, (1 << 22) // p.shape[-1]))
                keys[at] = torch.cat([_draw(p[part], 1, generator)[:, 0] for part in parts])
        return rows, keys

    def _row_mass(self) -> Tensor:
        """Masses of the rows: the weights themselves where $f$ normalises them."""
        if self.f is None:
            return self.log_a.exp().expand(self.shape[:-1])
        return (charge(self.log_a, self.f) + self.scores.over_keys(self._bias)).exp()

    def _integral(self, x: Tensor) -> Tensor:
        r"""$\int x\,d\pi$ for a function of the queries that is a mean over their rows."""
        mass = self._row_mass()
        return (mass * x.masked_fill(mass == 0, 0)).sum(-1)


@dataclass(frozen=True, eq=False, repr=False)
class Coupling(_Joint):
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
        log_a, log_b = (_log(masses.sum(axis)) for axis in (-1, -2))
        scores = _ratio(masses, log_a[..., :, None] + log_b[..., None, :])
        return cls(DenseScores(scores), log_b, None, log_a)

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
        f, g = centre(f, g, Marginals(self.log_a, self.log_b, parts=self.parts))
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


@dataclass(frozen=True, eq=False, repr=False)
class Affinities(_Joint):
    r"""Masses $\pi_{ij}\ge0$ that are neither conditional nor coupling.

    Dual softmax, sigmoid and unbalanced plans are of this kind: their rows and columns sum to
    what they sum to, and only a fixed point, if there is one, can be checked.

    Examples:
        >>> mu = pf.Measure(torch.randn(5, 2))
        >>> pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.DualSoftmax())
        Affinities(5 queries, 5 keys)
    """

    slack: tuple[float, float] | None = None
    r"""$\rho/\varepsilon$ on both sides of an unbalanced plan."""

    def mass(self) -> Mass:
        """The sum of all masses."""
        return self.marginals()[0].sum(-1)

    def integrate(self, values):
        """Averages times the mass of their rows."""
        density = (self._f + self.scores.over_keys(self._bias)).exp().nan_to_num(0)
        return density[..., None].to(values.dtype) * self.scores.average(values, self._bias)

    def transpose(self) -> Affinities:
        """The same masses with keys asking."""
        slack = None if self.slack is None else (self.slack[1], self.slack[0])
        return Affinities(
            self.scores.T, self.log_a, self._f, self.log_b, self._g, self.steps, self.tol,
            slack=slack, dtype=self.dtype,
        )  # fmt: skip

    @cached_property
    def residual(self) -> Mass:
        r"""How far an unbalanced plan is from its fixed point, in $L^1$ of both measures.

        The relative change of potentials in one step. Other masses solve no equation: NaN.
        """
        with torch.no_grad():
            if self.slack is None:
                return torch.full_like(self._f[..., 0], torch.nan)
            sides = Marginals(self.log_a, self.log_b, self.slack)
            move = lambda p, q, logs: integral(torch.expm1(p - q).abs(), logs)
            return torch.maximum(
                move(self._f, sides.rows(self.scores, self._g), self.log_a),
                move(self._g, sides.columns(self.scores, self._f), self.log_b),
            )


@dataclass(frozen=True, eq=False, repr=False)
class Signed(Relation):
    r"""A signed density $A(x,y)$ against $\mu\otimes\nu$, as linear attention has it.

    No masses: rows sum to anything, entries may be negative.

    Args:
        log_a: log-weights of the queries, normalised.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[-1.0], [1.0]]))
        >>> pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.Linear()).matrix()
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """

    log_a: Float[Tensor, "*#b m"]

    def matrix(self) -> Float[Tensor, "*b m n"]:
        r"""$A_{ij}\,a_ib_j$, 0 where a pair is forbidden."""
        scores = self.scores.matrix()
        density = scores.masked_fill(scores == -torch.inf, 0)
        return self._out(self.log_a.exp()[..., :, None] * density * self.log_b.exp()[..., None, :])

    def integrate(self, values):
        """Linear in the number of atoms where scores are dot products."""
        return self.scores.linear(values, self.log_b.exp()).to(values.dtype)

    def transpose(self) -> Signed:
        """The same density with keys asking."""
        return Signed(self.scores.T, self.log_a, None, self.log_b, dtype=self.dtype)

    def assignment(self) -> Int[Tensor, "*b m"]:
        """The key whose signed mass is largest, as an index."""
        weights = self.log_b.exp()[..., None, :]
        with torch.no_grad():
            tiles = (self.scores.tile(i) * weights for i in self.scores.cuts())
            parts = [t.masked_fill(weights == 0, -torch.inf).argmax(-1) for t in tiles]
        return torch.cat(parts, -1)


def aligned_weights(name: str, mu: Measure, scores: Scores) -> Tensor:
    """Normalised log-weights, for every relation of a batch: heads come after the measures."""
    batch, more = scores.shape[:-2], len(scores.shape) - 2 - len(mu.batch_shape)
    logs = mu.log_weights.reshape(*mu.batch_shape, *(1,) * more, mu.n)
    check_broadcast(f"`{name}` and the scores", logs.shape[:-1], batch)
    return logs.to(scores.dtype).log_softmax(-1).expand(*batch, mu.n)


def build(
    normaliser: Normaliser, scores: Scores, log_a: Tensor | None, log_b: Tensor, found: Found
) -> Relation:
    """The relation a normaliser makes of scores, of the type it deserves.

    Queries without weights, `log_a=None`, are enough for whoever only applies it.
    """
    if normaliser.keeps == "rows":
        return Conditional(normaliser.density(scores, log_b, found)[0], log_b, found.g)
    if normaliser.keeps == "sign":
        log_a = log_b.new_zeros(()).expand(scores.shape[:-1]) if log_a is None else log_a
        return Signed(scores, log_b, None, log_a)
    dtype = scores.dtype
    if found.scores is not None:
        scores = found.scores
    if found.log_b is not None:
        log_b = found.log_b
    if found.g is not None and found.g.dtype != scores.dtype:
        scores = scores.to(found.g.dtype)
    if log_a is None:
        log_a = log_b.new_zeros(()).expand(scores.shape[:-1])
    if log_b.dtype != scores.dtype:
        log_b = log_b.to(scores.dtype).log_softmax(-1)
    if log_a.dtype != scores.dtype:
        log_a = log_a.to(scores.dtype).log_softmax(-1)
    scores, f = normaliser.density(scores, log_b, found)
    if normaliser.keeps == "both":
        return Coupling(
            scores, log_b, found.g, log_a, f, found.steps, normaliser.goal, found.parts,
            dtype=dtype,
        )  # fmt: skip
    slack = normaliser.slack_of(scores)
    return Affinities(scores, log_b, found.g, log_a, f, found.steps, slack=slack, dtype=dtype)


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


def _log(masses: Tensor) -> Tensor:
    """The logarithm, minus infinity without gradient at zero."""
    some = masses > 0
    return torch.where(some, torch.where(some, masses, 1).log(), -torch.inf)


def _ratio(masses: Tensor, reference: Tensor) -> Tensor:
    """The logarithm of masses over a reference, minus infinity where there are none."""
    none = masses == 0
    return (_log(masses) - reference.masked_fill(reference == -torch.inf, 0)).masked_fill(
        none, -torch.inf
    )


def _draw(p: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Indices drawn with replacement from the last axis."""
    flat = p.reshape(-1, p.shape[-1])
    flat = torch.where(flat.sum(-1, keepdim=True) > 0, flat, 1)  # a query that sees nothing
    flat = torch.multinomial(flat, count, True, generator=generator)
    return flat.reshape(*p.shape[:-1], count)
