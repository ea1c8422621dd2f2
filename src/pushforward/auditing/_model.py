"""A model to audit, with what an audit cannot find out by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._tools.checks import check_callable, check_flags, check_kind, check_range, check_whole
from ..representation import call_model
from ..representation.boxes import as_tensor, finite

Padded = Callable[..., Tensor]
"""A model on tokens some of which are padding: `padded(tokens, real)` with shapes `(n, d)` and
`(n,)`, or `padded(context, real, queries)` for a model of a context and queries."""


Mode = Literal["set", "sequence"]
"""What a model takes its tokens for."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model to audit, where something has to be said about it.

    `pf.audit` takes the bare model; wrap it only to set one of these.

    Args:
        model: the module, function or in-context map; see `pf.audit`.
        name: the name in the report. Default: that of the function or of the module's class.
        batched: whether the model takes an axis for sets, `(1, n, d)`. Default: it is called
            without that axis, then with it if that fails; the other way round if the data have it.
        padded: `padded(tokens, real)`, the model on tokens `(n, d)` some of which are padding,
            `real` `(n,)` being False for those; `padded(context, real, queries)` for a model of a
            context and queries. PyTorch's encoders need none.
        mode: `"set"` if the order of tokens must not matter, `"sequence"` if it may. Default: a
            set, unless the outputs change by a tenth of their size or more if tokens are shuffled.
        class_token: 0 or -1 if the first or the last token has a role of its own. If the model
            does not add this token itself, it is taken from the first set of the data. Default:
            no token is special, unless that is what the outputs show.
        tolerance: a change of the outputs up to this share of their size counts as none, even if
            rounding cannot explain it.

    Examples:
        >>> mean = pf.auditing.Model(lambda x: x + x.mean(0), name="mean", batched=False)
        >>> pf.audit(mean, torch.randn(50, 4), sections=["symmetries"]).model
        'mean'
        >>> running = pf.auditing.Model(lambda x: x.cumsum(-2), mode="sequence")
        >>> pf.audit(running, torch.randn(50, 4), sections=["symmetries"]).exit_code
        0
    """

    model: Any
    _: KW_ONLY
    name: str | None = None
    batched: bool | None = None
    padded: Padded | None = None
    mode: Mode | None = None
    class_token: int | None = None
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_callable("model", self.model, "a module, a function or an in-context map")
        if self.name is not None:
            check_kind("name", self.name, str, "It is the name of the model in the report.")
        if self.batched is not None:
            check_flags(batched=self.batched)
        if self.padded is not None:
            check_callable("padded", self.padded, "a function, `padded(tokens, real)`")
        if self.mode is not None and str(self.mode) not in ("set", "sequence"):
            raise ValueError(f'`mode` must be "set", "sequence" or None, got {self.mode!r}.')
        if self.class_token is not None:
            check_whole("class_token", self.class_token, -1)
            if self.class_token > 0:
                raise ValueError(
                    "`class_token` must be 0 (the first token), -1 (the last) or None, got "
                    f"{self.class_token}."
                )
        check_range("tolerance", self.tolerance, 0.0, 1.0)

    @property
    def title(self) -> str:
        """The given name, or that of a function, or that of a module's class."""
        if self.name:
            return self.name
        has_name = not isinstance(self.model, nn.Module) and hasattr(self.model, "__name__")
        return self.model.__name__ if has_name else type(self.model).__name__


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
