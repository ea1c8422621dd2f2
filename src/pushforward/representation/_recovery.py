"""An in-context map from a black box."""

from __future__ import annotations

from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import check_kind, check_share
from .._tools.types import Images, Queries
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._black_box import as_measure_map, check_single
from ._probes import Automatic, Probe

ETA = {torch.float32: 1e-3, torch.float64: 1e-6}
r"""Masses of the probe, at which the error of order $\eta^2$ meets rounding."""


class RecoveredMap(InContextMap):
    r"""The in-context map $G$ of a map between measures, by probing (Theorem 1, Algorithm R).

    $G(\mu,x)=2y_{\eta/2}-y_\eta$ up to $O(\eta^2)$, where $y_\eta$ is where
    $f((1-\eta)\mu+\eta\delta_x)$ has the mass at $x$. An ordinary in-context map: its push-forward
    is the black box itself, as far as that is one of a push-forward.

    Args:
        f: the black box, `Measure` to `Measure`, or an in-context map.
        by: how to see where the mass went, `Automatic()` by default.
        eta: the mass, by default $10^{-6}$ in float64, $10^{-3}$ in float32, and never more than a
            hundredth of the lightest atom.
        extrapolate: whether Richardson's step is taken; without, the error is $O(\eta)$.
    """

    def __init__(
        self,
        f: MeasureMap | InContextMap,
        *,
        by: Probe | None = None,
        eta: float | None = None,
        extrapolate: bool = True,
    ):
        super().__init__()
        by = Automatic() if by is None else by
        check_kind(
            "by",
            by,
            Probe,
            "Use `Excess()`, `Decode()` or `Weak()` of `pf.representation`; None chooses.",
        )
        if eta is not None:
            check_share("eta", eta)
        self.f, self.by, self.eta, self.extrapolate = f, by, eta, extrapolate

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """Point by point."""
        batch = torch.broadcast_shapes(mu.batch_shape, x.shape[:-2])
        if not batch:
            return torch.stack([self._at(mu, point)[0] for point in x])
        x = x.expand(*batch, *x.shape[-2:])
        each = [self.evaluate(_one(mu, batch, k), x[k]) for k in product(*map(range, batch))]
        return torch.stack(each).reshape(*batch, *each[0].shape)

    def estimate(
        self, mu: Measure, x: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "m e"], Float[Tensor, " m"]]:
        r"""The images and estimates of their errors, from a third probe at $\eta/4$.

        Args:
            mu: the context, not batched.
            x: the points.
        """
        self._check(mu, x, None)
        check_single(mu)
        found = [self._at(mu, point, estimate=True) for point in x]
        return torch.stack([y for y, _ in found]), torch.stack([e for _, e in found])

    def _at(self, mu: Measure, x: Tensor, estimate: bool = False) -> tuple[Tensor, Tensor]:
        """The image of one point, and the change that halving the mass makes."""
        f, eta = as_measure_map(self.f), self._eta(mu)
        look = lambda share: self.by.image(f, mu, x, share * eta)
        first = look(1.0)
        if not self.extrapolate:
            error = 2 * (first - look(0.5)).norm() if estimate else first.new_zeros(())
            return first, error
        second = look(0.5)
        value = 2 * second - first
        if not estimate:
            return value, first.new_zeros(())
        better = 2 * look(0.25) - second
        return value, 4 / 3 * (better - value).norm()

    def _eta(self, mu: Measure) -> float:
        if self.eta is not None:
            return self.eta
        lightest = float(mu.strip().normalise().weights.min())
        return min(ETA.get(mu.dtype, 1e-3), lightest / 100)

    def extra_repr(self) -> str:
        """How it looks."""
        return f"by={self.by}, eta={self.eta}"


def recover(
    f: MeasureMap | InContextMap,
    *,
    by: Probe | None = None,
    eta: float | None = None,
    extrapolate: bool = True,
) -> RecoveredMap:
    r"""The in-context map of a black box: $f(\mu)=G(\mu,\cdot)_\sharp\mu$ (Theorem 1).

    A continuous $G$ is determined by $f$: put a small mass at $x$ and see where it goes. Nothing
    is known of $f$ but its values; whether a continuous $G$ exists is for `characterise` to doubt.

    Args:
        f: the black box, `Measure` to `Measure`, one at a time; or an in-context map.
        by: `Excess()` (any measure), `Decode()` (subset sums, few atoms) or `Weak()` (test
            functions); the first that can tell by default.
        eta: the mass that is put at a point, chosen by dtype by default.
        extrapolate: whether the limit is extrapolated, error $O(\eta^2)$ instead of $O(\eta)$.

    Examples:
        >>> gamma = pf.Attention(2).double()
        >>> mu = pf.Measure(torch.randn(50, 2).double())
        >>> G = pf.recover(gamma.push)
        >>> x = torch.zeros(1, 2).double()
        >>> bool((G(mu, x) - gamma(mu, x)).norm() < 1e-9)
        True
    """
    return RecoveredMap(f, by=by, eta=eta, extrapolate=extrapolate)


def _one(mu: Measure, batch: torch.Size, k: tuple[int, ...]) -> Measure:
    """One measure of a batch that broadcasts."""
    atoms = mu.atoms.expand(*batch, *mu.atoms.shape[-2:])[k]
    return Measure.unchecked(atoms, mu.log_weights.expand(*batch, mu.n)[k])
