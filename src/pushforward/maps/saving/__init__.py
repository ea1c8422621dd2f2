"""Models on disk: their numbers as safetensors, and how they are made as JSON. No code."""

from ._described import KINDS, build, describe, storable
from ._files import load, save
from ._shipped import trained_flock

__all__ = ["KINDS", "build", "describe", "load", "save", "storable", "trained_flock"]
