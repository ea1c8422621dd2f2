"""Fits: the configuration file, what it describes, the folder, the record and its page."""

from ._build import Plan, build
from ._folder import (
    LOG,
    LOOKS,
    MODEL,
    PAGE,
    STATE,
    begin_fit,
    begun,
    finished,
    reached,
    write_report,
)
from ._page import headline, page
from ._record import asked, held_out, one_measure, pictured, trained
from ._schema import Configuration, read_configuration

__all__ = [
    "LOG", "LOOKS", "MODEL", "PAGE", "STATE", "Configuration", "Plan", "asked", "begin_fit",
    "begun", "build", "finished", "headline", "held_out", "one_measure", "page",
    "pictured", "read_configuration", "reached", "trained", "write_report",
]  # fmt: skip
