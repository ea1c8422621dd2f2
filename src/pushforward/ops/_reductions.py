r"""Signatures of the two reductions, and the choice of an implementation."""

from functools import cache
from importlib.util import find_spec
from math import prod
from types import ModuleType
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_device,
    check_finite,
    check_flags,
    check_kind,
    check_tensor,
)
from .._tools.precision import HALF, comparable, full_precision
from .._tools.types import Clock
from . import (
    _fused as fused,
    _reference as reference,
    _rounded as rounded,
    _streamed as streamed,
)
from ._checks import check_reduction
from .compiled import available

Impl = Literal["reference", "streamed", "fused", "triton", "triton_half"]
IMPLS: tuple[Impl, ...] = get_args(Impl)
"""All implementations."""

WIDEST = 256
"""The kernels' largest width of points and values."""

SMALL = {"cpu": 1 << 20, "cuda": 1 << 22}
"""Up to this many pairs of query and atom the dense reference is the default: there it takes a few
megabytes, and has all derivatives."""

COMPILED = 1 << 17
"""The same on a CPU that has compiled loops. Above, they are faster, forwards and backwards."""


def log_integral(
    q: Float[Tensor, "*#b m k"],
    k: Float[Tensor, "*#b n k"],
    bias: Float[Tensor, "*#b n"],
    *,
    scale: float = 1.0,
    times: Clock | None = None,
    impl: Impl | None = None,
    guard: bool = True,
) -> Float[Tensor, "*b m"]:
    r"""The log-integral $\log\int e^{s\langle q_i,k(y)\rangle}\,d\mu(y)$, $b$ the log-weights.

    Args:
        q: queries.
        k: keys, one per atom.
        bias: $b_j$, float32 or better; $-\infty$ removes the atom.
        scale: $s$, a factor of all dot products.
        times: of queries and of atoms, for causal masking.
        impl: `"reference"` (dense), `"streamed"` (linear memory), `"fused"` (linear memory,
            compiled for this processor; needs `pip install pushforward[fast]`), `"triton"` (linear
            memory, for NVIDIA GPUs), `"triton_half"` (the same, but float32 points of more than
            four coordinates are rounded to float16 in products: 1.5 to 2 times as fast at widths
            16 and 64, with errors of about 5e-4 for scores of size 1), or None: by device and
            size, accurate.
        guard: check shapes, and handle contexts without mass and NaN at atoms without mass.
            Layers pass False because their inputs are already checked.

    Returns:
        One number per query, in the bias's dtype or better; $-\infty$ where nothing is seen.

    Examples:
        >>> q, k = torch.zeros(1, 2), torch.randn(4, 2)
        >>> pf.ops.log_integral(q, k, torch.full((4,), 0.25).log())
        tensor([0.])
    """
    if guard is not False:
        _check(scale, guard)
        check_reduction(q, k, None, bias, times)
    run = implementation(choose(q, k, k) if impl is None else impl).log_integral
    with full_precision(q):
        return run(q, k, bias, scale, _comparable(times), guard)


def average(
    q: Float[Tensor, "*#b m k"],
    k: Float[Tensor, "*#b n k"],
    v: Float[Tensor, "*#b n e"],
    bias: Float[Tensor, "*#b n"],
    *,
    scale: float = 1.0,
    times: Clock | None = None,
    impl: Impl | None = None,
    guard: bool = True,
) -> Float[Tensor, "*b m e"]:
    r"""The mean $\int v\,d\pi_i$ under $\pi_i(dy)\propto e^{s\langle q_i,k(y)\rangle}\mu(dy)$.

    `v` are the values, one per atom; all other arguments are those of `log_integral`.

    Returns:
        One value per query, in the dtype of `v`; 0 where nothing is seen.

    Examples:
        >>> q, k, v = torch.zeros(1, 2), torch.randn(2, 2), torch.tensor([[0.0], [8.0]])
        >>> pf.ops.average(q, k, v, torch.tensor([0.25, 0.75]).log())
        tensor([[6.0000]])
    """
    if guard is not False:
        _check(scale, guard)
        check_tensor("v", v)
        check_reduction(q, k, v, bias, times)
    run = implementation(choose(q, k, v) if impl is None else impl).average
    with full_precision(q):
        return run(q, k, v, bias, scale, _comparable(times), guard).to(v.dtype)


def _check(scale: float, guard: bool) -> None:
    """Raise unless a call from outside the library has a factor and a flag."""
    check_finite("scale", scale, fix="A learned scale multiplies the queries.")
    check_flags(guard=guard)


def choose(q: Tensor, k: Tensor, v: Tensor) -> Impl:
    """The default: the reference for few pairs, else compiled code if there is any, or tiles."""
    batch = q.shape[:-2]
    if k.shape[:-2] != batch:
        batch = torch.broadcast_shapes(batch, k.shape[:-2])
    pairs = prod(batch) * q.shape[-2] * k.shape[-2]
    on_cpu = q.device.type == "cpu"
    if on_cpu and pairs > COMPILED and fused_runs():
        return "fused"
    if pairs <= SMALL["cpu" if on_cpu else "cuda"]:
        return "reference"
    if on_cpu:
        return "streamed"
    fits = max(q.shape[-1], v.shape[-1]) <= WIDEST
    single = all(t.dtype in (torch.float32, *HALF) for t in (q, k, v))
    if q.device.type == "cuda" and fits and single and _kernels_run():
        return "triton"
    return "streamed"


def runnable(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Impl, ...]:
    """The accurate implementations that run on a device in a dtype, the reference first.

    Args:
        device: where the tensors are.
        dtype: their dtype.

    Examples:
        >>> pf.ops.runnable("cpu", torch.float64)[:2]
        ('reference', 'streamed')
    """
    check_device(device)
    check_kind("dtype", dtype, torch.dtype, "Give one such as `torch.float32`.")
    kind = torch.device(device).type
    found: list[Impl] = ["reference", "streamed"]
    if kind == "cpu" and available():
        found.append("fused")
    if kind == "cuda" and dtype in (torch.float32, *HALF) and _kernels_run():
        found.append("triton")
    return tuple(found)


def fused_runs() -> bool:
    """Whether fused loops can be compiled, and nothing of `torch.func` is under way."""
    if torch.compiler.is_compiling():
        return _compiles()
    return torch._C._functorch.peek_interpreter_stack() is None and available()


def _compiles() -> bool:
    return available()


def kernels_run() -> bool:
    """Whether there are kernels for GPUs, and nothing of `torch.func` is under way."""
    if torch.compiler.is_compiling():
        return _kernels_run()
    return torch._C._functorch.peek_interpreter_stack() is None and _kernels_run()


@cache
def _has_triton() -> bool:
    """Whether there are kernels for GPUs; ROCm, whose Triton was never tried, streams."""
    try:
        return find_spec("triton") is not None and torch.version.hip is None
    except ImportError:  # what a blocked package raises
        return False


def _kernels_run() -> bool:
    return _has_triton()


# What `torch.compiler.assume_constant_result` does, without importing the compiler here.
for _constant in (_compiles, _kernels_run):
    _constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _comparable(times: Clock | None) -> Clock | None:
    return None if times is None else comparable(times)


def implementation(impl: str) -> ModuleType:
    """The module behind a name, or an error that lists the names."""
    if isinstance(impl, str):
        match impl:
            case "reference":
                return reference
            case "streamed":
                return streamed
            case "fused":
                return fused
            case "triton":
                return _kernels(impl)
            case "triton_half":
                _kernels(impl)
                return rounded
    raise ValueError(f"`impl` must be one of {IMPLS} or None, got {impl!r}.")


def _kernels(impl: str) -> ModuleType:
    """The kernels, or an error that says what is missing."""
    if not _kernels_run():
        raise ImportError(
            f"`impl={impl!r}` needs an NVIDIA GPU and the package Triton, which comes with "
            "PyTorch for CUDA (`pip install triton`). Here there is none: use `impl='streamed'`."
        )
    from . import kernels

    return kernels
