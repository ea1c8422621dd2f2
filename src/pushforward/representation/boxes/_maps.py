"""Maps between measures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..._tools.checks import check_callable
from ...flows import Euclidean, Manifold
from ...maps import InContextMap
from ...measures import Measure, MeasureMap, check_measures
from .._errors import BlackBoxError, call_model
from .._probes import Decode, Excess
from .._small_mass import default_eta, richardson
from ..continuity import ImageFinder
from ._black_box import BlackBox
from ._calls import finite


def check_map(f: object) -> None:
    """Raise unless `f` can be called like a map between measures."""
    check_callable("f", f, "a function of a Measure to a Measure, or an in-context map")


class MapBox(BlackBox):
    """A map between measures that is only called.

    Given an example, the map is prepared for comparisons of its images. An in-context map of
    lower precision becomes the same formula in float64, if it can; images on a sphere or a torus
    are embedded, so that points near each other have coordinates near each other; and whether it
    takes batches and has gradients is tried on the example. Without one it is called as it is.

    Args:
        f: a function of a measure to a measure, one at a time; or an in-context map.
        example: a measure that the map takes.

    Examples:
        >>> box = pf.representation.MapBox(lambda mu: mu.push(lambda x: 2 * x))
        >>> mu = pf.Measure(torch.tensor([[1.0], [2.0]]).double())
        >>> box.push(mu).atoms.flatten(), box.answer(mu, mu.atoms[:1]).round(decimals=6)
        (tensor([2., 4.], dtype=torch.float64), tensor([[2.]], dtype=torch.float64))
    """

    weighted = True

    def __init__(self, f: MeasureMap | InContextMap, example: Measure | None = None) -> None:
        check_map(f)
        if example is not None:
            check_measures(example=example)
        self.model, self.manifold = f, _manifold(f)
        self.gamma = f if isinstance(f, InContextMap) else None
        """The in-context map, None if all that is known is a function of measures."""
        self.dtype: torch.dtype | None = None
        """The dtype of the measures it is called with; None: that of the measure."""
        self._example: Measure | None = None
        self._embeds = example is not None
        if example is not None:
            self.dtype = example.dtype
            if self.gamma is not None:
                self.gamma, self.dtype = _in_float64(self.gamma, example)
            example = example.to(self.dtype)  # without times, as `images` has none
            self._example = Measure.unchecked(example.atoms, example.log_weights)
        self.f: MeasureMap = f if self.gamma is None else self.gamma.push
        """The map, as a function of measures."""

    def push(self, mu: Measure) -> Measure:
        """The image of a measure: checked, without atoms of no mass, normalised.

        Raises:
            CallRejected: if the map raises an exception.
            BlackBoxError: if the result is no measure, a batch of them, or not finite.
        """
        out = call_model(self.f, mu if self.dtype is None else mu.to(self.dtype))
        if not isinstance(out, Measure):
            raise BlackBoxError(f"The map returned {type(out).__name__}, not a Measure.")
        if out.batch_shape:
            raise BlackBoxError(f"The map returned a batch of measures, {out.batch_shape}.")
        return _finite(self._embedded(out))

    def pushes(self, measures: Sequence[Measure]) -> list[Measure | None]:
        """The images of many measures, None where the map fails.

        Measures of equally many atoms go in one call, if the map takes batches.
        """
        sizes: dict[int, list[int]] = {}
        for k, mu in enumerate(measures):
            sizes.setdefault(mu.n, []).append(k)
        images: dict[int, Measure | None] = {}
        for members in sizes.values():
            outs = self._of_one_size([measures[k] for k in members])
            images.update(zip(members, outs, strict=True))
        return [images[k] for k in range(len(measures))]

    def _of_one_size(self, measures: list[Measure]) -> list[Measure | None]:
        """The images of measures of equally many atoms."""
        if self.batched and len(measures) > 1:
            with suppress(BlackBoxError):  # then one by one
                out = self._same_kind(Measure.stack(measures))
                each = zip(out.atoms, out.log_weights, strict=True)
                return [self._or_none(_finite, Measure.unchecked(*cloud)) for cloud in each]
        return [self._or_none(self.push, mu) for mu in measures]

    def _or_none(self, call: Callable[[Measure], Measure], mu: Measure) -> Measure | None:
        """The result of a call, None where the map fails or has images of another dimension."""
        try:
            out = call(mu)
        except BlackBoxError:
            return None
        return out if self._image_dim in (None, out.dim) else None

    def answer(self, mu: Measure, x: Float[Tensor, "m d"]) -> Float[Tensor, "m e"]:
        r"""Where the points $x$ go in the context $\mu$: $G(\mu,x)$.

        Of an in-context map its own value. Of any other map it is recovered from the images of
        small masses, as `recover` does.

        Raises:
            NotRecovered: if the images of small masses do not show it.
        """
        if self.pooled:
            return self.push(mu).atoms[:1].expand(len(x), -1)
        if self.gamma is not None:
            queries = Measure(x) if self.gamma.paired else x
            times = None if mu.times is None else mu.times.amax().expand(len(x))
            y = finite(call_model(self.gamma, mu, queries, times))
            return self.manifold.embed(y) if self._embeds else y
        eta, probe = default_eta(mu), Excess(fallback=Decode())
        image = lambda point: lambda mass: probe.image(self.push, mu, point, mass)
        return torch.stack([richardson(image(point), eta) for point in x])

    def outputs(self, mu: Measure, x: Tensor | None = None) -> Tensor | Measure:
        if x is not None:
            return self.answer(mu, x)
        # Images of an in-context map are in the order of the tokens; those of another map are not.
        return self.push(mu) if self.gamma is None else self.push(mu).atoms

    def images(self) -> ImageFinder:
        """The mass is an atom of its own, found again by its weight."""

        def find(atoms: Tensor, log_weights: Tensor, x: Tensor, eta: Tensor) -> Tensor:
            points = torch.cat([atoms, x[:, None]], 1)
            masses = torch.cat([log_weights + torch.log1p(-eta)[:, None], eta.log()[:, None]], 1)
            probed = Measure.unchecked(points, masses)
            if self.batched:
                return _with_mass(self._same_kind(probed), eta)
            return torch.stack([self._image(mu, e) for mu, e in zip(probed, eta, strict=True)])

        return ImageFinder(find, self.batched, self._differentiable)

    @cached_property
    def batched(self) -> bool:
        """Whether two measures in one call give what they give one by one."""
        mu = self._example
        if mu is None:
            return False
        other = Measure.unchecked(mu.atoms.flip(-2) * 0.9, mu.log_weights.flip(-1))
        try:
            with torch.no_grad():
                both = self._same_kind(Measure.stack([mu, other]))
                each = [self.push(m) for m in (mu, other)]
        except RuntimeError:  # also what the map raised: it does not take batches
            return False
        return both.n == each[0].n == each[1].n and all(
            torch.allclose(a, b.atoms, rtol=1e-9, atol=1e-12)
            for a, b in zip(both.atoms, each, strict=True)
        )

    @cached_property
    def _differentiable(self) -> bool:
        """Whether images have finite gradients in the atoms."""
        if self._example is None:
            return False
        try:
            with torch.enable_grad():
                atoms = self._example.atoms.detach().clone().requires_grad_()
                mu = Measure.unchecked(atoms, self._example.log_weights.detach())
                out = self._embedded(call_model(self.f, mu))
                (slope,) = torch.autograd.grad(out.atoms.square().sum(), atoms)
            return bool(slope.isfinite().all())
        except RuntimeError:  # also what the map raised
            return False

    @cached_property
    def _image_dim(self) -> int | None:
        return None if self._example is None else self.push(self._example).dim

    def _embedded(self, out: Measure) -> Measure:
        if not self._embeds or self.manifold == Euclidean():
            return out
        return out.moved(self.manifold.embed(out.atoms))

    def _same_kind(self, mu: Measure) -> Measure:
        """The image of one measure or of a batch; an error if it has another shape."""
        out = call_model(self.f, mu)
        if not isinstance(out, Measure) or out.batch_shape != mu.batch_shape:
            raise BlackBoxError(f"For {mu} it returned {out}, not a batch of measures.")
        out = self._embedded(out)
        if self._image_dim is not None and out.dim != self._image_dim:
            raise BlackBoxError(
                f"the dimension of its images varies: {self._image_dim}, {out.dim}"
            )
        return out

    def _image(self, mu: Measure, eta: Tensor) -> Tensor:
        """Where the last atom of a measure goes."""
        out = self._same_kind(mu)
        y = _with_mass(Measure.unchecked(out.atoms[None], out.log_weights[None]), eta[None])[0]
        if bool(y.isfinite().all()):
            return y
        before = Measure.unchecked(mu.atoms[:-1], mu.log_weights[:-1])
        try:
            return Excess().image(self.push, before, mu.atoms[-1], float(eta))
        except BlackBoxError:
            return torch.full_like(y, torch.nan)


def _finite(out: Measure) -> Measure:
    """An image without atoms of no mass, normalised; an error if it is not finite."""
    positive = out.log_weights > -torch.inf
    good = (out.atoms.isfinite().all(-1) | ~positive).all() & positive.any()
    if not bool(good & (out.log_weights < torch.inf).all()):
        raise BlackBoxError("The map returned NaN or infinity.")
    return out.strip().normalise()


def _with_mass(out: Measure, eta: Tensor) -> Tensor:
    """The one atom of each measure that has the given mass, NaN if there are none or several."""
    log_weights = out.log_weights - out.log_weights.logsumexp(-1, keepdim=True)
    has_mass = (log_weights - eta.log()[:, None]).abs() < 1e-3
    index = has_mass.to(torch.int8).argmax(-1)
    y = out.atoms.gather(1, index[:, None, None].expand(-1, 1, out.dim))[:, 0]
    return torch.where((has_mass.sum(-1) == 1)[:, None], y, torch.nan)


def _manifold(f: object) -> Manifold:
    """The manifold of an in-context map or of a field inside it."""
    if not isinstance(f, InContextMap):
        return Euclidean()
    manifolds = [getattr(part, "manifold", Euclidean()) for part in f.modules()]
    return next((m for m in manifolds if m != Euclidean()), Euclidean())


def _in_float64(gamma: InContextMap, mu: Measure) -> tuple[InContextMap, torch.dtype]:
    """The same formula in float64 and its dtype; as it is if it cannot be converted."""
    tensors = [*gamma.parameters(), *gamma.buffers()]
    own = next((t.dtype for t in tensors if t.is_floating_point()), mu.dtype)
    if own == torch.float64:
        return gamma, mu.dtype
    try:
        wide = copy.deepcopy(gamma).double()
        with torch.no_grad():
            wide.push(mu.to(torch.float64))
    except Exception:  # it cannot compute in float64: it is called as it is
        return gamma, mu.dtype
    return wide, torch.float64
