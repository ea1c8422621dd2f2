"""Triton's interpreter for machines without a GPU: the kernels run, slowly, on the CPU."""

from importlib.util import find_spec

import pytest
import torch


def on_gpu() -> bool:
    """Whether kernels run on a GPU; else they are interpreted. Without Triton skip the module."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install triton==3.6.0", allow_module_level=True)
    if not torch.cuda.is_available():
        mend()
    return torch.cuda.is_available()


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with NaN, so that what nothing was written to shows."""
    empty = torch.Tensor.new_empty

    def poisoned(*args, **options):
        made = empty(*args, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def mend() -> None:
    """Add two things that the interpreter of Triton 3.6 lacks.

    NumPy 2.4 makes no whole number of an array of one element, and products of bfloat16 blocks
    take their bits for numbers.
    """
    from triton.runtime import interpreter

    patched = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch
    dot = interpreter.InterpreterBuilder.create_dot

    def create_dot(self, a, b, *rest):
        return dot(self, _widened(a), _widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _widened(handle):
    """A block in bfloat16 as one in float32: the interpreter keeps its bits as whole numbers."""
    import numpy as np
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
