"""Files that users hand to commands: read without executing anything in them, or refused."""

from ._audits import read_audit
from ._models import Named, files_of_model, read_model
from ._rows import read_masses, read_rows

__all__ = ["Named", "files_of_model", "read_audit", "read_masses", "read_model", "read_rows"]
