"""Run experiments, in several processes, each with one thread."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing import active_children, get_context
from typing import Any

import torch

from .._tools.checks import check_callable, check_flags, check_kind, check_whole
from ..pictures import Figure
from ._checks import Check
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

    Examples:
        >>> [s.id for s in pf.statements.select("A.eq8*")]
        ['A.eq8', 'A.eq8.assoc']
    """
    check_kind("only", only, str, "A pattern of identifiers, such as `A.eq*`.")
    families = sorted({s.family for s in REGISTRY.values()})
    if family is not None and not (isinstance(family, str) and family in families):
        got = repr(family) if isinstance(family, str) else type(family).__name__
        raise ValueError(f"`family` must be one of {', '.join(families)}, got {got}.")
    chosen = [s for s in REGISTRY.values() if fnmatchcase(s.id, only)]
    chosen = [s for s in chosen if family in (None, s.family)]
    if not chosen:
        raise ValueError(
            f"No statement matches `only`, got {only!r}. For example `A.eq*`, or `B.*`."
        )
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
    check_flags(defects=defects)
    check_whole("workers", workers, least=0)
    check_callable("show", show, "a function of a `Result`")
    chosen, setting = select(only, family), Setting(quick, seed)
    if workers == 0:
        results = {}
        for s in chosen:
            results[s.id] = run_statement(s.id, setting, defects)
            show(results[s.id])
        return [results[s.id] for s in chosen]
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
    others = set(active_children())
    with ProcessPoolExecutor(workers, get_context("spawn"), _one_thread) as pool:
        with _ignoring_interrupts():
            jobs = {pool.submit(run_statement, s.id, setting, defects): s.id for s in order}
        try:
            for job in as_completed(jobs):
                result = _result(job, jobs[job])
                show(result)
                yield jobs[job], result
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
            raise


def _result(job: Future[Result], id: str) -> Result:
    """What a process has found. If one was killed, such as for want of memory, the rest is red."""
    try:
        return job.result()
    except BrokenExecutor:
        return Result(id, (), (), 0.0, "the process ended before the experiment did")


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that start in this block ignore Ctrl-C: the one that started them ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _one_thread() -> None:
    torch.set_num_threads(1)


def run_statement(id: str, setting: Setting, defects: bool = False) -> Result:
    """Run one experiment, in float64, with random numbers of its own.

    Args:
        id: of the statement.
        setting: how it runs.
        defects: whether its defect is planted.

    Examples:
        >>> result = pf.statements.run_statement("A.eq8", pf.statements.Setting(quick=True))
        >>> result.ok, len(result.checks)
        (True, 2)
    """
    if not isinstance(id, str) or id not in REGISTRY:
        got = repr(id) if isinstance(id, str) else type(id).__name__
        raise ValueError(f"`id` must be a key of `REGISTRY`, such as 'A.eq8', got {got}.")
    check_kind("setting", setting, Setting, "For example `Setting(quick=True)`.")
    check_flags(defects=defects)
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
