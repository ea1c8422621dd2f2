"""The audit of a model: what it is asked, and what is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._tools.checks import check_callable, check_floating, check_seed, check_sizes
from .._tools.files import atomic_file
from .._tools.progress import bar
from ..representation import BlackBoxError, NotRecovered
from ._calling import left_alone, sane_subject
from ._case import Case, Padded
from ._page import page
from ._population import Population
from ._section import Section, Status
from .sections import depth, relations, sensitivity, size, symmetries, theorem

LOOK: dict[str, Callable[[Case], Section]] = {
    "symmetries": symmetries,
    "size": size,
    "theorem": theorem,
    "sensitivity": sensitivity,
    "depth": depth,
    "relations": relations,
}

SECTIONS = tuple(LOOK)

LEAST_TOKENS = 32

PER_SECTION = 10
"""Steps of a section on the bar."""


@dataclass(frozen=True, eq=False)
class Audit:
    """What was found out about a model.

    Args:
        model: its name.
        how: how it is called.
        data: what it was looked at with.
        seed: of all that was random.
        sections: what was found.
        problem: why it could not be looked at, None if it could.
    """

    model: str
    how: str
    data: str
    seed: int
    sections: tuple[Section, ...] = ()
    problem: str | None = None

    @property
    def verdict(self) -> str:
        """All in one sentence."""
        if self.problem is not None:
            return f"could not be audited: {self.problem}"
        bad = [s for s in self.sections if s.status == "bad"]
        found = "; ".join(f"{s.name}: {s.verdict}" for s in bad) or "nothing refuted"
        for status, said in (("failed", "could not be looked at"), ("noted", "worth a look")):
            names = [s.name for s in self.sections if s.status == status]
            found += f"; {said}: {', '.join(names)}" if names else ""
        return found

    @property
    def exit_code(self) -> int:
        """1 if something is refuted; else 2 if something could not be looked at; else 0."""
        statuses = {s.status for s in self.sections}
        if "bad" in statuses:
            return 1
        return 2 if self.problem is not None or "failed" in statuses else 0

    def __getitem__(self, name: str) -> Section:
        """The section of a name."""
        for section in self.sections:
            if section.name == name:
                return section
        known = ", ".join(s.name for s in self.sections) or "none"
        raise KeyError(f"There is no section {name!r}; there are: {known}.")

    def __str__(self) -> str:
        head = [f"Audit of {self.model}", f"  {self.how}", f"  {self.data}, seed {self.seed}"]
        return "\n".join([*head, f"  {self.verdict}", "", *map(str, self.sections)]).rstrip()

    def to_json(self) -> str:
        """All numbers, as JSON."""
        return json.dumps(
            {
                "model": self.model, "how": self.how, "data": self.data, "seed": self.seed,
                "verdict": self.verdict, "exit_code": self.exit_code,
                "sections": [s.to_dict() for s in self.sections],
            },
            indent=2, allow_nan=False,
        )  # fmt: skip

    def to_html(self) -> str:
        """One page with everything in it, which needs no network."""
        about = [("How", self.how), ("Data", self.data), ("Seed", str(self.seed))]
        return page(f"Audit of {self.model}", self.verdict, self.exit_code, about, self.sections)

    def save(self, file: str | os.PathLike) -> Path:
        """Write a file, all at once: a page (`.html`), numbers (`.json`) or text (`.txt`).

        Args:
            file: where to; its ending says what.
        """
        file = Path(file)
        write = {".html": self.to_html, ".json": self.to_json, ".txt": self.__str__}
        if file.suffix not in write:
            raise ValueError(f"An audit is saved as .html, .json or .txt, got {file.name!r}.")
        if not file.parent.is_dir():
            raise FileNotFoundError(f"There is no folder {str(file.parent)!r} to write into.")
        with atomic_file(file) as draft:
            draft.write_text(write[file.suffix](), encoding="utf-8")
        return file


def audit(
    model: Any,
    data: Any,
    *,
    queries: Tensor | None = None,
    sections: Sequence[str] = SECTIONS,
    name: str | None = None,
    batched: bool | None = None,
    padded: Padded | None = None,
    tokens: int = 256,
    seed: int = 0,
    progress: bool | None = None,
) -> Audit:
    r"""Say what kind of map a model on sets is.

    - `symmetries`: does it depend on the measure of its tokens alone?
    - `size`: do outputs converge with more tokens, and does length itself matter?
    - `theorem`: (B1), (B2), the in-context map recovered from outside.
    - `sensitivity`: what becomes of a token when the others change, in $W_1$.
    - `depth`: do tokens gather, layer by layer?
    - `relations`: what the heads relate.

    Nothing is proved: a symmetry is broken or holds on what was tried. A model that fails, returns
    NaN, is random or keeps state is said to. The same seed gives the same audit.

    Args:
        model: a module or function of tokens `(n, d)` or of sets `(1, n, d)`, with an output for
            each token or one for the set; of a context and queries, if `queries` are given; a map
            between measures; or an in-context map. A module is taken as it is: call `eval()`.
        data: what tokens are like: a set `(n, d)`, several (a list, or `(b, n, d)`), a Measure, or
            `law(n, generator)`. Contexts are drawn from it.
        queries: points `(m, q)` to ask at, for `model(context, queries)`.
        sections: which parts, such as the symmetries alone in a continuous integration.
        name: of the model, for the report.
        batched: whether the model wants an axis for sets; by default it is tried without, then
            with it, the other way round if `data` is `(b, n, d)`.
        padded: `padded(tokens, real)`, the model on tokens `(n, d)` of which some are padding,
            `real` `(n,)` being true for the others; `padded(context, real, queries)` with queries.
            PyTorch's encoders need none.
        tokens: of the largest context, at least 32; a model may not take more.
        seed: of all that is random.
        progress: whether to show a bar; by default at a terminal, for what takes over a second.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
        >>> found = pf.audit(layer, torch.randn(50, 4), sections=["symmetries"])
        >>> found.verdict, found.exit_code
        ('nothing refuted', 0)
    """
    check_sizes(tokens=tokens)
    if tokens < LEAST_TOKENS:
        raise ValueError(f"`tokens` must be at least {LEAST_TOKENS} to see a rate, got {tokens}.")
    check_seed(seed)
    check_callable("model", model, "a module, a function or an in-context map")
    if padded is not None:
        check_callable("padded", padded, "a function, `padded(tokens, real)`")
    if batched not in (None, True, False):
        raise TypeError(f"`batched` must be True, False or None, got {batched!r}.")
    chosen, seed = _chosen(sections), int(seed)
    population = Population(data)
    queries = _checked(queries, population)
    forms = (population.batched, not population.batched) if batched is None else (batched,)
    name = name or _name(model)
    data_said, total = population.describe(), PER_SECTION * len(chosen)
    gpus = range(torch.cuda.device_count())
    with (
        torch.random.fork_rng(gpus),
        left_alone(model),
        bar("audit", total, progress) as tell,
    ):
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                asked = sane_subject(model, population, queries, forms, tokens, seed)
        except BlackBoxError as error:
            return Audit(name, "", data_said, seed, (), str(error))
        found = []
        for k, part in enumerate(chosen):
            generator = torch.Generator().manual_seed(seed + 1000 * SECTIONS.index(part))
            tick = _within(tell, PER_SECTION * k)
            case = Case(asked, population, queries, tokens, padded, generator, tick)
            found.append(_section(part, case))
            tell(PER_SECTION * (k + 1))
    return Audit(name, asked.how, data_said, seed, tuple(found))


def _name(model: Any) -> str:
    """Of a function its own, of a module that of its class."""
    named = not isinstance(model, torch.nn.Module) and hasattr(model, "__name__")
    return model.__name__ if named else type(model).__name__


def _within(tell: Callable[[int], None], start: int) -> Callable[[], None]:
    """Counts the steps of one section, which may be more than it has on the bar."""
    done = 0

    def tick() -> None:
        nonlocal done
        done = min(done + 1, PER_SECTION - 1)
        tell(start + done)

    return tick


def _section(name: str, case: Case) -> Section:
    """One part, with a generator of its own, so that leaving others out changes nothing."""
    seed = case.generator.initial_seed()
    status: Status = "failed"
    try:
        with torch.no_grad():
            return replace(LOOK[name](case), seed=seed)
    except NotRecovered as error:
        why, status = str(error), "absent"  # for the theorem to say
    except BlackBoxError as error:
        why = str(error)
    except Exception as error:  # inside somebody's model anything can happen
        why = f"{type(error).__name__}: {error}"
    return Section(name, status, f"could not be looked at: {why}", seed=seed)


def _chosen(sections: Sequence[str]) -> list[str]:
    chosen = [sections] if isinstance(sections, str) else list(sections or ())
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown or not chosen:
        raise ValueError(f"`sections` must be some of {', '.join(SECTIONS)}, got {chosen}.")
    return [name for name in SECTIONS if name in chosen]


def _checked(queries: Tensor | None, population: Population) -> Tensor | None:
    if queries is None:
        return None
    check_floating("queries", queries, "(m, q)", 2)
    if queries.ndim != 2 or not len(queries):
        raise ValueError(f"`queries` must have shape (m, q), got {tuple(queries.shape)}.")
    if not bool(queries.isfinite().all()):
        raise ValueError("`queries` must be finite, got NaN or infinity.")
    if (queries.dtype, queries.device) != (population.dtype, population.device):
        raise ValueError(
            f"`data` and `queries` must share dtype and device, got {population.dtype} on "
            f"{population.device} and {queries.dtype} on {queries.device}. Convert one of them."
        )
    return queries.detach()
