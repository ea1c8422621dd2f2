"""Classification and regression of weighted sets: this library, a padded encoder, DeepSets.

All see the digits of scikit-learn as `examples/11_train_on_sets.py` makes them: a token is the
place of a pixel and its ink. Ours reads the ink as the weight of the token, too. The encoder is
`nn.TransformerEncoder` on padded batches with a key padding mask, of the same depth, width and
heads. DeepSets is a network on each token, a mean, and a network on the mean, with as many
parameters. Optimiser, schedule, epochs, batches and splits are the same.

    python benchmarks/sets.py           # results go to benchmarks/sets.json
    python benchmarks/sets.py --table   # writes them into the page docs/howto/train.md
"""

import argparse
import importlib.util
import json
import math
import os
import platform
import subprocess
import time
from pathlib import Path

import torch
from torch import nn

import pushforward as pf

HERE = Path(__file__).parent
RESULTS = HERE / "sets.json"
PAGE = HERE.parent / "docs" / "howto" / "train.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def example():
    """The script whose model is measured."""
    file = HERE.parent / "examples" / "11_train_on_sets.py"
    spec = importlib.util.spec_from_file_location("train_on_sets", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = example()


class Padded(nn.Module):
    """A network on batches padded with zeros: what it makes of tokens and of which are real."""

    def forward(self, batch):
        tokens, real = batch
        return self.read(tokens, real)

    @staticmethod
    def mean(x, real):
        return (x * real[..., None]).sum(-2) / real.sum(-1, keepdim=True)


class Encoder(Padded):
    """PyTorch's encoder, with LayerNorm first, and the mean over the tokens."""

    def __init__(self, outputs, width=SCRIPT.WIDTH):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.embed, self.last = nn.Linear(3, width), nn.Linear(width, width)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def read(self, tokens, real):
        y = self.encoder(self.embed(tokens), src_key_padding_mask=~real)
        return self.head(self.mean(self.last(y), real))


class DeepSets(Padded):
    """A network on each token, the mean, and a network on it."""

    def __init__(self, outputs, width=75):
        super().__init__()
        act = nn.GELU
        self.each = nn.Sequential(
            nn.Linear(3, width), act(), nn.Linear(width, width), act(), nn.Linear(width, width)
        )
        self.head = nn.Sequential(act(), nn.Linear(width, width), act(), nn.Linear(width, outputs))

    def read(self, tokens, real):
        return self.head(self.mean(self.each(tokens), real))


def pad(samples):
    """Sets as one tensor padded with zeros, which tokens are real, and the targets."""
    sets, targets = zip(*samples, strict=True)
    tokens = nn.utils.rnn.pad_sequence([mu.atoms for mu in sets], batch_first=True)
    sizes = torch.tensor([mu.n for mu in sets])
    real = torch.arange(tokens.shape[1]) < sizes[:, None]
    return (tokens, real), torch.utils.data.default_collate(targets)


def weight_only(samples):
    """Our batches without the ink as a coordinate: it is a weight and nothing else."""
    mu, target = pf.collate(samples)
    return mu.push(lambda x: x * x.new_tensor([1.0, 1.0, 0.0])), target


MODELS = {
    "this library, mean pooling": (lambda n: SCRIPT.model(n, "mean"), None),
    "the same, ink as weight only": (lambda n: SCRIPT.model(n, "mean"), weight_only),
    "this library, attention pooling": (lambda n: SCRIPT.model(n, "attention"), None),
    "padded `nn.TransformerEncoder`": (Encoder, pad),
    "DeepSets": (DeepSets, pad),
}


def run(name, task, seed, epochs):
    """One training: the score, and seconds an epoch."""
    make, collate = MODELS[name]
    sets = SCRIPT.clouds(seed)
    pairs = sets if task == "digit" else SCRIPT.turned(sets, seed)
    torch.manual_seed(seed)
    network = make(10 if task == "digit" else 1)
    loss = nn.functional.cross_entropy if task == "digit" else SCRIPT.angle_loss
    options = {} if collate is None else {"collate": collate}
    SCRIPT.train(network, pairs[: SCRIPT.TRAIN], loss, epochs, seed, name, **options)
    output, target = SCRIPT.outputs_and_targets(network, pairs[SCRIPT.TRAIN :], **options)
    if task == "digit":
        score = (output.argmax(-1) == target).float().mean().item()
    else:
        score = 45 * (output[:, 0] - target).abs().mean().item()
    count = sum(p.numel() for p in network.parameters())
    return {
        "model": name, "task": task, "seed": seed, "epochs": epochs, "score": score,
        "parameters": count,
    }  # fmt: skip


def epochs_in_turn(rounds=5):
    """Seconds of one core that an epoch takes: medians, with the models taking turns."""
    sets, seconds = SCRIPT.clouds(0)[: SCRIPT.TRAIN], {name: [] for name in MODELS}
    networks = {name: make(10) for name, (make, _) in MODELS.items()}
    for _ in range(rounds):
        for name, (_, collate) in MODELS.items():
            options = {} if collate is None else {"collate": collate}
            begin = time.process_time()
            loss = nn.functional.cross_entropy
            SCRIPT.train(networks[name], sets, loss, 1, 0, name, **options)
            seconds[name].append(time.process_time() - begin)
    return {name: sorted(times)[rounds // 2] for name, times in seconds.items()}


def describe():
    """Commit and machine."""
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    cpu = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line),
        platform.processor(),
    )
    return (
        f"Commit {git.stdout.strip()}, {time.strftime('%Y-%m-%d')}, {cpu}, "
        f"{torch.get_num_threads()} thread, Python {platform.python_version()}, "
        f"torch {torch.__version__}."
    )


def table(results):
    """Markdown: the mean and its standard error over the seeds, and medians of times."""
    lines = [
        results["about"],
        "",
        "| model | parameters | right, of 450 digits | wrong by, degrees | s an epoch |",
        "|---|---|---|---|---|",
    ]
    for name in MODELS:
        mine = [r for r in results["runs"] if r["model"] == name]
        if not mine:
            continue
        cells = []
        for task, form in (("digit", "{:.4f} ± {:.4f}"), ("angle", "{:.2f} ± {:.2f}")):
            scores = torch.tensor([r["score"] for r in mine if r["task"] == task]).double()
            if len(scores) < 2:
                cells.append("")
                continue
            error = scores.std().item() / math.sqrt(len(scores))
            cells.append(form.format(scores.mean().item(), error))
        seconds = results["seconds"][name]
        count = next(r["parameters"] for r in mine if r["task"] == "digit")
        lines.append(f"| {name} | {count:,} | {cells[0]} | {cells[1]} | {seconds:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--tasks", nargs="*", default=["digit", "angle"])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only write the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.out
    empty = {"about": "", "seconds": {}, "runs": []}
    results = json.loads(file.read_text()) if file.exists() else empty
    if not options.table:
        results["about"] = describe()
        results["seconds"] = epochs_in_turn()
        done = {(r["model"], r["task"], r["seed"], r["epochs"]) for r in results["runs"]}
        for seed in options.seeds:
            for task in options.tasks:
                for name in options.models:
                    if (name, task, seed, options.epochs) in done:
                        continue
                    found = run(name, task, seed, options.epochs)
                    results["runs"].append(found)
                    part = file.with_name(f".{file.name}.{os.getpid()}")
                    part.write_text(json.dumps(results, indent=1))
                    os.replace(part, file)
                    print(json.dumps(found), flush=True)
    print(table(results))
    if options.table:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{table(results)}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
