"""Models in files: the same bits again, and nothing in a file chooses what runs."""

import json
import struct
from pathlib import Path

import pytest
import torch

import pushforward as pf
from pushforward.maps.saving import KINDS

BLOCK = pf.Block(
    norm=pf.PostNorm(1e-3), affinity=pf.SquaredDistance(0.3), normaliser=pf.Sinkhorn(steps=3),
    dropout=0.2,
)  # fmt: skip
I = torch.eye(3)  # noqa: E741

SETS = {
    "transformer": pf.Transformer(2, depth=2, heads=2, width=6, out_dim=3, step=0.5, block=BLOCK),
    "universal": pf.Transformer.universal(2, 1, depth=1),
    "causal": pf.Transformer(2, depth=1, block=pf.Block(mask=pf.Causal())),
    "layers": pf.Compose(
        pf.Pointwise(torch.nn.LayerNorm(2)),
        pf.Residual(pf.Attention(2, heads=3, normaliser=pf.Softmax()), step=0.25),
        pf.MLP(2, 7, out_dim=4, activation=torch.nn.ReLU()),
    ),
    "slack": pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-4, slack=(1.0, float("inf")))),
    "field": pf.fields.SelfAttention(
        I[:2, :2], torch.nn.Parameter(2 * I[:2, :2]), I[:2, :2], manifold=pf.Torus(3.0)
    ),
    "linear": pf.fields.Linear(I[:2, :2], -I[:2, :2]),
    "oscillators": pf.fields.Kuramoto(2.0, frequencies=True),
    "flock": pf.fields.CuckerSmale(pf.fields.Decay(power=0.7, strength=3.0)),
}
"""In-context maps, each with something that is no default."""

VECTORS = {
    "classifier": torch.nn.Sequential(
        pf.Pool(SETS["transformer"], normalise=False, mass=True), torch.nn.Linear(4, 2, bias=False)
    ),
    "queries": pf.maps.AttentionPool(pf.Attention(2), queries=3, features=pf.Attention(2)),
}
"""Models with one output for a set."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*SETS, *VECTORS])
def test_a_saved_model_is_the_same_map_to_the_last_bit(name, dtype, tmp_path):
    model = {**SETS, **VECTORS}[name].to(dtype).eval()
    pf.maps.save(model, tmp_path / "model.safetensors")
    again = pf.maps.load(tmp_path / "model.safetensors")
    assert type(again) is type(model) and repr(again) == repr(model) and not again.training
    state, other = model.state_dict(), again.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(t, other[k]) and t.dtype == other[k].dtype for k, t in state.items())
    trained = lambda m: [n for n, p in m.named_parameters() if p.requires_grad]
    assert trained(again) == trained(model)
    times = torch.arange(5) if name == "causal" else None
    mu = pf.Measure(torch.randn(5, 2, dtype=dtype), torch.rand(5, dtype=dtype), times=times)
    out = (model(mu), again(mu)) if name in VECTORS else (model.push(mu), again.push(mu))
    assert torch.equal(*(getattr(o, "atoms", o) for o in out))


def test_a_description_beside_tensors_from_elsewhere(tmp_path):
    from safetensors.torch import save_file

    model = pf.Transformer(2, depth=1, block=BLOCK)
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"no model.json beside it"):
        pf.maps.load(tmp_path / "model.safetensors")
    about = {
        "class": "Transformer", "dim": 2, "depth": 1,
        "block": {"class": "Block", "norm": {"class": "PostNorm", "eps": 1e-3}, "dropout": 0.2,
                  "affinity": {"class": "SquaredDistance", "eps": 0.3},
                  "normaliser": {"class": "Sinkhorn", "steps": 3}},
    }  # fmt: skip
    (tmp_path / "model.json").write_text("\ufeff" + json.dumps(about), encoding="utf-8")
    again = pf.maps.load(tmp_path / "model.safetensors")
    assert repr(again) == repr(model.eval())
    (tmp_path / "model.json").write_text(json.dumps(about | {"heads": 2, "head_dim": 2}))
    with pytest.raises(ValueError, match="Transformer has no argument 'head_dim'. It has: dim,"):
        pf.maps.load(tmp_path / "model.safetensors")


def test_a_class_of_ones_own(tmp_path):
    @pf.maps.storable
    class Shifted(pf.InContextMap):
        def __init__(self, by: float, inner: pf.InContextMap) -> None:
            super().__init__()
            self.by, self.inner = by, inner

        def evaluate(self, mu, x):
            return self.inner(mu, x) + self.by

    try:
        model = Shifted(2.0, pf.Attention(2))
        pf.maps.save(model, tmp_path / "model.safetensors")
        assert pf.maps.load(tmp_path / "model.safetensors").by == 2.0
    finally:
        del KINDS["Shifted"]
    with pytest.raises(ValueError, match="must name one of the classes .* got 'Shifted'"):
        pf.maps.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "model,words",
    [
        (pf.Pointwise(torch.sin), "`f` of Pointwise is a function, which cannot be saved"),
        (torch.nn.GRU(2, 2), "the model is a nn.GRU, which cannot be saved without code"),
        (pf.Pool(torch.nn.Bilinear(1, 1, 1)), "`features` of Pool is a nn.Bilinear"),
    ],
    ids=["function", "module", "part"],
)
def test_what_cannot_be_saved_is_named_and_no_file_is_left(model, words, tmp_path):
    with pytest.raises(TypeError, match=words):
        pf.maps.save(model, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_transformer_that_was_changed_is_not_saved_as_what_it_was(tmp_path):
    model = pf.Transformer(2, depth=1)
    model.maps[1] = pf.Residual(pf.MLP(2, 8, activation=torch.nn.Tanh()))
    with pytest.raises(ValueError, match="changed after it was made.*pf.Compose"):
        pf.maps.save(model, tmp_path / "model.safetensors")
    pf.maps.save(pf.Compose(*model), tmp_path / "model.safetensors")
    assert "Tanh" in repr(pf.maps.load(tmp_path / "model.safetensors"))


def test_sizes_that_a_file_only_claims_take_no_memory(tmp_path):
    """A layer of 2^30 columns would take 4 GB; its tensor is missing, which is found first."""
    about = {"class": "nn.Linear", "in_features": 2**30, "out_features": 1, "bias": False}
    header = {
        "__metadata__": {"format": "pushforward model, version 1", "model": json.dumps(about)}
    }
    text = json.dumps(header).encode()
    file = Path(tmp_path / "model.safetensors")
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(ValueError, match="it has no tensor 'weight'"):
        pf.maps.load(file)
