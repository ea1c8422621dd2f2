"""The statements of the papers: every experiment is as expected, and red with its defect."""

import ast
import math
import os
from pathlib import Path

import pytest

import pushforward as pf
from pushforward.statements import LEFT_OUT, REGISTRY, Setting, _checks, _run, run_statement

pytestmark = pytest.mark.unhooked

DIAGNOSES = ("NotRecovered", "FlowError", "ValueError")
"""Errors by which the library says what is wrong with a map, a flow or an argument."""

IDS = (Path(__file__).parent / "statement_ids.txt").read_text().split()


def test_the_registry_is_complete():
    """A statement of the list has an experiment, or is left out and says why."""
    assert sorted(REGISTRY) + sorted(LEFT_OUT) == IDS
    assert not set(REGISTRY) & set(LEFT_OUT)
    assert all(len(reason) > 40 and reason.endswith(".") for reason in LEFT_OUT.values())


@pytest.mark.parametrize("id", REGISTRY)
def test_a_statement_is_as_expected(id):
    result = run_statement(id, Setting(quick=True))
    assert result.ok, f"{id}: {result.said}"


@pytest.mark.parametrize("id", REGISTRY)
def test_a_statement_with_its_defect_is_red(id):
    """By what is measured: a defect breaks the mathematics, not the program."""
    result = run_statement(id, Setting(quick=True), defects=True)
    assert not result.ok, f"{id}: {result.said}"
    assert not result.error or result.error.startswith(DIAGNOSES), f"{id}: {result.error}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_all_statements_over_ten_seeds(seed):
    wrong = [r for r in pf.statements.verify(seed=seed) if not r.ok]
    assert not wrong, [(r.id, r.said) for r in wrong]


def test_results_do_not_depend_on_the_process():
    """Two workers give what one process gives, in the order of the registry."""
    here, there = (pf.statements.verify("A.eq8*", quick=True, workers=w) for w in (0, 2))
    assert [r.id for r in here] == [r.id for r in there] == ["A.eq8", "A.eq8.assoc"]
    assert [r.checks for r in here] == [r.checks for r in there]


NAN = math.nan


@pytest.mark.parametrize(
    "check",
    [
        _checks.holds(_checks.max([0.0, NAN]), 1.0),
        _checks.holds(_checks.max(0.0, NAN, 0.5), 1.0),
        _checks.built(_checks.max([(0.0, "a"), (NAN, "b")], key=lambda pair: pair[0])[0], 1.0),
        _checks.bounded(1 / _checks.min(2.0, NAN), 3),
        _checks.rate(NAN, 1.0, 0.1),
        _checks.rate(2.0, 1.0, math.inf),
        _checks.built(0.1, math.inf),
        _checks.holds(-0.1, 1.0),
        _checks.bounded(0.5, 0),
        _checks.holds(0.0, 1.0, trials=0),
    ],
)
def test_what_is_not_a_number_or_was_not_tried_is_red(check):
    assert not check.ok and "not refuted" not in check.said and "holds" not in check.said


def test_one_nan_among_many_errors_is_red(monkeypatch):
    """Python's own `max` would forget all but the first."""
    errors = iter([0.0, NAN])
    monkeypatch.setattr(
        "pushforward.statements.paper_a._causal.gap", lambda a, b: next(errors, 0.0)
    )
    assert not run_statement("C.restrict", Setting(quick=True)).ok


@pytest.mark.parametrize(
    "file", sorted(Path(pf.statements.__file__).parent.glob("paper_?/**/_[a-z]*.py")),
    ids=lambda file: file.stem,
)  # fmt: skip
def test_experiments_keep_nan(file):
    """They take `max` and `min` from where NaN is kept."""
    tree = ast.parse(file.read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & {"max", "min"}
    taken = {
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom)
        for alias in node.names if node.module == "_checks"
    }  # fmt: skip
    assert used <= taken


class Deadly(Setting):
    """Ends the process that receives it."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_process_that_dies_is_red(monkeypatch):
    monkeypatch.setattr(_run, "Setting", Deadly)
    results = pf.statements.verify("A.eq8*", quick=True, workers=1)
    assert [(r.id, r.ok) for r in results] == [("A.eq8", False), ("A.eq8.assoc", False)]
    assert all("the process ended" in r.said for r in results)


def test_words_for_wrong_choices():
    with pytest.raises(ValueError, match="`family` must be one of"):
        pf.statements.verify(family="dances")
    with pytest.raises(ValueError, match="No statement matches"):
        pf.statements.verify("Z.*")


def test_a_family_is_a_file_or_a_folder():
    assert "A.eq8" in {s.id for s in pf.statements.select(family="in_context")}
    assert {"A.eq9", "A.eq14", "A.cs"} <= {s.id for s in pf.statements.select(family="flows")}
