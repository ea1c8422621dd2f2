"""Measures in files, and in the batches of data loaders."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from cases import measure
from formats import DTYPES, ragged, same_bits
from torch.utils.data import DataLoader

import pushforward as pf

# Files


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("timed", [True, False], ids=["timed", "not timed"])
def test_files_keep_every_bit(tmp_path, dtype, timed):
    mu, file = ragged(timed, dtype), tmp_path / "mu.safetensors"
    mu.atoms.requires_grad_()
    mu.save(file)
    same_bits(pf.Measure.load(file), mu.detach())
    mu[1].save(str(file))
    same_bits(pf.Measure.load(str(file)), mu[1].detach())
    assert [f.name for f in tmp_path.iterdir()] == ["mu.safetensors"]


def test_integer_times_and_tiny_weights_are_kept(tmp_path):
    logs = torch.tensor([-700.0, -torch.inf])
    mu = pf.Measure(torch.randn(2, 3).mT.mT, log_weights=logs, times=torch.tensor([3, 1]))
    mu.save(tmp_path / "mu")
    same_bits(pf.Measure.load(tmp_path / "mu"), mu)


def test_damaged_and_foreign_files(tmp_path):
    from safetensors.torch import save_file

    file = tmp_path / "mu.safetensors"
    measure().save(file)
    whole = file.read_bytes()
    for part in (b"", whole[:5], whole[:-3], b"\xff" * 100, b"plain text, nothing else"):
        file.write_bytes(part)
        with pytest.raises(ValueError, match="damaged or no safetensors file"):
            pf.Measure.load(file)
    save_file({"x": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match=r"got None and the tensors \['x'\]"):
        pf.Measure.load(file)
    say = {"format": "pushforward measure, version 1"}
    for tensors in (
        {"atoms": torch.zeros(2, 1)},
        {"atoms": torch.zeros(2, 1), "log_weights": torch.zeros(3)},
        {"atoms": torch.zeros(2, 1).half(), "log_weights": torch.zeros(2).half()},
        {"atoms": torch.zeros(2, 1).long(), "log_weights": torch.zeros(2)},
    ):
        save_file(tensors, file, say)
        with pytest.raises(ValueError, match="is damaged: expected"):
            pf.Measure.load(file)
    with pytest.raises(FileNotFoundError):
        pf.Measure.load(tmp_path / "nothing")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    import safetensors.torch

    file, mu = tmp_path / "mu", measure()
    mu.save(file)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        measure().save(file)
    same_bits(pf.Measure.load(file), mu)


# Data loaders


class Pairs(torch.utils.data.Dataset):
    """Measures of several sizes with their labels."""

    def __init__(self, timed=True):
        generator = torch.Generator().manual_seed(3)
        sizes = [3, 5, 1, 2]
        self.measures = [
            pf.Measure(
                torch.randn(n, 2, generator=generator), times=torch.arange(n) if timed else None
            )
            for n in sizes
        ]

    def __len__(self):
        return len(self.measures)

    def __getitem__(self, index):
        return self.measures[index], index


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_collate_pairs(workers):
    data = Pairs()
    loader = DataLoader(data, batch_size=2, collate_fn=pf.collate, num_workers=workers)
    seen = [(m, int(y)) for mu, labels in loader for m, y in zip(mu, labels, strict=True)]
    assert [y for _, y in seen] == [0, 1, 2, 3]
    for found, y in seen:
        same_bits(found, data.measures[y])


def test_collate_goes_through_containers():
    a, b = measure(3), measure(2)
    Named = namedtuple("Named", "mu y")
    samples = [
        {"pair": (m, m.push(torch.sin)), "named": Named(m, 1.5), "list": [m, "word"], "y": k}
        for k, m in enumerate((a, b))
    ]
    found = pf.collate(samples)
    batch = pf.Measure.stack([a, b])
    same_bits(found["pair"][0], batch)
    same_bits(found["pair"][1], pf.Measure.stack([a.push(torch.sin), b.push(torch.sin)]))
    assert isinstance(found["named"], Named) and found["named"].y.tolist() == [1.5, 1.5]
    assert isinstance(found["list"], list) and found["list"][1] == ["word", "word"]
    assert found["y"].tolist() == [0, 1]
    ordered = pf.collate([OrderedDict(mu=a), OrderedDict(mu=b)])
    assert isinstance(ordered, OrderedDict)
    same_bits(pf.collate([batch, batch]), pf.Measure.stack([batch, batch]))


def test_collate_of_samples_without_measures_is_that_of_pytorch():
    samples = [{"x": torch.ones(2), "n": 1}, {"x": torch.zeros(2), "n": 2}]
    ours, theirs = pf.collate(samples), torch.utils.data.default_collate(samples)
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_samples_must_be_alike():
    mu = measure()
    with pytest.raises(ValueError, match="sample 0 is a tuple of 2, sample 1 a tuple of 1"):
        pf.collate([(mu, 1), (mu,)])
    with pytest.raises(
        ValueError, match=r"keys \['mu', 'y'\], sample 1 a dict with keys \['mu'\]"
    ):
        pf.collate([{"mu": mu, "y": 1}, {"mu": mu}])
    with pytest.raises(ValueError, match="at least one sample"):
        pf.collate([])
