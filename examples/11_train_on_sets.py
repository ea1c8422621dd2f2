"""Train a classifier and a regressor of weighted sets: which digit, and how far it was turned.

The digits of scikit-learn are images of 8 x 8 pixels. Here each is a measure: the atoms are the
pixels with ink, and the weight of an atom is its ink. The classifier says which digit it is. The
regressor sees digits turned by up to 45 degrees either way, and says by how much. All of it takes
about a minute.
"""

import math
import sys
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

import pushforward as pf

TRAIN = 1347  # of 1797 digits
WIDTH, BATCH, RATE = 32, 16, 5e-3


def clouds(seed):
    """Every digit as a measure with its label, in an order drawn with the seed."""
    images, labels = load_digits(return_X_y=True)
    ink = torch.tensor(images, dtype=torch.float32).reshape(-1, 8, 8) / 16
    place = torch.linspace(-1, 1, 8)
    order = torch.randperm(len(ink), generator=torch.Generator().manual_seed(seed))
    sets = []
    for k in order.tolist():
        row, column = ink[k].nonzero(as_tuple=True)
        weight = ink[k, row, column]
        # The ink is the weight, and a coordinate too: a layer then sees how dark a pixel is.
        atoms = torch.stack([place[column], -place[row], 2 * weight - 1], -1)
        sets.append((pf.Measure(atoms, weight), int(labels[k])))
    return sets


def turned(sets, seed):
    """The same measures turned by random angles, with the angle (of 45 degrees) as the target."""
    angles = 2 * torch.rand(len(sets), generator=torch.Generator().manual_seed(seed)) - 1
    pairs = []
    for (mu, _), part in zip(sets, angles.tolist(), strict=True):
        c, s = math.cos(part * math.pi / 4), math.sin(part * math.pi / 4)
        turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        pairs.append((mu.push(lambda x, turn=turn: x @ turn.T), torch.tensor(part)))
    return pairs


def model(outputs, pooling="mean"):
    """A transformer on measures, one vector for each set, and a linear read-out."""
    block = pf.Block(norm=pf.PreNorm())
    sizes = {"depth": 2, "heads": 4, "width": WIDTH, "hidden": 2 * WIDTH, "out_dim": WIDTH}
    encoder = pf.Transformer(3, **sizes, block=block)
    if pooling == "attention":
        query = pf.Attention(WIDTH, heads=4)
        pool = pf.maps.AttentionPool(query, queries=1, features=encoder)
        return nn.Sequential(pool, nn.Linear(WIDTH, outputs))
    return nn.Sequential(pf.Pool(encoder), nn.Linear(WIDTH, outputs))


def train(network, sets, loss, epochs, seed, what="training", collate=pf.collate):
    """Fit a network by AdamW, with one cycle of the learning rate."""
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(sets, BATCH, shuffle=True, generator=order, collate_fn=collate)
    optimiser = torch.optim.AdamW(network.parameters(), RATE)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, steps)
    for _ in track(range(epochs), description=what):
        for mu, target in loader:
            value = loss(network(mu), target)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()


@torch.no_grad()
def outputs_and_targets(network, sets, collate=pf.collate):
    """What a network says of sets, and what is right."""
    network.eval()
    loader = DataLoader(sets, 150, collate_fn=collate)
    pairs = [(network(mu), target) for mu, target in loader]
    network.train()
    return tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))


def angle_loss(output, target):
    return nn.functional.smooth_l1_loss(output[:, 0], target)


def main():
    small = "--small" in sys.argv
    epochs, count = (1, 128) if small else (16, TRAIN)
    sets = clouds(seed=0)
    Path("out").mkdir(exist_ok=True)

    for pooling in ("mean", "attention"):
        torch.manual_seed(0)
        network = model(10, pooling)
        fitting = f"classifier, {pooling} pooling"
        train(network, sets[:count], nn.functional.cross_entropy, epochs, 0, fitting)
        logits, label = outputs_and_targets(network, sets[TRAIN:])
        right = (logits.argmax(-1) == label).float().mean()
        print(f"{fitting}: {right:.3f} right")

    save_file(network.state_dict(), "out/digits.safetensors")
    again = model(10, "attention")
    again.load_state_dict(load_file("out/digits.safetensors"))
    same, _ = outputs_and_targets(again, sets[TRAIN:])
    print(f"saved and loaded: the same outputs, {torch.equal(same, logits)}")

    torch.manual_seed(0)
    network, pairs = model(1), turned(sets, seed=1)
    train(network, pairs[:count], angle_loss, epochs, 0, "regressor of angles")
    angle, truth = outputs_and_targets(network, pairs[TRAIN:])
    error = 45 * (angle[:, 0] - truth).abs().mean()
    print(f"regressor: wrong by {error:.1f} degrees in the mean; saying 0 would be by 22.5")


if __name__ == "__main__":
    main()
