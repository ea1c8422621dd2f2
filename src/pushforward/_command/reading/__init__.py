"""Files that users hand to commands: read without executing anything in them, or refused."""

from ._rows import read_masses, read_rows

__all__ = ["read_masses", "read_rows"]
