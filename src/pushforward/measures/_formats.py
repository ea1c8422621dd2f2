r"""A measure as data: devices and dtypes, arrays, flat and nested batches, files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._tools.checks import (
    check_device,
    check_floating,
    check_kind,
    check_path,
    check_range,
    check_same,
)
from .._tools.precision import wide
from .._tools.types import Points, Times, Weights
from ._clouds import Cloud
from ._conversions import Flat, Nested, flatten, nest, pad_flat, same_measure, to_atoms, unnest
from ._files import read, write

M = TypeVar("M", bound="Formats")
"""A class of measures, which its methods return."""


class Arrays(NamedTuple):
    """A measure as NumPy arrays: what `mu.numpy()` returns.

    In a ragged batch, padding has weight 0.
    """

    atoms: np.ndarray
    """The points, `(..., n, d)`."""
    weights: np.ndarray
    """Their weights, `(..., n)`."""
    times: np.ndarray | None
    """Their times, or None."""


class Formats(ABC):
    """What a measure can do as a piece of data, none of which changes the measure."""

    atoms: Points
    log_weights: Weights
    times: Times | None

    @abstractmethod
    def __init__(
        self,
        atoms: Any,
        weights: Any = None,
        *,
        log_weights: Any = None,
        times: Any = None,
    ) -> None: ...

    @classmethod
    @abstractmethod
    def unchecked(
        cls: type[M], atoms: Points, log_weights: Weights, times: Times | None = None
    ) -> M:
        """A measure from tensors known to be valid."""

    @property
    def _cloud(self) -> Cloud:
        return Cloud(self.atoms, self.log_weights, self.times)

    @classmethod
    def from_flat(
        cls: type[M],
        atoms: Any,
        *,
        batch: Any = None,
        lengths: Any = None,
        offsets: Any = None,
        weights: Any = None,
        times: Any = None,
    ) -> M:
        r"""A ragged batch from the atoms of all sets, one after another in one tensor.

        Exactly one of `batch`, `lengths` and `offsets` says which atoms belong to which set. No
        set may be empty.

        Args:
            atoms: all points, `(N, d)`.
            batch: the set of each atom, whole numbers `(N,)` in any order, as in PyTorch
                Geometric.
            lengths: the number of atoms of each set, `(B,)`, of sum $N$.
            offsets: where each set begins, and at last $N$: `(B + 1,)`, as in CSR matrices, `ptr`
                of PyTorch Geometric, and jagged tensors.
            weights: one per atom, `(N,)`; by default every atom weighs one over the size of its
                set.
            times: one per atom, `(N,)`.

        Examples:
            >>> x = torch.tensor([[0.0], [2.0], [5.0]])
            >>> mu = pf.Measure.from_flat(x, batch=torch.tensor([0, 0, 1]))
            >>> mu.mean().flatten(), torch.equal(mu.to_flat().atoms, x)
            (tensor([1., 5.]), True)
        """
        padded = pad_flat(to_atoms(atoms), (batch, lengths, offsets), weights, times)
        return cls(padded.atoms, padded.weights, times=padded.times)

    def to_flat(self) -> Flat:
        """The atoms of all sets of a batch in one tensor, without padding and zero masses.

        Returns:
            A named tuple `(atoms, weights, times, batch, offsets)` of tensors, which `from_flat`
            takes back; the batch must have one axis.

        Examples:
            >>> mu = pf.Measure.stack([pf.Measure(torch.zeros(n, 1)) for n in (2, 1)])
            >>> mu.to_flat().batch, mu.to_flat().offsets
            (tensor([0, 0, 1]), tensor([0, 2, 3]))
        """
        return flatten(self._cloud)

    @classmethod
    def from_nested(
        cls: type[M], atoms: Tensor, weights: Tensor | None = None, times: Tensor | None = None
    ) -> M:
        """A ragged batch from a nested tensor of points, `(B, n_k, d)`.

        Args:
            atoms: a tensor of `torch.nested`, of either layout.
            weights: a nested tensor of weights, `(B, n_k)`; by default equal and of sum one.
            times: a nested tensor of times, `(B, n_k)`.

        Examples:
            >>> sets = torch.nested.nested_tensor(
            ...     [torch.zeros(2, 1), torch.ones(3, 1)], layout=torch.jagged
            ... )
            >>> pf.Measure.from_nested(sets).mean().flatten()
            tensor([0., 1.])
        """
        flat, lengths = unnest("atoms", atoms)
        parts = {"weights": weights, "times": times}
        given = {name: t for name, t in parts.items() if t is not None}
        return cls.from_flat(
            flat,
            lengths=lengths,
            **{name: unnest(name, t, lengths)[0] for name, t in given.items()},
        )

    def to_nested(self) -> Nested:
        """The sets of a batch as jagged nested tensors, without padding and zero masses.

        Returns:
            A named tuple `(atoms, weights, times)`, which `from_nested` takes back; the batch
            must have one axis.

        Examples:
            >>> mu = pf.Measure.stack([pf.Measure(torch.zeros(n, 1)) for n in (2, 1)])
            >>> [x.shape for x in mu.to_nested().atoms.unbind()]
            [torch.Size([2, 1]), torch.Size([1, 1])]
        """
        return nest(self.to_flat())

    def numpy(self) -> Arrays:
        """The measure as NumPy arrays on the CPU, outside the autograd graph.

        Returns:
            A named tuple `(atoms, weights, times)`, from which `pf.Measure(atoms, weights,
            times=times)` builds the measure again.

        Examples:
            >>> pf.Measure(torch.zeros(2, 1)).numpy().weights
            array([0.5, 0.5], dtype=float32)
        """
        if self.atoms.dtype == torch.bfloat16:
            raise TypeError(
                "NumPy has no bfloat16. Convert the measure first: `mu.float().numpy()`."
            )
        array = lambda t: t.detach().cpu().numpy()
        times = None if self.times is None else array(self.times)
        return Arrays(array(self.atoms), array(self.log_weights.exp()), times)

    def allclose(self: M, other: M, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        r"""Whether two measures are equal up to rounding, however they are written.

        The atoms of both that have mass are put into groups: points joined by a chain of steps of
        length at most $\mathrm{atol}+\mathrm{rtol}\,\max_i|x_i|$ are in one group. The measures
        are close if the masses they give to every group differ by at most
        $\mathrm{atol}+\mathrm{rtol}$ times the larger total mass. So splitting or permuting atoms
        changes nothing, and with both tolerances 0 it is equality of measures up to rounding of
        the sums of weights. Points at different times are different points. A batch is close if
        all its measures are.

        Args:
            other: another measure of the same space, batch shape, dtype and device.
            rtol: tolerance relative to the largest norm of an atom, and to the mass.
            atol: tolerance in units of length, and relative to the mass.

        Examples:
            >>> mu = pf.Measure(torch.randn(5, 2))
            >>> mu.allclose(mu.split(3)), mu.allclose(mu.push(lambda x: x + 0.1))
            (True, False)
        """
        check_kind("other", other, type(self), "Make one with `pf.Measure(points)`.")
        check_range("rtol", rtol, 0)
        check_range("atol", atol, 0)
        return same_measure(comparable([self, other], type(self)), rtol, atol)

    def save(self, path: str | os.PathLike) -> None:
        """Write the measure to a file in the format of safetensors, whole or not at all.

        The file holds the tensors `atoms`, `log_weights` and, if there are any, `times`, and can
        be read without this library. `Measure.load` gives back the same bits.

        Args:
            path: the file; an existing one is replaced.

        Examples:
            >>> from tempfile import TemporaryDirectory
            >>> mu = pf.Measure(torch.randn(5, 2))
            >>> with TemporaryDirectory() as folder:
            ...     mu.save(f"{folder}/mu.safetensors")
            ...     torch.equal(pf.Measure.load(f"{folder}/mu.safetensors").atoms, mu.atoms)
            True
        """
        check_path("path", path)
        write(path, self._cloud)

    @classmethod
    def load(cls: type[M], path: str | os.PathLike, *, device: torch.device | str = "cpu") -> M:
        """The measure that `save` wrote to a file, bit for bit.

        Args:
            path: the file.
            device: where its tensors go.
        """
        check_path("path", path)
        check_device(device)
        return cls.unchecked(*read(path, device))

    def to(self: M, *args: Any, **kwargs: Any) -> M:
        """Move to a device or dtype, as `torch.Tensor.to`; log-weights stay float32 or better."""
        atoms = self.atoms.to(*args, **kwargs)
        check_floating("atoms", atoms, "(..., n, d)", 2)
        logs = self.log_weights.to(atoms.device, wide(atoms.dtype))
        return self.unchecked(atoms, logs, self._timed(lambda t: t.to(atoms.device)))

    def cpu(self: M) -> M:
        """The same measure on the CPU."""
        return self.to("cpu")

    def cuda(self: M, device: torch.device | str | int | None = None) -> M:
        """The same measure on a GPU, the current one by default.

        Args:
            device: which GPU.
        """
        which = torch.device("cuda", device) if isinstance(device, int) else device
        return self.to("cuda" if which is None else which)

    def double(self: M) -> M:
        """The same measure in float64."""
        return self.to(torch.float64)

    def float(self: M) -> M:
        """The same measure in float32."""
        return self.to(torch.float32)

    def half(self: M) -> M:
        """The same measure in float16; log-weights stay in float32."""
        return self.to(torch.float16)

    def pin_memory(self: M) -> M:
        """A copy in pinned memory, from which a GPU reads faster.

        A `DataLoader` with `pin_memory=True` calls it.
        """
        times = self._timed(Tensor.pin_memory)
        return self.unchecked(self.atoms.pin_memory(), self.log_weights.pin_memory(), times)

    def detach(self: M) -> M:
        """The same measure outside the autograd graph."""
        times = self._timed(Tensor.detach)
        return self.unchecked(self.atoms.detach(), self.log_weights.detach(), times)

    def _timed(self, f: Callable[[Tensor], Tensor]) -> Tensor | None:
        """A function of the times, or None without times."""
        return None if self.times is None else f(self.times)


def listed(name: str, measures: Any) -> list[Any]:
    """The members of a sequence of measures, at least one."""
    if not isinstance(measures, Iterable) or (isinstance(measures, Tensor) and not measures.ndim):
        raise TypeError(f"`{name}` must be a list of measures, got {type(measures).__name__}.")
    parts = list(measures)
    if not parts:
        raise ValueError(f"`{name}` must hold at least one measure, got an empty sequence.")
    return parts


def comparable(measures: Sequence[Formats], kind: type[Formats]) -> list[Cloud]:
    """What measures store, if they share space, batch shape, dtype and device.

    There must be at least one, and all have times or none.
    """
    parts = listed("measures", measures)
    for mu in parts:
        fix = "Make one with `pf.Measure(points)`."
        if isinstance(mu, tuple | list | dict):
            fix = "Samples with labels become a batch with `collate_fn=pf.collate`."
        check_kind("measures", mu, kind, fix)
    atoms = [mu.atoms for mu in parts]
    for index, x in enumerate(atoms[1:], start=1):
        if x.shape[-1] != atoms[0].shape[-1]:
            raise ValueError(
                f"Measures must share their space, got R^{atoms[0].shape[-1]} and R^{x.shape[-1]}."
            )
        if (parts[index].times is None) != (parts[0].times is None):
            raise ValueError("Give all measures times, or none of them.")
        for what in ("dtype", "device"):
            check_same(what, ("measures[0]", atoms[0]), (f"measures[{index}]", x))
    shapes = {tuple(x.shape[:-2]) for x in atoms}
    if len(shapes) > 1:
        raise ValueError(f"Measures must share their batch shape, got {sorted(shapes)}.")
    return [mu._cloud for mu in parts]
