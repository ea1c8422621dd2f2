"""The statements of the papers: every experiment is as expected, and red with its defect."""

from pathlib import Path

import pytest

import pushforward as pf
from pushforward.statements import LEFT_OUT, REGISTRY, Setting, run_statement

pytestmark = pytest.mark.unhooked

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
    result = run_statement(id, Setting(quick=True), defects=True)
    assert not result.ok, f"{id}: {result.said}"


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


def test_words_for_wrong_choices():
    with pytest.raises(ValueError, match="`family` must be one of"):
        pf.statements.verify(family="dances")
    with pytest.raises(ValueError, match="No statement matches"):
        pf.statements.verify("Z.*")


def test_a_family_is_a_file_or_a_folder():
    assert "A.eq8" in {s.id for s in pf.statements.select(family="in_context")}
    assert {"A.eq9", "A.eq14", "A.cs"} <= {s.id for s in pf.statements.select(family="flows")}
