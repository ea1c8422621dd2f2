"""Time verdicts on the zoo and audits of encoders; write verdicts.md.

Usage: python benchmarks/verdicts.py          (five minutes on one core)
       python benchmarks/verdicts.py 20       (only counts right verdicts, of 20 seeds)
"""

import statistics
import sys
import time
from pathlib import Path

import torch
from run import table, where
from torch import nn

import pushforward as pf

HERE = Path(__file__).parent
SEEDS = range(3)
SIZES = (6, 30)


def law(n, generator):
    """Points of the square."""
    return pf.Measure(2 * torch.rand(n, 2, generator=generator).double() - 1)


def one_at_a_time(f):
    """A black box that refuses batches."""
    call = f.push if isinstance(f, pf.InContextMap) else f

    def single(mu):
        if mu.batch_shape:
            raise ValueError("one measure at a time")
        return call(mu)

    return single


def verdict(f, expected):
    """Seconds, and whether every verdict was right."""
    times, right = [], True
    for seed in SEEDS:
        start = time.perf_counter()
        found = pf.characterise(f, law, size=30, seed=seed, progress=False)
        times.append(time.perf_counter() - start)
        right &= found.verdict is expected
    return f"{statistics.median(times):.1f}" + ("" if right else " (wrong)")


def count_right(seeds):
    """How many verdicts are right, in batches and one measure at a time."""
    for way, wrap in (("in batches", lambda f: f), ("one at a time", one_at_a_time)):
        right = total = 0
        for seed in range(seeds):
            for size in SIZES:
                for s in pf.representation.zoo.specimens(2, seed):
                    found = pf.characterise(wrap(s.f), law, size=size, seed=seed, progress=False)
                    total += 1
                    right += found.verdict is s.verdict
                    if found.verdict is not s.verdict:
                        print(f"wrong: {s.name}, {size} atoms, seed {seed}, {way}: {found}")
            print(f"{way}: {right} of {total} right after seed {seed}", flush=True)


def encoder(depth, width):
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval()


def audited(name, model, data, **options):
    """Seconds for each section."""
    row = [name]
    for section in ("symmetries", "size", "theorem", "sensitivity", "depth", "relations"):
        start = time.perf_counter()
        pf.audit(model, data, sections=[section], progress=False, **options)
        row.append(f"{time.perf_counter() - start:.1f}")
    return [*row, f"{sum(map(float, row[1:])):.1f}"]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(sys.argv) > 1:
        return count_right(int(sys.argv[1]))
    rows = []
    for s in pf.representation.zoo.specimens(dim=2):
        single = verdict(one_at_a_time(s.f), s.verdict)
        rows.append([s.name, str(s.verdict), verdict(s.f, s.verdict), single])
        print(*rows[-1], flush=True)
    small, wide = torch.randn(200, 16), torch.randn(500, 128)
    soft = lambda c, q: (q @ c[:, :15].mT).softmax(-1) @ c[:, 15:]
    audits = [
        audited("encoder, 4 layers of width 16", encoder(4, 16), small),
        audited("encoder, 6 layers of width 128", encoder(6, 128), wide),
        audited("`Transformer`, 4 blocks of width 16", pf.Transformer(16, depth=4), small),
        audited("softmax regression", soft, small, queries=torch.randn(50, 15)),
    ]
    head = ["map", "verdict", "in batches, s", "one at a time, s"]
    parts = ["model", "symmetries", "size", "theorem", "sensitivity", "depth", "relations", "all"]
    page = f"""\
{where()}

Verdicts of `characterise` with 30 atoms in the plane, in float64, medians of three seeds. In the
last column the map is a plain function that takes one measure per call, so no certified bound is
known.

{table(head, rows)}

Audits in float32, seconds for each section:

{table(parts, audits)}
"""
    print(page)
    (HERE / "verdicts.md").write_text(page)


if __name__ == "__main__":
    main()
