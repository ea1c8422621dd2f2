"""What the page on other libraries says is equal, computed both ways."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unhooked

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def translation():
    """The script that computes the table."""
    file = ROOT / "benchmarks" / "translation.py"
    spec = importlib.util.spec_from_file_location("translation", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["translation"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_pot_and_scipy_give_our_numbers(translation):
    table = translation.compute(["POT", "SciPy"])
    pairs = [pair for _, found in table for pair in found]
    assert len(pairs) >= 14
    for line, theirs, ours in pairs:
        assert translation.agree(line, theirs, ours), (line, theirs, ours)


def test_the_page_has_a_line_for_every_line_of_the_script(translation):
    """The committed numbers are those of all four packages."""
    page = translation.PAGE.read_text()
    numbers = page.split(translation.BEGIN)[1].split(translation.END)[0]
    for section in translation.SECTIONS:
        for line in section.lines:
            assert line.theirs in numbers and line.ours in numbers, line
