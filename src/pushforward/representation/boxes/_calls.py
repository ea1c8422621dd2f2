"""What models return, as a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._errors import BlackBoxError


def as_tensor(out: Any) -> Tensor:
    """What a model returns as one tensor: the first of several, or `last_hidden_state`.

    A NumPy array becomes a tensor, without gradients.
    """
    if isinstance(out, Mapping):
        out = out.get("last_hidden_state", next(iter(out.values()), None))
    if isinstance(out, (tuple, list)) and out:
        out = out[0]
    if isinstance(out, np.ndarray) and out.dtype.kind in "biuf":
        out = torch.as_tensor(out)
    if isinstance(out, Tensor) and out.layout != torch.strided:
        out = out.to_dense()
    if isinstance(out, Tensor) and not out.numel():
        raise BlackBoxError(f"it returned an empty tensor, of shape {tuple(out.shape)}")
    if not isinstance(out, Tensor):
        raise BlackBoxError(f"it returned {type(out).__name__}, not a tensor")
    if not out.is_floating_point():
        raise BlackBoxError(
            f"it returned {out.dtype} values, such as class labels: have it return scores or "
            "probabilities"
        )
    return out.detach() if not torch.is_grad_enabled() else out


def output_name(raw: Any) -> str:
    """Which of several outputs `as_tensor` takes, as a sentence without its full stop."""
    if isinstance(raw, Mapping):
        key = "last_hidden_state" if "last_hidden_state" in raw else next(iter(raw), "")
        return f". Of its outputs `{key}` is used"
    several = isinstance(raw, (tuple, list)) and len(raw) > 1
    return ". Of its outputs the first is used" if several else ""


def finite(out: Tensor) -> Tensor:
    """The same tensor; an error if it holds NaN or infinity."""
    if not bool(out.isfinite().all()):
        raise BlackBoxError("it returned NaN or infinity")
    return out


def near(a: Tensor, b: Tensor) -> bool:
    """Whether outputs agree up to rounding, which threads and shapes may change."""
    if a.shape != b.shape:
        return False
    size = float(b.abs().max())
    return bool((a - b).abs().max() <= 256 * torch.finfo(b.dtype).eps * size)
