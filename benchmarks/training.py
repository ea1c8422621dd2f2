"""Training on ragged pairs of measures: this library beside a padded and masked encoder.

Flocks of unequal sizes and their images under a Cucker-Smale flow. Ours is the network of the
benchmarks of Corollary 1, a `pf.Transformer` with a LayerNorm in each block, on batches of
`fitting.FromPairs`, which computes measures of like sizes together. The other one is
`nn.TransformerEncoder` on batches padded with zeros with a key padding mask, of the same width,
depth, heads and hidden width. Both return displacements and see the same batches. Loss, optimiser
(AdamW) and learning rate are the same. A third row is `pf.fit` on the same pairs, with its own
optimiser and everything else that it does.

    python benchmarks/training.py           # some minutes; writes training.json and .md
    python benchmarks/training.py --quick   # few steps, only printed

Seconds are those that a core works, means over steps in which the models take turns. Memory is
the peak of six steps above what the process held before, each in a process of its own. The error
is that of held-out flocks after the same number of steps, as a share of the displacement.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import torch
from corollary import standard, targets
from memory import peak
from run import table, where
from torch import nn

import pushforward as pf
from pushforward import fitting

HERE = Path(__file__).parent
WIDTH, DEPTH, HEADS, BATCH, RATE = 64, 4, 4, 16, 2e-3
RANGES = {"16 to 128": (16, 128), "16 to 1,024": (16, 1024)}
TRAINED, STEPS, SEEDS = "16 to 128", 300, (0, 1)
"""Errors are compared for the smaller flocks."""
PAIRS, HELD_OUT = 512, 64
OURS, THEIRS, LOOP = "this library", "padded `nn.TransformerEncoder`", "`pf.fit`"


class Encoder(nn.Module):
    """PyTorch's encoder with LayerNorm first; as ours, it returns displacements."""

    def __init__(self, dim):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.embed, self.read = nn.Linear(dim, WIDTH), nn.Linear(WIDTH, dim)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)

    def forward(self, x, real):
        return x + self.read(self.encoder(self.embed(x), src_key_padding_mask=~real))


def flocks(sizes, count, seed):
    """Pairs of flocks of random sizes (uniform in the logarithm) and their images."""
    low, high = RANGES[sizes]
    generator = torch.Generator().manual_seed(seed)
    law, flow = fitting.Mixtures(4, unequal=0.0), targets()["cucker_smale"][1]
    shares = torch.rand(count, generator=generator)
    pairs = []
    with torch.no_grad():
        for n in (low * (high / low) ** shares).round().int().tolist():
            mu = law(n, generator)
            pairs.append((mu, flow.push(mu)))
    return pairs


def pad(pairs):
    """A batch of sources and targets padded with zeros, and which rows are real."""
    x, y = (
        nn.utils.rnn.pad_sequence([mu.atoms for mu in side], batch_first=True)
        for side in zip(*pairs, strict=True)
    )
    n = torch.tensor([mu.n for mu, _ in pairs])
    return x, y, torch.arange(x.shape[1]) < n[:, None]


class Ours:
    """The transformer on measures."""

    def __init__(self):
        self.model = standard(4, WIDTH, DEPTH, HEADS)

    def loss(self, pairs):
        task = fitting.FromPairs(pairs, fitting.Paired(), batch_size=BATCH)
        return task.losses(self.model, task.batch(torch.Generator(), 0)).mean()

    def image(self, mu):
        return self.model.push(mu).atoms


class Theirs:
    """The padded encoder."""

    def __init__(self):
        self.model = Encoder(4)

    def loss(self, pairs):
        x, y, real = pad(pairs)
        gaps = (self.model(x, real) - y).square().sum(-1) * real
        return (gaps.sum(-1) / real.sum(-1)).mean()

    def image(self, mu):
        return self.model(mu.atoms[None], torch.ones(1, mu.n, dtype=torch.bool))[0]


MODELS = {OURS: Ours, THEIRS: Theirs}


def batches(pairs, seed):
    """Batches without end, in random order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(pairs), generator=generator)
        for part in order[: len(order) // BATCH * BATCH].split(BATCH):
            yield [pairs[k] for k in part.tolist()]


def stepper(learner, rate=lambda step: 1.0):
    """A function of a batch that makes a step of AdamW."""
    method = torch.optim.AdamW(learner.model.parameters(), lr=RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(method, rate)

    def step(pairs):
        method.zero_grad()
        learner.loss(pairs).backward()
        nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
        method.step()
        schedule.step()

    return step


def speed(sizes, repeats):
    """Seconds of a core for a step of each model, the atoms of a step, and the share padded."""
    pairs = flocks(sizes, 128, 1)
    steps = {name: stepper(make()) for name, make in MODELS.items()}
    times, source, real, padded = {name: [] for name in steps}, batches(pairs, 0), 0, 0
    for k in range(repeats + 2):
        batch = next(source)
        real += sum(mu.n for mu, _ in batch)
        padded += BATCH * max(mu.n for mu, _ in batch)
        for name, step in steps.items():
            begin = time.process_time()
            step(batch)
            if k >= 2:
                times[name].append(time.process_time() - begin)
    found = {name: mean(t) for name, t in times.items()}
    model = standard(4, WIDTH, DEPTH, HEADS)
    evaluation = fitting.Evaluation(every=repeats)
    training = fitting.Training(loss=fitting.Paired(), evaluation=evaluation)
    begin = time.process_time()
    pf.fit(model, pairs, steps=repeats, training=training)
    found[LOOP] = (time.process_time() - begin) / repeats
    return found, real / (repeats + 2), 1 - real / padded


def memory(sizes, name):
    """Megabytes at the peak of some steps on the same batches, above what the process held."""
    pairs = flocks(sizes, 128, 1)
    step, source = stepper(MODELS[name]()), batches(pairs, 0)
    step(next(source))  # libraries, compiled loops, moments of the optimiser
    return peak(lambda: [step(next(source)) for _ in range(6)])


def in_a_process(sizes, name):
    """The same from a fresh process."""
    command = [sys.executable, __file__, "--memory", sizes, name]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(out.split()[-1])


def error(name, seed, count):
    """The error on held-out flocks after training, as a share of the displacement."""
    torch.manual_seed(seed)
    learner = MODELS[name]()
    rate = lambda k: fitting.Optimiser().rate(min(k, count - 1), count)
    step, source = stepper(learner, rate), batches(flocks(TRAINED, PAIRS, 1), seed)
    for _ in range(count):
        step(next(source))
    shares = []
    with torch.no_grad():
        for mu, nu in flocks(TRAINED, HELD_OUT, 2):
            far, moved = learner.image(mu) - nu.atoms, nu.atoms - mu.atoms
            shares.append(float(far.norm(dim=-1).mean() / moved.norm(dim=-1).mean()))
    return mean(shares)


def markdown(record):
    """The figures as a table."""
    rows = []
    for sizes, found in record["sizes"].items():
        for name, seconds in found["seconds"].items():
            megabytes = found["megabytes"].get(name)
            errors = record["errors"].get(name, []) if sizes == TRAINED else []
            spread = f" ± {100 * stdev(errors):.2f}" if len(errors) > 1 else ""
            rows.append([
                sizes, name, f"{1e3 * seconds:.0f}", f"{found['atoms'] / seconds:,.0f}",
                "" if megabytes is None else f"{megabytes:.0f}",
                f"{100 * mean(errors):.2f}{spread} %" if errors else "",
            ])  # fmt: skip
    header = ["atoms", "", "step, ms", "atoms a second", "memory, MB", "error"]
    words = (
        f"Width {WIDTH}, depth {DEPTH}, {HEADS} heads, {BATCH} flocks a step. Padding is "
        + " and ".join(f"{f['padding']:.0%} ({s})" for s, f in record["sizes"].items())
        + f" of a batch. Errors are those after {record['steps']} steps of AdamW, with deviations "
        f"over {len(SEEDS)} seeds."
    )
    return f"{record['about']} {words}\n\n{table(header, rows)}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, only printed")
    parser.add_argument("--memory", nargs=2, metavar=("SIZES", "MODEL"), help="one measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.memory:
        return print(memory(*options.memory))
    repeats, count = (3, 5) if options.quick else (16, STEPS)
    record = {"about": where(), "steps": count, "sizes": {}, "errors": {}}
    for sizes in RANGES:
        seconds, atoms, padding = speed(sizes, repeats)
        record["sizes"][sizes] = {
            "seconds": seconds, "atoms": atoms, "padding": padding,
            "megabytes": {name: in_a_process(sizes, name) for name in MODELS},
        }  # fmt: skip
        print(sizes, record["sizes"][sizes], flush=True)
    for name in MODELS:
        record["errors"][name] = [error(name, seed, count) for seed in SEEDS]
        print(name, record["errors"][name], flush=True)
    print(markdown(record))
    if not options.quick:
        (HERE / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        (HERE / "training.md").write_text(markdown(record))


if __name__ == "__main__":
    main()
