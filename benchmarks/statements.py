"""Run all statements of the papers, for the documentation and the README.

Usage: python benchmarks/statements.py            (about half a minute on two cores)
       python benchmarks/statements.py --readme   (only the table of the README, without a run)

Writes statements.json, statements_figures.json and the table of the README.
"""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pushforward as pf
from pushforward.pictures import STATUS

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "statements.json", HERE / "statements_figures.json"
README = HERE.parent / "README.md"
BEGIN, END = "<!-- statements: make readme -->", "<!-- end of statements -->"


def main():
    if "--readme" not in sys.argv:
        run()
    README.write_text(with_table(README.read_text(), json.loads(RESULTS.read_text())))


def run():
    """Run everything, and write what is committed."""
    begin = time.perf_counter()
    results = pf.statements.verify()
    seconds = time.perf_counter() - begin
    record = pf.statements.as_dict(results, quick=False, seed=0, defects=False, seconds=seconds)
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, cwd=HERE).stdout.strip()
    write({"commit": commit, **record})
    wrong = [r.id for r in results if not r.ok]
    print(f"{len(results) - len(wrong)} of {len(results)} as expected, {seconds:.0f} s", *wrong)


def write(record):
    """Results and figures, in a file each; figures have the four digits that can be seen."""
    figures = {s["id"]: s.pop("figures") for s in record["statements"]}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    lines = (f"{json.dumps(id)}:{json.dumps(rounded(f))}" for id, f in figures.items() if f)
    FIGURES.write_text("{" + ",\n".join(lines) + "}\n")


def rounded(data):
    if isinstance(data, float):
        return float(f"{data:.4g}")
    if isinstance(data, list):
        return [rounded(x) for x in data]
    return {k: rounded(x) for k, x in data.items()} if isinstance(data, dict) else data


def with_table(text, record):
    """The README with the table of the families of a run."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(record)}\n{END}{after}"


def table(record):
    """What became of each family, as Markdown."""
    found = record["statements"]
    families = pf.statements.families(found)
    names = [name for name in STATUS if any(name in f.counts for f in families)]
    heads = ["family", "statements", *(STATUS[name].lower() for name in names)]
    heads += ["worst equality", "worst bound", "worst construction"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for f in families:
        counts = [str(f.counts.get(name, "")) for name in names]
        worst = [share(f.equalities), share(f.bounds), share(f.built)]
        lines.append(f"| {f.title} | {f.size} | {' | '.join([*counts, *worst])} |")
    good = sum(s["ok"] for s in found)
    said = (
        f"{good} of {len(found)} statements were as expected at commit {record['commit']}, on "
        f"{record['date']}."
    )
    return "\n".join([*lines, "", said])


def share(ratio):
    """A ratio to what is allowed, rounded up: never made smaller."""
    return "" if ratio is None else f"{math.ceil(100 * ratio - 1e-9) / 100:.2f}"


if __name__ == "__main__":
    main()
