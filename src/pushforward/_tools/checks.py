"""Checks of arguments. Every message says what was expected, what was given, and how to fix it.

Public functions check shapes, dtypes and devices. Values are checked only where a measure is built
from a user's numbers, because reading values waits for the device.
"""

import math
import os
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from numbers import Integral, Real
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

SUMS = 1e-5
"""The most by which a sum of masses may differ from one and be normalised without a word."""


def holds(condition: Tensor, *, unknown: bool = True) -> bool:
    """Whether a condition on values is true, or `unknown` where values cannot be read.

    Inside `torch.compile` and `torch.func.vmap`, on the device "meta", and while a CUDA graph is
    recorded, tensors have no values.
    """
    if torch.compiler.is_compiling() or condition.is_meta:
        return unknown
    if condition.is_cuda and torch.cuda.is_current_stream_capturing():
        return unknown
    try:
        return bool(condition)
    except RuntimeError as error:
        if "vmap" in str(error):
            return unknown
        raise


def on_host(x: Tensor) -> Callable[[], Tensor] | None:
    """A copy of a tensor on the host, waited for when it is called; a GPU works on meanwhile.

    None where a GPU cannot be waited for: in `torch.compile`, and while a graph is recorded.
    """
    if torch.compiler.is_compiling():
        return None
    if not x.is_cuda:
        return lambda: x
    if torch.cuda.is_current_stream_capturing():
        return None
    found, copied = x.to("cpu", non_blocking=True), torch.cuda.Event()
    copied.record()

    def read() -> Tensor:
        copied.synchronize()
        return found

    return read


def check_kind(name: str, value: object, kind: type, fix: str, *, returned: bool = False) -> None:
    """Raise unless `value` is an instance of `kind`: an argument, or what a method returned."""
    if isinstance(value, kind):
        return
    a = "an" if kind.__name__[0] in "AEIOU" else "a"
    if isinstance(value, type) and issubclass(value, kind):
        fix = _instance(value)
    must = f"must {'return' if returned else 'be'} {a} {kind.__name__}"
    raise TypeError(f"`{name}` {must}, got {_kind(value)}. {fix}")


def _kind(value: object) -> str:
    """What a value is, in a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _show(value: object) -> str:
    """A number or a string as it is, anything else by its kind."""
    return repr(value) if isinstance(value, Real | str) else _kind(value)


def _instance(cls: type) -> str:
    """How to make an instance of a class, where the class itself was given."""
    try:
        given = signature(cls).parameters.values()
    except ValueError:  # a class written in C
        return f"Create an instance: `{cls.__name__}(...)`."
    plain = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    needs = [p.name for p in given if p.default is p.empty and p.kind in plain]
    return f"Create an instance: `{cls.__name__}({', '.join(f'{n}=...' for n in needs)})`."


def check_whole(name: str, value: int, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (whole and value >= least):
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}, got {_show(value)}."
        )


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is a whole positive number."""
    for name, size in sizes.items():
        check_whole(name, size)


def check_optional_sizes(**sizes: int | None) -> None:
    """Raise unless every size is a whole positive number, or None for its default."""
    check_sizes(**{name: size for name, size in sizes.items() if size is not None})


def check_listed_sizes(name: str, sizes: Sequence[int]) -> None:
    """Raise unless `sizes` is a list of at least one whole positive number."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
        raise ValueError(f"`{name}` must be a list of whole positive numbers, got {sizes!r}.")
    check_sizes(**{f"{name}[{k}]": size for k, size in enumerate(sizes)})


def check_limits(name: str, limits: Sequence[float]) -> None:
    """Raise unless `limits` are two positive numbers, the least and the largest of something."""
    if not isinstance(limits, tuple | list) or len(limits) != 2:
        raise ValueError(f"`{name}` must be (least, largest), got {limits!r}.")
    for k, limit in enumerate(limits):
        check_number(f"{name}[{k}]", limit)
    if limits[1] < limits[0]:
        raise ValueError(f"`{name}` must be (least, largest), got {limits!r}.")


def check_seed(seed: int) -> None:
    """Raise unless `seed` is a whole number that generators accept."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or abs(seed) >= 2**62:
        raise ValueError(f"`seed` must be a whole number below 2^62 in size, got {_show(seed)}.")


def check_flags(**flags: bool | None) -> None:
    """Raise unless every flag is True or False; `progress` may be None, for its default."""
    for name, flag in flags.items():
        if not isinstance(flag, bool) and not (name == "progress" and flag is None):
            raise TypeError(f"`{name}` must be True or False, got {flag!r} ({_kind(flag)}).")


def check_generator(generator: torch.Generator | None) -> None:
    """Raise unless `generator` is a generator, or None for the global one."""
    if generator is not None:
        check_kind("generator", generator, torch.Generator, "Make one with `torch.Generator()`.")


def check_device(device: torch.device | str) -> None:
    """Raise unless `device` names a device."""
    known = isinstance(device, str | torch.device)
    try:
        torch.device(device if known else "cpu")
    except RuntimeError:
        known = False
    if not known:
        raise ValueError(f'`device` must be a device, such as "cpu", got {device!r}.')


def check_index(index: Any) -> None:
    """Raise unless `index` can index axes: whole numbers, slices, masks, `...`, None."""
    for part in index if isinstance(index, tuple) else (index,):
        whole = isinstance(part, Integral | slice | EllipsisType) and not isinstance(part, bool)
        listed = isinstance(part, list) and all(isinstance(k, Integral) for k in part)
        tensor = isinstance(part, Tensor) and not part.is_floating_point()
        if not (part is None or whole or listed or tensor):
            raise TypeError(f"`index` must be whole numbers, slices or masks, got {_kind(part)}.")


def check_path(name: str, path: str | os.PathLike) -> None:
    """Raise unless `path` can name a file or folder."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"`{name}` must be a path, a string or a `Path`, got {_kind(path)}.")


def check_callable(name: str, value: object, how: str) -> None:
    """Raise unless `value` can be called and is not a class."""
    if isinstance(value, type):
        raise TypeError(f"`{name}` must be {how}, got {_kind(value)}. {_instance(value)}")
    if not callable(value):
        raise TypeError(f"`{name}` must be {how}, got {_kind(value)}.")


def check_call(name: str, function: Callable[..., Any], arguments: str, fix: str = "") -> None:
    """Raise unless a user's function or method takes the arguments that it is called with."""
    method = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature(method).bind(*arguments.split(","))
    except TypeError as error:
        raise TypeError(
            f"`{name}` is called as {name}({arguments}), got one that does not take that: "
            f"{error}. {fix}".rstrip()
        ) from None
    except ValueError:  # a function without a signature
        return


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise unless `tensor` is a tensor."""
    fix = "Convert it with `torch.as_tensor`."
    if hasattr(tensor, "atoms"):
        fix = "Its points are `.atoms`."
    elif hasattr(tensor, "matrix"):
        fix = "Its masses are `.matrix()`."
    elif hasattr(tensor, "scaled"):
        fix = "Its matrices are `.scaled`."
    check_kind(name, tensor, Tensor, fix)


def check_returned(name: str, value: object, shape: str, fix: str = "") -> None:
    """Raise unless what a user's function `name` returned is a floating-point tensor."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return
    got = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else _kind(value)
    raise TypeError(
        f"`{name}` must return a floating-point tensor of shape {shape}, got {got}. {fix}".rstrip()
    )


def check_number(name: str, value: float, *, least: float = 0.0, fix: str = "") -> None:
    """Raise unless `value` is a number above `least`. A tensor would lose its gradient."""
    _check_real(name, value, fix)
    if not value > least:
        than = "positive" if least == 0 else f"above {least:g}"
        raise ValueError(f"`{name}` must be {than}, got {value}. {fix}".rstrip())


def check_finite(name: str, value: float, *, fix: str = "") -> None:
    """Raise unless `value` is a finite number."""
    _check_real(name, value, fix)
    if not abs(value) < math.inf:
        raise ValueError(f"`{name}` must be finite, got {value}. {fix}".rstrip())


def check_range(name: str, value: float, least: float, below: float = math.inf) -> None:
    """Raise unless `value` is a number of at least `least` and below `below`."""
    _check_real(name, value, "")
    if not least <= value < below:
        top = "finite" if below == math.inf else f"below {below:g}"
        raise ValueError(f"`{name}` must be at least {least:g} and {top}, got {value}.")


def _check_real(name: str, value: float, fix: str) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        if isinstance(value, Tensor):
            fix = fix or "Give a Python number, such as `value.item()`."
        raise TypeError(f"`{name}` must be a number, got {_kind(value)}. {fix}".rstrip())
    if value != value:
        raise ValueError(f"`{name}` must be a number, got NaN. Check the computation before it.")


def check_share(name: str, value: float) -> None:
    """Raise unless `value` lies strictly between 0 and 1."""
    check_number(name, value)
    if value >= 1:
        raise ValueError(f"`{name}` is a share of the mass, below 1, got {value}.")


def check_values_finite(**tensors: Tensor) -> None:
    """Raise unless all values of the tensors are finite."""
    for name, tensor in tensors.items():
        if not holds(tensor.isfinite().all()):
            raise ValueError(f"`{name}` must be finite, got NaN or inf.")


def check_floating(name: str, tensor: Tensor, axes: str, least: int) -> None:
    """Raise unless `tensor` is a floating-point tensor with at least `least` axes."""
    check_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise ValueError(
            f"`{name}` must be floating point, got {tensor.dtype}. Convert with `{name}.float()`."
        )
    if tensor.ndim < least:
        raise ValueError(
            f"`{name}` must have shape {axes}, got {tuple(tensor.shape)}. "
            "A cloud of n points in R^d is (n, d): for points on a line write `points[:, None]`."
        )


def check_shape(name: str, tensor: Tensor, expected: Sequence[int], fix: str) -> None:
    """Raise unless `tensor` is a tensor of exactly the `expected` shape."""
    check_tensor(name, tensor)
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(
            f"`{name}` must have shape {tuple(expected)}, got {tuple(tensor.shape)}. {fix}"
        )


def check_same(what: str, a: tuple[str, Tensor], b: tuple[str, Tensor]) -> None:
    """Raise unless two named tensors share their `dtype` or `device`."""
    (name_a, tensor_a), (name_b, tensor_b) = a, b
    x, y = getattr(tensor_a, what), getattr(tensor_b, what)
    if x != y:
        raise ValueError(
            f"`{name_a}` and `{name_b}` must share their {what}, got {x} and {y}. "
            f"Move one of them with `.to({what}=...)`."
        )


def check_atoms(atoms: Tensor, name: str = "atoms") -> None:
    """Raise unless `atoms` can be the support of a measure."""
    check_floating(name, atoms, "(..., n, d)", 2)
    if 0 in atoms.shape[-2:]:
        raise ValueError(
            f"`{name}` must hold at least one atom in at least one dimension, got shape "
            f"{tuple(atoms.shape)}. Drop empty clouds before building measures."
        )


def check_mass(name: str, weights: Tensor, log_weights: Tensor) -> None:
    """Raise unless the weights are non-negative, finite, and not all zero.

    `weights` is the argument called `name`, `log_weights` are the log-weights made from it.
    """
    if not holds(~weights.isnan().any()):
        raise ValueError(f"`{name}` must be numbers, got NaN. Look for 0/0 or inf-inf before it.")
    if name == "weights" and not holds((weights >= 0).all()):
        raise ValueError(
            f"`weights` must be non-negative, got a minimum of {weights.min().item():g}. "
            "Logarithms of weights go in `log_weights=`."
        )
    if not holds((log_weights < torch.inf).all()):
        raise ValueError(f"`{name}` must be finite, got +inf. Rescale the weights first.")
    if not holds((log_weights > -torch.inf).any(-1).all()):
        raise ValueError(
            "A measure needs a positive total mass, got a cloud whose weights are all zero. "
            "Drop empty clouds before building measures."
        )


def check_sums(what: str, sums: Tensor, dtype: torch.dtype, fix: str) -> None:
    """Raise unless sums are one, to half the digits of the dtype they were given in.

    In float64 to `SUMS`, which covers what this library certifies, marginal errors of 1e-6, and
    matrices that were computed in float32 before.
    """
    tol = max(SUMS, torch.finfo(dtype).eps ** 0.5)
    if holds(((sums - 1).abs() <= tol).all()):
        return
    excess = (sums.double() - 1).abs().max().item()
    raise ValueError(
        f"The {what} of `matrix` must sum to one, got sums from {sums.min().item():g} to "
        f"{sums.max().item():g}, off by up to {excess:.1e}; at most {tol:.1e} counts as rounding. "
        f"{fix}"
    )


def check_values(
    atoms: Tensor, logs: Tensor, times: Tensor | None, given: tuple[str, Tensor] | None
) -> None:
    """Raise unless weights are valid, and points and times finite where there is mass.

    `given` is the name and value of the argument, `logs` are the log-weights made from it. Valid
    input costs one read from the device; invalid input is read again to say what is wrong.
    """
    live = logs > -torch.inf
    located = {"atoms": atoms} if times is None else {"atoms": atoms, "times": times[..., None]}
    valid = (live.any(-1) & (logs < torch.inf).all(-1)).all()
    for points in located.values():
        valid = valid & (points.isfinite().all(-1) | ~live).all()
    if holds(valid):
        return
    if given is not None:
        check_mass(*given, logs)
    for name, points in located.items():
        if not holds((points.isfinite().all(-1) | ~live).all()):
            raise ValueError(
                f"`{name}` must be finite wherever the weight is positive, got NaN or inf. "
                "Give such points weight zero to leave them out."
            )


def check_context(mu: Any, x: Tensor, dims: tuple[int | None, int | None]) -> None:
    """Raise unless queries `x` fit the context `mu`.

    `dims` are the dimensions of queries and of contexts that a map requires; None is any.
    """
    atoms, (query_dim, context_dim) = mu.atoms, dims
    if x is not atoms:
        check_floating("x", x, "(..., m, d)", 2)
        check_same("dtype", ("mu", atoms), ("x", x))
        check_same("device", ("mu", atoms), ("x", x))
        check_broadcast("context and queries", atoms.shape[:-2], x.shape[:-2])
    if query_dim is None and context_dim is None and x.shape[-1] != atoms.shape[-1]:
        raise ValueError(
            f"Context and queries must share their space, got `mu` in R^{atoms.shape[-1]} and "
            f"`x` in R^{x.shape[-1]}."
        )
    if context_dim is not None and atoms.shape[-1] != context_dim:
        raise ValueError(
            f"This map takes contexts in R^{context_dim}, got `mu` in R^{atoms.shape[-1]}."
        )
    if query_dim is not None and x.shape[-1] != query_dim:
        if x is atoms:
            raise ValueError(
                f"This map takes queries in R^{query_dim} to a context in R^{context_dim}, so it "
                "cannot push the context itself. Push queries: `queries.push(gamma.at(mu))`."
            )
        raise ValueError(f"This map takes queries in R^{query_dim}, got `x` in R^{x.shape[-1]}.")


def check_broadcast(what: str, first: Sequence[int], second: Sequence[int]) -> None:
    """Raise unless batch axes broadcast."""
    for a, b in zip(reversed(first), reversed(second), strict=False):
        if a != b and 1 not in (a, b):
            raise ValueError(
                f"Batch axes of {what} must broadcast, got {tuple(first)} and {tuple(second)}."
            )


def check_parameters(module: torch.nn.Module, atoms: Tensor) -> None:
    """Raise unless parameters and atoms share device and dtype; autocast converts dtypes."""
    p = _first_parameter(module)
    if p is None or (p.dtype == atoms.dtype and p.device == atoms.device):
        return
    check_tensor("mu.atoms", atoms)  # an array is on "cpu", which is not torch.device("cpu")
    if p.device != atoms.device:
        raise ValueError(
            f"The map is on {p.device}, got `mu` on {atoms.device}. Move one: `.to(device)`."
        )
    if not torch.is_autocast_enabled(atoms.device.type):
        raise ValueError(
            f"The map has {p.dtype} parameters, got `mu` with {atoms.dtype} atoms. "
            f"Convert one: `map.to({atoms.dtype})` or `mu.to({p.dtype})`."
        )


def _first_parameter(module: torch.nn.Module) -> Tensor | None:
    """The first floating-point parameter or buffer; ten times as fast as `module.parameters()`."""
    for p in (*module._parameters.values(), *module._buffers.values()):
        if p is not None and p.is_floating_point():
            return p
    for child in module._modules.values():
        if child is not None and (found := _first_parameter(child)) is not None:
            return found
    return None


def check_widths(q: Tensor, k: Tensor) -> None:
    """Raise unless queries and keys have a dot product."""
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"Queries and keys must have the same width, got q {tuple(q.shape)} and "
            f"k {tuple(k.shape)}."
        )
