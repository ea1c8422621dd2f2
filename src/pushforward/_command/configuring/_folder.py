"""The folder of a run: when it may be used, and whether the run in it is the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ..._tools.output import atomic_file
from ._parts import Part, checked
from ._yaml import Document, read_document

CONFIGURATION = "configuration.yaml"


def begin_folder(
    folder: Path, document: Document, force: bool, resume: bool, earlier: Iterable[Path]
) -> None:
    """Make a folder ready for a run; another run is never overwritten.

    Args:
        folder: the folder of the run.
        document: the configuration.
        force: whether the files of an earlier run are deleted.
        resume: whether an earlier run goes on.
        earlier: the files of an earlier run, which may be deleted.
    """
    if force and resume:
        raise ValueError("--force and --resume exclude each other. Give one of them.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file. Give the name of a folder.")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"There is no folder {str(folder.parent)!r}. Create it first.")
    begun = (folder / CONFIGURATION).is_file()
    if resume and not begun:
        raise ValueError(f"There is no run in {str(folder)!r} to go on with. Leave out --resume.")
    if not (resume or force) and folder.is_dir() and any(folder.iterdir()):
        how = "Go on with it by --resume, begin again by --force" if begun else "Use --force"
        raise ValueError(
            f"The folder {str(folder)!r} is not empty. {how}, or choose another folder."
        )
    folder.mkdir(exist_ok=True)
    if force:
        for file in (folder / CONFIGURATION, *earlier):
            file.unlink(missing_ok=True)
    if not resume:
        with atomic_file(folder / CONFIGURATION) as draft:
            draft.write_bytes(document.text)


def same_run(folder: Path, found: Part, document: Document, looks: Collection[str]) -> None:
    """Raise unless the run in a folder was begun with the same configuration.

    Args:
        folder: the folder of the run.
        found: the configuration.
        document: where it was read.
        looks: keys that may change when a run goes on, because it does not depend on them.
    """
    before = checked(type(found), read_document(folder / CONFIGURATION))
    excluded = set(looks)
    old: Any = before.model_dump(exclude=excluded)
    new: Any = found.model_dump(exclude=excluded)
    path: list[str] = []
    while isinstance(old, dict) and isinstance(new, dict):
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if not changed:
            break
        path.append(changed[0])
        old, new = old.get(changed[0]), new.get(changed[0])
    if path:
        raise document.error(
            path,
            f"`{'.'.join(path)}` is not that of the run in {str(folder)!r}, which cannot go on "
            "with another. Undo the change, or choose another folder.",
        )
