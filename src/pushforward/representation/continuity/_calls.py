"""Many calls of a black box, in one go where it takes batches."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from ...measures import Measure, MeasureMap
from .._black_box import BlackBoxError, called
from .._probes import Excess


class Caller(ABC):
    """Somebody who knows where small masses go."""

    batched: bool
    """Whether many questions take hardly longer than one."""
    differentiable: bool
    """Whether answers have gradients."""

    @abstractmethod
    def images(
        self,
        atoms: Float[Tensor, "c m d"],
        logs: Float[Tensor, "c m"],
        x: Float[Tensor, "c d"],
        eta: Float[Tensor, " c"],
    ) -> Float[Tensor, "c e"]:
        r"""Where the mass $\eta$ at each $x$ goes in each measure; NaN where nobody can tell.

        Args:
            atoms: of the measures.
            logs: their log-weights, normalised.
            x: the points.
            eta: the masses.
        """


class BlackBox(Caller):
    """A map between measures that is asked where small masses go.

    Whether it takes batches is tried out: if two measures together give what they give one by one,
    all later calls are batches. Nothing else is assumed of it.

    Args:
        f: the black box.
        mu: a measure to try it on.
    """

    def __init__(self, f: MeasureMap, mu: Measure):
        self.f, self.out_dim = f, called(f, mu).dim
        self.batched = self._takes_batches(mu)
        self.differentiable = self._has_gradients(mu)

    def images(self, atoms, logs, x, eta):
        """The output of the mass, in one call where it takes batches."""
        points = torch.cat([atoms, x[:, None]], 1)
        masses = torch.cat([logs + torch.log1p(-eta)[:, None], eta.log()[:, None]], 1)
        probed = Measure.unchecked(points, masses)
        if self.batched:
            out = self._call(probed)
            logs_out = out.log_weights - out.log_weights.logsumexp(-1, keepdim=True)
            return self._read(out.atoms, logs_out, eta)
        return torch.stack([self._one(mu, e) for mu, e in zip(probed, eta, strict=True)])

    def _one(self, mu: Measure, eta: Tensor) -> Tensor:
        """Where the last atom of a measure goes."""
        out = self._call(mu)
        logs = out.log_weights - out.log_weights.logsumexp(-1, keepdim=True)
        y = self._read(out.atoms[None], logs[None], eta[None])[0]
        if bool(y.isfinite().all()):
            return y
        before = Measure.unchecked(mu.atoms[:-1], mu.log_weights[:-1])
        try:
            return Excess().image(self.f, before, mu.atoms[-1], float(eta))
        except BlackBoxError:
            return torch.full_like(y, torch.nan)

    def _call(self, mu: Measure) -> Measure:
        """What the map makes of measures, if that is measures where it was before."""
        out = self.f(mu)
        if not isinstance(out, Measure) or out.batch_shape != mu.batch_shape:
            raise BlackBoxError(f"For {mu} it returned {out}, no measure for each.")
        if out.dim != self.out_dim:
            raise BlackBoxError(f"the dimension of its images varies: {self.out_dim}, {out.dim}")
        return out

    def _read(self, atoms: Tensor, logs: Tensor, eta: Tensor) -> Tensor:
        """The one output of the mass, NaN if there are none or several."""
        fits = (logs - eta.log()[:, None]).abs() < 1e-3
        alone = fits.sum(-1) == 1
        at = fits.to(torch.int8).argmax(-1)
        y = atoms.gather(1, at[:, None, None].expand(-1, 1, atoms.shape[-1]))[:, 0]
        return torch.where(alone[:, None], y, torch.nan)

    def _takes_batches(self, mu: Measure) -> bool:
        other = Measure.unchecked(mu.atoms.flip(-2) * 0.9, mu.log_weights.flip(-1))
        try:
            with torch.no_grad():
                both = self._call(Measure.stack([mu, other]))
                each = [called(self.f, m) for m in (mu, other)]
            fits = both.n == each[0].n == each[1].n
            return fits and all(
                torch.allclose(a, b.atoms, rtol=1e-9, atol=1e-12)
                for a, b in zip(both.atoms, each, strict=True)
            )
        except RuntimeError:  # also what it raised itself: it was not made for batches
            return False

    def _has_gradients(self, mu: Measure) -> bool:
        try:
            with torch.enable_grad():
                atoms = mu.atoms.detach().clone().requires_grad_()
                out = self.f(Measure.unchecked(atoms, mu.log_weights.detach()))
                (slope,) = torch.autograd.grad(out.atoms.square().sum(), atoms)
            return bool(slope.isfinite().all())
        except RuntimeError:  # also what it raised itself
            return False
