"""The command `pushforward`: a thin shell over the library."""

from ._app import main

__all__ = ["main"]
