r"""An in-context map from a black box: where a small mass goes, extrapolated to no mass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_flags,
    check_floating,
    check_kind,
    check_share,
    check_values_finite,
)
from .._tools.types import Images, Queries
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._probes import Decode, Excess, Probe, ProbedImage
from ._small_mass import check_single, default_eta, richardson
from .boxes import MapBox, check_map


class RecoveredMap(InContextMap):
    r"""The in-context map $G$ of a map between measures, recovered (Algorithm R) [A, Thm. 1].

    $G(\mu,x)=2y_{\eta/2}-y_\eta$ up to $O(\eta^2)$, where $y_\eta$ is the image of the mass at $x$
    in $f((1-\eta)\mu+\eta\delta_x)$. An ordinary in-context map; if the black box is the
    push-forward by a continuous $G$, the push-forward of this map equals it.

    Args:
        f: the black box, `Measure` to `Measure`, or an in-context map.
        by: how to find where the mass went, `Excess(fallback=Decode())` by default.
        eta: the mass, by default $10^{-6}$ in float64, $10^{-3}$ in float32, and never more than a
            hundredth of the lightest atom.
        extrapolate: whether to extrapolate; otherwise the error is $O(\eta)$.

    Examples:
        >>> G = pf.representation.RecoveredMap(lambda nu: nu.push(lambda y: y + nu.mean()))
        >>> mu = pf.Measure(torch.tensor([[1.0], [3.0]]).double())
        >>> G(mu, torch.zeros(1, 1).double()).round(decimals=6)
        tensor([[2.]], dtype=torch.float64)
    """

    def __init__(
        self,
        f: MeasureMap | InContextMap,
        *,
        by: Probe | None = None,
        eta: float | None = None,
        extrapolate: bool = True,
    ) -> None:
        super().__init__()
        by = Excess(fallback=Decode()) if by is None else by
        fix = "Use `Excess()`, `Decode()` or `Weak()` of `pf.representation`; None chooses."
        check_kind("by", by, Probe, fix)
        check_map(f)
        check_flags(extrapolate=extrapolate)
        if eta is not None:
            check_share("eta", eta)
        self.f, self.by, self.eta, self.extrapolate = f, by, eta, extrapolate

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        batch = torch.broadcast_shapes(mu.batch_shape, x.shape[:-2])
        if not batch:
            eta = self._eta(mu)
            return torch.stack([self._limit(self._image(mu, point), eta) for point in x])
        x = x.expand(*batch, *x.shape[-2:])
        each = [self.evaluate(_member(mu, batch, k), x[k]) for k in product(*map(range, batch))]
        return torch.stack(each).reshape(*batch, *each[0].shape)

    def estimate(
        self, mu: Measure, x: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "m e"], Float[Tensor, " m"]]:
        r"""The images and estimates of their errors: of truncation, resolution and rounding.

        A truncation error of order $\eta^p$ becomes $2^{-p}$ times as large when the mass is
        halved, so that the difference to the result of half the mass is $1-2^{-p}$ of it. The
        probe says how finely it sees, and how large rounding is, at the masses that were used.
        Extrapolation adds up to three rounding errors: $2y_{\eta/2}-y_\eta$.

        Args:
            mu: the context, not batched.
            x: the points.
        """
        check_floating("x", x, "(m, d)", 2)
        self._check(mu, x, None)
        check_single(mu)
        check_values_finite(x=x)
        share = 0.75 if self.extrapolate else 0.5  # 1 - 2^-p for the orders p = 2 and 1
        eta, images = self._eta(mu), [self._image(mu, point) for point in x]
        values = torch.stack([self._limit(image, eta) for image in images])
        better = torch.stack([self._limit(image, eta / 2) for image in images])
        known = [self._known(image, eta) for image in images]
        return values, (better - values).norm(dim=-1) / share + values.new_tensor(known)

    def _known(self, image: Callable[[float], ProbedImage], eta: float) -> float:
        """What the probe says of its own errors at the masses that a value is made of."""
        _, resolution, rounding = image(eta)
        if not self.extrapolate:
            return resolution + rounding
        _, finer, more = image(eta / 2)
        # Both images are off in the same way, which extrapolation keeps; roundings are unrelated.
        return max(resolution, finer) + rounding + 2 * more

    def _eta(self, mu: Measure) -> float:
        return default_eta(mu) if self.eta is None else self.eta

    def _image(self, mu: Measure, x: Tensor) -> Callable[[float], ProbedImage]:
        """Where a point goes as a function of its mass; each mass is probed once."""
        push = MapBox(self.f).push
        return cache(lambda mass: self.by.find(push, mu, x, mass))

    def _limit(self, image: Callable[[float], ProbedImage], eta: float) -> Tensor:
        at = lambda mass: image(mass)[0]
        return richardson(at, eta) if self.extrapolate else at(eta)

    def extra_repr(self) -> str:
        return f"by={self.by}, eta={self.eta}"


def recover(
    f: MeasureMap | InContextMap,
    *,
    by: Probe | None = None,
    eta: float | None = None,
    extrapolate: bool = True,
) -> RecoveredMap:
    r"""The in-context map of a black box: $f(\mu)=G(\mu,\cdot)_\sharp\mu$ [A, Thm. 1].

    A continuous $G$ is determined by $f$: put a small mass at $x$ and find where it goes. Only
    values of $f$ are used. Whether a continuous $G$ exists at all is the question of
    `characterise`.

    Args:
        f: the black box, `Measure` to `Measure`, one at a time; or an in-context map.
        by: `Excess()` (any measure), `Decode()` (subset sums, few atoms) or `Weak()` (test
            functions); by default excess mass, and subset sums where that fails.
        eta: the mass that is put at a point, chosen by dtype by default.
        extrapolate: whether to extrapolate to $\eta=0$: error $O(\eta^2)$ instead of $O(\eta)$.

    Examples:
        >>> gamma = pf.Attention(2).double()
        >>> mu = pf.Measure(torch.randn(50, 2).double())
        >>> G = pf.recover(gamma.push)
        >>> x = torch.zeros(1, 2).double()
        >>> bool((G(mu, x) - gamma(mu, x)).norm() < 1e-9)
        True
    """
    return RecoveredMap(f, by=by, eta=eta, extrapolate=extrapolate)


def _member(mu: Measure, batch: torch.Size, k: tuple[int, ...]) -> Measure:
    """One measure of a batch that broadcasts."""
    atoms = mu.atoms.expand(*batch, *mu.atoms.shape[-2:])[k]
    return Measure.unchecked(atoms, mu.log_weights.expand(*batch, mu.n)[k])
