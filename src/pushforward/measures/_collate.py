"""Samples of a data set as a batch: measures become ragged batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import default_collate

from ._measure import Measure


def collate(samples: Sequence[Any]) -> Any:
    """The `collate_fn` of a `DataLoader` whose samples have measures in them.

    Measures become a ragged batch by `Measure.stack`. Tuples, lists and dictionaries are gone
    through, at any depth, and keep their type. Everything else, such as labels, goes to PyTorch's
    `default_collate`. It works in worker processes.

    Args:
        samples: the samples of a batch, alike in structure.

    Examples:
        >>> data = [(pf.Measure(torch.randn(n, 2)), n % 2) for n in (3, 5, 4)]
        >>> loader = torch.utils.data.DataLoader(data, batch_size=3, collate_fn=pf.collate)
        >>> next(iter(loader))
        (Measure(batch (3,), 5 atoms in R^2, float32, cpu), tensor([1, 1, 0]))
    """
    if not isinstance(samples, Sequence) or isinstance(samples, str):
        raise TypeError(f"`samples` must be a list of samples, got {type(samples).__name__}.")
    samples = list(samples)
    if not samples:
        raise ValueError("`samples` must hold at least one sample, got none.")
    first = samples[0]
    if isinstance(first, Measure):
        return Measure.stack(samples)
    if isinstance(first, Mapping):
        _check_alike(samples)
        merged = {key: collate([sample[key] for sample in samples]) for key in first}
        kind: Any = type(first)
        return merged if kind is dict else kind(merged)
    if isinstance(first, tuple | list):
        _check_alike(samples)
        parts = [collate(part) for part in zip(*samples, strict=True)]
        named = isinstance(first, tuple) and hasattr(first, "_fields")
        return type(first)(*parts) if named else type(first)(parts)
    try:
        return default_collate(samples)
    except TypeError as error:
        raise TypeError(
            "`samples` must hold measures, tensors, numbers, or containers of them, got "
            f"{type(first).__name__}."
        ) from error


def _check_alike(samples: Sequence[Any]) -> None:
    """Raise unless all samples are containers of one length, or with the same keys."""
    for index, sample in enumerate(samples):
        if _describe(sample) != _describe(samples[0]):
            raise ValueError(
                f"Samples of a batch must be alike: sample 0 is a {_describe(samples[0])}, sample "
                f"{index} a {_describe(sample)}."
            )


def _describe(sample: Any) -> str:
    """The kind of a sample, with its keys or its length if it is a container."""
    kind = type(sample).__name__
    if isinstance(sample, Mapping):
        return f"{kind} with keys {sorted(map(str, sample))}"
    return f"{kind} of {len(sample)}" if isinstance(sample, tuple | list) else kind
