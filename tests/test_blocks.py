"""The program that runs the code blocks of pages: what it shows, and what stops it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unhooked

DOCS = Path(__file__).parents[1] / "docs"
RUN = """
import json, sys
from pathlib import Path
import blocks
for page in sys.argv[1:]:
    folder = Path(page).with_suffix("")
    folder.mkdir()
    print(json.dumps(blocks.run(Path(page), folder)))
"""


def run(pages, folder):
    """The results of pages, run in a process of their own."""
    files = [folder / f"page{k}.md" for k in range(len(pages))]
    for file, text in zip(files, pages, strict=True):
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, files)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{DOCS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_blocks_show(tmp_path):
    """Prints, warnings, the last expression, figures, files, expected errors, commands."""
    (shown,) = run(
        [
            """
```python
import torch, warnings, matplotlib.pyplot as plt
x = torch.rand(2)
print("said")
warnings.warn("careful")
x.shape
```
Text, and a block of another language, which does not run:
```text
not code
```
```python
figure, axes = plt.subplots()
axes.set_title("a line")
axes.plot([0, 1]);
```
```python raises=ZeroDivisionError
1 / 0
```
```python not-run="it takes a day"
raise SystemExit
```
```sh run exit=3
echo "<p>" > page.html; echo done; exit 3
```
"""
        ],
        tmp_path,
    )
    text = [result["text"] for result in shown]
    assert text[0] == "said\nUserWarning: careful\ntorch.Size([2])\n"
    assert shown[1]["figures"] == [["1-0.svg", "a line"]]
    assert "<svg" in (tmp_path / "page0" / "1-0.svg").read_text()
    assert text[2:] == ["ZeroDivisionError: division by zero\n", "done\n"]
    assert shown[3]["pages"] == ["page.html"] and len(shown) == 4
    assert not any(result["error"] for result in shown)


WRONG = {
    "```python\nx = 1\nundefined\n```": "NameError: name 'undefined' is not defined",
    "```python raises=KeyError\nx = 1\n```": "expected the block to raise KeyError",
    "```python\nprint(3 * chr(10) * 50)\n```": "prints 151 lines",
    "```sh run\nexit 3\n```": "exit code 3, expected 0",
}


def test_what_stops_a_page(tmp_path):
    """An error names the page and the line, and later blocks do not run."""
    after = "\n\n```python\nx = 2\n```\n"
    shown = run([f"A page.\n\n{block}{after}" for block in WRONG], tmp_path)
    for number, ((result,), wrong) in enumerate(zip(shown, WRONG.values(), strict=True)):
        assert result["error"].startswith(f"page{number}.md, block at line 3: ")
        assert wrong in result["error"]
