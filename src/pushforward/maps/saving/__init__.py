"""Models on disk: their numbers as safetensors, and how they are made as JSON. No code."""

from ._described import KINDS, build, describe, storable
from ._files import load, save

__all__ = ["KINDS", "build", "describe", "load", "save", "storable"]
