"""Models of a context and queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._tools.checks import check_callable, check_flags
from ...measures import Measure
from .._errors import BlackBoxError, call_model
from ..continuity import ImageFinder
from ._black_box import BlackBox
from ._calls import as_tensor, finite
from ._tokens import as_token_list


class QueryBox(BlackBox):
    """A model of a context `(n, d)` and queries `(m, q)`, or with an axis for sets before both.

    Args:
        model: the module or function.
        set_axis: whether it takes an axis for sets.

    Examples:
        >>> nearest = lambda context, x: context[torch.cdist(x, context).argmin(-1)]
        >>> box = pf.representation.QueryBox(nearest, set_axis=False)
        >>> box.answer(pf.Measure(torch.tensor([[1.0], [5.0]])), torch.tensor([[4.0]]))
        tensor([[5.]])
    """

    def __init__(self, model: Callable[..., Any], set_axis: bool) -> None:
        check_callable("model", model, "a module or a function of a context and queries")
        check_flags(set_axis=set_axis)
        self.model, self.set_axis = model, set_axis
        self.independent = False
        """Whether the queries of one call do not change each other's outputs."""

    def outputs(self, mu: Measure, x: Tensor | None = None) -> Tensor:
        if x is None:
            raise BlackBoxError("it has outputs for queries only, not for the tokens of a context")
        atoms = as_token_list(mu)
        given = (atoms[None], x[None]) if self.set_axis else (atoms, x)
        out = as_tensor(call_model(self.model, *(t.clone() for t in given)))
        out = out[0] if self.set_axis and out.ndim and len(out) == 1 else out
        if not out.ndim or len(out) != len(x):
            raise BlackBoxError(
                f"it returned shape {tuple(out.shape)} for {len(x)} queries, not one row for each"
            )
        return finite(out.reshape(len(x), -1))

    def alone(self, mu: Measure, x: Tensor) -> Tensor:
        """The outputs of one call for each query."""
        return torch.cat([self.outputs(mu, point[None]) for point in x])

    def answer(self, mu: Measure, x: Tensor) -> Tensor:
        return self.outputs(mu, x) if self.independent else self.alone(mu, x)

    def push(self, mu: Measure) -> Measure:
        raise BlackBoxError("it has outputs for queries only, not for the tokens of a context")

    def images(self) -> ImageFinder:
        raise BlackBoxError("it has outputs for queries only, not for the tokens of a context")
