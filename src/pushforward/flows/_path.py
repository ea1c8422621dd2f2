"""The path of a measure along a flow, and what can be measured on it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import pictures
from .._tools.checks import (
    check_callable,
    check_flags,
    check_kind,
    check_number,
    check_path,
    check_values_finite,
    check_whole,
)
from .._tools.output import atomic_file, bar
from ..distances import wasserstein
from ..maps import InContextMap
from ..measures import Measure, check_measures
from . import _observables as observables
from ._snapshots import Snapshots
from .fields import Sphere, Torus, at_time, halves, is_second_order, manifold_of, summands

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
        """The trajectories: against time in one dimension, in the plane, or on the sphere.

        Points of more dimensions are drawn along the two axes of their largest variance. At the
        end the area of a mark is its mass, and marks that coincide are joined.
        """
        return pictures.trajectories(self._scene())

    def animate(self, file: str | os.PathLike, *, seconds: float = 5.0) -> None:
        """Write the moving cloud as a film, one picture for each saved time.

        Args:
            file: the file to write, `*.gif`, `*.webp`, or `*.mp4`, which needs ffmpeg.
            seconds: duration of the film.
        """
        pictures.animate(self._scene(), file, seconds=seconds)

    def to_html(
        self,
        *,
        title: str | None = None,
        curves: Mapping[str, Tensor] | None = None,
        tol: float | None = None,
        progress: bool | None = None,
    ) -> str:
        """One HTML page that plays the moving cloud, readable without a network.

        It has at most 24 key frames, from which the saved times are interpolated best, and at most
        10,000 points, a random sample of more.

        Args:
            title: the headline.
            curves: numbers at every saved time with their names, drawn beside the points; by
                default the energy, if the field has one.
            tol: points at most this far apart belong to one cluster, and so do chains of them; by
                default a hundredth of the extent of the cloud.
            progress: whether to show a progress bar, as in `Flow.path`.
            progress: whether to show a progress bar, as in `Flow.path`.

        Examples:
            >>> mu = pf.Measure(torch.randn(30, 2))
            >>> path = pf.flow(pf.Pointwise(lambda x: -x), mu, t1=2.0, save=20)
            >>> path.to_html(curves={"radius": path.radius()}).startswith("<!DOCTYPE html>")
            True
        """
        if title is not None and not isinstance(title, str):
            raise TypeError(f"`title` must be a string, got {type(title).__name__}.")
        if tol is not None:
            check_number("tol", tol)
        check_flags(progress=progress)
        if curves is not None and not (
            isinstance(curves, Mapping) and all(isinstance(name, str) for name in curves)
        ):
            raise TypeError(
                "`curves` must be a dictionary of names and tensors, such as "
                f"{{'radius': path.radius()}}, got {type(curves).__name__}."
            )
        return _page(self, title, curves, tol, progress)

    def save(
        self,
        file: str | os.PathLike,
        *,
        title: str | None = None,
        curves: Mapping[str, Tensor] | None = None,
        tol: float | None = None,
    ) -> None:
        """Write the page of `to_html` to a file, whole or not at all.

        Args:
            file: the file, `*.html`.
            title: the headline.
            curves: numbers at every saved time with their names.
            tol: the longest step within a cluster.
        """
        check_path("file", file)
        if File(file).suffix.lower() != ".html":
            raise ValueError(
                f"`file` must end in .html, got {File(file).name!r}. `animate` writes films, and "
                "`pf.flow(..., folder=...)` writes the measures."
            )
        text = self.to_html(title=title, curves=curves, tol=tol)
        with atomic_file(file) as draft:
            draft.write_text(text, encoding="utf-8")

    def __repr__(self) -> str:
        begin, end = self.times[0].item(), self.times[-1].item()
        return f"Path({len(self)} measures from t = {begin:g} to {end:g})"

    def _embed(self, x: Tensor) -> Tensor:
        """Points in a space whose distances are those of the manifold."""
        return x if self.field is None else manifold_of(self.field).embed(x)

    @property
    def _second_order(self) -> bool:
        return self.field is not None and is_second_order(self.field)

    @property
    def _space(self) -> pictures.Space:
        """Where the points live, as far as pictures must know."""
        field = self.field
        manifold = None if field is None else manifold_of(field)
        if isinstance(manifold, Sphere):
            return pictures.Space(radius=manifold.radius)
        if isinstance(manifold, Torus):
            axes = self[0].dim if manifold.axes is None else manifold.axes
            return pictures.Space(period=manifold.period, angles=axes)
        return pictures.Space(pairs=self._second_order)

    def _scene(self) -> pictures.Scene:
        return pictures.scene(self.times.numpy(), self.measures, self._space)

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

    def _embedded_clusters(self, index: int, tol: float) -> Tensor:
        """The clusters at a saved time; of positions, for tokens $(x,v)$."""
        points = (lambda x: halves(x)[0]) if self._second_order else self._embed
        return observables.clusters(self[index].push(points), tol).cpu()

    def _energy_at(self, index: int) -> float:
        """The energy at a saved time, not a number if the field has none known here."""
        field: Any = None if self.field is None else at_time(self.field, float(self.times[index]))
        if not hasattr(field, "energy"):
            return math.nan
        try:
            return float(field.energy(self[index]))
        except ValueError:  # attention that is no gradient flow
            return math.nan

    def _of_field(self, name: str) -> Tensor:
        def value(field: Any, mu: Measure) -> Tensor:
            if not hasattr(field, name):
                raise TypeError(
                    f"{type(field).__name__} has no {name} known here; `path.map(f)` evaluates "
                    "any function of measures along the path."
                )
            return getattr(field, name)(mu)

        return torch.stack(self._with_field(value))


MOST = 10_000
"""Points of a page; of more, a random sample is drawn."""

CURVE_TIMES = 100
"""Times at which the curves of a page are computed, if none are given."""

COSTLY = 1000
"""Points from which on curves are computed at the key frames only, as they take squared time."""


def _page(
    path: Path,
    title: str | None,
    given: Mapping[str, Tensor] | None,
    tol: float | None,
    progress: bool | None,
) -> str:
    """The page that plays a path."""
    times, measures, space = path.times.cpu().double().numpy(), path.measures, path._space
    alive = int((measures[0].log_weights > -torch.inf).sum())
    sample = np.linspace(0, alive - 1, min(alive, 200)).round().astype(int)
    whole = pictures.scene(times, measures, space, atoms=sample)
    keys = pictures.key_frames(whole)
    atoms = np.random.default_rng(0).permutation(alive)[:MOST]
    shown = pictures.scene(times, measures, space, keys, np.sort(atoms))
    error = float(pictures.interpolation_errors(whole, keys).max())
    extent = float(np.ptp(whole.points.reshape(-1, whole.points.shape[-1]), axis=0).max())
    tol = (extent or 1.0) / 100 if tol is None else tol
    few = np.linspace(0, len(times) - 1, min(len(times), CURVE_TIMES)).round().astype(int)
    steps = sorted({*keys, *few.tolist()}) if alive <= COSTLY else keys
    curves = [_curve(name, times, values) for name, values in (given or {}).items()]
    labels, energy = [], []
    with bar("page", len(steps), progress) as show:
        for done, k in enumerate(steps, 1):
            labels.append(path._embedded_clusters(k, tol))
            energy.append(path._energy_at(k) if given is None else math.nan)
            show(done)
    counts = [int(label.max()) + 1 for label in labels]
    if np.isfinite(energy).all():
        curves = [pictures.Curve("Energy", times[steps].tolist(), energy)]
    curves.append(
        pictures.Curve(
            "Number of clusters", times[steps].tolist(), counts, True,
            f"Points belong together if steps of at most {tol:.2g} join them. The axis is "
            "logarithmic. Drag in a figure to move in time.",
        )
    )  # fmt: skip
    where = _where(shown, measures[0].dim // (2 if space.pairs else 1))
    gathered = counts[-1] <= min(12, counts[0] // 2)
    clusters = "one cluster" if counts[-1] == 1 else f"{counts[-1]} clusters"
    happens = f"gather in {clusters}" if gathered else f"until time {times[-1]:g}"
    colours = "Colour says in which cluster a point ends. " if gathered else ""
    facts = {
        "Points": f"{alive:,}" + (f", of which {MOST:,} are drawn" if alive > MOST else ""),
        "Field": " + ".join(map(repr, summands(path.field) or [path.field])) if path.field else "",
        "Times": f"{times[0]:g} to {times[-1]:g}, {len(times)} of them saved",
        "Frames": f"{len(keys)} key frames of 16 bits. Between them points move "
        f"{'along great circles' if shown.radius else 'on straight lines'}, at saved times at "
        f"most {_rounded(error)} from where they were.",
    }
    label = labels[-1].numpy()
    return pictures.film(
        shown,
        title or f"{alive:,} points {where} {happens}",
        f"{colours if alive <= COSTLY else ''}Press play, or move the slider.",
        curves,
        label[label >= 0] if gathered else None,
        facts,
    )


def _curve(name: str, times: np.ndarray, values: object) -> pictures.Curve:
    """A curve of numbers that were given for every saved time."""
    if not isinstance(values, Tensor) or values.shape != times.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"`curves[{name!r}]` must be a Tensor with a number for each of {len(times)} times, "
            f"got {got}."
        )
    numbers = values.detach().cpu().double()
    check_values_finite(curves=numbers)
    return pictures.Curve(name, times.tolist(), numbers.tolist())


def _rounded(x: float) -> str:
    """A number to one digit, upwards, with a power of ten if it is small."""
    if x == 0:
        return "0"
    power = math.floor(math.log10(x))
    digit = math.ceil(x / 10**power - 1e-9)
    exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{digit * 10.0**power:.1g}" if power > -4 else f"{digit} × 10{exponent}"


def _where(shown: pictures.Scene, dim: int) -> str:
    """The space of a scene, in words."""
    if shown.radius is not None:
        return {2: "on a circle", 3: "on a sphere"}.get(dim, f"on a sphere in {dim} dimensions")
    if any(shown.periods):
        return {1: "on a circle", 2: "on a torus"}.get(sum(map(bool, shown.periods)), "")
    return {1: "on a line", 2: "in the plane"}.get(dim, f"in {dim} dimensions")
