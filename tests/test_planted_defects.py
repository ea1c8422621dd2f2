"""Defects planted in the library itself: which statements of the papers notice them.

Each experiment has a defect of its own, which `test_statements` plants. Here something breaks that
many experiments use. The table `planted_defects.json` says for each defect which statements turn
red, and which are changed and still true: a bound that is loose stays a bound if it is halved.
Both lists are compared exactly. No other statement is changed at all, up to a tolerance: errors
of identities and constructions stay within their limits, and all other numbers change by no more
than the $10^{-9}$ by which rounding may make a ratio exceed its bound.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from test_statements import DIAGNOSES

from pushforward.flows.fields import CuckerSmale
from pushforward.maps import InContextMap, _attention, _composition, _in_context, _stages
from pushforward.relations import Normaliser
from pushforward.sinkhorn import _anderson, _small, _solve, _stored
from pushforward.statements import REGISTRY, Check, Kind, Result, Setting, run_statement

pytestmark = pytest.mark.unhooked

TABLE = json.loads((Path(__file__).parent / "planted_defects.json").read_text())

QUICK = Setting(quick=True)
RELATIVE = 1e-9
FAST = [s.id for s in REGISTRY.values() if s.seconds[1] < 0.5]
SAMPLE = 7
"""In the ordinary tests, every so many statements stand for those that must not change. All
statements, also those that take long, are compared with `-m exhaustive`."""


@contextmanager
def replaced(*places: tuple[object, str], by: Callable) -> Iterator[None]:
    """A function of the library stands in for another one, wherever it was imported."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, by)
        yield


def weights_dropped() -> AbstractContextManager:
    """Every relation gives all atoms of the context the same weight."""
    call = Normaliser.__call__

    def equal(self, scores, log_a, log_b, *, start=None):
        return call(self, scores, log_a, torch.zeros_like(log_b).log_softmax(-1), start=start)

    return replaced((Normaliser, "__call__"), by=equal)


def composition_on_the_moved_measure() -> AbstractContextManager:
    """A map of a composition moves the context first, and then the queries by what it became."""

    def stages(maps, mu, queries=None, starts=None):
        *inner, last = maps
        for gamma in inner:
            mu = _stages.advance(gamma, mu)
            yield _stages.conditioned(gamma, mu, queries)
        yield _stages.conditioned(last, mu, queries)

    return replaced((_in_context, "stages"), (_composition, "stages"), by=stages)


def lipschitz_bound_halved() -> AbstractContextManager:
    """Bounds are half of what the formulas give."""
    right = InContextMap.lipschitz

    def half(self, radius):
        bound = right(self, radius)
        return replace(bound, x=bound.x / 2, mu=bound.mu / 2)

    return replaced((InContextMap, "lipschitz"), by=half)


def certificate_from_the_wrong_side() -> AbstractContextManager:
    """Sinkhorn reads its error off the rows, which it has just normalised."""
    right = _solve.step

    def step(kernel, problem, g):
        point = right(kernel, problem, g)
        error = torch.expm1(point.f - problem.rows(kernel, point.g)).abs()
        return point._replace(marginal_error=(problem.log_a.exp() * error).sum(-1))

    def residual(P):
        return (P.sum(1, dtype=torch.float64) - 1).abs().amax(0).to(P.dtype)

    stack = ExitStack()
    stack.enter_context(
        replaced((_solve, "step"), (_anderson, "step"), (_stored, "step"), by=step)
    )
    stack.enter_context(replaced((_small, "_residual"), by=residual))
    return stack


def flocking_with_the_wrong_sign() -> AbstractContextManager:
    """Cucker-Smale birds turn away from each other."""
    right = CuckerSmale.evaluate

    def evaluate(self, mu, x):
        velocity, force = right(self, mu, x).chunk(2, -1)
        return torch.cat([velocity, -force], -1)

    return replaced((CuckerSmale, "evaluate"), by=evaluate)


def causal_mask_off_by_one() -> AbstractContextManager:
    """A query sees the next token too."""
    right = _attention._times

    def times(mu, t):
        asked, clock = (u.double() for u in right(mu, t))
        later = clock[..., None, :] > asked[..., :, None]
        following = clock[..., None, :].where(later, math.inf).amin(-1)
        return following.where(following < math.inf, asked), clock

    return replaced((_attention, "_times"), by=times)


DEFECTS = {
    "weights dropped": weights_dropped,
    "composition on the already moved measure": composition_on_the_moved_measure,
    "Lipschitz bound halved": lipschitz_bound_halved,
    "Sinkhorn certificate from the wrong side": certificate_from_the_wrong_side,
    "Cucker-Smale with the wrong sign": flocking_with_the_wrong_sign,
    "causal mask off by one": causal_mask_off_by_one,
}


@cache
def clean(id: str) -> Result:
    """What an experiment shows without a defect."""
    return run_statement(id, QUICK)


def changed(before: Result, after: Result) -> bool:
    """Whether something that was measured changed by more than its tolerance."""
    pairs = list(zip(before.checks, after.checks, strict=False))
    return len(before.checks) != len(after.checks) or any(not same(*pair) for pair in pairs)


def same(before: Check, after: Check) -> bool:
    """Whether two measurements agree, up to the tolerance of their kind."""
    if (before.kind, before.trials) != (after.kind, after.trials):
        return False
    if before.kind in (Kind.IDENTITY, Kind.EXISTENCE):
        return abs(before.value - after.value) <= before.limit
    near = lambda a, b: a == b or abs(a - b) <= RELATIVE * max(1.0, abs(a)) or a != a and b != b
    return near(before.value, after.value) and near(before.limit, after.limit)


def noticed(defect: str, ids: list[str]) -> dict[str, list[str]]:
    """The statements among some that turn red, and those that are changed and still true."""
    with DEFECTS[defect]():
        found = {id: run_statement(id, QUICK) for id in ids}
    errors = {id: result.error for id, result in found.items() if result.error}
    broken = {id: error for id, error in errors.items() if not error.startswith(DIAGNOSES)}
    assert not broken, "A defect breaks the mathematics, not the program."
    red = [id for id in ids if not found[id].ok]
    still = [id for id in ids if found[id].ok and changed(clean(id), found[id])]
    return {"red": red, "changed, and still true": still}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_noticed_where_it_should_be(defect):
    """The statements of the table, and a sample of all others; without those that take long."""
    table = {kind: [id for id in TABLE[defect][kind] if id in FAST] for kind in TABLE[defect]}
    listed = {id for ids in table.values() for id in ids}
    others = [id for id in FAST if id not in TABLE[defect]["red"] and id not in listed]
    chosen = listed | set(others[::SAMPLE])
    assert noticed(defect, [id for id in REGISTRY if id in chosen]) == table


@pytest.mark.exhaustive
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_noticed_nowhere_else(defect):
    assert noticed(defect, list(REGISTRY)) == TABLE[defect]


def test_every_defect_has_its_lists():
    assert list(TABLE) == list(DEFECTS)
    assert all(TABLE[defect]["red"] for defect in DEFECTS)
