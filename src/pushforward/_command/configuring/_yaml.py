"""YAML as plain data that knows its lines. Nothing in a file is executed or expanded."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LARGEST = 1 << 20
"""Bytes that a configuration may have."""

FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)$")
"""A number with an exponent; PyYAML by itself takes 1e-6 for a word."""


class _Loader(yaml.SafeLoader):
    """The safe loader, without anchors, and with a number for 1e-6."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, "an alias (*name) is not allowed here; write the value out",
                self.peek_event().start_mark,
            )  # fmt: skip
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a word", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"`{key.value}` is given twice, in line {seen[key.value]} too",
                    key.start_mark,
                )  # fmt: skip
            seen[key.value] = line
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: list(rules) for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


@dataclass(frozen=True)
class Document:
    """A configuration file, as data and as the places of its keys.

    Args:
        file: where it was read.
        text: its bytes.
        data: what it says.
        root: its nodes.
    """

    file: Path
    text: bytes
    data: Any
    root: yaml.Node

    def place(self, path: Sequence[str | int]) -> tuple[str, int]:
        """The name and the line of the deepest key on a path; parts that are no keys are skipped.

        Args:
            path: keys and numbers from the root.
        """
        node, line, name = self.root, self.root.start_mark.line, ""
        for part in path:
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == part]
                if found:
                    key, node = found[0]
                    line, name = key.start_mark.line, f"{name}.{part}" if name else str(part)
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                if part < len(node.value):
                    node = node.value[part]
                    line, name = node.start_mark.line, f"{name}[{part}]"
        return name, line + 1

    def error(self, path: Sequence[str | int], words: str) -> ValueError:
        """An error that names the file and the line.

        Args:
            path: keys and numbers from the root.
            words: what is wrong.
        """
        return ValueError(f"{self.file}, line {self.place(path)[1]}: {words}")

    @contextmanager
    def blamed(self, *path: str | int) -> Iterator[None]:
        """Errors of the library in the block name the file, the line and the key.

        Args:
            path: the key that the block makes something of.
        """
        try:
            yield
        except (ValueError, TypeError, OSError, NotImplementedError) as error:
            name = self.place(path)[0] or "the configuration"
            raise self.error(path, f"`{name}`: {error}") from error


def read_document(file: Path) -> Document:
    """The data of a YAML file, or an error that names the line.

    Args:
        file: the file.
    """
    if not file.is_file():
        raise ValueError(f"There is no file {str(file)!r}. Give a configuration file.")
    if file.stat().st_size > LARGEST:
        raise ValueError(f"{file} has more than {LARGEST:,} bytes, too many for a configuration.")
    text = file.read_bytes()
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        data = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        raise ValueError(f"{file}{line}: {error.problem or error.context}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())[:200]
        raise ValueError(f"{file} is no text in YAML: {words}.") from None
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply.") from None
    except ValueError as error:  # such as a whole number of ten thousand digits
        raise ValueError(f"{file} has a value that cannot be read: {error}.") from None
    finally:
        if loader is not None:
            loader.dispose()
    if root is None or not isinstance(data, dict):
        raise ValueError(f"{file} must hold keys with values, such as `t1: 10`.")
    return Document(file, text, data, root)
