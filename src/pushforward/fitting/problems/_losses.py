"""Losses: how far the image of a measure is from what it should be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..._tools.checks import check_kind, check_number, check_range
from ...distances import energy_distance, mmd, sinkhorn_divergence, wasserstein
from ...maps import storable
from ...measures import Measure
from ...relations import Sinkhorn

PerMeasure = Float[Tensor, "*b"]


class Loss(ABC):
    """How far an image is from its target, differentiable in the atoms and weights of the image.

    An author writes `between(image, target)`.

    Examples:
        >>> class Means(pf.fitting.Loss):
        ...     def between(self, image, target):
        ...         return (image.mean() - target.mean()).square().sum(-1)
        >>> Means().between(pf.Measure(torch.zeros(3, 2)), pf.Measure(torch.ones(5, 2)))
        tensor(2.)
    """

    paired: bool = False
    """Whether the atoms of image and target belong together, one by one."""

    @abstractmethod
    def between(self, image: Measure, target: Measure) -> PerMeasure:
        """One number for each measure of a batch."""


@dataclass(frozen=True)
class Paired(Loss):
    r"""The mean square $\int|\Gamma(\mu,x)-G(\mu,x)|^2\,d\mu$, if images of atoms are known.

    Atom $i$ of the target is the right image of atom $i$ of the source.

    Examples:
        >>> mu = pf.Measure(torch.zeros(2, 1), torch.tensor([0.25, 0.75]))
        >>> pf.fitting.Paired().between(mu, mu.moved(torch.tensor([[0.0], [2.0]])))
        tensor(3.0000)
    """

    paired = True

    def between(self, image: Measure, target: Measure) -> PerMeasure:
        if image.atoms.shape != target.atoms.shape:
            raise ValueError(
                "`Paired` compares atoms one by one, got images of shape "
                f"{tuple(image.atoms.shape)} and targets of shape {tuple(target.atoms.shape)}. "
                "Use another loss, such as `pf.fitting.SinkhornDivergence()`."
            )
        gaps = (image.atoms - target.atoms).square().sum(-1)
        return target.normalise().integrate(gaps.to(target.log_weights.dtype))


@dataclass(frozen=True)
class Wasserstein(Loss):
    r"""The exact $W_p$ of the normalised measures; slow beyond hundreds of atoms.

    Args:
        p: the exponent.
    """

    p: float = 1.0

    def __post_init__(self) -> None:
        check_range("p", self.p, 1)

    def between(self, image: Measure, target: Measure) -> PerMeasure:
        return wasserstein(image.normalise(), target.normalise(), p=self.p)


@dataclass(frozen=True)
class SinkhornDivergence(Loss):
    r"""The Sinkhorn divergence $S_\varepsilon$ of the normalised measures.

    Args:
        eps: the entropic blur $\varepsilon$, in squared units of length.
        tol: marginal error of the plans. The gradient is accurate to first order in it.
    """

    eps: float = 0.05
    tol: float = 1e-3

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        check_number("tol", self.tol)

    def between(self, image: Measure, target: Measure) -> PerMeasure:
        plans = Sinkhorn(tol=self.tol)
        a, b = image.normalise(), target.normalise()
        return sinkhorn_divergence(a, b, eps=self.eps, normaliser=plans)


@dataclass(frozen=True)
class EnergyDistance(Loss):
    r"""The square of the energy distance, $2\,\mathbb E|X-Y|-\mathbb E|X-X'|-\mathbb E|Y-Y'|$."""

    def between(self, image: Measure, target: Measure) -> PerMeasure:
        return energy_distance(image.normalise(), target.normalise()).square()


@dataclass(frozen=True)
class MMD(Loss):
    r"""The square of the maximum mean discrepancy of a Gaussian kernel.

    Args:
        bandwidth: $\sigma$ of the kernel $e^{-|x-y|^2/2\sigma^2}$.
    """

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        check_number("bandwidth", self.bandwidth)

    def between(self, image: Measure, target: Measure) -> PerMeasure:
        return mmd(image.normalise(), target.normalise(), bandwidth=self.bandwidth).square()


@dataclass(frozen=True)
class WithMass(Loss):
    r"""A loss of the normalised measures, plus the difference of the total masses.

    With `Wasserstein()` it is the distance $|c_1-c_2|+W_1(\mu_1,\mu_2)$ of $c_1\mu_1$ and
    $c_2\mu_2$. All other losses compare normalised measures, and births and deaths are invisible
    to them.

    Args:
        loss: compares the normalised measures.

    Examples:
        >>> a, b = pf.Measure(torch.zeros(1, 1), [2.0]), pf.Measure(torch.ones(1, 1), [3.0])
        >>> pf.fitting.WithMass(pf.fitting.Wasserstein()).between(a, b)
        tensor(2.)
    """

    loss: Loss

    def __post_init__(self) -> None:
        check_kind("loss", self.loss, Loss, "For example `pf.fitting.EnergyDistance()`.")

    def between(self, image: Measure, target: Measure) -> PerMeasure:
        return self.loss.between(image, target) + (image.mass - target.mass).abs()


for _cls in (MMD, EnergyDistance, Paired, SinkhornDivergence, Wasserstein, WithMass):
    storable(_cls)
