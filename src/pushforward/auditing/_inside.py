"""What happens inside a model while it runs: its layers, and the attention that it computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
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
from ..representation import BlackBox, MapBox

STOPS = 20
"""The number of times at which the tokens of a flow are recorded."""

SOFTMAX = (torch.softmax, torch.Tensor.softmax, F.softmax)


class AttentionRecorder(TorchFunctionMode):
    """Records every attention matrix that PyTorch computes inside a `with` block.

    Recorded are `multi_head_attention_forward`, `scaled_dot_product_attention` and every softmax
    over the last axis, if the matrix has one of the given shapes.

    Args:
        shapes: pairs of a number of queries and a number of keys.
    """

    def __init__(self, shapes: Collection[tuple[int, int]]) -> None:
        super().__init__()
        self.shapes = shapes
        self.matrices: list[Tensor] = []
        """One tensor per layer, `(heads, queries, keys)`, with rows of sum one."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Make a call of PyTorch, and record the attention that it computes."""
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            # Without weights PyTorch takes a fused kernel, which never forms the matrix.
            options = {**kwargs, "need_weights": True, "average_attn_weights": False}
            out, weights = func(*args, **options)
            self._record(weights)
            if kwargs.get("need_weights", True):
                mean = kwargs.get("average_attn_weights", True)
                return out, weights.mean(-3) if mean else weights
            return out, None
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._record(_sdpa_weights(*args, **kwargs))
        elif func in SOFTMAX and _over_last_axis(args, kwargs):
            self._record(out)
        return out

    def _record(self, weights: Tensor) -> None:
        """Keep a matrix between tokens, and no other."""
        if tuple(weights.shape[-2:]) in self.shapes:
            self.matrices.append(weights.detach().reshape(-1, *weights.shape[-2:]))


def _sdpa_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights of `scaled_dot_product_attention`, by its definition and with its signature."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~past, -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    return scores.softmax(-1)


def _over_last_axis(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a softmax of a matrix is over its last axis."""
    scores = args[0] if args else kwargs.get("input")
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return isinstance(scores, Tensor) and scores.ndim >= 2 and axis in (-1, scores.ndim - 1)


def attention(box: BlackBox, mu: Measure, x: Tensor | None) -> list[Tensor]:
    """The attention matrices of one call, one tensor `(heads, queries, keys)` per layer.

    Args:
        box: the model.
        mu: the context.
        x: queries, None for a model of tokens alone.
    """
    if isinstance(box, MapBox):
        return [] if box.gamma is None else _attention_of_map(box.gamma, mu, x)
    n, m = mu.n, 0 if x is None else len(x)
    keys = {n, n + 1, n + m}  # n + 1: a model may add a class token
    with torch.no_grad(), AttentionRecorder([(a, b) for a in keys | {m} for b in keys]) as seen:
        box.outputs(mu, x)
    return seen.matrices


def _attention_of_map(gamma: InContextMap, mu: Measure, x: Tensor | None) -> list[Tensor]:
    if x is None:
        relations = gamma.relations(mu)
    elif isinstance(gamma, AttentionMap):
        relations = [gamma.relation(mu, Measure(x))]
    else:
        relations = []
    matrices = []
    for relation in relations:
        rows = relation.conditional() if isinstance(relation, Coupling) else relation
        if isinstance(rows, Conditional):
            matrix = rows.matrix().detach()
            matrices.append(matrix.reshape(-1, *matrix.shape[-2:]))
    return matrices


@contextmanager
def record_layers(model: nn.Module) -> Iterator[dict[int, list[Tensor]]]:
    """Record the input of the first of repeated layers and the output of each.

    There is one list of tensors for each `ModuleList` or `Sequential` of the model.
    """
    records: dict[int, list[Tensor]] = {}
    hooks = []
    stacks = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    for number, stack in enumerate(stacks):
        for layer in stack:
            if not any(True for _ in layer.children()):
                continue  # a linear map or an activation is part of a layer
            hooks.append(
                layer.register_forward_pre_hook(_first(records, number), with_kwargs=True)
            )
            hooks.append(layer.register_forward_hook(_every(records, number)))
    try:
        yield records
    finally:
        for hook in hooks:
            hook.remove()


def _first(records: dict[int, list[Tensor]], number: int) -> Callable[..., None]:
    """A hook that records the input of the first layer that runs."""

    def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        if given is not None:
            records.setdefault(number, [given.detach()])

    return hook


def _every(records: dict[int, list[Tensor]], number: int) -> Callable[..., None]:
    """A hook that records the output of a layer."""

    def hook(layer: nn.Module, given: Any, out: Any) -> None:
        out = out[0] if isinstance(out, (tuple, list)) and out else out
        if isinstance(out, Tensor):
            records.setdefault(number, []).append(out.detach())

    return hook


def layers(box: BlackBox, mu: Measure, x: Tensor | None) -> list[Tensor]:
    """Tokens before and after each of repeated layers, `(n, d)` each; empty if there are none.

    Of several stacks of layers the longest is taken, without layers of another width.

    Args:
        box: the model; only a module has layers.
        mu: the context.
        x: queries, for a model of a context and queries; the first is asked.
    """
    if isinstance(box, MapBox):
        return [] if box.gamma is None or x is not None else _layers_of_map(box.gamma, mu)
    if not isinstance(box.model, nn.Module):
        return []
    with torch.no_grad(), record_layers(box.model) as records:
        box.outputs(mu, None if x is None else x[:1])
    longest: list[Tensor] = []
    for outputs in records.values():
        for n in (mu.n, mu.n + 1):  # one row more than tokens: the query, or a class token
            clouds = [y for y in (_as_rows(out, n) for out in outputs) if y is not None]
            widths = [y.shape[-1] for y in clouds]
            usual = max(set(widths), key=widths.count, default=0)
            same = [y for y in clouds if y.shape[-1] == usual]
            if len(same) >= 3 and len(same) > len(longest):
                longest = same
    return longest


def _as_rows(out: Tensor, n: int) -> Tensor | None:
    """An output as `(n, d)`, wherever its axis for sets is; None if it has other rows."""
    if out.ndim == 3 and 1 in out.shape[:2]:
        out = out.reshape(-1, out.shape[-1])
    return out if out.ndim == 2 and len(out) == n else None


def _layers_of_map(gamma: InContextMap, mu: Measure) -> list[Tensor]:
    """Tokens before and after each map of a composition, or along a flow."""
    if isinstance(gamma, Flow):
        save = min(STOPS, getattr(gamma.solver, "steps", STOPS))
        return [m.atoms for m in gamma.path(mu, save=save, progress=False)]
    if not isinstance(gamma, Composition):
        return [mu.atoms, advance(gamma, mu).atoms]
    clouds = [mu.atoms]
    for part in gamma:
        clouds.append(advance(part, mu).atoms)
        mu = mu.moved(clouds[-1])
    return clouds
