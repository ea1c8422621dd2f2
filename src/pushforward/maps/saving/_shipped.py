"""The trained model that comes with the library."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any

import torch

from ._files import load


def trained_flock(*, device: torch.device | str = "cpu") -> Any:
    r"""A small trained transformer that moves a flock of birds one unit of time ahead.

    Tokens are $(x,v)\in\mathbb R^4$, positions and velocities in the plane. The model learned the
    solution map of Cucker-Smale flocking, $\dot x=v$,
    $\dot v=\int\frac{3}{1+|x-y|^2}(w-v)\,d\mu(y,w)$, on random flocks of 16 to 128 birds in the
    box $[-2.5,2.5]^4$. It has four blocks of width 64
    with four heads. Its mean error, as a share
    of the mean displacement, is below one per cent for flocks of 16 to 4,096 birds, with equal
    and with random weights [A, Cor. 1]. The largest errors over all flocks are larger.

    Args:
        device: where its parameters go.

    Examples:
        >>> model = pf.maps.trained_flock()
        >>> flock = pf.Measure(torch.randn(100, 4, generator=torch.Generator().manual_seed(0)))
        >>> field = pf.fields.CuckerSmale(lambda r: 3 / (1 + r.square()))
        >>> exact = pf.flow(field, flock, t1=1.0, solver=pf.RK4(steps=8))[-1]
        >>> with torch.no_grad():
        ...     error = (model.push(flock).atoms - exact.atoms).norm(dim=-1).mean()
        >>> bool(error < 0.02 * (exact.atoms - flock.atoms).norm(dim=-1).mean())
        True
    """
    with as_file(files(__package__) / "flock.safetensors") as path:
        return load(path, device=device)
