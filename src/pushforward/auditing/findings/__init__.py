"""What an audit found, in words that a newcomer understands."""

from ._comparison import SCHEMA, Comparison, compared
from ._finding import LABEL, ORDER, Finding, NotTried, Status, sort_findings, worst
from ._glossary import TERMS, terms_in
from ._numbers import number, share
from ._texts import TEXTS, Text, found

__all__ = [
    "LABEL", "ORDER", "SCHEMA", "TERMS", "TEXTS", "Comparison", "Finding", "NotTried", "Status",
    "Text", "compared", "found", "number", "share", "sort_findings", "terms_in", "worst",
]  # fmt: skip
