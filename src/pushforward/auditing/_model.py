"""A model to audit, with what an audit cannot find out by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from torch import Tensor, nn

from .._tools.checks import check_callable, check_flags, check_kind, check_range, check_whole

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
