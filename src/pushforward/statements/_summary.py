"""A run in short: the status of each statement, and what became of each family."""

from __future__ import annotations

from collections import Counter
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


KINDS = {
    "=": "holds", "<=": "open", "->": "open", "E": "open", "x": "refuted", "quoted": "untried"
}  # fmt: skip
"""What a check allows to say if it is as expected, by its kind."""


def statuses(found: Found) -> list[str]:
    """What the checks of a statement allow to say, as keys of `pictures.STATUS`.

    The first is the mark of the statement. A counterexample beside other results is not its mark:
    it refutes a tempting variant.

    Args:
        found: a statement of a run, as `as_dict` makes it.
    """
    if not found["ok"]:
        return ["unable"]
    seen = {KINDS[check["kind"]] for check in found["checks"]}
    return [name for name in ("open", "holds", "refuted", "untried") if name in seen]


@dataclass(frozen=True)
class Family:
    """What became of a family.

    Args:
        name: its name, such as `"rank"`.
        title: its title.
        size: how many statements it has.
        counts: how many have a result of each status; a statement may have several.
        equalities: the largest error of an equality, as a share of what is allowed.
        bounds: the largest ratio to a bound.
        built: the largest error of what was built, as a share of what is allowed.
    """

    name: str
    title: str
    size: int
    counts: Mapping[str, int]
    equalities: float | None
    bounds: float | None
    built: float | None


def families(statements: Sequence[Found]) -> list[Family]:
    """The families of a run, in the order of the page.

    Args:
        statements: of the run, as `as_dict` makes them.
    """
    found = []
    for name, title in FAMILIES.items():
        rows = [s for s in statements if s["family"] == name]
        if rows:
            worst = (_worst(rows, kind) for kind in ("=", "<=", "E"))
            found.append(Family(name, title, len(rows), tally(rows), *worst))
    return found


def tally(statements: Sequence[Found]) -> dict[str, int]:
    """How many statements have a result of each status; one may have several.

    Args:
        statements: of a run, as `as_dict` makes them.
    """
    return dict(Counter(name for s in statements for name in statuses(s)))


def _worst(rows: Sequence[Found], kind: str) -> float | None:
    """The largest ratio of what was measured to what is allowed, None if there is none."""
    ratios = [
        0.0 if check["value"] == 0 else abs(check["value"]) / check["limit"]
        for s in rows for check in s["checks"]
        if check["kind"] == kind and check["ok"] and check["value"] is not None
        and (check["limit"] or check["value"] == 0)
    ]  # fmt: skip
    return max(ratios, default=None)
