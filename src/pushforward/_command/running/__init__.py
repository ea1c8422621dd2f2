"""Runs of flows: the configuration file, what it describes, the folder they are written to."""

from ._build import Run, build
from ._folder import LOOKS, PAGE, begin_flow, write_results
from ._schema import OBSERVABLES, Configuration, read_configuration

__all__ = [
    "LOOKS", "OBSERVABLES", "PAGE", "Configuration", "Run", "begin_flow", "build",
    "read_configuration", "write_results",
]  # fmt: skip
