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
    check_callable,
    check_floating,
    check_generator,
    check_index,
    check_range,
    check_returned,
    check_same,
    check_shape,
    check_sizes,
    check_tensor,
    check_values,
    holds,
)
from .._tools.precision import full_precision, signed_times, wide, widen
from .._tools.types import Points, Times, Weights
from . import _clouds as clouds
from ._clouds import Cloud
from ._conversions import Listed, to_atoms, to_tensor
from ._formats import Formats, comparable


class Transport(ABC):
    """A map that moves a measure and may use its times and weights, not only its points."""

    @abstractmethod
    def transport(self, mu: Measure) -> Measure:
        """The moved measure."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Measure(Formats):
    r"""The positive measure $\mu=\sum_i a_i\,\delta_{x_i}$ on $\mathbb R^d$, or a batch of them.

    Weights are stored as logarithms. Given as `log_weights`, $10^{-300}$ is an ordinary weight in
    float32, though `weights` and `mass` then show 0. An atom of zero mass has log-weight
    $-\infty$. Such atoms pad ragged batches; no result depends on them or on their coordinates.
    Two clouds are equal as measures if their canonical forms `merge()` agree.

    Args:
        atoms: the points $x_i$, shape `(..., n, d)`.
        weights: the $a_i\ge0$, shape `(..., n)`, of any positive total mass, kept as they are;
            counts may be integers. By default every atom weighs $1/n$.
        log_weights: the $\log a_i$ instead, for weights that a float cannot hold.
        times: one per atom, for causal maps: an atom is seen by queries at its time or later.

    Tensors are not copied: changing them in place changes the measure, unchecked. NumPy arrays and
    lists are taken too. Arrays of points keep their dtype, lists of them get the default dtype,
    and weights the dtype of the atoms.

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
        atoms: Points | Listed,
        weights: Num[Tensor, "*b n"] | Listed | None = None,
        *,
        log_weights: Weights | Listed | None = None,
        times: Times | Listed | None = None,
    ) -> None:
        x: Tensor = to_atoms(atoms)
        check_atoms(x)
        where, kind = x.device, wide(x.dtype)
        logs, given = clouds.given_log_weights(
            x,
            to_tensor("weights", weights, where, kind),
            to_tensor("log_weights", log_weights, where, kind),
        )
        clock: Tensor | None = to_tensor("times", times, where)
        if clock is not None:
            check_shape("times", clock, x.shape[:-1], "One per atom.")
            check_same("device", ("atoms", x), ("times", clock))
            clock = signed_times(clock)
        check_values(x, logs, clock, given)
        _set(self, clouds.cover(Cloud(x, logs, clock)))

    @classmethod
    def unchecked(cls, atoms: Points, log_weights: Weights, times: Times | None = None) -> Measure:
        """A measure from tensors known to be valid, without checks that wait for the device.

        Atoms of zero mass must have finite coordinates, as those of every measure do.
        """
        mu = object.__new__(cls)
        _set(mu, Cloud(atoms, log_weights, times))
        return mu

    @classmethod
    def from_tokens(
        cls,
        tokens: Points | Listed,
        *,
        mask: Bool[Tensor, "*b n"] | Listed | None = None,
        times: Times | Listed | None = None,
    ) -> Measure:
        r"""The empirical measure $\frac1n\sum_i\delta_{x_i}$ of a token sequence [A, eq. 4].

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
        x: Tensor = to_atoms(tokens, "tokens")
        check_atoms(x, "tokens")
        real: Tensor = to_tensor("mask", mask, x.device)
        check_shape("mask", real, x.shape[:-1], "One per token, True for real tokens.")
        check_same("device", ("tokens", x), ("mask", real))
        if not holds((x.isfinite().all(-1) | (real == 0)).all()):
            raise ValueError("`tokens` must be finite wherever `mask` is True, got NaN or inf.")
        kept = real.to(wide(x.dtype))
        return cls(x, kept / kept.sum(-1, keepdim=True).clamp_min(1), times=times)

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
        return cls.unchecked(*clouds.gaussian_nodes(mean, cov, order))

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
        return cls(clouds.grid_centres(low, high, size))

    @classmethod
    def stack(cls, measures: Sequence[Measure]) -> Measure:
        """A batch of measures of unequal sizes, along a new first axis.

        Shorter clouds are padded with atoms of zero mass; indexing and iteration strip them again.

        Examples:
            >>> mu, nu = pf.Measure(torch.zeros(2, 1)), pf.Measure(torch.ones(3, 1))
            >>> batch = pf.Measure.stack([mu, nu])
            >>> batch.mean().flatten(), [m.n for m in batch]
            (tensor([0., 1.]), [2, 3])
        """
        return cls.unchecked(*clouds.stack(comparable(measures, cls)))

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
        return cls.unchecked(*clouds.mixture(comparable(measures, cls), weights))

    @property
    def n(self) -> int:
        """Number of atoms; in a ragged batch, the largest one."""
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
        """Device of the atoms."""
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
        check_callable("T", T, "a function of points")
        atoms = T(self.atoms)
        check_returned("T", atoms, "(..., n, d)")
        if atoms.shape[:-1] != self.atoms.shape[:-1]:
            raise ValueError(
                f"A push-forward keeps the number of atoms: `T` must return points of shape "
                f"({', '.join(map(str, self.atoms.shape[:-1]))}, d), got {tuple(atoms.shape)}."
            )
        return Measure.unchecked(atoms, self.log_weights, self.times)

    def moved(self, atoms: Tensor) -> Measure:
        """The same weights and times on other points; nothing but the shape is checked."""
        check_floating("atoms", atoms, "(..., n, d)", 2)
        if atoms.shape[:-1] != self.atoms.shape[:-1]:
            raise ValueError(
                f"A push-forward keeps the number of atoms: `atoms` must have shape "
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
        if not isinstance(f, Tensor):
            check_callable("f", f, "a tensor of values, or a function of points")
        values = f if isinstance(f, Tensor) else f(self.atoms)
        check_tensor("f", values)
        check_same("device", ("atoms", self.atoms), ("f", values))
        scalar = values.shape == self.log_weights.shape
        values = values[..., None] if scalar else values
        if values.shape[:-1] != self.log_weights.shape:
            raise ValueError(
                f"`f` must have one value per atom, of shape {tuple(self.log_weights.shape)} or "
                f"with one more axis, got {tuple(values.shape)}."
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
        return self if self.batch_shape else Measure.unchecked(*clouds.strip(self._cloud))

    def merge(self, tol: float = 0.0) -> Measure:
        r"""The canonical form: equal points become one atom, zero masses go, points are sorted.

        Points joined by a chain of steps of length at most `tol` become one atom at their
        barycentre. Points at different times are different points. Differentiable.

        Examples:
            >>> mu = pf.Measure(torch.tensor([[1.0], [0.0], [1.0]])).merge()
            >>> mu.atoms.flatten(), mu.weights
            (tensor([0., 1.]), tensor([0.3333, 0.6667]))
        """
        check_range("tol", tol, 0)
        if self.batch_shape:
            return Measure.stack([m.merge(tol) for m in self])
        return Measure.unchecked(*clouds.merge(self._cloud, tol))

    def split(self, parts: int | Sequence[float] = 2, *, atom: int | None = None) -> Measure:
        """The same measure written with more atoms: all, or one, split into several.

        Args:
            parts: how many equal parts, or their shares of the mass.
            atom: which atom to split; all of them by default.

        Examples:
            >>> pf.Measure(torch.zeros(2, 1)).split([0.25, 0.75], atom=0).weights
            tensor([0.1250, 0.3750, 0.5000])
        """
        return Measure.unchecked(*clouds.split(self._cloud, parts, atom))

    def sample(self, size: int, *, generator: torch.Generator | None = None) -> Measure:
        r"""The empirical measure of `size` independent draws from the normalised measure.

        The result has mass one; `.atoms` are the draws, differentiable in the atoms.

        Examples:
            >>> pf.Measure(torch.zeros(3, 2)).sample(5).atoms.shape
            torch.Size([5, 2])
        """
        check_sizes(size=size)
        check_generator(generator)
        return Measure.unchecked(*clouds.draw(self._cloud, size, generator))

    def restrict(self, region: Callable[[Points], Tensor] | Bool[Tensor, "*b n"]) -> Measure:
        r"""The restriction $\mu|_A$: atoms outside the region lose their mass.

        Args:
            region: a predicate of points, or its values at the atoms.

        Examples:
            >>> pf.Measure.grid(0.0, 1.0, size=4).restrict(lambda x: x[..., 0] < 0.5).weights
            tensor([0.2500, 0.2500, 0.0000, 0.0000])
        """
        if not isinstance(region, Tensor):
            check_callable("region", region, "a tensor of True and False, or a function of points")
        inside = region if isinstance(region, Tensor) else region(self.atoms)
        check_shape("region", inside, self.log_weights.shape, "True or False for each atom.")
        if inside.dtype != torch.bool:
            raise ValueError(f"`region` must be boolean, got {inside.dtype}. Use `region.bool()`.")
        check_same("device", ("atoms", self.atoms), ("region", inside))
        logs = self.log_weights.masked_fill(~inside, -torch.inf)
        if not holds((logs > -torch.inf).any(-1).all()):
            raise ValueError("`region` must hold mass of the measure, got no mass. Enlarge it.")
        return Measure(self.atoms, log_weights=logs, times=self.times)

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
        count = torch.arange(math.prod(self.batch_shape), device=self.device)
        check_index(index)
        positions = count.reshape(self.batch_shape)[index]
        pick = lambda t, axes: t.reshape(-1, *t.shape[-axes:])[positions]
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


def _set(mu: Measure, cloud: Cloud) -> None:
    """Write the fields of a frozen instance."""
    for name, value in zip(Cloud._fields, cloud, strict=True):
        object.__setattr__(mu, name, value)
