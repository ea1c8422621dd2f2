"""The report of an audit as text, as numbers, and as a page in a real browser."""

import json
import re
from dataclasses import replace

import pytest
from audited import DATA, attend, encoder
from browser import WIDTHS
from test_charts import WORDS

import pushforward as pf
from pushforward.auditing._page import page as record_page

pytestmark = pytest.mark.unhooked


def test_the_same_seed_is_the_same_audit():
    day = lambda report: replace(report, date="2026-01-01")
    a, b = (day(pf.audit(encoder(), DATA, seed=3)) for _ in range(2))
    assert a.to_json() == b.to_json() and a.to_html() == b.to_html() and str(a) == str(b)
    part = pf.audit(encoder(), DATA, seed=3, sections=["sensitivity"])
    assert part["sensitivity"].to_dict() == a["sensitivity"].to_dict()
    assert day(pf.audit(encoder(), DATA, seed=4)).to_json() != a.to_json()


def test_files(tmp_path):
    found = pf.audit(attend, DATA, sections=["symmetries"])
    for name in ("audit.html", "audit.json", "audit.txt"):
        assert found.save(tmp_path / name).exists()
    assert json.loads((tmp_path / "audit.json").read_text()) == found.to_dict()
    assert (tmp_path / "audit.txt").read_text() == str(found)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["audit.html", "audit.json", "audit.txt"]
    with pytest.raises(ValueError, match=".html, .json or .txt"):
        found.save(tmp_path / "audit.pdf")
    with pytest.raises(KeyError, match="there are: symmetries"):
        found["depth"]
    assert "permutation" in found["symmetries"].figures()[0].rows


def test_names_cannot_break_the_page():
    def model(x):
        return x

    model.__name__ = "</script><script>alert(1)</script>"
    page = pf.audit(model, DATA, sections=["symmetries"]).to_html()
    assert "<script>alert(1)" not in page and page.count("</script>") == 1


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return pf.audit(encoder(), DATA).save(folder / "audit.html")


RECORD = {
    "model": "net_1 <i>", "how": "with `x`", "data": "9 tokens in R^4", "mode": "set", "seed": 3,
    "version": "0.1.0", "date": "2026-01-31", "headline": "It reads the order, by 2.5 %.",
    "exit_code": 1, "terms": {"rounding": "What digits <change>.", "unused": "Nobody asks."},
    "not_tried": [{"name": "padding", "why": "there is no mask", "how": "give `padded=`"}],
    "findings": [
        {"section": "symmetries", "status": "refuted", "claim": "that order does not matter",
         "said": "Order changes outputs by 2.5 %, rounding by 3e-9.", "meaning": "Above rounding.",
         "cause": "Positions.", "change": "Leave them out.", "terms": ["rounding"],
         "effect": 0.025, "figure": 0},
        {"section": "symmetries", "status": "holds", "claim": "that it is a map",
         "said": "Nothing changes.", "meaning": "", "cause": "", "change": "",
         "terms": ["rounding"], "effect": None, "figure": None},
    ],
    "sections": [
        {"name": "symmetries", "title": "Symmetries", "status": "refuted", "said": "one is broken",
         "lines": [], "numbers": {"a": {"b": [1.5, None]}}, "seed": 3,
         "figures": [{"title": "t", "caption": "", "x": "x", "y": "y", "log": "", "series": []}]},
    ],
}  # fmt: skip


def test_a_finding_explains_itself():
    """Its parts, its figure, its terms once beside it, and what was not tried before it."""
    text = record_page(RECORD)
    assert "<dd>net_1 &lt;i&gt;</dd>" in text and "9 tokens in R<sup>4</sup>" in text
    for part in ("What it means", "Likely cause", "What to change", 'href="#symmetries-0"'):
        assert text.count(part) == 1
    assert text.index("padded=") < text.index("Leave them out.")
    assert "<b>Padding.</b> There is no mask. Give <code>padded=</code>." in text
    assert text.count("What digits &lt;change&gt;.") == 1 and "Nobody asks" not in text
    assert text.count('href="#term-rounding"') == 1  # the other finding has no such word
    assert "1 claim is refuted and 1 holds." in text
    assert "<td>a, b</td><td>1.5, –</td>" in text
    assert "1: something is refuted, or a required check was not tried" in text


FIGURES = 14
"""One for symmetries, two for size and theorem, three for each other section."""


def test_the_page_is_small_and_needs_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 500_000
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert text.count("<figure") == text.count("data-figure=") == FIGURES


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_in_a_browser(browse, page, width, dark):
    """Every figure is drawn with no word on another, nothing is wider than the screen."""
    view = browse(page, width=width, dark=dark)
    view.scroll_through()
    drawn = view.page.evaluate(WORDS)
    assert len(drawn) == FIGURES and [d["pairs"] for d in drawn] == [[]] * FIGURES
    assert all(not re.search("NaN|undefined|Infinity", d["said"]) for d in drawn)
    for summary in view.page.locator("summary").all():
        summary.press("Enter")  # the keyboard opens what a click opens
    assert view.page.locator("details:not([open])").count() == 0
    assert view.page.locator("figure .num td").count() > 0
    view.check()
