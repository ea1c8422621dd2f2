"""Contexts as lists of tokens, and whatever a model returns as a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..measures import Measure
from ..representation import BlackBoxError

MOST_COPIES = 4096
"""The longest list of tokens as which weights are written."""


def repetitions(mu: Measure) -> Int[Tensor, " n"]:
    """How often each token is repeated to have its weight; the smallest such numbers."""
    weights = mu.normalise().weights.double()
    if bool((weights == weights[0]).all()):
        return torch.ones(mu.n, dtype=torch.long, device=weights.device)
    lightest = float(weights[weights > 0].min())
    share, tolerance = 1, MOST_COPIES * 64 * torch.finfo(mu.log_weights.dtype).eps
    while share / lightest <= MOST_COPIES:
        counts = weights * (share / lightest)
        if float((counts - counts.round()).abs().max()) < tolerance:
            return counts.round().long()
        share += 1
    raise BlackBoxError(
        f"weights that are no multiples of one over at most {MOST_COPIES} cannot be written as "
        "repetitions"
    )


def as_token_list(mu: Measure) -> Float[Tensor, "n d"]:
    """The tokens of a context as a list, each repeated according to its weight."""
    return mu.atoms.repeat_interleave(repetitions(mu), 0)


def as_tensor(out: Any) -> Tensor:
    """What a model returns as one tensor: the first of several, or `last_hidden_state`."""
    if isinstance(out, Mapping):
        out = out.get("last_hidden_state", next(iter(out.values()), None))
    if isinstance(out, (tuple, list)) and out:
        out = out[0]
    if isinstance(out, Tensor) and out.layout != torch.strided:
        out = out.to_dense()
    if isinstance(out, Tensor) and not out.numel():
        raise BlackBoxError(f"it returned an empty tensor, of shape {tuple(out.shape)}")
    if not isinstance(out, Tensor):
        raise BlackBoxError(f"it returned {type(out).__name__}, not a tensor")
    if not out.is_floating_point():
        raise BlackBoxError(
            f"it returned {out.dtype} numbers, for which continuity has no meaning: have it "
            "return scores or probabilities"
        )
    return out.detach() if not torch.is_grad_enabled() else out


def output_name(raw: Any) -> str:
    """Which of several outputs `as_tensor` takes, as the end of a sentence."""
    if isinstance(raw, Mapping):
        key = "last_hidden_state" if "last_hidden_state" in raw else next(iter(raw), "")
        return f"; of its outputs `{key}` is used"
    several = isinstance(raw, (tuple, list)) and len(raw) > 1
    return "; of its outputs the first is used" if several else ""


def finite(out: Tensor) -> Tensor:
    """The same tensor; an error if it holds NaN or infinity."""
    if not bool(out.isfinite().all()):
        raise BlackBoxError("it returned NaN or infinity")
    return out


def largest_change(a: Tensor, b: Tensor) -> float:
    """The largest difference of an entry."""
    return float((a - b).abs().max())
