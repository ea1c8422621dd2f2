"""The report of an audit as text, as numbers, and as a page in a real browser."""

import http.server
import json
import re
import shutil
import subprocess
import threading
from dataclasses import replace

import pytest
from audited import DATA, attend, encoder

import pushforward as pf

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
    assert found["symmetries"].figures()[0].data


def test_names_cannot_break_the_page():
    def model(x):
        return x

    model.__name__ = "</script><script>alert(1)</script>"
    page = pf.audit(model, DATA, sections=["symmetries"]).to_html()
    assert "<script>alert(1)" not in page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    pf.audit(encoder(), DATA).save(folder / "audit.html")
    return folder


FRAME = """<!DOCTYPE html><body style="margin:0"><iframe id="f" src="audit.html"
 style="border:0;width:WIDTHpx;height:900px"></iframe><script>
const frame = document.getElementById("f");
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, root = page.documentElement;
  const plots = [...page.querySelectorAll(".plot")];
  document.body.dataset.seen = JSON.stringify({
    drawn: plots.map(p => p.querySelectorAll(".main-svg").length),
    marks: plots.map(p => p.querySelectorAll(".trace, .heatmaplayer image, .bars path").length),
    inside: plots.every(p => p.getBoundingClientRect().right <= root.clientWidth + 1),
    svg: plots.every(p => p.querySelector(".main-svg").getBoundingClientRect().width
      <= p.getBoundingClientRect().width + 1),
    scrolls: root.scrollWidth > root.clientWidth + 1,
    width: root.clientWidth,
  });
}, 3000);
</script>"""


class Served(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, under a policy that forbids the page to load anything else."""

    asked: list[str] = []

    def end_headers(self):
        if "audit.html" in self.path:
            self.send_header(
                "Content-Security-Policy",
                "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                "img-src data: blob:",
            )
        super().end_headers()

    def log_message(self, *args):
        self.asked.append(self.path)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_the_page_in_a_browser(page, width, tmp_path):
    """Every picture is drawn, nothing is wider than the screen, nothing is asked of anybody."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    (page / f"frame{width}.html").write_text(FRAME.replace("WIDTH", str(width)))
    Served.asked.clear()
    handler = lambda *args: Served(*args, directory=str(page))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/frame{width}.html"
        done = subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--enable-logging=stderr", "--disable-background-networking",
             "--no-first-run", "--window-size=1400,1000",
             f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom", address],
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        server.shutdown()
    told = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not told, told
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(seen.group(1).replace("&quot;", '"'))
    assert found["width"] == width or found["width"] == width - 15  # a scroll bar
    assert len(found["drawn"]) == 11 and all(found["drawn"]) and all(found["marks"]), found
    assert found["inside"] and found["svg"] and not found["scrolls"], found
    assert {path.split("?")[0] for path in Served.asked} <= {
        f"/frame{width}.html", "/audit.html", "/favicon.ico"
    }  # fmt: skip
