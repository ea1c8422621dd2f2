"""Runs of flows: the configuration file, what it describes, the folder they are written to."""

from ._build import Run, build
from ._folder import PAGE, begin_folder, same_run, write_results
from ._schema import OBSERVABLES, Configuration, read_configuration

__all__ = [
    "OBSERVABLES", "PAGE", "Configuration", "Run", "begin_folder", "build", "read_configuration",
    "same_run", "write_results",
]  # fmt: skip
