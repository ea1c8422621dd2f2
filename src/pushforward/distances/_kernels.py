"""Distances that are double integrals of a kernel: energy distance and MMD."""

from torch import Tensor

from .._tools.checks import check_finite, check_number
from .._tools.tiles import distance_matrix, over_tiles, row_tiles
from ..affinities import SquaredDistance
from ..measures import Measure
from ._pairs import ROUNDING, Distance, pair, root


def energy_distance(mu: Measure, nu: Measure) -> Distance:
    r"""The energy distance $\bigl(2\,\mathbb E|X-Y|-\mathbb E|X-X'|-\mathbb E|Y-Y'|\bigr)^{1/2}$.

    On the line it is $\bigl(2\int(F-G)^2dx\bigr)^{1/2}$. It takes time $mn$ and linear memory. Its
    square is a difference of mean distances; below $4\cdot10^{-15}$ times these it counts as 0.

    Args:
        mu: a measure.
        nu: another measure of equal mass.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 2))
        >>> pf.energy_distance(mu, mu.push(lambda x: x + 1)) ** 2
        tensor(2.8284)
    """
    a, b = pair(mu, nu)
    between = _mean_distance(a, b)
    squared = 2 * between - _mean_distance(a, a) - _mean_distance(b, b)
    return root(squared, 2, ROUNDING * between).to(mu.log_weights.dtype)


def mmd(mu: Measure, nu: Measure, *, bandwidth: float = 1.0) -> Distance:
    r"""The maximum mean discrepancy of the kernel $k(x,y)=e^{-|x-y|^2/2\sigma^2}$.

    $\bigl(\int\!\!\int k\,d(\mu-\nu)\,d(\mu-\nu)\bigr)^{1/2}$: the exact value for two
    measures, in time $mn$ and linear memory. Its square is a difference of means of size one;
    below $4\cdot10^{-15}$ it counts as 0.

    Args:
        mu: a measure.
        nu: another measure of equal mass.
        bandwidth: $\sigma$.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 2))
        >>> pf.mmd(mu, mu.push(lambda x: x + 9))
        tensor(1.4142)
    """
    check_number("bandwidth", bandwidth)
    check_finite("bandwidth", bandwidth)
    a, b = pair(mu, nu)
    affinity = SquaredDistance(2 * bandwidth**2)

    def integral(x: Measure, y: Measure) -> Tensor:
        log_kernel_mean = affinity.scores(x, y).over_keys(y.log_weights)
        return x.integrate(log_kernel_mean.exp())

    squared = integral(a, a) + integral(b, b) - 2 * integral(a, b)
    return root(squared, 2, ROUNDING).to(mu.log_weights.dtype)


def _mean_distance(mu: Measure, nu: Measure) -> Tensor:
    r"""$\int\!\!\int|x-y|\,d\mu\,d\nu$, a tile of rows at a time."""
    y, b, weights = nu.atoms, nu.weights, mu.weights

    def part(rows: slice) -> Tensor:
        distances = distance_matrix(mu.atoms[..., rows, :], y)
        return (weights[..., None, rows] @ (distances @ b[..., None]))[..., 0, 0]

    row_size = nu.n * y.shape[:-2].numel()
    total = sum(over_tiles(part, row_tiles(mu.n, row_size, y.device, entries=1 << 22)))
    return total if isinstance(total, Tensor) else weights.sum(-1)  # an empty batch
