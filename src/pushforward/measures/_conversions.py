"""Other formats of clouds: arrays and lists, flat batches, nested tensors; and closeness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .._tools.checks import check_atoms, check_same, check_shape, check_tensor, holds
from .._tools.linkage import label_points
from .._tools.precision import wide
from ._clouds import Cloud, strip

LISTED = np.ndarray, list, tuple
Listed = np.ndarray | list | tuple
"""Numbers that are no tensor yet."""


class Flat(NamedTuple):
    """The atoms of a ragged batch, one set after another: what `mu.to_flat()` returns.

    There is no padding, and there are no atoms of zero mass.
    """

    atoms: Tensor
    """All points, `(N, d)`."""
    weights: Tensor
    """One per atom, `(N,)`."""
    times: Tensor | None
    """One per atom, `(N,)`, or None."""
    batch: Tensor
    """The set of each atom, `(N,)`."""
    offsets: Tensor
    """Where each set begins, and the number of atoms: `(B + 1,)`."""


class Nested(NamedTuple):
    """A ragged batch as jagged nested tensors: what `mu.to_nested()` returns.

    There is no padding, and there are no atoms of zero mass.
    """

    atoms: Tensor
    """The points, `(B, n_k, d)`."""
    weights: Tensor
    """Their weights, `(B, n_k)`."""
    times: Tensor | None
    """Their times, `(B, n_k)`, or None."""


def to_tensor(
    name: str,
    given: Any,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """A tensor of a NumPy array or a list; anything else, tensors included, as it is.

    Integers keep their dtype. Floating-point numbers get the one given; without it, arrays keep
    theirs, and lists get the default one. Arrays share their memory with the tensor if they can.
    """
    if not isinstance(given, LISTED):  # the compiler of PyTorch 2.9 knows no unions
        return given
    array = _array(name, given)
    if not isinstance(given, np.ndarray) and dtype is None:
        dtype = torch.get_default_dtype()
    try:
        tensor = torch.as_tensor(array)
    except TypeError:
        raise TypeError(
            f"`{name}` must be numbers that PyTorch has, got an array of {array.dtype}. Convert "
            f"it with `{name}.astype(float)`."
        ) from None
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def _array(name: str, given: Any) -> np.ndarray:
    """A list or an array as an array that a tensor can share."""
    if isinstance(given, list | tuple) and any(isinstance(part, Tensor) for part in given):
        raise TypeError(
            f"`{name}` must be one tensor, got a {type(given).__name__} of tensors. Make one of "
            f"points with `torch.stack({name})`; clouds become a batch with "
            "`pf.Measure.stack([pf.Measure(x) for x in clouds])`."
        )
    try:
        array = np.asarray(given)
    except ValueError:
        raise ValueError(
            f"`{name}` must be a list of points of equal length, got unequal ones. Clouds of "
            "unequal sizes become a batch with `pf.Measure.stack`."
        ) from None
    # A tensor cannot share memory that is read-only or runs backwards.
    shared = array.flags.writeable and all(step >= 0 for step in array.strides)
    return array if shared else array.copy()


def to_atoms(given: Any, name: str = "atoms") -> Any:
    """The atoms of a measure; integers are refused with the fix for what was given."""
    atoms = to_tensor(name, given)
    if atoms is given or atoms.is_floating_point():
        return atoms
    if isinstance(given, np.ndarray):
        got, fix = f"an array of {given.dtype}", f"`{name}.astype(float)`"
    else:
        got, fix = f"a {type(given).__name__} of integers", f"`torch.tensor({name}).float()`"
    raise ValueError(f"`{name}` must be floating point, got {got}. Convert with {fix}.")


class _Padded(NamedTuple):
    """A padded batch; padding has weight 0."""

    atoms: Tensor
    weights: Tensor
    times: Tensor | None


def pad_flat(atoms: Tensor, sets: tuple[Any, Any, Any], weights: Any, times: Any) -> _Padded:
    """Atoms of all sets in one tensor as a padded batch.

    `sets` are the index of the set of each atom, the sizes of sets, and where they begin: one of
    them, and None for the others.
    """
    check_atoms(atoms)
    if atoms.ndim != 2:
        raise ValueError(
            f"`atoms` must have shape (N, d), all sets one after another, got "
            f"{tuple(atoms.shape)}. A padded batch is `pf.Measure.from_tokens(atoms, mask=...)`."
        )
    lengths, order = _lengths(atoms, sets)
    index, real = slots(lengths)
    index = index if order is None else order[index]
    equal = (real / lengths[:, None]).to(wide(atoms.dtype))
    padded = equal if weights is None else _one_each("weights", weights, atoms)[index] * real
    clock = None if times is None else _one_each("times", times, atoms)[index]
    return _Padded(atoms[index], padded, clock)


def slots(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For every place of a padded batch the atom in it, and whether it is real.

    Padding repeats the last atom of its set.
    """
    place = torch.arange(int(lengths.max()), device=lengths.device)
    start = lengths.cumsum(0) - lengths
    real = place < lengths[:, None]
    return start[:, None] + torch.minimum(place, lengths[:, None] - 1), real


def _one_each(name: str, given: Any, atoms: Tensor) -> Tensor:
    """Weights or times of the atoms of a flat batch."""
    dtype = wide(atoms.dtype) if name == "weights" else None
    tensor = to_tensor(name, given, atoms.device, dtype)
    check_shape(name, tensor, atoms.shape[:-1], "One per atom.")
    check_same("device", ("atoms", atoms), (name, tensor))
    return tensor


def _lengths(atoms: Tensor, sets: tuple[Any, Any, Any]) -> tuple[Tensor, Tensor | None]:
    """The sizes of the sets, and the order that puts atoms of one set side by side."""
    names = ("batch", "lengths", "offsets")
    given = [(n, to_tensor(n, t)) for n, t in zip(names, sets, strict=True) if t is not None]
    if len(given) != 1:
        which = " and ".join(f"`{n}`" for n, _ in given) or "none"
        raise ValueError(f"Give one of `batch`, `lengths` and `offsets`, got {which}.")
    ((name, vector),) = given
    check_tensor(name, vector)
    total, order = len(atoms), None
    if vector.ndim != 1 or not vector.numel() or vector.is_floating_point() or vector.is_complex():
        raise ValueError(
            f"`{name}` must be a vector of whole numbers, got {vector.dtype} of shape "
            f"{tuple(vector.shape)}."
        )
    vector = vector.to(atoms.device, torch.int64)
    if name == "batch":
        check_shape("batch", vector, (total,), "The set of each atom.")
        if not holds(vector.min() >= 0):
            raise ValueError(f"`batch` must count sets from 0, got {int(vector.min())}.")
        lengths, order = vector.bincount(), vector.argsort(stable=True)
    elif name == "offsets":
        if len(vector) < 2 or not holds((vector[0] == 0) & (vector[-1] == total)):
            ends = (int(vector[0]), int(vector[-1]))
            raise ValueError(
                f"`offsets` must run from 0 to the number of atoms, {total}, got {ends[0]} to "
                f"{ends[1]}. From lengths: `lengths=` instead."
            )
        lengths = vector.diff()
    else:
        lengths = vector
        if not holds(lengths.sum() == total):
            raise ValueError(
                f"`lengths` must sum to the number of atoms, {total}, got {int(lengths.sum())}."
            )
    if not holds((lengths > 0).all()):
        empty = (lengths <= 0).nonzero().flatten().tolist()
        raise ValueError(
            f"Every set needs at least one atom, got none in {len(empty)} of {len(lengths)} sets, "
            f"the first of which is set {empty[0]}. Leave empty sets out and number the others "
            "0, 1, 2, ..., e.g. with `batch.unique(return_inverse=True)[1]`."
        )
    return lengths, order


def flatten(cloud: Cloud) -> Flat:
    """The atoms of a batch that have mass, one set after another."""
    atoms, logs, times = cloud
    if logs.ndim != 2:
        raise ValueError(
            f"A flat batch has one batch axis, got batch shape {tuple(logs.shape[:-1])}. A single "
            "measure becomes a batch with `pf.Measure.stack([mu])`."
        )
    live = logs > -torch.inf
    offsets = pad(live.sum(-1).cumsum(0), (1, 0))
    where = live.nonzero(as_tuple=True)
    clock = None if times is None else times[where]
    return Flat(atoms[where], logs[where].exp(), clock, where[0], offsets)


def nest(flat: Flat) -> Nested:
    """A flat batch as jagged tensors."""
    jagged = lambda t: torch.nested.nested_tensor_from_jagged(t, flat.offsets)
    times = None if flat.times is None else jagged(flat.times)
    return Nested(jagged(flat.atoms), jagged(flat.weights), times)


def unnest(name: str, nested: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The entries of a nested tensor side by side, and the sizes of its parts."""
    check_tensor(name, nested)
    if not nested.is_nested:
        raise ValueError(
            f"`{name}` must be a nested tensor, got a plain one of shape {tuple(nested.shape)}. "
            "A padded batch is `pf.Measure.from_tokens(tokens, mask=...)`."
        )
    jagged: Any = nested  # its methods are unknown to type checkers
    if nested.layout == torch.jagged and jagged.lengths() is None and jagged._ragged_idx == 1:
        flat, sizes = jagged.values(), jagged.offsets().diff()
    else:  # parts with gaps between them, or of the strided layout
        parts = nested.unbind()
        flat = torch.cat(parts)
        sizes = torch.tensor([len(part) for part in parts], device=flat.device)
    if lengths is not None and not (
        len(sizes) == len(lengths) and holds((sizes == lengths).all())
    ):
        raise ValueError(f"`{name}` must have one number per atom of every set, got others.")
    return flat, sizes


def same_measure(clouds: Sequence[Cloud], rtol: float, atol: float) -> bool:
    """Whether two clouds, or two batches of them, are the same measures up to tolerances."""
    first, second = clouds
    if first.log_weights.ndim == 1:
        return _same(first, second, rtol, atol)
    pairs = zip(_unbatched(first), _unbatched(second), strict=True)
    return all(_same(a, b, rtol, atol) for a, b in pairs)


def _unbatched(cloud: Cloud) -> list[Cloud]:
    """The clouds of a batch of any number of axes."""
    atoms, logs, times = cloud
    n = logs.shape[-1]
    rows = [atoms.reshape(-1, n, atoms.shape[-1]), logs.reshape(-1, n)]
    clock = [None] * len(rows[1]) if times is None else list(times.reshape(-1, n))
    return [Cloud(*row) for row in zip(*rows, clock, strict=True)]


@torch.no_grad()
def _same(first: Cloud, second: Cloud, rtol: float, atol: float) -> bool:
    """Whether every group of near points has the same mass in both."""
    a, b = strip(first), strip(second)
    atoms = torch.cat([a.atoms, b.atoms]).double()
    if not holds(atoms.isfinite().all()):
        return False
    times = None if a.times is None or b.times is None else torch.cat([a.times, b.times])
    near = atol + rtol * float(atoms.norm(dim=-1).max())
    label, first_member = label_points(atoms, times, near)
    logs = torch.cat([a.log_weights, b.log_weights]).double()
    total = torch.maximum(*(c.log_weights.double().logsumexp(0) for c in (a, b)))
    sign = torch.ones_like(logs)
    sign[len(a.log_weights) :] = -1
    excess = torch.zeros(len(first_member)).to(logs)
    excess = excess.index_add(0, label, sign * (logs - total).exp())
    # Sums of n weights, each rounded in its dtype, differ by rounding however they are written.
    rounding = 16 * torch.finfo(a.log_weights.dtype).eps * len(logs) ** 0.5
    return bool((excess.abs() <= atol + rtol + rounding).all())
