"""Measures: weighted clouds of points, alone or in ragged batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from .._tools.checks import (
    check_atoms,
    check_floating,
    check_kind,
    check_mass,
    check_same,
    check_shape,
    check_values,
    holds,
)
from .._tools.linkage import label_points, logsumexp_by_label
from .._tools.logs import safe_log
from .._tools.precision import full_precision, wide, widen
from .._tools.types import Points, Times, Weights
from ._quadrature import gauss_hermite


class Transport(ABC):
    """A map that moves a measure and may read more of it than its points: times, weights."""

    @abstractmethod
    def transport(self, mu: Measure) -> Measure:
        """The moved measure."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Measure:
    r"""The positive measure $\mu=\sum_i a_i\,\delta_{x_i}$ on $\mathbb R^d$, or a batch of them.

    Weights live as logarithms: given as `log_weights`, $10^{-300}$ is an ordinary weight in
    float32, though `weights` and `mass` then show 0. An atom of zero mass has log-weight
    $-\infty$. Such atoms pad ragged batches: no operation sees them, nor what was stored in their
    coordinates. Two clouds are equal as measures if their canonical forms `merge()` agree.

    Args:
        atoms: the points $x_i$, shape `(..., n, d)`.
        weights: the $a_i\ge0$, shape `(..., n)`, of any positive total mass, kept as they are;
            counts may be integers. By default every atom weighs $1/n$.
        log_weights: the $\log a_i$ instead, for weights that a float cannot hold.
        times: one per atom, for causal maps: an atom is seen by queries at its time or later.

    Tensors are not copied: changing them in place changes the measure, unchecked.

    Examples:
        >>> mu = pf.Measure(torch.eye(2), weights=torch.tensor([1.0, 3.0]))
        >>> mu.mass, mu.mean()
        (tensor(4.), tensor([0.2500, 0.7500]))
        >>> mu.push(lambda x: 2 * x).normalise().integrate(lambda x: x)
        tensor([0.5000, 1.5000])
    """

    atoms: Points
    log_weights: Weights
    times: Times | None

    def __init__(
        self,
        atoms: Points,
        weights: Num[Tensor, "*b n"] | None = None,
        *,
        log_weights: Weights | None = None,
        times: Times | None = None,
    ):
        check_atoms(atoms)
        if weights is not None and log_weights is not None:
            raise ValueError("Give `weights` or `log_weights`, not both.")
        given: tuple[str, Tensor] | None = None
        if weights is not None:
            if isinstance(weights, Tensor) and not weights.is_floating_point():
                weights = weights.to(wide(atoms.dtype))  # counts
            given = "weights", weights
            logs = safe_log(_checked(*given, atoms))
        elif log_weights is not None:
            given = "log_weights", log_weights
            logs = _checked(*given, atoms)
        else:
            share = -math.log(atoms.shape[-2])
            logs = torch.full_like(atoms[..., 0], share, dtype=wide(atoms.dtype))
        if times is not None:
            check_shape("times", times, atoms.shape[:-1], "One per atom.")
            check_same("device", ("atoms", atoms), ("times", times))
        check_values(atoms, logs, times, given)
        _set(self, *_covered(atoms, logs, times))

    @classmethod
    def unchecked(cls, atoms: Points, log_weights: Weights, times: Times | None = None) -> Measure:
        """A measure from tensors known to be good: nothing is checked, no device waits.

        Atoms of zero mass must hold finite points, as those of every measure do.
        """
        mu = object.__new__(cls)
        _set(mu, atoms, log_weights, times)
        return mu

    @classmethod
    def from_tokens(
        cls,
        tokens: Points,
        *,
        mask: Bool[Tensor, "*b n"] | None = None,
        times: Times | None = None,
    ) -> Measure:
        r"""The empirical measure $\frac1n\sum_i\delta_{x_i}$ of a token sequence, eq. (4).

        Args:
            tokens: the sequence, or a padded batch of sequences.
            mask: True for real tokens, False for padding (an attention mask).
            times: one per token, e.g. its position, for causal maps.

        Examples:
            >>> mask = torch.tensor([[True, True, False]])
            >>> pf.Measure.from_tokens(torch.randn(1, 3, 2), mask=mask).weights
            tensor([[0.5000, 0.5000, 0.0000]])
        """
        if mask is None:
            return cls(tokens, times=times)
        check_atoms(tokens)
        check_shape("mask", mask, tokens.shape[:-1], "One per token, True for real tokens.")
        kept = mask.to(wide(tokens.dtype))
        return cls(tokens, kept / kept.sum(-1, keepdim=True).clamp_min(1), times=times)

    @classmethod
    def gaussian(
        cls,
        mean: Float[Tensor, "*b d"] | float = 0.0,
        cov: Float[Tensor, "*b d d"] | float = 1.0,
        *,
        order: int = 20,
    ) -> Measure:
        r"""Gauss-Hermite nodes and weights of $\mathcal N(m,\Sigma)$: $q^d$ atoms for order $q$.

        Integrals of polynomials of total degree below $2q$ are exact, and an affine map sends the
        nodes to nodes. So layers that keep Gaussians Gaussian can be compared with their
        recursions on mean and covariance to rounding. What is integrated must be resolved by the
        nodes: for an exponential affinity with score $y^\top Ax$, keep
        $\|A\|\,\lambda_{\max}(\Sigma)\le\frac12$ (softmax) or $\le1$ (squared distance,
        Sinkhorn) at order 40 for $d=1$ and 20 for $d=2$; beyond that range errors grow from
        $10^{-12}$ upwards.

        Args:
            mean: the mean; a number means one dimension.
            cov: the positive definite covariance; a number means that multiple of the identity.
            order: nodes per axis, at most 180.

        Examples:
            >>> mu = pf.Measure.gaussian(1.0, 0.25, order=8)
            >>> mu.n, mu.covariance()
            (8, tensor([[0.2500]]))
        """
        mean = mean if isinstance(mean, Tensor) else torch.tensor([float(mean)])
        d = mean.shape[-1]
        if not isinstance(cov, Tensor):
            cov = float(cov) * torch.eye(d).to(mean).expand(*mean.shape, d)
        check_shape("cov", cov, (*mean.shape, d), "One row and column per coordinate of `mean`.")
        check_same("dtype", ("mean", mean), ("cov", cov))
        if not 1 <= order <= 180 or order**d > 10**7:
            raise ValueError(
                f"`order` must lie in 1..180 with at most 10^7 nodes, got {order}^{d} nodes. "
                "Lower it, or use `Measure(torch.randn(n, d))`."
            )
        with full_precision(cov):
            root, info = torch.linalg.cholesky_ex(widen(cov))
            skew = (cov - cov.mT).abs().amax((-2, -1)) > 1e-4 * cov.abs().amax((-2, -1))
        if not holds((info == 0).all() & ~skew.any() & mean.isfinite().all()):
            raise ValueError(
                "`mean` must be finite and `cov` symmetric positive definite, and they are not. "
                "Add a small multiple of the identity to a singular covariance."
            )
        z, logs = (torch.from_numpy(t).to(root) for t in gauss_hermite(order, d))
        with full_precision(root):
            atoms = (mean[..., None, :] + z @ root.mT).to(mean.dtype)
        return Measure.unchecked(atoms, logs.expand(atoms.shape[:-1]), None)

    @classmethod
    def grid(
        cls,
        low: Float[Tensor, " d"] | float = 0.0,
        high: Float[Tensor, " d"] | float = 1.0,
        *,
        size: int,
    ) -> Measure:
        r"""The uniform law on a box as the centres of `size`$^d$ equal cells (midpoint rule).

        Args:
            low: the lowest corner; a number means one dimension.
            high: the highest corner.
            size: cells per axis.

        Examples:
            >>> pf.Measure.grid(0.0, 1.0, size=4).atoms.flatten()
            tensor([0.1250, 0.3750, 0.6250, 0.8750])
        """
        low = low if isinstance(low, Tensor) else torch.tensor([float(low)])
        high = high if isinstance(high, Tensor) else torch.tensor([float(high)]).to(low)
        check_shape("high", high, low.shape, "One number per coordinate of `low`.")
        if low.ndim != 1 or size != int(size) or size < 1 or not holds((high > low).all()):
            raise ValueError(
                f"A grid needs corners of shape (d,), low < high and a whole size >= 1, got low "
                f"{low.tolist()}, high {high.tolist()}, size {size}."
            )
        ticks = (torch.arange(size, dtype=low.dtype, device=low.device) + 0.5) / size
        cells = torch.cartesian_prod(*[ticks] * len(low)).reshape(-1, len(low))
        return cls(low + (high - low) * cells)

    @classmethod
    def stack(cls, measures: Sequence[Measure]) -> Measure:
        """A batch of measures of unequal sizes, along a new first axis.

        Shorter clouds are filled up with atoms of zero mass, which no operation sees; indexing and
        iteration strip them again.

        Examples:
            >>> mu, nu = pf.Measure(torch.zeros(2, 1)), pf.Measure(torch.ones(3, 1))
            >>> batch = pf.Measure.stack([mu, nu])
            >>> batch.mean().flatten(), [m.n for m in batch]
            (tensor([0., 1.]), [2, 3])
        """
        parts = _alike(measures)
        _same_batches(parts)
        most = max(m.n for m in parts)
        slots = torch.arange(most, device=parts[0].atoms.device)
        spread = lambda t, m, axis: t.index_select(axis, slots.clamp(max=m.n - 1))
        logs = [spread(m.log_weights, m, -1).masked_fill(slots >= m.n, -torch.inf) for m in parts]
        times = None
        if parts[0].times is not None:
            times = torch.stack([spread(m.times, m, -1) for m in parts])
        return Measure.unchecked(
            torch.stack([spread(m.atoms, m, -2) for m in parts]), torch.stack(logs), times
        )

    @classmethod
    def mixture(
        cls, measures: Sequence[Measure], weights: Float[Tensor, " parts"] | None = None
    ) -> Measure:
        r"""The mixture $\sum_kc_k\mu_k$.

        Args:
            measures: the $\mu_k$, of one space and batch shape.
            weights: the $c_k\ge0$, by default equal and of sum one.

        Examples:
            >>> a, b = pf.Measure(torch.zeros(2, 1)), pf.Measure(torch.ones(1, 1))
            >>> pf.Measure.mixture([a, b], torch.tensor([0.25, 0.75])).mean()
            tensor([0.7500])
        """
        parts = _alike(measures)
        _same_batches(parts)
        if weights is None:
            weights = torch.full((len(parts),), 1 / len(parts)).to(parts[0].log_weights)
        check_shape("weights", weights, (len(parts),), "One per measure.")
        logs = safe_log(weights.to(parts[0].log_weights))
        check_mass("weights", weights, logs)
        joined = torch.cat([m.log_weights + c for m, c in zip(parts, logs, strict=True)], -1)
        times = None
        if parts[0].times is not None:
            times = torch.cat([t for m in parts if (t := m.times) is not None], -1)
        atoms = torch.cat([m.atoms for m in parts], -2)
        return Measure.unchecked(*_covered(atoms, joined, times))

    @property
    def n(self) -> int:
        """Number of atoms; in a ragged batch, of slots."""
        return self.atoms.shape[-2]

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.atoms.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the atoms."""
        return self.atoms.dtype

    @property
    def device(self) -> torch.device:
        """Where the measure lives."""
        return self.atoms.device

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes; empty for one measure."""
        return tuple(self.atoms.shape[:-2])

    @property
    def weights(self) -> Weights:
        """The $a_i$."""
        return self.log_weights.exp()

    @property
    def mass(self) -> Float[Tensor, "*b"]:
        r"""The total mass $\mu(\mathbb R^d)$."""
        return self.log_weights.logsumexp(-1).exp()

    def push(self, T: Callable[[Points], Tensor] | Transport) -> Measure:
        r"""The push-forward $T_\sharp\mu=\sum_ia_i\,\delta_{T(x_i)}$: atoms move, weights stay.

        Args:
            T: a map of points, applied to all atoms `(..., n, d)` at once, or `gamma.at(mu)`,
                which also reads the times of the atoms.
        """
        if isinstance(T, Transport):
            return T.transport(self)
        return self.moved(T(self.atoms))

    def moved(self, atoms: Tensor) -> Measure:
        """The same weights and times on other points; nothing but the shape is checked."""
        if atoms.shape[:-1] != self.atoms.shape[:-1]:
            raise ValueError(
                f"A push-forward keeps the number of atoms: expected points of shape "
                f"({', '.join(map(str, self.atoms.shape[:-1]))}, d), got {tuple(atoms.shape)}."
            )
        return Measure.unchecked(atoms, self.log_weights, self.times)

    def integrate(self, f: Callable[[Points], Tensor] | Tensor) -> Tensor:
        r"""The integral $\int f\,d\mu$ of a function, or of its values at the atoms.

        Args:
            f: a function of points, or its values `(..., n)` or `(..., n, e)`.

        Examples:
            >>> pf.Measure.gaussian(0.0, 1.0).integrate(lambda x: x[..., 0] ** 4)
            tensor(3.0000)
        """
        values = f if isinstance(f, Tensor) else f(self.atoms)
        scalar = values.shape == self.log_weights.shape
        values = values[..., None] if scalar else values
        if values.shape[:-1] != self.log_weights.shape:
            raise ValueError(
                f"Values must be one per atom, of shape {tuple(self.log_weights.shape)} or with "
                f"one more axis, got {tuple(values.shape)}."
            )
        dead = (self.log_weights == -torch.inf)[..., None]
        total = (self.weights[..., None] * values.masked_fill(dead, 0)).sum(-2)
        return total[..., 0] if scalar else total

    def mean(self) -> Float[Tensor, "*b d"]:
        r"""The barycentre $\int x\,d\mu/\mu(\mathbb R^d)$."""
        return self._barycentre().to(self.atoms.dtype)

    def covariance(self) -> Float[Tensor, "*b d d"]:
        r"""The covariance $\int(x-m)(x-m)^\top d\mu/\mu(\mathbb R^d)$ about the barycentre."""
        centred = widen(self.atoms) - self._barycentre()[..., None, :]
        with full_precision(centred):
            result = (self.log_weights.softmax(-1)[..., None] * centred).mT @ centred
        return result.to(self.atoms.dtype)

    def _barycentre(self) -> Tensor:
        """The barycentre, in the dtype of the weights."""
        return (self.log_weights.softmax(-1)[..., None] * self.atoms).sum(-2)

    def normalise(self) -> Measure:
        """The same measure scaled to mass one."""
        return Measure.unchecked(self.atoms, self.log_weights.log_softmax(-1), self.times)

    def strip(self) -> Measure:
        """The same measure without its atoms of zero mass; a batch needs them as padding."""
        live = self.log_weights > -torch.inf
        if self.batch_shape or holds(live.all()):
            return self
        times = self._timed(lambda t: t[live])
        return Measure.unchecked(self.atoms[live], self.log_weights[live], times)

    def merge(self, tol: float = 0.0) -> Measure:
        r"""The canonical form: equal points become one atom, zero masses go, points are sorted.

        Points joined by a chain of steps of length at most `tol` become one atom at their
        barycentre. Points at different times are different points. Differentiable.

        Examples:
            >>> mu = pf.Measure(torch.tensor([[1.0], [0.0], [1.0]])).merge()
            >>> mu.atoms.flatten(), mu.weights
            (tensor([0., 1.]), tensor([0.3333, 0.6667]))
        """
        if not 0 <= tol < math.inf:
            raise ValueError(f"`tol` must be a distance, got {tol}.")
        if self.batch_shape:
            return Measure.stack([m.merge(tol) for m in self])
        mu = self.strip()
        x, logs = widen(mu.atoms), mu.log_weights
        label, first = label_points(mu.atoms.detach(), mu.times, tol)
        mass = logsumexp_by_label(logs, label, len(first))
        share = (logs - mass[label]).exp()[:, None]
        base = x[first]
        # relative to a member, so that equal points keep their very bits
        atoms = base + torch.zeros_like(base).index_add(0, label, share * (x - base[label]))
        times = mu._timed(lambda t: t[first])
        return Measure.unchecked(atoms.to(mu.atoms.dtype), mass, times)

    def split(self, parts: int | Sequence[float] = 2, *, atom: int | None = None) -> Measure:
        """The same measure written with more atoms: each, or one, split where it stands.

        Args:
            parts: how many equal parts, or their shares of the mass.
            atom: which atom to split; all of them by default.

        Examples:
            >>> pf.Measure(torch.zeros(2, 1)).split([0.25, 0.75], atom=0).weights
            tensor([0.1250, 0.3750, 0.5000])
        """
        if isinstance(parts, int):
            shares = [1 / parts] * parts if parts > 0 else []
        else:
            shares = [float(p) for p in parts]
        if not shares or not min(shares) >= 0 or not abs(sum(shares) - 1) <= 1e-9:
            raise ValueError(
                f"`parts` must be a positive count or shares that sum to one, got {parts}."
            )
        if atom is not None and not -self.n <= atom < self.n:
            raise ValueError(f"`atom` must index one of {self.n} atoms, got {atom}.")
        places = torch.arange(self.n, device=self.atoms.device)
        counts = torch.full_like(places, len(shares))
        logs = safe_log(torch.tensor(shares, dtype=torch.float64)).to(self.log_weights)
        offset = logs.repeat(self.n)
        if atom is not None:
            counts = torch.ones_like(places)
            counts[atom] = len(shares)
            offset = torch.zeros_like(offset[: self.n])
            at = atom % self.n
            offset = torch.cat([offset[:at], logs, offset[at + 1 :]])
        index = places.repeat_interleave(counts)
        times = self._timed(lambda t: t[..., index])
        return Measure.unchecked(
            self.atoms[..., index, :], self.log_weights[..., index] + offset, times
        )

    def sample(self, size: int, *, generator: torch.Generator | None = None) -> Measure:
        r"""The empirical measure of `size` independent draws from the normalised measure.

        The result has mass one; `.atoms` are the draws, differentiable in the atoms.

        Examples:
            >>> pf.Measure(torch.zeros(3, 2)).sample(5).atoms.shape
            torch.Size([5, 2])
        """
        if size < 1:
            raise ValueError(f"`size` must be at least 1, got {size}.")
        cdf = self.log_weights.detach().double().softmax(-1).cumsum(-1)
        u = torch.rand(
            *self.batch_shape,
            size,
            generator=generator,
            dtype=torch.float64,
            device=cdf.device if generator is None else generator.device,
        )
        index = torch.searchsorted(cdf, u.to(cdf.device) * cdf[..., -1:], right=True)
        atoms = self.atoms.gather(-2, index[..., None].expand(*index.shape, self.dim))
        logs = torch.full_like(atoms[..., 0], -math.log(size), dtype=self.log_weights.dtype)
        return Measure.unchecked(atoms, logs, self._timed(lambda t: t.gather(-1, index)))

    def restrict(self, region: Callable[[Points], Tensor] | Bool[Tensor, "*b n"]) -> Measure:
        r"""The restriction $\mu|_A$: atoms outside the region lose their mass.

        Args:
            region: a predicate of points, or its values at the atoms.

        Examples:
            >>> pf.Measure.grid(0.0, 1.0, size=4).restrict(lambda x: x[..., 0] < 0.5).weights
            tensor([0.2500, 0.2500, 0.0000, 0.0000])
        """
        inside = region if isinstance(region, Tensor) else region(self.atoms)
        check_shape("region", inside, self.log_weights.shape, "True or False for each atom.")
        if inside.dtype != torch.bool:
            raise ValueError(f"`region` must be boolean, got {inside.dtype}. Use `region.bool()`.")
        logs = self.log_weights.masked_fill(~inside, -torch.inf)
        if not holds((logs > -torch.inf).any(-1).all()):
            raise ValueError("The region holds no mass of the measure. Choose a larger one.")
        return Measure(self.atoms, log_weights=logs, times=self.times)

    def to(self, *args, **kwargs) -> Measure:
        """Move to a device or dtype, as `torch.Tensor.to`; log-weights stay float32 or better."""
        atoms = self.atoms.to(*args, **kwargs)
        check_floating("atoms", atoms, "(..., n, d)", 2)
        times = self._timed(lambda t: t.to(atoms.device))
        return Measure.unchecked(
            atoms, self.log_weights.to(atoms.device, wide(atoms.dtype)), times
        )

    def detach(self) -> Measure:
        """The same measure outside the autograd graph."""
        times = self._timed(lambda t: t.detach())
        return Measure.unchecked(self.atoms.detach(), self.log_weights.detach(), times)

    def _timed(self, f: Callable[[Tensor], Tensor]) -> Tensor | None:
        """What becomes of the times, if there are any."""
        return None if self.times is None else f(self.times)

    def __len__(self) -> int:
        """Number of measures in a batch."""
        if not self.batch_shape:
            raise TypeError("A single measure has no length. Its number of atoms is `mu.n`.")
        return self.batch_shape[0]

    def __getitem__(self, index: int | slice | Tensor | tuple) -> Measure:
        """Index the batch axes; a single measure comes without its padding."""
        if not self.batch_shape:
            raise IndexError(
                "Only batch axes can be indexed, and a single measure has none. Its points are "
                "`mu.atoms`, a part of them is `mu.restrict`."
            )
        device = self.atoms.device
        places = torch.arange(math.prod(self.batch_shape), device=device).reshape(self.batch_shape)
        places = places[index]
        pick = lambda t, axes: t.reshape(-1, *t.shape[-axes:])[places]
        times = self._timed(lambda t: pick(t, 1))
        return Measure.unchecked(pick(self.atoms, 2), pick(self.log_weights, 1), times).strip()

    def __iter__(self) -> Iterator[Measure]:
        """The measures of a batch, without padding."""
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        """Shape, space, dtype and device; not the numbers."""
        batch = f"batch {self.batch_shape}, " if self.batch_shape else ""
        timed = "" if self.times is None else ", timed"
        kind = f"{str(self.atoms.dtype).removeprefix('torch.')}, {self.atoms.device}"
        return f"Measure({batch}{self.n} atoms in R^{self.dim}{timed}, {kind})"


MeasureMap = Callable[[Measure], Measure]
r"""Any map between measures: `gamma.push` is one, $\mu\mapsto\Gamma(\mu,\cdot)_\sharp\mu$."""


def _set(mu: Measure, atoms: Tensor, log_weights: Tensor, times: Tensor | None) -> None:
    """Write the fields of a frozen instance."""
    object.__setattr__(mu, "atoms", atoms)
    object.__setattr__(mu, "log_weights", log_weights)
    object.__setattr__(mu, "times", times)


def _checked(name: str, given: Tensor, atoms: Tensor) -> Tensor:
    """Weights or log-weights that fit the atoms, in the dtype of log-weights."""
    check_floating(name, given, "(..., n)", 1)
    check_shape(name, given, atoms.shape[:-1], "One per atom.")
    check_same("device", ("atoms", atoms), (name, given))
    if given.dtype != wide(atoms.dtype):
        check_same("dtype", ("atoms", atoms), (name, given))
    return given.to(wide(atoms.dtype))


def _covered(
    atoms: Tensor, log_weights: Tensor, times: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Overwrite what is stored at atoms without mass by a copy of the heaviest atom.

    A copy, rather than zeros, because a function that is defined on the support need not be
    defined at 0, and a NaN would come back through its gradient.
    """
    dead = log_weights == -torch.inf
    if holds(~dead.any(), unknown=False):
        return atoms, log_weights, times
    heaviest = log_weights.detach().argmax(-1, keepdim=True)
    spare = atoms.detach().gather(-2, heaviest[..., None].expand(*heaviest.shape, atoms.shape[-1]))
    if times is not None:
        times = torch.where(dead, times.gather(-1, heaviest), times)
    return torch.where(dead[..., None], spare, atoms), log_weights, times


def _same_batches(parts: Sequence[Measure]) -> None:
    shapes = {m.batch_shape for m in parts}
    if len(shapes) > 1:
        raise ValueError(f"Measures must share their batch shape, got {sorted(shapes)}.")


def _alike(measures: Sequence[Measure]) -> list[Measure]:
    """At least one measure, all of one space, dtype, device, and all with times or none."""
    parts = list(measures)
    if not parts:
        raise ValueError("Expected at least one measure, got an empty sequence.")
    for m in parts:
        check_kind("measures", m, Measure, "Tokens become one with `pf.Measure(tokens)`.")
    for place, m in enumerate(parts[1:], start=1):
        if m.dim != parts[0].dim:
            raise ValueError(
                f"Measures must share their space, got R^{parts[0].dim} and R^{m.dim}."
            )
        if (m.times is None) != (parts[0].times is None):
            raise ValueError("Give all measures times, or none of them.")
        for what in ("dtype", "device"):
            check_same(what, ("measures[0]", parts[0].atoms), (f"measures[{place}]", m.atoms))
    return parts
