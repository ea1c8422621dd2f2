"""Run all statements of the papers and write statements.json, which the documentation shows.

Usage: python benchmarks/statements.py    (about half a minute on two cores)
"""

import json
import subprocess
import time
from pathlib import Path

import pushforward as pf

HERE = Path(__file__).parent


def main():
    begin = time.perf_counter()
    results = pf.statements.verify()
    seconds = time.perf_counter() - begin
    record = pf.statements.as_dict(results, quick=False, seed=0, defects=False, seconds=seconds)
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, cwd=HERE).stdout.strip()
    for statement in record["statements"]:
        del statement["figures"]  # they are in the page that `pushforward verify --html` writes
    record = {"commit": commit, **record}
    (HERE / "statements.json").write_text(json.dumps(record, indent=1) + "\n")
    wrong = [r.id for r in results if not r.ok]
    print(f"{len(results) - len(wrong)} of {len(results)} as expected, {seconds:.0f} s", *wrong)


if __name__ == "__main__":
    main()
