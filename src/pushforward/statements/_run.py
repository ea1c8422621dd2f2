"""Run experiments, in several processes, each with one thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing import get_context
from typing import Any

import torch

from .._tools.checks import check_seed, check_sizes
from ._checks import Check
from ._figure import Figure
from ._statement import REGISTRY, Setting, Statement


@dataclass(frozen=True)
class Result:
    """What the experiment of a statement has shown.

    Args:
        id: of the statement.
        checks: what each measurement shows.
        figures: what there is to see.
        seconds: how long it took.
        error: the exception that ended it, empty if none did.
    """

    id: str
    checks: tuple[Check, ...]
    figures: tuple[Figure, ...]
    seconds: float
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything is as expected. No result is not."""
        return not self.error and bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def said(self) -> str:
        """The result in words."""
        if self.error:
            return f"could not be tried: {self.error}"
        return "; ".join(check.said for check in self.checks) or "nothing was measured"


def select(only: str = "*", family: str | None = None) -> list[Statement]:
    """The statements whose identifier matches a pattern, and that belong to a family.

    Args:
        only: a pattern such as `A.eq*`.
        family: the name of a family, None for all.
    """
    families = sorted({s.family for s in REGISTRY.values()})
    if family is not None and family not in families:
        raise ValueError(f"`family` must be one of {', '.join(families)}, got {family!r}.")
    chosen = [s for s in REGISTRY.values() if fnmatchcase(s.id, only)]
    chosen = [s for s in chosen if family in (None, s.family)]
    if not chosen:
        raise ValueError(f"No statement matches `only` = {only!r}. For example `A.eq*`, or `B.*`.")
    return chosen


def verify(
    only: str = "*",
    *,
    family: str | None = None,
    quick: bool = False,
    seed: int = 0,
    defects: bool = False,
    workers: int = 2,
    show: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run the experiments of some statements; results in the order of the registry.

    Args:
        only: a pattern of identifiers, such as `A.eq*`.
        family: the name of a family, None for all.
        quick: whether to run the short variants.
        seed: of all random numbers.
        defects: whether each experiment runs with its defect, and must then fail.
        workers: processes; 0 runs everything in this one.
        show: called with every result as soon as it is there.

    Examples:
        >>> (result,) = pf.statements.verify("A.eq8", quick=True, workers=0)
        >>> result.ok
        True
    """
    check_seed(seed)
    chosen = select(only, family)
    setting = Setting(quick, seed)
    if workers == 0:
        results = {}
        for s in chosen:
            results[s.id] = run_statement(s.id, setting, defects)
            show(results[s.id])
        return [results[s.id] for s in chosen]
    check_sizes(workers=workers)
    results = dict(_in_processes(chosen, setting, defects, workers, show))
    return [results[s.id] for s in chosen]


def _in_processes(
    chosen: Sequence[Statement],
    setting: Setting,
    defects: bool,
    workers: int,
    show: Callable[[Result], None],
) -> Iterator[tuple[str, Result]]:
    """Results as they come, the longest experiments first."""
    order = sorted(chosen, key=lambda s: s.seconds[int(setting.quick)], reverse=True)
    with ProcessPoolExecutor(workers, get_context("spawn"), _one_thread) as pool:
        jobs = {pool.submit(run_statement, s.id, setting, defects): s.id for s in order}
        try:
            for job in as_completed(jobs):
                result = job.result()
                show(result)
                yield jobs[job], result
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_thread() -> None:
    torch.set_num_threads(1)


def run_statement(id: str, setting: Setting, defects: bool = False) -> Result:
    """Run one experiment, in float64, with random numbers of its own.

    Args:
        id: of the statement.
        setting: how it runs.
        defects: whether its defect is planted.
    """
    found = REGISTRY[id]
    shown: list[Check | Figure] = []
    error, dtype, begin = "", torch.get_default_dtype(), time.perf_counter()
    planted: Any = found.defect() if defects else nullcontext()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(), torch.no_grad(), planted:
            warnings.simplefilter("ignore")
            torch.manual_seed(setting.seed)
            shown.extend(found.run(setting))
    except Exception as problem:  # an experiment that breaks is red, whatever it raises
        error = f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:200]}"
    finally:
        torch.set_default_dtype(dtype)
    checks = tuple(c for c in shown if isinstance(c, Check))
    figures = tuple(f for f in shown if isinstance(f, Figure))
    return Result(id, checks, figures, time.perf_counter() - begin, error)
