"""The page of a run of the statements, its data, and what is made of them in README and docs."""

import importlib.util
import json
import re
from pathlib import Path

import fastjsonschema
import pytest
from browser import WIDTHS

import pushforward as pf
from pushforward.statements import CAVEATS, FAMILIES, LEFT_OUT, REGISTRY, page, statuses

pytestmark = pytest.mark.unhooked

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((Path(pf.statements.__file__).parent / "schema.json").read_text())


def committed():
    """The results of the last committed run, with their figures."""
    record = json.loads((ROOT / "benchmarks" / "statements.json").read_text())
    figures = json.loads((ROOT / "benchmarks" / "statements_figures.json").read_text())
    for s in record["statements"]:
        s["figures"] = figures.get(s["id"], [])
    return record


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of all statements."""
    file = tmp_path_factory.mktemp("page") / "verify.html"
    file.write_text(page(committed()), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_in_a_browser(browse, file, width, dark):
    """Every figure is drawn as the reader comes to it; nothing sticks out or is asked for."""
    view = browse(file, width=width, dark=dark)
    count = view.page.locator("[data-figure]").count()
    assert count == sum(len(s["figures"]) for s in committed()["statements"])
    view.page.wait_for_function("!document.querySelector('[data-figure][hidden]')")
    view.scroll_through()
    view.page.wait_for_function("!document.querySelector('[data-figure]:not(:has(svg path))')")
    ground = view.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
    view.check()


def test_a_statement_is_found(browse, file):
    """By search and by status, with the keyboard; the address keeps what was asked for."""
    view = browse(file)
    shown = view.page.locator(".card:visible")
    assert shown.count() == len(REGISTRY)
    view.page.keyboard.press("/")
    view.page.keyboard.type("lemma 6, (73)")
    assert [c.get_attribute("id") for c in shown.all()] == ["A.lem6"]
    assert view.page.locator("#n").inner_text() == f"1 of {len(REGISTRY)} shown"
    assert "q=lemma" in view.page.url
    view.page.keyboard.press("Escape")
    assert shown.count() == len(REGISTRY)
    view.page.click("[data-f=refuted]")
    kinds = [statuses(s) for s in committed()["statements"]]
    assert shown.count() == sum("refuted" in k for k in kinds) < len(REGISTRY)
    assert "status=refuted" in view.page.url
    view.page.reload()
    assert view.page.locator("[data-f=refuted]").get_attribute("aria-pressed") == "true"
    view.page.fill("#q", "nowhere to be found")
    assert shown.count() == 0 and view.page.locator("#none").is_visible()
    view.page.evaluate("location.hash = '#A.eq8'")  # a link to what is hidden shows it
    assert view.page.locator("[id='A.eq8']").is_visible()
    view.check()


def test_the_source_of_an_experiment_is_on_the_page(browse, file):
    view = browse(file)
    card = view.page.locator("[id='A.eq8']")
    card.locator("details[data-source] summary").click()
    assert "def " in card.locator("pre").inner_text()
    assert view.page.locator(".lk a").first.get_attribute("href").startswith("#pf.")
    view.check()


def test_the_page_is_small_and_complete(file):
    """Below 500 KB; every link leads somewhere; every card says how it was tested."""
    text = file.read_text()
    assert len(text.encode()) < 500_000
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = re.findall(r'<a [^>]*href="#([^"]+)"', text)
    assert len(links) > 300 and set(links) <= set(ids)
    about = re.findall(r"<dd>(.*?)</dd>", text[text.index('<section id="api">') :])
    assert len(about) > 50 and all(re.search(r"[^.:]\.$", a) and " [" not in a for a in about)
    for s in committed()["statements"]:
        assert s["experiment"] and (s["id"] in ids)
        assert any(c["criterion"] for c in s["checks"]) or statuses(s) == ["untried"]
    assert "as we read it" in text and not re.search(r"\b(proved|passed|failed)\b(?! here)", text)


def test_what_needs_another_word_is_shown_by_statements():
    assert len(CAVEATS) == 14
    for caveat in CAVEATS:
        assert set(caveat.ids) <= set(REGISTRY)
        assert caveat.says and caveat.why and caveat.counterexample and caveat.instead


def test_the_data_follow_the_documented_layout():
    """What a run writes, and what is committed. A wrong key, kind or type is refused."""
    check = fastjsonschema.compile(SCHEMA)
    results = pf.statements.verify("A.eq4", quick=True, workers=0)
    record = pf.statements.as_dict(results, quick=True, seed=0, defects=False, seconds=0.1)
    check(json.loads(json.dumps(record, allow_nan=False)))
    check(committed())
    record["statements"][0]["checks"][0]["kind"] = "?"
    with pytest.raises(fastjsonschema.JsonSchemaException, match="kind"):
        check(record)


def test_the_committed_results_are_those_of_the_registry():
    """Texts and formulas that changed since the last run would be shown wrongly."""
    found = {s["id"]: s for s in committed()["statements"]}
    assert set(found) == set(REGISTRY)
    for id, s in found.items():
        now = REGISTRY[id]
        assert (s["text"], s["formula"], s["note"]) == (now.text, now.formula, now.note), id


def test_the_table_of_the_readme_is_up_to_date():
    """`make readme` changes nothing."""
    place = ROOT / "benchmarks" / "statements.py"
    spec = importlib.util.spec_from_file_location("table", place)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    readme = (ROOT / "README.md").read_text()
    assert script.with_table(readme, committed()) == readme


def test_the_readme_counts_all_statements():
    assert f"[{len(REGISTRY)} statements]" in (ROOT / "README.md").read_text()


def test_the_page_of_the_documentation_says_what_was_found():
    """The families, what the words mean, what is left out, and every key of the data."""
    spec = importlib.util.spec_from_file_location("docs", ROOT / "docs" / "statements.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = hook.on_page_markdown((ROOT / "docs" / "statements.md").read_text())
    assert all(f"| {title} |" in text for title in FAMILIES.values())
    assert all(reason in text for reason in LEFT_OUT.values())
    one = SCHEMA["properties"]["statements"]["items"]["properties"]
    parts = (SCHEMA, *(one[name]["items"] for name in ("checks", "figures")))
    keys = {key for part in parts for key in part["properties"]} | set(one)
    assert all(f"| `{key}` |" in text for key in keys)
    assert "<!--" not in text


def test_an_interrupted_run_says_so():
    record = committed()
    missing = len(record["statements"]) - 5
    record["statements"] = record["statements"][:5]
    assert f"was interrupted, and {missing} are missing" in page(record)
