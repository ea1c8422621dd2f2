"""The list of all maps of the zoo, each with the verdict that `characterise` must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..._tools.checks import check_seed, check_sizes
from ...maps import InContextMap
from ...measures import Measure, MeasureMap
from .._characterise import Verdict
from . import _jumping as jumping
from ._counterexamples import (
    bayes,
    counterexample,
    length_temperature,
    smooth_counterexample,
    splitting,
    top_k,
    unweighted_mean,
)
from ._in_context import attention, mlp, root, stack, steep, vlasov


@dataclass(frozen=True)
class Specimen:
    """A map of known kind.

    Args:
        name: its name.
        f: the map, `Measure` to `Measure`, or an in-context map.
        verdict: what kind of map it is.
        theorem: why, in a sentence.
    """

    name: str
    f: MeasureMap | InContextMap
    verdict: Verdict
    theorem: str


def specimens(dim: int = 2, seed: int = 0) -> list[Specimen]:
    """All maps of the zoo, with their verdicts.

    Args:
        dim: dimension of the points.
        seed: of random matrices.

    Examples:
        >>> len({s.verdict for s in pf.representation.zoo.specimens()})
        5
    """
    check_sizes(dim=dim)
    check_seed(seed)
    good: dict[str, tuple[MeasureMap | InContextMap, Callable]] = {
        "attention": (attention(dim, 1.0, seed), attention),
        "attention, scale 5": (attention(dim, 5.0, seed), attention),
        "attention, scale 30": (attention(dim, 30.0, seed), attention),
        "three layers": (stack(dim, 3, 1.0, seed), stack),
        "three layers, scale 5": (stack(dim, 3, 5.0, seed), stack),
        "MLP": (mlp(dim, seed), mlp),
        "linear Vlasov": (vlasov(dim, seed), vlasov),
        "tanh(1e6 x)": (steep, steep),
        "square root": (root, root),
        "cube root": (_cube_root, root),
    }
    bad: list[tuple[str, MeasureMap, Verdict]] = [
        ("length-dependent temperature", length_temperature, Verdict.NOT_A_MEASURE_MAP),
        ("top-2 attention", top_k, Verdict.NOT_A_MEASURE_MAP),
        ("unweighted mean", unweighted_mean, Verdict.NOT_A_MEASURE_MAP),
        ("max pooling", jumping.max_pooling, Verdict.JUMPS),
        ("min-max scaling", jumping.min_max_scaling, Verdict.JUMPS),
        ("centring by the median", jumping.median_centring, Verdict.JUMPS),
        ("sign of the mean", jumping.sign_of_mean, Verdict.JUMPS),
        ("heaviest atom", jumping.heaviest_atom, Verdict.JUMPS),
        ("mass of a half-space", jumping.half_space_mass, Verdict.JUMPS),
        ("masked mean pooling", jumping.masked_pooling, Verdict.JUMPS),
        ("Bayes update", bayes, Verdict.SPLITS_ATOMS),
        ("splitting atoms", splitting, Verdict.SPLITS_ATOMS),
        ("counterexample", counterexample, Verdict.NOT_CONTINUOUS),
        ("smooth counterexample", smooth_counterexample, Verdict.NOT_CONTINUOUS),
    ]
    return [
        *(Specimen(name, f, Verdict.IN_CONTEXT, _why(why)) for name, (f, why) in good.items()),
        *(Specimen(name, f, verdict, _why(f)) for name, f, verdict in bad),
    ]


def _cube_root(mu: Measure) -> Measure:
    return root(mu, 1 / 3)


def _why(f: Callable) -> str:
    """The first sentence of a docstring."""
    return (f.__doc__ or "").strip().splitlines()[0]
