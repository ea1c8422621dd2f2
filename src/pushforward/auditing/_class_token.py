"""Models with a class token: a first or last token that has a role of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..representation import call_model
from ..representation.boxes import as_tensor, finite
from ._model import Padded


class WithClassToken(nn.Module):
    """A model as a map of the tokens beside its class token, which always stands in its place.

    Args:
        model: the model.
        token: the class token `(d,)` that is given to the model; None if the model adds its own.
        last: whether it stands last instead of first.
        pooled: whether the model has one output for the whole set.
    """

    def __init__(self, model: Any, token: Tensor | None, last: bool, pooled: bool = False) -> None:
        super().__init__()
        self.inner, self.token, self.last, self.pooled = model, token, last, pooled

    def forward(self, tokens: Tensor, **masks: Tensor) -> Tensor:
        """The outputs of all tokens but the class token."""
        return self._split(tokens, masks)[0]

    def own_output(self, tokens: Tensor) -> Tensor:
        """The output of the class token itself, for tokens `(n, d)`."""
        own = finite(self._split(tokens, {})[1])
        return own.reshape(1, -1)

    def padded(self, padded: Padded) -> Padded:
        """The same function of tokens and of which are real, without the class token.

        Args:
            padded: the function that the user gave, of all tokens.
        """

        def call(tokens: Tensor, real: Tensor) -> Tensor:
            out = as_tensor(call_model(padded, self._joined(tokens), self._marked(real)))
            return self._parts(out, len(tokens), axis=0)[0]

        return call

    def _split(self, tokens: Tensor, masks: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The outputs of the tokens, and that of the class token."""
        longer = {name: self._marked(mask) for name, mask in masks.items()}
        out = as_tensor(call_model(self.inner, self._joined(tokens), **longer))
        return self._parts(out, tokens.shape[-2], axis=tokens.ndim - 2)

    def _joined(self, tokens: Tensor) -> Tensor:
        """The tokens with the class token in its place."""
        if self.token is None:
            return tokens
        own = self.token.to(tokens).expand(*tokens.shape[:-2], 1, -1)
        return torch.cat([tokens, own] if self.last else [own, tokens], -2)

    def _marked(self, mask: Tensor) -> Tensor:
        """A mask with an entry for the class token, which is real as the first token is."""
        if self.token is None:
            return mask
        own = mask[..., :1]
        return torch.cat([mask, own] if self.last else [own, mask], -1)

    def _parts(self, out: Tensor, n: int, axis: int) -> tuple[Tensor, Tensor]:
        if self.pooled or out.ndim <= axis or out.shape[axis] != n + 1:
            return out, out
        own = n if self.last else 0
        return out.narrow(axis, 0 if self.last else 1, n), out.narrow(axis, own, 1)
