"""Models in files of safetensors, which name classes and hold numbers but no code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._tools.checks import check_device, check_path
from ..._tools.output import atomic_file
from ._described import build, check_model, describe

FORMAT = "pushforward model, version 1"
LONGEST = 1 << 20
"""Bytes that a description may have."""


def save(model: nn.Module, path: str | os.PathLike) -> None:
    """Write a model to a file in the format of safetensors, whole or not at all.

    The file holds the tensors of `model.state_dict()`, and in its metadata the class of the model
    with the arguments that make it, as JSON. It contains no code: `load` makes classes of this
    library and of `torch.nn`, and those that you registered with `storable`. Functions cannot be
    saved.

    Args:
        model: the model, such as a `pf.Transformer`, or `nn.Sequential(pf.Pool(encoder), head)`.
        path: the file; an existing one is replaced.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> model = pf.Transformer(2, depth=1, block=pf.Block(norm=pf.PreNorm()), width=8)
        >>> mu = pf.Measure(torch.randn(5, 2))
        >>> with TemporaryDirectory() as folder:
        ...     pf.maps.save(model, f"{folder}/model.safetensors")
        ...     again = pf.maps.load(f"{folder}/model.safetensors")
        >>> torch.equal(model.push(mu).atoms, again.push(mu).atoms)
        True
    """
    check_model(model)
    check_path("path", path)
    about = describe(model)
    state = {name: t.detach().contiguous().clone() for name, t in model.state_dict().items()}
    with torch.device("meta"):
        again = build(about)
    changed = "The model was changed after it was made, which its description does not tell"
    _check_state(again, state, changed)
    if repr(again) != repr(model):
        raise ValueError(f"{changed}. Save its layers as `pf.Compose(*layers)`.")
    save_tensors = _safetensors("torch").save
    text = json.dumps(about, allow_nan=False)
    with atomic_file(path) as draft:
        draft.write_bytes(save_tensors(state, {"format": FORMAT, "model": text}))


def load(path: str | os.PathLike, *, device: torch.device | str = "cpu") -> Any:
    """The model that `save` wrote to a file, bit for bit, in evaluation mode.

    Nothing in the file is executed or unpickled. Classes that are not known, arguments that a
    class does not have and tensors that do not fit are refused by name, and no memory is taken
    for sizes that a file only claims.

    A file of tensors from elsewhere can be loaded too, if the description of its model stands
    beside it in a JSON file of the same name, `model.json` for `model.safetensors`:

        {"class": "Transformer", "dim": 2, "depth": 4, "block": {"class": "Block", "dropout": 0.1}}

    Args:
        path: the file.
        device: where its tensors go.
    """
    check_path("path", path)
    check_device(device)
    path = Path(path)
    state, about = _read(path, device)
    if about.get("format") == FORMAT:
        described, source = about.get("model", ""), str(path)
    else:
        described, source = _beside(path), str(path.with_suffix(".json"))
    try:
        data = json.loads(described)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"The description of the model in {source} is no JSON: {error}."
        ) from None
    if not isinstance(data, dict):
        raise ValueError(
            f'{source} must describe a model, such as {{"class": "Transformer", "dim": 2, '
            f'"depth": 4}}, got {type(data).__name__}.'
        )
    _check_depths(data, len(state))
    with torch.device("meta"):
        model = build(data)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{source} describes a {type(model).__name__}, which is no model.")
    _check_state(model, state, f"{path} does not fit its description")
    model.load_state_dict(state, assign=True)
    return model.eval()


def _read(path: Path, device: torch.device | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, "pt", device=str(device)) as file:
            # Copied: tensors in a mapped file lie anywhere, and round differently when multiplied.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
            return tensors, file.metadata() or {}
    except (safetensors.SafetensorError, AttributeError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}). `pf.maps.save(model, path)` "
            "writes one."
        ) from None


def _beside(path: Path) -> str:
    """The description beside a file of tensors from elsewhere."""
    beside = path.with_suffix(".json")
    if not beside.is_file():
        raise ValueError(
            f"{path} does not say which model it holds, and there is no {beside.name} beside it. "
            "Save models with `pf.maps.save(model, path)`, or write "
            f'{beside.name} with the class and its arguments, such as {{"class": "Transformer", '
            '"dim": 2, "depth": 4}.'
        )
    if beside.stat().st_size > LONGEST:
        raise ValueError(f"{beside} is longer than {LONGEST >> 20} MiB: it describes no model.")
    try:
        return beside.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{beside} is no text in UTF-8.") from None


def _check_depths(data: Any, tensors: int) -> None:
    """Raise if a description claims more layers than the file has tensors, before making them."""
    for part in data.values() if isinstance(data, dict) else data:
        if isinstance(part, dict | list):
            _check_depths(part, tensors)
    depth = data.get("depth") if isinstance(data, dict) else None
    if isinstance(depth, int) and depth > max(tensors, 1):
        raise ValueError(f"The model has depth {depth}, but its file only {tensors} tensors.")


def _check_state(model: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Raise unless tensors are those of a model."""
    expected = model.state_dict()
    for words, names in (
        ("it has no tensor", expected.keys() - state.keys()),
        ("it has a tensor too many,", state.keys() - expected.keys()),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"{what}: {words} {min(names)!r}{more}.")
    for name, tensor in state.items():
        need = expected[name]
        if need.shape != tensor.shape or need.is_floating_point() != tensor.is_floating_point():
            raise ValueError(
                f"{what}: {name!r} must be {tuple(need.shape)} like {need.dtype}, got "
                f"{tuple(tensor.shape)} of {tensor.dtype}."
            )


def _safetensors(part: str = "") -> Any:
    """The package, or the part of it for PyTorch."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise ImportError("Files of models need safetensors: `pip install safetensors`.") from None
    return safetensors.torch if part else safetensors
