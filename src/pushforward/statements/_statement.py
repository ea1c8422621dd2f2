"""What a statement of the papers is here: a sentence, a formula, and an experiment."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from .._tools.checks import check_flags, check_seed, check_whole
from ..pictures import Figure
from ._checks import Check

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """How an experiment runs.

    Args:
        quick: whether the short variant is asked for.
        seed: of all random numbers, from 0.

    Examples:
        >>> pf.statements.Setting(quick=True).pick(1000, 10)
        10
    """

    quick: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_flags(quick=self.quick)
        check_seed(self.seed)
        if not 0 <= self.seed < 2**50:  # `generator` takes a thousand times as many
            raise ValueError(f"`seed` must be from 0 to 2^50, got {self.seed}.")

    def pick(self, default: T, quick: T) -> T:
        """The first value, or the second in the short variant."""
        return quick if self.quick else default

    def generator(self, offset: int = 0) -> torch.Generator:
        """A source of random numbers; another one for every offset."""
        check_whole("offset", offset, least=0)
        return torch.Generator().manual_seed(1000 * self.seed + offset)


Experiment = Callable[[Setting], Iterable[Check | Figure]]
"""Makes measurements, and yields what each of them shows, and figures."""

Defect = Callable[[], AbstractContextManager]
"""Breaks the mathematics in one line, for as long as a `with` block lasts."""


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement of one of the papers, with an experiment that could refute it.

    Args:
        id: its identifier, such as `A.eq8`.
        family: the family it belongs to, such as `"in_context"`.
        source: where it stands in the paper, as we read it.
        text: what it says, in a sentence.
        formula: the same in LaTeX.
        run: the experiment.
        defect: an error that must turn the experiment red.
        seconds: about how long it takes, in full and in the short variant.
        api: names of the library that it is about, without `pf.`.
        note: what a reader should know, such as a hypothesis that is missing in the paper.
    """

    id: str
    family: str
    source: str
    text: str
    formula: str
    run: Experiment
    defect: Defect
    seconds: tuple[float, float]
    api: tuple[str, ...]
    note: str

    @property
    def paper(self) -> str:
        """The paper, A or B; masked maps belong to A."""
        return "B" if self.id.startswith("B") else "A"

    @property
    def experiment(self) -> str:
        """The experiment in a sentence."""
        return " ".join((inspect.getdoc(self.run) or "").split())

    @property
    def file(self) -> str:
        """The file and the function of the experiment."""
        return f"{self.run.__module__.replace('.', '/')}.py, {self.run.__name__}"

    @property
    def source_code(self) -> str:
        """The experiment as it is written, below where it is and what tests it."""
        text = inspect.getsource(self.run)
        code = text[text.index("\ndef ") + 1 :]
        test = f"tests/test_statements.py::test_a_statement_is_as_expected[{self.id}]"
        return f"# {self.file}\n# {test}\n\n{code}"


REGISTRY: dict[str, Statement] = {}
"""All statements by identifier, in the order in which they are declared."""


def statement(
    id: str,
    source: str,
    text: str,
    formula: str,
    *,
    defect: Defect,
    seconds: tuple[float, float] = (0.1, 0.1),
    api: tuple[str, ...] = (),
    note: str = "",
) -> Callable[[Experiment], Experiment]:
    """Declare the experiment of a statement; see `Statement` for the arguments."""

    def register(run: Experiment) -> Experiment:
        if id in REGISTRY:
            raise ValueError(f"There are two statements {id!r}.")
        # pushforward.statements.paper_a._family, or a folder of that name with several files
        family = run.__module__.split(".")[3].removeprefix("_")
        REGISTRY[id] = Statement(
            id, family, source, text, formula, run, defect, seconds, api, note
        )
        return run

    return register


def planted(module: str, name: str, value: Any) -> Defect:
    """A defect: a function or constant of the module of an experiment is replaced by a wrong one.

    Args:
        module: the `__name__` of the module.
        name: of the function or constant.
        value: the wrong one.
    """
    return lambda: replaced(sys.modules[module], name, value)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module or class for as long as the block lasts.

    Args:
        owner: the module or class.
        name: the attribute.
        value: what stands in its place.
    """
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
