"""The two papers, statement by statement, each with an experiment that could refute it.

The formulas of the papers were recovered from their texts, so that every statement is given as we
read it. Nothing is ever proved here: an identity holds to some digits, a bound is not refuted in
so many trials, a rate is measured, an object is built, and what is false is refuted.
"""

from . import paper_a, paper_b
from ._caveats import CAVEATS, Caveat
from ._checks import Check, Kind, bounded, built, holds, quoted, rate, refuted
from ._left_out import LEFT_OUT
from ._page import cards, caveats, page
from ._record import as_dict
from ._run import Result, run_statement, select, verify
from ._statement import REGISTRY, Setting, Statement, planted, replaced, statement
from ._summary import FAMILIES, PAPERS, Family, families, statuses, tally

__all__ = [
    "CAVEATS", "Caveat", "Check", "FAMILIES", "Family", "Kind", "LEFT_OUT", "PAPERS", "REGISTRY",
    "Result", "Setting", "Statement", "as_dict", "bounded", "built", "cards", "caveats",
    "families", "holds", "page", "paper_a", "paper_b", "planted", "quoted", "rate", "refuted",
    "replaced", "run_statement", "select", "statement", "statuses", "tally", "verify",
]  # fmt: skip
