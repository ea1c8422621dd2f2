"""Configuration files: YAML that knows its lines, fields and solvers in it, folders of runs."""

from ._fields import RK4, FieldChoice, SolverChoice
from ._folder import CONFIGURATION, begin_folder, same_run
from ._objects import field_of, solver_of
from ._parts import (
    Count,
    Dimension,
    Finite,
    Numbers,
    Part,
    Positive,
    Seed,
    checked,
    of_kind,
    suggestion,
)
from ._yaml import Document, read_document

__all__ = [
    "CONFIGURATION", "RK4", "Count", "Dimension", "Document", "FieldChoice", "Finite", "Numbers",
    "Part", "Positive", "Seed", "SolverChoice", "begin_folder", "checked", "field_of", "of_kind",
    "read_document", "same_run", "solver_of", "suggestion",
]  # fmt: skip
