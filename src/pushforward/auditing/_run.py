"""Run the sections of an audit, one after the other, each with random draws of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._tools.checks import check_flags, check_floating, check_seed, check_sizes
from .._tools.output import bar, ticker
from .._tools.warn import each_warning_once
from ..representation import BlackBoxError, NotRecovered, Population
from ._calling import buffers_restored, called
from ._case import Case
from ._masks import padded_call
from ._mode import prepared, reading
from ._model import Model
from ._report import Audit
from ._section import Section, count, untried
from .findings import found as a_finding
from .sections import CHECKS, depth, relations, sensitivity, size, symmetries, theorem

RUN: dict[str, Callable[[Case], Section]] = {
    "symmetries": symmetries,
    "size": size,
    "theorem": theorem,
    "sensitivity": sensitivity,
    "depth": depth,
    "relations": relations,
}

SECTIONS = tuple(RUN)

LEAST_TOKENS = 32
"""The smallest limit on the size of contexts at which a rate of convergence can be fitted."""

TICKS = 10
"""Steps of the progress bar per section."""


def audit(
    model: Any,
    data: Any,
    *,
    queries: Tensor | None = None,
    sections: Sequence[str] = SECTIONS,
    require: Sequence[str] = (),
    tokens: int = 256,
    seed: int = 0,
    progress: bool | None = None,
) -> Audit:
    r"""Say what kind of map a model on sets is.

    - `symmetries`: does it depend on the measure of its tokens alone?
    - `size`: do outputs converge as contexts grow, and does the number of tokens matter?
    - `theorem`: conditions (B1) and (B2) of [A, Thm. 1], and the in-context map recovered from
      unordered outputs.
    - `sensitivity`: how far does an output move when the other tokens change, in $W_1$?
    - `depth`: do tokens become alike, layer by layer?
    - `relations`: what do the attention heads relate?

    Nothing is proved: a symmetry is broken, or holds in everything that was tried. What was not
    tried is said beside the verdict. A model that raises, returns NaN, is random or keeps state is
    reported as such. The same seed gives the same audit.

    Args:
        model: a module or function of tokens `(n, d)` or of sets `(1, n, d)`, with an output for
            each token or one for the set; of a context and queries, if `queries` are given; a map
            between measures, or a function of a measure with one output; or an in-context map. A
            module is taken as it is: call `eval()` first. Wrap it in `pf.auditing.Model` to give
            it a name, to say which shape it takes, or how it is told which tokens are padding.
        data: the tokens: a set `(n, d)`, several (a list, or `(b, n, d)`), a Measure, or
            `law(n, generator)`. Contexts are drawn from it.
        queries: queries `(m, q)`, for `model(context, queries)`.
        sections: which sections to run, such as `["symmetries"]` in continuous integration.
        require: sections, and checks of the section `symmetries` such as `"padding"`, that must
            have been tried; the exit code is 1 if one was not.
        tokens: the most tokens of a context, at least 32.
        seed: the seed of all random draws.
        progress: whether to show a bar; by default at a terminal, if it takes over a second.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
        >>> report = pf.audit(layer, torch.randn(50, 4), sections=["symmetries"])
        >>> report.headline, report.exit_code
        ('Nothing was refuted in 4 tests.', 0)
    """
    check_sizes(tokens=tokens)
    if tokens < LEAST_TOKENS:
        raise ValueError(
            f"`tokens` must be at least {LEAST_TOKENS} to fit a rate of convergence, got {tokens}."
        )
    check_seed(seed)
    check_flags(progress=progress)
    names, seed = _section_names(sections), int(seed)
    required = _required_names(require)
    model = model if isinstance(model, Model) else Model(model)
    dtype = _dtype(model.model)
    population = Population(data, dtype)
    queries = _checked_queries(queries, population, dtype)
    described = _described(population)
    gpus = range(torch.cuda.device_count())
    with (
        torch.random.fork_rng(gpus),
        buffers_restored(model.model),
        bar("audit", TICKS * len(names), progress) as show,
        each_warning_once("the audit"),
    ):
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                found = called(model, population, queries, tokens, seed)
        except BlackBoxError as error:
            return Audit(model.title, "", described, seed, (), str(error), required)
        box, how = found.box, found.how
        if found.problem is not None:
            return Audit(model.title, how, described, seed, (), found.problem, required)
        with torch.no_grad():
            read = reading(model, box, population, queries)
            box, population, done = prepared(box, population, read)
            mu = population.context(LEAST_TOKENS // 4, torch.Generator().manual_seed(seed))
            padded, mask = padded_call(model, box, mu)
        how = f"{how}{mask}{done}"
        base = Case(
            box, population, queries, tokens, padded, torch.Generator(), lambda: None,
            read, model.tolerance,
        )  # fmt: skip
        results = []
        for k, name in enumerate(names):
            # Each section has a generator of its own, so that leaving others out changes nothing.
            generator = torch.Generator().manual_seed(seed + 1000 * SECTIONS.index(name))
            tick = ticker(show, TICKS * k, TICKS - 1)
            results.append(_run_section(name, replace(base, generator=generator, tick=tick)))
            show(TICKS * (k + 1))
    found_all = tuple(results)
    return Audit(model.title, how, described, seed, found_all, None, required, read.mode)


def _run_section(name: str, case: Case) -> Section:
    """One section; an error inside it becomes its verdict."""
    seed = case.generator.initial_seed()
    try:
        with torch.no_grad():
            return replace(RUN[name](case), seed=seed)
    except NotRecovered as error:  # the section on the theorem reports it
        return replace(untried(name, _sentence(str(error))), seed=seed)
    except BlackBoxError as error:
        reason = str(error)
    except Exception as error:  # the model's own code runs here, which may raise anything
        reason = f"{type(error).__name__}: {error}"
    said = f"The section could not be tried: {reason.rstrip('.')}."
    return Section(name, said, [a_finding(name, "section", "unable", said)], seed=seed)


def _sentence(text: str) -> str:
    """A text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _names(argument: str, given: Sequence[str]) -> list[str]:
    """Some names, or one."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        known = f"some of {', '.join(SECTIONS)}"
        raise ValueError(f"`{argument}` must be a list of names, {known}, got {given!r}.")
    return list(names)


def _section_names(sections: Sequence[str]) -> list[str]:
    """The chosen sections, in the order of the report."""
    chosen = _names("sections", sections)
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown or not chosen:
        raise ValueError(f"`sections` must be some of {', '.join(SECTIONS)}, got {chosen}.")
    return [name for name in SECTIONS if name in chosen]


def _required_names(require: Sequence[str]) -> tuple[str, ...]:
    """The required sections and checks."""
    chosen = tuple(_names("require", require))
    known = (*SECTIONS, *CHECKS)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"`require` must be some of {', '.join(known)}, got {list(chosen)}.")
    return chosen


def _dtype(model: Any) -> torch.dtype | None:
    """The dtype of the parameters of a module, None if it has none."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), None)


def _checked_queries(
    queries: Any, population: Population, dtype: torch.dtype | None
) -> Tensor | None:
    """The queries; an error unless they are finite points of the dtype of the data."""
    if queries is None:
        return None
    if isinstance(queries, np.ndarray):
        queries = torch.as_tensor(queries)
        if queries.is_floating_point() and dtype is not None:
            queries = queries.to(dtype)
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


def _described(population: Population) -> str:
    """Number and size of the sets of a population, in words."""
    sets, each = population.sets, count(population.dim, "number")
    if not sets:
        return f"a law of tokens of {each}"
    if len(sets) == 1:
        return f"{count(sets[0].n, 'token')} of {each}"
    sizes = sorted({mu.n for mu in sets})
    span = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{len(sets)} sets of {span} tokens of {each}"
