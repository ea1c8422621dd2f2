"""How a model is told which tokens are padding."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

import torch
from torch import Tensor, nn

from ..measures import Measure
from ..representation import BlackBox, BlackBoxError, TokenBox
from ..representation.boxes import near
from ._model import Model, Padded, WithClassToken

MASKS = (
    "src_key_padding_mask", "key_padding_mask", "padding_mask", "attention_mask", "attn_mask",
    "mask", "token_mask", "valid_mask",
)  # fmt: skip
"""Names of arguments that usually say which tokens are padding."""

Mark = Callable[[Tensor], Tensor]
"""A mask as a function of which tokens are real."""

FORMS: dict[str, Mark] = {
    "True for padding": lambda real: ~real,
    "True for real tokens": lambda real: real,
    "1 for real tokens": lambda real: real.long(),
}


def padded_call(model: Model, box: BlackBox, mu: Measure) -> tuple[Padded | None, str]:
    """The model on tokens some of which are padding, and what is known of its mask, in words.

    It is given by the user, or found among the arguments of the model: a mask that declares all
    tokens to be real must change nothing, which shows whether True means padding.

    Args:
        model: the model.
        box: the same as a black box.
        mu: a context, to try masks on.
    """
    if model.padded is not None:
        wrapper = box.model if isinstance(box, TokenBox) else None
        if isinstance(wrapper, WithClassToken):
            return wrapper.padded(model.padded), ""
        return model.padded, ""
    if not isinstance(box, TokenBox):
        return None, ""
    names = [name for name in _arguments(model) if name in MASKS]
    for name in names:
        fitting = [form for form, mark in FORMS.items() if _changes_nothing(box, mu, name, mark)]
        if fitting:
            # A mask that is ignored fits every form: its name says what it is meant to be.
            form = fitting[0] if "padding" in name or len(fitting) == 1 else fitting[-1]
            call = _masked(box, name, FORMS[form])
            return call, f" Padding is given as `{name}`, {form}."
    if names:
        return None, f" Its argument `{names[0]}` is not understood."
    return None, ""


def _arguments(model: Model) -> list[str]:
    """The names of the arguments of a model."""
    call = model.model.forward if isinstance(model.model, nn.Module) else model.model
    try:
        return list(signature(call).parameters)
    except (TypeError, ValueError):  # a built-in function has no signature
        return []


def _masked(box: TokenBox, name: str, mark: Mark) -> Padded:
    """A call with padding by a mask."""

    def call(atoms: Tensor, real: Tensor) -> Tensor:
        mask = mark(real)
        return box.call(atoms, **{name: mask[None] if box.set_axis else mask})

    return call


def _changes_nothing(box: TokenBox, mu: Measure, name: str, mark: Mark) -> bool:
    """Whether a mask that declares all tokens to be real gives the outputs without a mask."""
    real = torch.ones(mu.n, dtype=torch.bool, device=mu.device)
    try:
        return near(box.call(mu.atoms), _masked(box, name, mark)(mu.atoms, real))
    except BlackBoxError:
        return False
