"""Composition of in-context maps."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from typing import ClassVar

from torch import nn

from .._tools.checks import check_kind
from ..measures import Measure
from ..sinkhorn import Starts
from ._in_context import Container, InContextMap
from ._stages import Answer, stages, walk


class Composition(Container, ABC):
    """Maps that are applied one after another: what `Compose` and `Transformer` share.

    Args:
        maps: the maps, first map first.
    """

    sequential: ClassVar[bool] = True

    def __init__(self, *maps: InContextMap) -> None:
        super().__init__()
        if not maps:
            raise ValueError("A composition needs at least one map, got none.")
        for gamma in maps:
            fix = "Wrap a module in `pf.Pointwise(module)`; a list of maps is `Compose(*maps)`."
            check_kind("maps", gamma, InContextMap, fix)
        for before, after in zip(maps, maps[1:], strict=False):
            _check_fit(before, after)
        self.maps = nn.ModuleList(maps)
        self.dim, self.context_dim = maps[0].dim, maps[0].context_dim
        self.out_dim = maps[-1].out_dim

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        kept = list(stages(self.parts(), mu, queries, starts))
        return lambda x, t: walk(kept, x, t)

    def __iter__(self) -> Iterator[InContextMap]:
        """The maps, first map first."""
        return iter(self.parts())

    def __len__(self) -> int:
        """Number of maps."""
        return len(self.maps)


class Compose(Composition):
    r"""The composition $\Gamma_L\diamond\dots\diamond\Gamma_1$, first map first [A, eq. 8].

    $$(\Gamma_2\diamond\Gamma_1)(\mu,x)=\Gamma_2\bigl(\Gamma_1(\mu,\cdot)_\sharp\mu,\
      \Gamma_1(\mu,x)\bigr).$$

    Its push-forward is the iterated push-forward, each layer evaluated once. Queries that move
    with the context share each layer's work on it, and the atoms come out bit for bit the same
    with or without them.

    Args:
        maps: the maps, first map first.

    Examples:
        >>> double = pf.Pointwise(lambda x: 2 * x)
        >>> pf.Compose(double, pf.Residual(double)).push(pf.Measure(torch.ones(1, 1))).atoms
        tensor([[6.]])
    """


def _check_fit(before: InContextMap, after: InContextMap) -> None:
    """Raise unless one map can follow the other."""
    if before.dim != before.context_dim:
        raise ValueError(
            f"Only the last map of a composition may be cross-attention, got "
            f"{type(before).__name__} from R^{before.context_dim} to R^{before.dim}: the "
            "maps after it need to know what became of its context."
        )
    if None not in (before.out_dim, after.dim) and before.out_dim != after.dim:
        raise ValueError(
            f"Maps do not fit: {type(before).__name__} ends in R^{before.out_dim}, "
            f"{type(after).__name__} begins in R^{after.dim}."
        )
