"""Loops compiled for the processor at hand, by the extra `fast`."""

from ._loops import backward_atoms, backward_queries, forward
from ._radial import radial, radial_gradient
from ._vectors import Compiled, Machine, available, machine

__all__ = [
    "Compiled", "Machine", "available", "backward_atoms", "backward_queries", "forward", "machine",
    "radial", "radial_gradient",
]  # fmt: skip
