"""Figures of pages: their data, and how charts.js draws them in a real browser."""

import json
import math

import pytest
from browser import WIDTHS

from pushforward.pictures import (
    SHARE,
    Figure,
    Guide,
    HeatMap,
    Series,
    cosines,
    figure,
    frame,
    series,
    typeset,
)

pytestmark = pytest.mark.unhooked

NASTY = "</script><b>&'\"</b>"
SIZES = [8, 16, 32, 64, 128, 256]
LAYERS = tuple((float(k), str(k) if k else "input") for k in range(4))
HEADS = [f"layer {k // 4 + 1}, head {k % 4 + 1}" for k in range(12)]

SPREAD = Figure(
    "Spread", "tokens m", "spread of the output",
    (Series("this model", (8, 16, 32, 64, 128, 256), (2.7, 2.6, 2.3, 2.1, 2.1, 2.4), "line",
            (0.5,) * 6),
     series("m^-1/2, a smooth map", SIZES, [2.7 * (8 / m) ** 0.5 for m in SIZES], "dashed")),
    "xy", ticks=((8.0, "8"), (32.0, "32"), (128.0, "128"), (256.0, "256")),
)  # fmt: skip
ZEROS = Figure(
    "With zeros", "tokens n", "change",
    (series("largest effect", SIZES, [1.0, 0.5, 0.25, 0.0, 0.06, 0.0]),), "xy",
)  # fmt: skip
COSINE = Figure(
    "Mean cosine", "after layer", "cosine",
    (series("mean cosine", range(4), [0.3837, 0.3840, 0.3846, 0.3851]),),
    y_range=cosines([0.3837]), ticks=LAYERS, guides=(Guide(1.0, "1: all point one way"),),
)  # fmt: skip
LEVEL = Figure("Level", "step", "size", (series("size", range(5), [7.1, 7.12, 7.11, 7.1, 7.12]),))
ROWS = Figure(
    NASTY, "change, as a share of the size of outputs", "",
    (Series("within rounding", (3e-5, 0.0), (3.0, 2.0), "dots"),
     Series("refuted", (0.025, 0.33), (0.0, 1.0), "refuted")),
    "x", x_range=(1e-5, 1.0), guides=(Guide(4e-5, "rounding ends here", "x", "below"),),
    rows=("permutation", NASTY, "equal tokens", "weights", "padding"), percent=True,
)  # fmt: skip
PAIRS = Figure(
    "Heads", "share of the largest possible", "",
    (series("entropy", [0.4 + 0.04 * k for k in range(12)], range(12), "dots"),
     series("unevenness of keys", [0.6 - 0.03 * k for k in range(12)], range(12), "dots")),
    x_range=SHARE, rows=tuple(HEADS),
)  # fmt: skip
BARS = Figure(
    "Origin", "share of the variance", "", (Series("share", (0.97, 0.03), (0.0, 1.0), "bars"),),
    x_range=SHARE, rows=("the context", "the token itself"), percent=True,
)  # fmt: skip
CLOUD = Figure(
    "Two contexts", "distance, W₁", "distance of the images",
    (series("some replaced", [0.5 + 0.1 * k for k in range(20)],
            [0.1 + 0.09 * k for k in range(20)], "dots"),
     series("all moved", [0.003, 0.03, 0.3], [0.006, 0.055, 0.4], "dots"),
     Series("steepest: 76 times", (5.2e-7,), (3.9e-5,), "extreme"),
     series("", [5.2e-7, 4], [3.9e-5, 304], "dashed")),
    "xy",
)  # fmt: skip
PATHS = Figure(
    "Paths", "first direction", "second direction",
    (Series("", (0.0, 1.0, 2.0, math.nan, 0.0, 1.0, 2.0),
            (0.0, 0.5, 0.2, math.nan, 1.0, 0.8, 0.4), "paths"),
     series("before", [0, 0], [0, 1], "dots"), series("after", [2, 2], [0.2, 0.4], "dots")),
    square=True,
)  # fmt: skip
MANY = HeatMap(
    "Who attends to whom", "key", "query", ("layer 1, head 1", "layer 1, head 2"),
    tuple([[2.0 ** ((i * j + h) % 7 - 3) for j in range(32)] for i in range(32)]
          for h in range(2)),
)  # fmt: skip
FEW = HeatMap("Few", "key", "query", ("one",), ([[0.12, 1.0], [9.5, 0.0]],))
GALLERY = [SPREAD, ZEROS, COSINE, LEVEL, ROWS, PAIRS, BARS, CLOUD, PATHS, MANY, FEW]

WORDS = """() => [...document.querySelectorAll("[data-figure] > svg")].map(svg => {
  const words = [...svg.querySelectorAll("text")]
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const pairs = words.flatMap(([s, a], i) => words.slice(i + 1)
    .filter(([, b]) => meet(a, b)).map(([t]) => `${s} on ${t}`));
  return {said: svg.getAttribute("aria-label"), words: words.map(w => w[0]), pairs};
})"""
"""What stands in each drawing, and which words lie on each other."""


def gallery(folder, figures):
    body = "".join(figure(f.to_dict(), f"f{k}") for k, f in enumerate(figures))
    file = folder / "gallery.html"
    file.write_text(frame("Figures", f'<div class="figs">{body}</div>'), encoding="utf-8")
    return file


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_figures_in_a_browser(browse, tmp_path, width, dark):
    """All are drawn, without a word on another, and markup in labels stays text."""
    view = browse(gallery(tmp_path, GALLERY), width=width, dark=dark)
    view.scroll_through()
    drawn = view.page.evaluate(WORDS)
    assert len(drawn) == len(GALLERY)
    assert [d["pairs"] for d in drawn] == [[]] * len(GALLERY)
    assert all(d["said"].startswith(f.title) for f, d in zip(GALLERY, drawn, strict=True))
    assert NASTY in drawn[4]["words"]
    assert view.page.locator("figure b").count() == 0
    view.check()


@pytest.mark.slow
def test_what_is_drawn(browse, tmp_path):
    """Fixed ranges, whole decades, zeros beyond a break, words of guides, numbers, a choice."""
    view = browse(gallery(tmp_path, GALLERY), width=390)
    view.scroll_through()
    words = [d["words"] for d in view.page.evaluate(WORDS)]
    said = [d["said"] for d in view.page.evaluate(WORDS)]
    assert words[0][:3] == ["0.1", "1", "10"] and "m−1/2, a smooth map" in words[0]
    assert "this model from 2.7 at 8 to 2.4 at 256" in said[0]
    assert words[1].count("0") == 1  # zeros have their place, and one tick
    assert words[2][:5] == ["0", "0.25", "0.5", "0.75", "1"] and "1: all point one way" in words[2]
    assert words[3][0] == "0"  # seven and a bit is not drawn as a mountain
    assert {"0.01 %", "100 %", "rounding ends here", "not tried", "2.5 %"} <= {
        w.replace("\u00a0", " ") for w in words[4]
    }
    assert said[4].endswith("padding not tried; rounding ends here at 0.004\u00a0%.")
    assert {"entropy", "unevenness of keys"} <= set(words[5])
    assert {"some replaced", "all moved", "steepest: 76 times"} <= set(words[7])
    assert view.page.locator("#f10 .cell").count() == 4 + 60 and "9.5" in words[10]
    view.page.click("#f0 summary")
    view.page.wait_for_selector("#f0 td")  # the table is drawn when it is opened, a little later
    assert view.page.locator("#f0 td").count() == 4 * len(SIZES)
    assert view.page.locator("#f0 th sup").inner_text() == "−1/2"
    view.page.click("#f9 summary")
    first = view.page.locator("#f9 tbody").inner_text()
    view.page.select_option("#f9 select", "1")
    assert "head 2" in view.page.get_attribute("#f9 svg", "aria-label")
    assert view.page.locator("#f9 tbody").inner_text() != first
    view.check()


def test_data_of_a_figure():
    """The layout is that of the statements, and what is left at its default is left out."""
    plain = Figure("t", "x", "y", (series("s", [1, 2], [math.inf, 1 / 3], "dots"),), "y", "c")
    assert plain.to_dict() == {
        "title": "t", "x": "x", "y": "y", "log": "y", "caption": "c",
        "series": [{"name": "s", "style": "dots", "x": [1.0, 2.0], "y": [None, 0.333333]}],
    }  # fmt: skip
    for f in GALLERY:
        assert json.loads(json.dumps(f.to_dict(), allow_nan=False))["title"] == f.title
    assert cosines([0.1, 0.9]) == SHARE and cosines([0.1, -0.2]) == (-1.0, 1.0)


@pytest.mark.parametrize(
    "text, html",
    [
        ("m^-0.42 in R^48", "m<sup>−0.42</sup> in R<sup>48</sup>"),
        ("x_i^{n+1} of src_mask", "x<sub>i</sub><sup>n+1</sup> of src_mask"),
        ("up to 1.8e+00 and 3e-15", "up to 1.8 and 3\u00a0×\u00a010<sup>−15</sup>"),
        ("`a^b < c` is code", "<code>a^b &lt; c</code> is code"),
        ("a lone ` and 2.5 %", "a lone ` and 2.5\u00a0%"),
        ("<script>1</script>", "&lt;script&gt;1&lt;/script&gt;"),
    ],
)
def test_typeset(text, html):
    assert typeset(text) == html
