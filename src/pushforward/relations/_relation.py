"""What all relations share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._tools.checks import (
    check_broadcast,
    check_floating,
    check_index,
    check_kind,
    check_same,
    check_shape,
)
from ..affinities import PointScores, Scores
from ..measures import Measure
from ..sinkhorn import tilted

TOL = 1e-6
"""The marginal error that `Sinkhorn()` aims at, and below which a coupling has converged."""

Extension = Callable[[Scores, Tensor | None], "Relation"]
"""The same relation at other queries, from their scores and log-weights (None for none)."""


@dataclass(frozen=True, eq=False, repr=False)
class Relation(ABC):
    r"""What all relations share: scores, and a potential on the keys.

    Args:
        scores: $A$ between queries and keys.
        log_b: log-weights of the keys, normalised.
        g: the potential on the keys, None for zero.
        dtype: of results, where computations are in a wider one; None for theirs.
        costs: the affinity $A$ that `cost()` integrates, where `scores` are another function: the
            logarithm of a sigmoid of $A$ for `Sigmoid`, of the density of a plan for `Exact`.
            None where `scores` are $A$ itself.
        extension: makes the same relation at other queries, None where it relates atoms only.
    """

    scores: Scores
    log_b: Float[Tensor, "*#b n"]
    g: Float[Tensor, "*#b n"] | None
    dtype: torch.dtype | None = field(default=None, kw_only=True)
    costs: Scores | None = field(default=None, kw_only=True)
    extension: Extension | None = field(default=None, kw_only=True)

    @property
    def shape(self) -> torch.Size:
        """`(*b, m, n)`: queries and keys."""
        return self.scores.shape

    @property
    def any_query(self) -> bool:
        """Whether `at` can evaluate it at queries that are no atoms."""
        return self.extension is not None

    def at(self, scores: Scores, log_a: Tensor | None = None) -> Relation:
        """The same relation at other queries: same keys, same potential on the keys.

        Args:
            scores: between the other queries and the same keys.
            log_a: log-weights of the other queries, normalised; None is enough for a relation that
                is only applied, whose `apply` does not depend on them.
        """
        check_kind("scores", scores, Scores, "An affinity has them: `affinity.scores(mu, nu)`.")
        if log_a is not None:
            check_floating("log_a", log_a, "(..., m)", 1)
            check_shape("log_a", log_a, (*log_a.shape[:-1], scores.shape[-2]), "One per query.")
            check_same("device", ("log_b", self.log_b), ("log_a", log_a))
        if self.extension is None:
            raise ValueError(
                f"{self} relates atoms only. Relations of `Softmax` or `Sinkhorn`, as `relate` or "
                "a layer returns them, can be evaluated at other queries."
            )
        return self.extension(scores, log_a)

    @abstractmethod
    def matrix(self) -> Float[Tensor, "*b m n"]:
        """The relation as a matrix, differentiable."""

    def apply(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        r"""Integrate values, one per key, for every query; differentiable, no matrix formed.

        For conditionals and couplings it is $\int v(y)\,\pi(dy|x)$, the mean of the values that a
        query is related to, as in attention; `coupling.matrix() @ values` is that times the
        weights of the queries. For other masses it is $\int v(y)\,\pi(x,dy)/\mu(dx)$: sums by
        mass, per unit weight of the query.
        """
        check_floating("values", values, "(..., n, e)", 1)
        check_same("device", ("log_b", self.log_b), ("values", values))
        n = self.shape[-1]
        if values.ndim < 2 or values.shape[-2] != n:
            hint = ""
            if values.ndim == 1:
                hint = " One number per key is `values[:, None]`."
            elif values.shape[-2] == self.shape[-2] and hasattr(self, "transpose"):
                hint = " Functions of the queries are integrated by its `transpose()`."
            raise ValueError(
                f"`values` must have one row per key, (..., {n}, e), got {tuple(values.shape)}."
                + hint
            )
        return self.integrate(values.masked_fill((self.log_b == -torch.inf)[..., None], 0))

    @abstractmethod
    def integrate(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        """`apply` without its checks, for values that are finite at keys without mass too."""

    @property
    def _bias(self) -> Tensor:
        return self.log_b if self.g is None else tilted(self.log_b, self.g)

    def __getitem__(self, index: Any) -> Relation:
        """Some relations of a batch, such as one head."""
        check_index(index)
        batch, index = self.shape[:-2], index if isinstance(index, tuple) else (index,)
        torch.empty(batch)[index]  # raises IndexError here if the batch has fewer axes
        each = (*index, slice(None))  # so that `...` means axes of the batch alone
        some = lambda t: None if t is None else t.expand(*batch, t.shape[-1])[each]
        changed: dict[str, Any] = {"scores": self.scores.at(index), "extension": None}
        if self.costs is not None:
            changed["costs"] = self.costs.at(index)
        for name in ("log_b", "g", "log_a", "f"):
            if hasattr(self, name):
                changed[name] = some(getattr(self, name))
        for name in ("parts", "log_masses"):
            if (both := getattr(self, name, None)) is not None:
                changed[name] = tuple(map(some, both))
        return replace(self, **changed)

    def _out(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else x.to(self.dtype)

    def assignment(self) -> Int[Tensor, "*b m"]:
        """The key that each query gives most mass to, as an index."""
        with torch.no_grad():
            parts = [self._order(rows).argmax(-1) for rows in self.scores.cuts()]
        return torch.cat(parts, -1)

    @abstractmethod
    def _order(self, rows: slice) -> Tensor:
        """Numbers that grow with the masses of a row, for some rows."""

    def __repr__(self) -> str:
        *batch, m, n = self.shape
        many = f", batch {tuple(batch)}" if batch else ""
        return f"{type(self).__name__}({m} queries, {n} keys{many})"


def aligned_weights(name: str, mu: Measure, scores: Scores, *, with_mass: bool = False) -> Tensor:
    """Log-weights for every relation of a batch: heads come after the measures.

    Normalised, unless the mass is to be kept.
    """
    batch, more = scores.shape[:-2], len(scores.shape) - 2 - len(mu.batch_shape)
    logs = mu.log_weights.reshape(*mu.batch_shape, *(1,) * more, mu.n)
    check_broadcast(f"`{name}` and the scores", logs.shape[:-1], batch)
    logs = logs.to(scores.dtype)
    return (logs if with_mass else logs.log_softmax(-1)).expand(*batch, mu.n)


def check_finite_scores(scores: Scores, size: float) -> None:
    """Raise if a score is NaN or infinite, other than -inf at a forbidden pair.

    `size` is the bound `scores.size()`. Where points are compared, it may exceed the dtype though
    no score does: then the scores themselves are looked at.
    """
    if size < math.inf:
        return
    if isinstance(scores, PointScores):
        everything = replace(scores, times=None)
        with torch.no_grad():
            if all(bool(everything.tile(i).isfinite().all()) for i in everything.cuts()):
                return
    with torch.no_grad():
        size = float(scores.to(torch.float64).size())
    got = f"sizes up to {size:.2g}" if size < math.inf else "NaN or inf"
    raise ValueError(
        f"Scores must be finite, or -inf where a pair is forbidden, got {got} from queries and "
        f"keys; {_kind(scores)} ends at {torch.finfo(scores.dtype).max:.2g}. Scale queries or "
        "keys down, raise the temperature (`eps`), or check them for NaN and infinity."
    )


def check_rounding(scores: Scores, size: float) -> None:
    """Raise if rounding of the scores alone exceeds 1: potentials would miss masses by e."""
    limit = 1 / torch.finfo(scores.dtype).eps
    if not size <= limit:
        fix = "" if scores.dtype == torch.float64 else ", use float64"
        raise ValueError(
            f"Scores must be of size at most {limit:.2g} to be balanced in {_kind(scores)}, got "
            f"{size:.2g}: beyond, their rounding exceeds 1 and changes masses by factors. Raise "
            f"the temperature (`eps`), scale queries or keys down{fix}, or use "
            "`pf.relations.Exact()`, the limit of large scores."
        )


def _kind(scores: Scores) -> str:
    return str(scores.dtype).removeprefix("torch.")


def precise_scores(scores: Scores, size: float, tol: float) -> Scores:
    """The scores, in float64 where float32 would leave a marginal error above `tol`.

    Rounding scores of size `size` to float32 leaves an error of about 1e-8 times their range.
    This is the only place where a relation decides to compute in float64.
    """
    floor = 1e-8 * max(2 * size, 100.0)
    return scores.to(torch.float64) if scores.dtype == torch.float32 and tol < floor else scores


def draw(p: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    """Indices drawn with replacement from the last axis."""
    flat = p.reshape(-1, p.shape[-1])
    flat = torch.where(flat.sum(-1, keepdim=True) > 0, flat, 1)  # a query without allowed keys
    flat = torch.multinomial(flat, size, True, generator=generator)
    return flat.reshape(*p.shape[:-1], size)
