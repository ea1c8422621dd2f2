"""The path of a measure along a flow, and what can be measured on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import pictures
from .._tools.checks import check_callable, check_kind, check_number, check_path, check_whole
from ..distances import wasserstein
from ..maps import InContextMap
from ..measures import Measure, check_measures
from . import _observables as observables
from ._snapshots import Snapshots
from .fields import at_time, halves, is_second_order, manifold_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = Float[Tensor, "s *b"]
"""One number for each saved time."""


@dataclass(frozen=True, eq=False)
class Path:
    r"""The measures $\mu_t$ at some times of a flow.

    Args:
        times: the times, beginning and end among them.
        measures: one for each time, in memory or in a folder.
        field: the field, for quantities that depend on it.
        queries: `(s, *b, m, d)`, the queries that moved with the measure.
        sinkhorn_steps: Sinkhorn steps of all evaluations together.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[1.0], [2.0], [4.0]]))
        >>> path = pf.flow(pf.Pointwise(lambda x: -x), mu, t1=1.0, save=2)
        >>> path, path.radius()
        (Path(3 measures from t = 0 to 1), tensor([4.0000, 2.4261, 1.4715]))
    """

    times: Float[Tensor, " s"]
    measures: Sequence[Measure]
    field: InContextMap | None = None
    queries: Float[Tensor, "s *b m d"] | None = None
    sinkhorn_steps: int = 0

    @classmethod
    def load(cls, folder: str | os.PathLike, field: InContextMap | None = None) -> Path:
        """The path that a run wrote to a folder, finished or not; measures are read when needed.

        Args:
            folder: where `pf.flow(..., folder=...)` wrote.
            field: its field, for quantities that depend on it.
        """
        check_path("folder", folder)
        if field is not None:
            check_kind("field", field, InContextMap, "The field that was passed to `pf.flow`.")
        snapshots = Snapshots(folder)
        if field is not None:
            tensor = next(iter([*field.parameters(), *field.buffers()]), None)
            snapshots.device = "cpu" if tensor is None else tensor.device
        times = torch.tensor(snapshots.times, dtype=torch.float64)[: len(snapshots)]
        return cls(times, snapshots, field, snapshots.queries(), snapshots.steps())

    def __len__(self) -> int:
        """Number of saved times."""
        return len(self.measures)

    def __getitem__(self, index: int) -> Measure:
        """The measure at a saved time: `path[-1]` at the end."""
        if not isinstance(index, slice):
            check_whole("index", index, least=-len(self))
        return self.measures[index]

    def __iter__(self) -> Iterator[Measure]:
        """The measures in the order of time."""
        return iter(self.measures)

    def map(self, f: Callable[[Measure], Tensor]) -> Tensor:
        """The values of a function of every measure, as a tensor with time first."""
        check_callable("f", f, "a function of a Measure")
        values = [f(mu) for mu in self]
        for value in values:
            if not isinstance(value, Tensor):
                raise TypeError(f"`f` must return a Tensor, got {type(value).__name__}.")
        return torch.stack(values)

    def energy(self) -> Series:
        """The interaction energy of the field, where it has one."""
        return self._of_field("energy")

    def dissipation(self) -> Series:
        r"""The rate $\dot E$ of the energy according to the theory."""
        return self._of_field("dissipation")

    def moments(self) -> tuple[Float[Tensor, "s *b d"], Float[Tensor, "s *b d d"]]:
        """Mean and covariance."""
        return self.map(Measure.mean), self.map(Measure.covariance)

    def radius(self) -> Series:
        r"""The largest $|x|$ on the support."""
        return self.map(observables.radius)

    def diameter(self) -> Series:
        """The largest distance of two atoms; of positions, for tokens $(x,v)$."""
        points = self._embed
        if self._second_order:
            points = lambda x: halves(x)[0]
        return self.map(lambda mu: observables.diameter(points(mu.atoms)))

    def velocity_diameter(self) -> Series:
        """The largest difference of two velocities: those of tokens $(x,v)$, or of the field."""
        if self._second_order:
            return self.map(lambda mu: observables.diameter(halves(mu.atoms)[1]))
        speeds = lambda field, mu: observables.diameter(field(mu, mu.atoms, mu.times))
        return torch.stack(self._with_field(speeds))

    def order(self) -> Series:
        r"""The order parameter in $[0,1]$: $|\int e^{i\theta}d\mu|$ or $|\int x/|x|\,d\mu|$."""
        manifold = manifold_of(self._needs_field())
        return self.map(lambda mu: observables.order(mu, manifold))

    def clusters(self, tol: float) -> Int[Tensor, "s n"]:
        """The cluster of each atom at every time, numbered by falling mass.

        Args:
            tol: atoms at most this far apart belong to one cluster, and so do chains of them.
        """
        check_number("tol", tol)
        return self.map(lambda mu: observables.clusters(mu.push(self._embed), tol))

    def cluster_count(self, tol: float) -> Int[Tensor, " s"]:
        """The number of clusters at every time."""
        return self.clusters(tol).amax(-1) + 1

    def attention_entropy(self) -> Float[Tensor, "s layers"]:
        """The mean Shannon entropy of attention rows, for every attention layer of the field."""
        return torch.stack(self._with_field(observables.attention_entropy))

    def leaders(self) -> list[Int[Tensor, " leaders"]]:
        """At every time, the atoms to which some atom attends most."""
        return self._with_field(observables.leaders)

    def wasserstein(self, reference: Measure, p: int = 1) -> Series:
        """The Wasserstein distance to a measure, at every time.

        Args:
            reference: the measure.
            p: the exponent.
        """
        check_measures(reference=reference)
        return self.map(lambda mu: wasserstein(mu, reference, p=p))

    def plot(self) -> Figure:
        """The trajectories: in time for one coordinate, in the plane of the first two for more."""
        return pictures.trajectories(self.times, list(self))

    def animate(self, file: str | os.PathLike, *, seconds: float = 5.0) -> None:
        """Write the moving cloud as a GIF.

        Args:
            file: the file to write, `*.gif`.
            seconds: duration of the animation.
        """
        pictures.animate(self.times, list(self), file, seconds=seconds)

    def __repr__(self) -> str:
        begin, end = self.times[0].item(), self.times[-1].item()
        return f"Path({len(self)} measures from t = {begin:g} to {end:g})"

    def _embed(self, x: Tensor) -> Tensor:
        """Points in a space whose distances are those of the manifold."""
        return x if self.field is None else manifold_of(self.field).embed(x)

    @property
    def _second_order(self) -> bool:
        return self.field is not None and is_second_order(self.field)

    def _with_field(self, f: Callable[[InContextMap, Measure], Tensor]) -> list[Tensor]:
        """The values of a function of the field and the measure, at every time."""
        field, times = self._needs_field(), self.times.tolist()
        return [f(at_time(field, t), mu) for t, mu in zip(times, self, strict=True)]

    def _needs_field(self) -> InContextMap:
        if self.field is None:
            raise ValueError(
                "This depends on the field, and a path read from a folder has none. Give it: "
                "`pf.Path.load(folder, field)`."
            )
        return self.field

    def _of_field(self, name: str) -> Tensor:
        def value(field: Any, mu: Measure) -> Tensor:
            if not hasattr(field, name):
                raise TypeError(
                    f"{type(field).__name__} has no {name} known here; `path.map(f)` evaluates "
                    "any function of measures along the path."
                )
            return getattr(field, name)(mu)

        return torch.stack(self._with_field(value))
