"""What every black box can be asked, whether it can be trusted, and how far outputs differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...distances import wasserstein
from ...flows import Euclidean, Manifold
from ...measures import Measure
from .._errors import BlackBoxError
from ..continuity import ImageFinder, Response
from ._calls import near


class BlackBox(ABC):
    """A map that is only called.

    To add one, write `outputs`, `answer`, `push` and `images`.
    """

    model: Any
    """The module, function or map itself."""
    manifold: Manifold = Euclidean()
    """Where its points lie."""
    weighted: bool = False
    """Whether it takes measures with weights, not only lists of tokens."""
    pooled: bool = False
    """Whether it has one output for the whole set."""
    tokens_per_query: int = 0
    """1 if a query enters the model as one more token, else 0."""

    @abstractmethod
    def outputs(self, mu: Measure, x: Float[Tensor, "m q"] | None = None) -> Tensor | Measure:
        """The outputs of one call, for queries if they are given, else for the context itself.

        They are the rows of `(n, e)`, or of `(1, e)` if there is one output for the set; a measure
        if the outputs have no order.
        """

    @abstractmethod
    def answer(self, mu: Measure, x: Float[Tensor, "m q"]) -> Float[Tensor, "m e"]:
        r"""The output $G(\mu,x)$ for each of some points, each alone with the context."""

    @abstractmethod
    def push(self, mu: Measure) -> Measure:
        r"""The image $G(\mu,\cdot)_\sharp\mu$ of a context, normalised."""

    @abstractmethod
    def images(self) -> ImageFinder:
        """Where it sends small masses, in contexts that vary."""

    def answers_in(self, mu: Measure) -> ImageFinder:
        """Where it sends queries, which have no mass, in one context."""
        return ImageFinder(lambda atoms, log_weights, x, eta: self.answer(mu, x))


def outputs_at(box: BlackBox, mu: Measure, x: Tensor | None) -> Tensor | Measure:
    """The outputs for some queries, each alone, or for the context itself if there are none."""
    return box.outputs(mu) if x is None else box.answer(mu, x)


def why_unusable(
    box: BlackBox, mu: Measure, other: Measure, x: Tensor | None = None, seed: int = 0
) -> str | None:
    """Why nothing can be concluded from a map: it fails, it is random, or it keeps state.

    Args:
        box: the map.
        mu: a context.
        other: another one.
        x: queries, for a model of a context and queries.
        seed: of random numbers that the map may draw.
    """

    def outputs(luck: int) -> Tensor:
        torch.manual_seed(luck)
        out = outputs_at(box, mu, x)
        return out.atoms if isinstance(out, Measure) else out

    devices = [mu.device] if mu.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            first = outputs(seed)
            if not near(first, outputs(seed)):
                return "it keeps state: a second call gives another output"
            if not near(first, outputs(seed + 1)):
                return "it is random: two calls on the same context differ"
            outputs_at(box, other, x)
            if not near(first, outputs(seed)):
                return "it keeps state: a call changes the output of a later one"
        except BlackBoxError as error:
            return str(error)
    return None


def image_distance(box: BlackBox) -> Response:
    """$W_1$ of the images of two measures, less what rounding may add to it."""

    def response(mu: Measure, nu: Measure, x: Tensor | None) -> Tensor:
        a, b = box.push(mu), box.push(nu)
        size = max(float(m.atoms.detach().abs().max()) for m in (mu, a, b))
        return wasserstein(a, b) - 64 * torch.finfo(mu.dtype).eps * size

    return response


def answer_distance(box: BlackBox, rounding: float) -> Response:
    """The distance of the outputs at one point in two contexts.

    Args:
        box: the model.
        rounding: distances up to this count as zero.
    """

    def response(mu: Measure, nu: Measure, x: Tensor | None) -> Tensor:
        if x is None:
            raise ValueError("The response of a model is that at a point.")
        a, b = (box.answer(m, x[None])[0] for m in (mu, nu))
        change = (a - b).norm()
        return torch.where(change > rounding, change, 0.0)

    return response
