"""What an audit found, in words that a newcomer understands."""

from ._finding import LABEL, ORDER, Finding, NotTried, Status, sort_findings, worst
from ._glossary import TERMS
from ._numbers import number, share
from ._texts import TEXTS, Text, found

__all__ = [
    "LABEL", "ORDER", "TERMS", "TEXTS", "Finding", "NotTried", "Status", "Text", "found",
    "number", "share", "sort_findings", "worst",
]  # fmt: skip
