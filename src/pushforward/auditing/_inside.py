"""Looking inside a model while it runs: its layers, and its attention as it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..flows import Flow
from ..maps import AttentionMap, Composition, InContextMap, advance
from ..measures import Measure
from ..relations import Conditional, Coupling

STOPS = 20
"""Places along a flow."""

SOFTMAX = (torch.softmax, torch.Tensor.softmax, F.softmax)


class Attentions(TorchFunctionMode):
    """Collects the matrices of attention that are computed while it is on.

    PyTorch's own attention, `scaled_dot_product_attention`, and every softmax over the last axis.

    Args:
        shapes: numbers of queries and keys that are attention between tokens.
    """

    def __init__(self, shapes: Collection[tuple[int, int]]):
        super().__init__()
        self.shapes = shapes
        self.found: list[Tensor] = []
        """One for every layer: `(heads, queries, keys)`, rows of sum one."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Look at a call, and make it."""
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            asked = {**kwargs, "need_weights": True, "average_attn_weights": False}
            out, weights = func(*args, **asked)
            self._keep(weights)
            if kwargs.get("need_weights", True):
                mean = kwargs.get("average_attn_weights", True)
                return out, weights.mean(-3) if mean else weights
            return out, None
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._keep(_weights(*args, **kwargs))
        elif func in SOFTMAX and _last_axis(args, kwargs):
            self._keep(out)
        return out

    def _keep(self, weights: Tensor) -> None:
        """Those between tokens."""
        if tuple(weights.shape[-2:]) in self.shapes:
            self.found.append(weights.detach().reshape(-1, *weights.shape[-2:]))


def _weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `scaled_dot_product_attention` averages with, by its definition."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    return scores.softmax(-1)


def _last_axis(args: tuple, kwargs: dict) -> bool:
    """Whether a softmax is over the last axis."""
    given = args[0] if args else kwargs.get("input")
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return isinstance(given, Tensor) and given.ndim >= 2 and axis in (-1, given.ndim - 1)


@contextmanager
def layers_of(model: nn.Module) -> Iterator[dict[int, list[Tensor]]]:
    """Collects what goes into the first of repeated layers and what comes out of each.

    By list of layers: a key for each `ModuleList` or `Sequential`.
    """
    found: dict[int, list[Tensor]] = {}
    hooks = []
    lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    for number, layers in enumerate(lists):
        for layer in layers:
            if not any(True for _ in layer.children()):
                continue  # a linear map or an activation is no layer
            hooks.append(layer.register_forward_pre_hook(_into(found, number), with_kwargs=True))
            hooks.append(layer.register_forward_hook(_out_of(found, number)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _into(found: dict[int, list[Tensor]], number: int) -> Callable:
    """Keeps the input of the first layer."""

    def look(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        given = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        if given is not None:
            found.setdefault(number, [given.detach()])

    return look


def _out_of(found: dict[int, list[Tensor]], number: int) -> Callable:
    """Keeps what comes out of a layer."""

    def look(layer: nn.Module, given: Any, out: Any) -> None:
        out = out[0] if isinstance(out, (tuple, list)) and out else out
        if isinstance(out, Tensor):
            found.setdefault(number, []).append(out.detach())

    return look


def clouds(model: nn.Module, run: Callable[[], Any], rows: Sequence[int]) -> list[Tensor]:
    """Tokens before and after each layer, of the longest chain of layers that keep their shape.

    Args:
        model: a module with lists of layers inside.
        run: calls it.
        rows: how many tokens there may be.
    """
    with torch.no_grad(), layers_of(model) as found:
        run()
    best: list[Tensor] = []
    for chain in found.values():
        for n in rows:
            seen = [x for x in (_rows(out, n) for out in chain) if x is not None]
            widths = [x.shape[-1] for x in seen]
            usual = max(set(widths), key=widths.count, default=0)
            same = [x for x in seen if x.shape[-1] == usual]
            if len(same) >= 3 and len(same) > len(best):
                best = same
    return best


def _rows(out: Tensor, rows: int) -> Tensor | None:
    """As `(rows, d)`, wherever the axis for sets is; None if that is not what it is."""
    if out.ndim == 3 and 1 in out.shape[:2]:
        out = out.reshape(-1, out.shape[-1])
    return out if out.ndim == 2 and len(out) == rows else None


def clouds_of_map(gamma: InContextMap, mu: Measure) -> list[Tensor]:
    """Tokens before and after each map of a composition, or along a flow."""
    if isinstance(gamma, Flow):
        save = min(STOPS, getattr(gamma.solver, "steps", STOPS))
        return [m.atoms for m in gamma.path(mu, save=save, progress=False)]
    if not isinstance(gamma, Composition):
        return [mu.atoms, advance(gamma, mu).atoms]
    found = [mu.atoms]
    for part in gamma:
        found.append(advance(part, mu).atoms)
        mu = mu.moved(found[-1])
    return found


def heads_of_map(gamma: InContextMap, mu: Measure, queries: Tensor | None) -> list[Tensor]:
    """Rows of sum one of all attention inside, `(heads, m, n)`."""
    if queries is None:
        relations = gamma.relations(mu)
    else:
        relations = (
            [gamma.relation(mu, Measure(queries))] if isinstance(gamma, AttentionMap) else []
        )
    found = []
    for relation in relations:
        rows = relation.conditional() if isinstance(relation, Coupling) else relation
        if isinstance(rows, Conditional):
            matrix = rows.matrix().detach()
            found.append(matrix.reshape(-1, *matrix.shape[-2:]))
    return found
