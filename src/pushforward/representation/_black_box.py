"""Maps between measures that are only called: what goes in, what comes out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._tools.checks import check_kind
from ..maps import InContextMap
from ..measures import Measure, MeasureMap


class BlackBoxError(RuntimeError):
    """A map that did not behave as one between measures."""


def as_measure_map(f: MeasureMap | InContextMap) -> MeasureMap:
    """The push-forward of an in-context map, or the function itself."""
    if isinstance(f, InContextMap):
        return f.push
    if not callable(f):
        raise TypeError(f"`f` must map a Measure to a Measure, got {type(f).__name__}.")
    return f


def guarded(f: MeasureMap) -> MeasureMap:
    """The map with all that it raises turned into one kind of error."""

    def call(mu: Measure) -> Measure:
        try:
            return f(mu)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0][:200]
            raise BlackBoxError(f"it raised {type(error).__name__}: {first}") from error

    return call


def called(f: MeasureMap, mu: Measure) -> Measure:
    """What a black box makes of a measure, normalised; an error if that is no measure."""
    out = f(mu)
    if not isinstance(out, Measure):
        raise BlackBoxError(f"The map returned {type(out).__name__}, not a Measure.")
    if out.batch_shape:
        raise BlackBoxError(f"The map returned a batch of measures, {out.batch_shape}.")
    live = out.log_weights > -torch.inf
    good = (out.atoms.isfinite().all(-1) | ~live).all() & live.any()
    if not bool(good & (out.log_weights < torch.inf).all()):
        raise BlackBoxError("The map returned NaN or infinity.")
    return out.strip().normalise()


def check_single(mu: Measure) -> None:
    """Raise unless `mu` is one measure."""
    check_kind("mu", mu, Measure, "Points become one with `pf.Measure(points)`.")
    if mu.batch_shape:
        raise ValueError(f"`mu` must be one measure, got a batch {mu.batch_shape}: take `mu[k]`.")


def masses(mu: Measure) -> np.ndarray:
    """The weights as numbers."""
    return mu.weights.detach().double().cpu().numpy()


def with_probe(mu: Measure, x: Tensor, eta: float) -> tuple[Measure, int]:
    r"""$(1-\eta)\mu+\eta\delta_x$ with $\mu$ normalised, and which atom carries $x$.

    A point of the support gets the mass on top of its own.
    """
    mu = mu.strip().normalise()
    at = (mu.atoms == x).all(-1).nonzero()
    old = mu.log_weights + torch.log1p(torch.tensor(-eta, dtype=mu.log_weights.dtype))
    extra = torch.full_like(old[:1], eta).log()
    if len(at):
        k = int(at[0])
        more = torch.logaddexp(old[k : k + 1], extra)
        return Measure.unchecked(mu.atoms, torch.cat([old[:k], more, old[k + 1 :]]), mu.times), k
    atoms = torch.cat([mu.atoms, x[None]])
    return Measure.unchecked(atoms, torch.cat([old, extra])), mu.n
