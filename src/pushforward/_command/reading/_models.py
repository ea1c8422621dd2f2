"""Models that users name on the command line.

- `module.py:factory` or `package.module:factory` is code, and runs: the user wrote out that it
  should. Nothing else does.
- `model.safetensors` holds numbers, and names classes of this library.
- `model.pt2` is an export of PyTorch, inspected and rewritten before PyTorch sees it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ... import maps
from ._exports import read_export
from ._plain import PICKLES, plain_file

FORMS = (
    "MODEL is `module.py:factory`, `package.module:factory`, a .safetensors file that "
    "`pf.maps.save` wrote, or a .pt2 file that `torch.export.save` wrote"
)


@dataclass(frozen=True)
class Named:
    """A model with what its source tells.

    Args:
        model: the model.
        name: what to call it in a report.
        dim: the dimension of its tokens, None if that cannot be seen.
        least: the fewest tokens it takes, None if unknown.
        most: the most tokens it takes, None if there is no limit.
    """

    model: Any
    name: str
    dim: int | None
    least: int | None = None
    most: int | None = None


def read_model(text: str) -> Named:
    """The model that an argument of the command line names.

    Args:
        text: the argument.
    """
    source, colon, name = text.rpartition(":")
    if colon and source and name.replace(".", "").isidentifier():
        model = _made(source, name)
        return Named(model, name.rpartition(".")[2], dimension(model))
    path = Path(text)
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        plain_file(path, (".safetensors",), "a model")
        model = maps.load(path)
        return Named(model, path.stem, dimension(model))
    if suffix == ".pt2":
        plain_file(path, (".pt2",), "a model")
        export = read_export(path)
        return Named(export.model, path.stem, export.dim, export.least, export.most)
    if suffix in PICKLES:
        raise ValueError(
            f"{text!r} is not opened: {suffix} files can hold pickles, which run code when they "
            "are read. Write a function that makes the model, and give `module.py:function`; or "
            "save it with `pf.maps.save` or `torch.export.save`."
        )
    if suffix == ".py":
        raise ValueError(f"{text!r} names no model: write {text}:NAME, with a name defined in it.")
    raise ValueError(f"{text!r} is no model. {FORMS}.")


def files_of_model(text: str) -> list[Path]:
    """The files that hold a model: of its code, its tensors, the description beside them.

    Args:
        text: as of `read_model`.
    """
    path = Path(text.rpartition(":")[0] or text)
    beside = path.with_suffix(".json") if path.suffix.lower() == ".safetensors" else None
    if beside is None or not beside.is_file():
        return [path]
    with beside.open("rb") as file:  # an audit of this name is no description
        return [path, beside] if b'"class"' in file.read(4096) else [path]


def dimension(model: Any) -> int | None:
    """The dimension of the tokens of a model, where its modules tell."""
    for candidate in (model, getattr(model, "features", None), getattr(model, "model", None)):
        if isinstance(dim := getattr(candidate, "dim", None), int):
            return dim
    if not isinstance(model, nn.Module):
        return None
    for part in model.modules():
        for attribute in ("dim", "embed_dim", "in_features"):
            if isinstance(dim := getattr(part, attribute, None), int):
                return dim
        if isinstance(part, nn.LayerNorm) and len(part.normalized_shape) == 1:
            return part.normalized_shape[0]
    return None


# Code


def _made(source: str, name: str) -> Any:
    """The model that a name in a module is, or that it makes."""
    with _running(f"{source}:{name}"):
        module = _module_of_file(source) if source.endswith(".py") else _module(source)
        thing: Any = module
        for part in name.split("."):
            if not hasattr(thing, part):
                raise ValueError(_unknown(source, module, name))
            thing = getattr(thing, part)
        model = thing() if _is_factory(thing) else thing
    if not callable(model):
        what = f"{name}() returned" if model is not thing else f"{name} is"
        raise ValueError(
            f"{source}:{name} must be a model or a function that returns one, and {what} "
            f"{'None' if model is None else f'a {type(model).__name__}'}."
        )
    return model


def _is_factory(thing: Any) -> bool:
    """Whether it makes a model when it is called without arguments."""
    if isinstance(thing, nn.Module) or not callable(thing):
        return False
    try:
        needed = [
            p
            for p in inspect.signature(thing).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # a function written in C, such as torch.tanh
        return False
    return not needed


def _unknown(source: str, module: ModuleType, name: str) -> str:
    """What a module has instead."""
    here = lambda value: callable(value) and getattr(value, "__module__", "") == module.__name__
    own = [k for k, v in vars(module).items() if here(v) and not k.startswith("_")]
    return f"{source} has no {name!r}. It defines: {', '.join(own[:12]) or 'nothing to call'}."


def _module_of_file(source: str) -> ModuleType:
    """The module in a file, which is executed."""
    path = Path(source)
    plain_file(path, (".py",), "code")
    with _importable(path.resolve().parent):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{source!r} is no Python module.")
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(path.stem)
        sys.modules[path.stem] = module  # dataclasses and pickles look for it there
        try:
            spec.loader.exec_module(module)
        except BaseException:
            _restored(path.stem, before)
            raise
    return module


def _restored(name: str, before: ModuleType | None) -> None:
    """Undo the registration of a module that could not be executed."""
    if before is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = before


def _module(source: str) -> ModuleType:
    """The installed module of a name, or the one in the current folder."""
    try:
        with _importable(Path.cwd()):
            return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not (source + ".").startswith(error.name + "."):
            raise  # a module that the module needs
        raise ValueError(
            f"There is no module {error.name!r} here or among the installed packages. {FORMS}."
        ) from None
    except TypeError as error:  # a name such as ".module"
        raise ValueError(f"{source!r} is no module: {error}.") from None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules of a folder can be imported, and nothing is written beside them."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


class ModelError(ValueError):
    """The code that should make a model raised an error."""


@contextmanager
def _running(what: str) -> Iterator[None]:
    """Errors of a user's code become one line that says where."""
    try:
        yield
    except ValueError as error:
        if error.__traceback__ is None or _last(error).filename.startswith(_OURS):
            raise
        raise ModelError(_said(what, error)) from error
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and _last(error).filename.startswith(_OURS):
            raise
        raise ModelError(_said(what, error)) from error


_OURS, _PACKAGE = str(Path(__file__).parent), str(Path(__file__).parents[2])


def _last(error: BaseException) -> traceback.FrameSummary:
    return traceback.extract_tb(error.__traceback__)[-1]


def _said(what: str, error: BaseException) -> str:
    """An error of a user's code in one line, with the line where it was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{what} is no valid Python: {error.filename}, line {error.lineno}: {error.msg}."
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _machinery(f.filename)]
    at = f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split()) or "without a message"
    return f"{what} raised {type(error).__name__}{at}: {text} (--debug shows the traceback)"


def _machinery(file: str) -> bool:
    """Whether a file only carries a user's code out, or is part of a package it calls."""
    return file.startswith((_PACKAGE, "<frozen")) or "site-packages" in file
