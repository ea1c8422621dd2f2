"""A model to audit, with what an audit cannot find out by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from torch import Tensor, nn

from .._tools.checks import check_callable, check_flags, check_kind

Padded = Callable[..., Tensor]
"""A model on tokens some of which are padding: `padded(tokens, real)` with shapes `(n, d)` and
`(n,)`, or `padded(context, real, queries)` for a model of a context and queries."""


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

    Examples:
        >>> mean = pf.auditing.Model(lambda x: x + x.mean(0), name="mean", batched=False)
        >>> pf.audit(mean, torch.randn(50, 4), sections=["symmetries"]).model
        'mean'
    """

    model: Any
    _: KW_ONLY
    name: str | None = None
    batched: bool | None = None
    padded: Padded | None = None

    def __post_init__(self) -> None:
        check_callable("model", self.model, "a module, a function or an in-context map")
        if self.name is not None:
            check_kind("name", self.name, str, "It is the name of the model in the report.")
        if self.batched is not None:
            check_flags(batched=self.batched)
        if self.padded is not None:
            check_callable("padded", self.padded, "a function, `padded(tokens, real)`")

    @property
    def title(self) -> str:
        """The given name, or that of a function, or that of a module's class."""
        if self.name:
            return self.name
        has_name = not isinstance(self.model, nn.Module) and hasattr(self.model, "__name__")
        return self.model.__name__ if has_name else type(self.model).__name__
