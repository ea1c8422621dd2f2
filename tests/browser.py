"""Pages in a real browser: `browse(file)` opens one in Debian's Chromium, driven by Playwright.

The fixture is known to all tests. Nothing is downloaded, and nothing outside the file may be asked
for. A test is skipped, with the reason, where there is no Chromium.

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
    def test_the_page(browse, width, dark):
        view = browse(file, width=width, dark=dark)
        view.scroll_through()
        view.page.click("text=Dark")  # anything that Playwright can do
        view.check()  # no message, no request, nothing wider than the screen
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

WIDTHS = (390, 1440)
"""A phone and a desk."""

WIDE = """() => {
  const root = document.documentElement, far = root.clientWidth + 1, found = [];
  if (root.scrollWidth <= far) return found;
  for (const node of document.body.querySelectorAll("*")) {
    if (node.getBoundingClientRect().right <= far) continue;
    let box = node.parentElement;
    while (box && getComputedStyle(box).overflowX === "visible") box = box.parentElement;
    if (!box || box === document.body || box === root) found.push(node.outerHTML.slice(0, 160));
  }
  return [`${root.scrollWidth} of ${root.clientWidth} px`, ...found.slice(0, 5)];
}"""
"""What sticks out of the screen, but for what scrolls in a box of its own."""


@dataclass
class View:
    """A page that is open.

    Args:
        page: of Playwright.
        told: what was said in the console, and errors of scripts.
        asked: what was asked for beside the file itself.
    """

    page: object
    told: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def wide(self) -> list[str]:
        """What is wider than the screen."""
        return self.page.evaluate(WIDE)

    def scroll_through(self):
        """Go down the page screen by screen, as a reader does, and back to the top."""
        self.page.evaluate(
            """async () => {
              const pause = () => new Promise(r => requestAnimationFrame(() => setTimeout(r)));
              const root = document.documentElement;
              root.style.scrollBehavior = "auto";
              for (let y = 0; y < root.scrollHeight; y += innerHeight) {
                scrollTo(0, y);
                await pause();
              }
              await pause();
              scrollTo(0, 0);
            }"""
        )

    def check(self):
        """Nothing was said, nothing asked for, and nothing is wider than the screen."""
        assert not self.told, self.told
        assert not self.asked, self.asked
        assert not self.wide(), self.wide()


@pytest.fixture(scope="session")
def chromium():
    """A browser without a window, for all tests of a process."""
    where = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if where is None:
        pytest.skip("there is no Chromium here: apt-get install chromium, or set CHROMIUM")
    sync = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync.sync_playwright() as play:
        flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = play.chromium.launch(executable_path=where, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium):
    """Open a file: `browse(file, width=390, dark=True, query="?q=x")`; see `View`."""
    contexts = []

    def open_file(file, width=1440, height=900, dark=False, query=""):
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light", reduced_motion="reduce",
        )  # fmt: skip
        contexts.append(context)
        context.set_default_timeout(10_000)
        page, address = context.new_page(), Path(file).resolve().as_uri()
        view = View(page)
        page.on("console", lambda message: view.told.append(message.text))
        page.on("pageerror", lambda error: view.told.append(str(error)))

        def route(request):
            own = request.request.url.partition("?")[0].partition("#")[0] == address
            if own:
                request.continue_()
            else:
                view.asked.append(request.request.url)
                request.abort()

        context.route("**/*", route)
        page.goto(address + query)
        return view

    yield open_file
    for context in contexts:
        context.close()
