"""Audits: what kind of map is a model on sets?"""

from . import findings
from ._model import Model
from ._report import Audit
from ._run import audit
from ._section import Section
from .findings import TERMS, Comparison, Finding, NotTried

__all__ = [
    "TERMS", "Audit", "Comparison", "Finding", "Model", "NotTried", "Section", "audit", "findings"
]  # fmt: skip
