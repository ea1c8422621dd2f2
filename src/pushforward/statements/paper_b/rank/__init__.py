"""The dimension of a head: which relations one head represents, and which many do."""

from . import _many_heads, _one_head

__all__ = ["_many_heads", "_one_head"]
