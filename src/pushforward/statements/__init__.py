"""The two papers, statement by statement, each with an experiment that could refute it.

The formulas of the papers were recovered from their texts, so that every statement is given as we
read it. Nothing is ever proved here: an identity holds to some digits, a bound is not refuted in
so many trials, a rate is measured, an object is built, and what is false is refuted.
"""

from . import paper_a, paper_b
from ._checks import Check, Kind, bounded, built, holds, quoted, rate, refuted
from ._figure import Figure, Series, series
from ._page import FAMILIES, PAPERS, page
from ._record import as_dict
from ._run import Result, run_statement, select, verify
from ._statement import REGISTRY, Setting, Statement, planted, replaced, statement

__all__ = [
    "Check", "FAMILIES", "Figure", "Kind", "PAPERS", "REGISTRY", "Result", "Series", "Setting",
    "Statement", "as_dict", "bounded", "built", "holds", "page", "paper_a", "paper_b",
    "planted", "quoted", "rate", "refuted", "replaced", "run_statement", "select", "series",
    "statement", "verify",
]  # fmt: skip
