"""Contextual rules learned with softmax and Sinkhorn; write relations_learned.json and .md.

Usage: python benchmarks/relations_learned.py      (about ten minutes on one core)

Three rules. "Nearest after centring": a query is related to the keys near it once these are moved
so that their mean is 0 (softmax). "Equal eccentricity": points as far from the mean of their cloud
are coupled (Sinkhorn). "Quantiles": the monotone coupling on the line, which is singular (also
Sinkhorn). Encoders q(mu, x) and k(nu, y) are trained on 8 to 32 atoms. Errors are W1 on clouds not
seen in training, of 16 to 256 atoms: for conditionals the largest over the queries, for couplings
the mean, beside the error of the relation that ignores the query.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

import pushforward as pf
from pushforward import fitting

HERE = Path(__file__).parent
SEED, STEPS, PAIRS, SIZES = 0, 900, 8, (16, 64, 256)


def encoder(dim):
    """One of the two networks."""
    sizes = dict(depth=2, heads=4, width=32, hidden=64, out_dim=8)
    return pf.Transformer(dim, **sizes, block=pf.Block(norm=pf.PreNorm()))


def nearest(mu, nu):
    """The softened nearest neighbour among the keys, moved to have mean 0."""
    centred = nu.atoms - nu.mean()[..., None, :]
    return pf.relate(mu, nu, affinity=pf.Encoded(mu.atoms, centred, pf.SquaredDistance(0.3)))


def eccentricity(mu, x):
    """Distance from the mean of the cloud."""
    return (x - mu.mean()[..., None, :]).norm(dim=-1, keepdim=True)


def equally_far(mu, nu):
    """A coupling of points of similar eccentricity."""
    near = pf.Encoded(eccentricity, eccentricity, pf.SquaredDistance(0.1))
    return pf.relate(mu, nu, affinity=near, normaliser=pf.Sinkhorn())


RULES = {
    "nearest after centring": (nearest, 2, pf.Softmax()),
    "equal eccentricity": (equally_far, 2, pf.Sinkhorn(steps=10)),
    "quantiles": (pf.approximation.QuantileCoupling(), 1, pf.Sinkhorn(steps=20)),
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def exact(model, task, sizes=(8, 24)):
    """The distance of couplings themselves, by `relation_distance`: the mean over 8 pairs."""
    found = {}
    for n in sizes:
        mu, nu, right = fitting.problems.drawn(task, PAIRS, n, n, seeded(10**6 + n))
        gaps = pf.approximation.relation_distance(model(mu, nu), right, mu, nu)
        found[n] = gaps.mean().item()
    return found


def main():
    record = {"seed": SEED, "steps": STEPS, "torch": torch.__version__, "rules": {}}
    record["threads"] = torch.get_num_threads()
    for name, (rule, dim, normaliser) in RULES.items():
        torch.manual_seed(SEED)
        batches = fitting.Batches((8, 32), 1024)
        task = fitting.Relating(rule, fitting.Mixtures(dim), batches=batches)
        model = pf.maps.LearnedRule(encoder(dim), encoder(dim), normaliser=normaliser)
        before = fitting.evaluate_rule(model, task, sizes=SIZES, pairs=PAIRS)
        training = fitting.Training(seed=SEED, evaluation=fitting.Evaluation(every=STEPS // 3))
        begin = time.perf_counter()
        result = pf.fit(model, task, steps=STEPS, training=training)
        seconds = time.perf_counter() - begin
        after = fitting.evaluate_rule(result.model, task, sizes=SIZES, pairs=PAIRS)
        record["rules"][name] = {
            "normaliser": repr(normaliser), "seconds": seconds,
            "untrained": [asdict(score) for score in before],
            "trained": [asdict(score) for score in after],
            "relation_distance": exact(result.model, task),
        }  # fmt: skip
        print(name, f"{seconds:.0f} s", *after, sep="\n  ", flush=True)
    (HERE / "relations_learned.json").write_text(json.dumps(record, indent=1) + "\n")
    (HERE / "relations_learned.md").write_text(page(record))


def page(record):
    """The figures as a table."""
    lines = [
        "# Contextual rules, learned", "",
        f"Made by `python benchmarks/relations_learned.py`: {STEPS} steps on clouds of 8 to 32 "
        f"atoms, seed {SEED}, {record['threads']} thread. Mean W1 error ± standard error over "
        f"{PAIRS} held-out pairs of clouds of n atoms each, the largest over the queries for "
        "conditionals, the mean over the queries for couplings. The last column is "
        "`relation_distance` at n = 24.", "",
        "| rule | normaliser | | " + " | ".join(f"n = {n}" for n in SIZES) + " | s | exact |",
        "|---" * (len(SIZES) + 5) + "|",
    ]  # fmt: skip
    for name, entry in record["rules"].items():
        kind = entry["normaliser"].partition("(")[0]
        rows = {
            "ignores the query": [f"{s['independent']:.3f}" for s in entry["trained"]],
            "untrained": [f"{s['mean']:.3f}" for s in entry["untrained"]],
            "trained": [f"{s['mean']:.3f} ± {s['standard_error']:.3f}" for s in entry["trained"]],
        }
        for what, cells in rows.items():
            last = what == "trained"
            end = f"{entry['seconds']:.0f} | {entry['relation_distance'][24]:.3f}" if last else "|"
            lines.append(f"| {name} | {kind} | {what} | {' | '.join(cells)} | {end} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
