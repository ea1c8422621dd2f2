"""A run in short: the status of each statement, and what became of each family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PAPERS = {
    "A": "Furuya, de Hoop, Lassas: Transformers through the lens of support-preserving maps "
    "between measures",
    "B": "Fraiman: On the expressive power of contextual relations in transformers",
}
"""The two papers, as a reader finds them."""

FAMILIES = {
    "supports": "Support-preserving maps, distances, convergence",
    "in_context": "In-context maps",
    "derivative": "The regular part of the derivative",
    "representation": "Theorem 1: which maps are in-context maps",
    "counterexample": "Proposition 1: continuity and supports are not enough",
    "transformers": "Transformers, and Corollary 1",
    "flows": "Depth, Vlasov flows, Proposition 2",
    "mean_field": "Many tokens",
    "causal": "Masked maps",
    "relations": "Conditionals and couplings",
    "approximation": "Which relations attention approximates",
    "rank": "The dimension of a head",
}
"""The families, in the order of the page."""

Found = Mapping[str, Any]
"""A statement of a run, as `as_dict` makes it."""


def status(found: Found) -> str:
    """The status of a statement, a key of `pictures.STATUS`: what its checks allow to say.

    Args:
        found: a statement of a run, as `as_dict` makes it.
    """
    kinds = {check["kind"] for check in found["checks"]}
    if not found["ok"]:
        return "unable"
    if "x" in kinds:
        return "refuted"
    if kinds <= {"quoted"}:
        return "untried"
    return "holds" if kinds <= {"=", "quoted"} else "open"


@dataclass(frozen=True)
class Family:
    """What became of a family.

    Args:
        name: its name, such as `"rank"`.
        title: its title.
        counts: how many statements have each status.
        equalities: the largest error of an equality, as a share of what is allowed.
        bounds: the largest ratio to a bound.
        built: the largest error of what was built, as a share of what is allowed.
    """

    name: str
    title: str
    counts: Mapping[str, int]
    equalities: float | None
    bounds: float | None
    built: float | None

    @property
    def size(self) -> int:
        """The number of its statements."""
        return sum(self.counts.values())


def families(statements: Sequence[Found]) -> list[Family]:
    """The families of a run, in the order of the page.

    Args:
        statements: of the run, as `as_dict` makes them.
    """
    found = []
    for name, title in FAMILIES.items():
        rows = [s for s in statements if s["family"] == name]
        if rows:
            kinds = [status(s) for s in rows]
            counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
            worst = (_worst(rows, kind) for kind in ("=", "<=", "E"))
            found.append(Family(name, title, counts, *worst))
    return found


def _worst(rows: Sequence[Found], kind: str) -> float | None:
    """The largest ratio of what was measured to what is allowed, None if there is none."""
    ratios = [
        0.0 if check["value"] == 0 else abs(check["value"]) / check["limit"]
        for s in rows for check in s["checks"]
        if check["kind"] == kind and check["ok"] and check["value"] is not None
        and (check["limit"] or check["value"] == 0)
    ]  # fmt: skip
    return max(ratios, default=None)
