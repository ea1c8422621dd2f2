"""Measures on disk, in the format of safetensors."""

import os

import torch
from torch import Tensor

from .._tools.output import atomic_file
from .._tools.precision import wide
from ._clouds import Cloud

FORMAT = "pushforward measure, version 1"


def write(path: str | os.PathLike, cloud: Cloud) -> None:
    """Write a cloud to a file, whole or not at all."""
    try:
        from safetensors.torch import save
    except ImportError:
        raise _missing() from None
    named = zip(Cloud._fields, cloud, strict=True)
    tensors = {name: t.detach().contiguous().clone() for name, t in named if t is not None}
    with atomic_file(path) as draft:
        draft.write_bytes(save(tensors, {"format": FORMAT}))


def read(path: str | os.PathLike, device: torch.device | str) -> Cloud:
    """The cloud in a file; an error for a file that holds none."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise _missing() from None
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}). `mu.save(path)` writes one."
        ) from None
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{path} must say {FORMAT!r} in its metadata, as `mu.save(path)` writes it, got "
            f"{about.get('format')!r} and the tensors {sorted(tensors)}. Build a measure from "
            "tensors of another origin with `pf.Measure(atoms, weights)`."
        )
    if not _fits(tensors):
        found = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
        raise ValueError(
            f"{path} is damaged: expected `atoms` (..., n, d) with one of `log_weights`, and "
            f"perhaps of `times`, each, got {found}."
        )
    return Cloud(tensors["atoms"], tensors["log_weights"], tensors.get("times"))


def _fits(tensors: dict[str, Tensor]) -> bool:
    """Whether tensors can be those of a measure."""
    if not {"atoms", "log_weights"} <= set(tensors) <= set(Cloud._fields):
        return False
    atoms, each = tensors["atoms"], [t for name, t in tensors.items() if name != "atoms"]
    if atoms.ndim < 2 or 0 in atoms.shape[-2:] or not atoms.is_floating_point():
        return False
    fit = all(t.shape == atoms.shape[:-1] for t in each)
    return fit and tensors["log_weights"].dtype == wide(atoms.dtype)


def _missing() -> ImportError:
    return ImportError("Files of measures need safetensors: `pip install safetensors`.")
