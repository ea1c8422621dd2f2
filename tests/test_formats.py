"""Measures as data: devices and dtypes, arrays, flat and nested batches, files, data loaders."""

import copy
import pickle

import numpy as np
import pytest
import torch
from cases import measure
from formats import DTYPES, ragged, same_bits

import pushforward as pf

# Devices and dtypes


def test_shorthands_of_to():
    mu = ragged()
    for other, dtype in ((mu.half(), torch.float16), (mu.float(), torch.float32)):
        same_bits(other, mu.to(dtype))
        assert other.log_weights.dtype == torch.float32
    same_bits(mu.float().double(), mu.to(torch.float32).to(torch.float64))
    same_bits(mu.cpu(), mu)


@pytest.mark.parametrize(
    "given, device",
    [((), "cuda"), ((1,), torch.device("cuda", 1)), (("cuda:2",), "cuda:2")],
)
def test_cuda_goes_to_the_device(monkeypatch, given, device):
    asked = []
    monkeypatch.setattr(pf.Measure, "to", lambda self, where: asked.append(where) or self)
    measure().cuda(*given)
    assert asked == [device]


def test_pinning_pins_every_tensor(monkeypatch):
    """There is no GPU here to pin for: the calls are counted."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: pinned.append(t) or t.clone())
    mu = ragged()
    same_bits(mu.pin_memory(), mu)
    assert len(pinned) == 3
    from torch.utils.data._utils.pin_memory import pin_memory

    found, label = pin_memory((mu, torch.ones(3)))
    same_bits(found, mu)
    assert len(pinned) == 7


# Copies


@pytest.mark.parametrize("timed", [True, False], ids=["timed", "not timed"])
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_have_the_same_bits(again, timed):
    mu = ragged(timed)
    same_bits(again(mu), mu)
    same_bits(again(mu)[0], mu[0])


def test_a_deep_copy_shares_no_memory():
    mu = measure()
    other = copy.deepcopy(mu)
    other.atoms.zero_()
    assert mu.atoms.ne(0).any()
    assert copy.copy(mu).atoms is mu.atoms


def test_equality_is_identity():
    mu = measure()
    assert mu == mu and mu != copy.copy(mu)
    assert len({mu, copy.copy(mu)}) == 2


# Arrays and lists


def test_numpy_and_back():
    mu = ragged()
    back = mu.numpy()
    assert back._fields == ("atoms", "weights", "times")
    assert all(isinstance(part, np.ndarray) for part in back)
    assert pf.Measure(back.atoms, back.weights, times=back.times).allclose(mu, rtol=1e-14, atol=0)
    x = torch.randn(3, 2, requires_grad=True)
    assert np.array_equal(pf.Measure(x).numpy().atoms, x.detach().numpy())
    assert pf.Measure(x).numpy().times is None


def test_bfloat16_has_no_array():
    with pytest.raises(TypeError, match="mu.float"):
        measure().to(torch.bfloat16).numpy()
    assert measure().half().numpy().atoms.dtype == np.float16


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_keep_their_dtype(dtype):
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(dtype)
    mu = pf.Measure(x, np.array([1.0, 0.0, 2.0, 3.0]), times=np.arange(4))
    wanted = getattr(torch, dtype)
    assert mu.dtype == wanted and mu.times.dtype == torch.int64
    assert mu.log_weights.dtype == (torch.float32 if dtype == "float16" else wanted)
    assert mu.mass.item() == pytest.approx(6, rel=1e-6)
    same_bits(
        mu, pf.Measure(torch.as_tensor(x), torch.tensor([1, 0, 2, 3]), times=torch.arange(4))
    )


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_lists_have_the_default_dtype(default):
    torch.set_default_dtype(default)
    mu = pf.Measure([[0.0, 1.0], [2.0, 3.0]], [1, 3], times=[0.5, 1.0])
    assert mu.dtype == mu.times.dtype == default
    assert mu.weights.tolist() == pytest.approx([1, 3])
    tokens = pf.Measure.from_tokens([[0.0], [1.0], [9.0]], mask=[True, True, False])
    assert tokens.dtype == default and tokens.mean().item() == 0.5


def test_lists_of_weights_have_the_dtype_of_the_atoms():
    x = torch.zeros(2, 1, dtype=torch.float32)
    same_bits(pf.Measure(x, [0.5, 1.5]), pf.Measure(x, torch.tensor([0.5, 1.5]).float()))
    logs = [-700.0, -torch.inf]
    assert pf.Measure(x, log_weights=logs).log_weights.tolist() == logs


def test_an_array_shares_its_memory_if_it_can():
    x = np.zeros((3, 2))
    mu = pf.Measure(x)
    x[0, 0] = 5.0
    assert mu.atoms[0, 0] == 5.0
    x.flags.writeable = False
    assert torch.equal(pf.Measure(x).atoms, mu.atoms)
    assert pf.Measure(np.arange(3.0)[::-1, None]).atoms.flatten().tolist() == [2, 1, 0]


# Flat and nested batches


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("timed", [True, False], ids=["timed", "not timed"])
def test_flat_batches_and_back(dtype, timed):
    mu = ragged(timed, dtype)
    flat = mu.to_flat()
    assert len(flat.atoms) == 3 + 4 + 1 and flat.offsets.tolist() == [0, 3, 7, 8]
    assert flat.batch.tolist() == [0] * 3 + [1] * 4 + [2]
    for sets in ({"batch": flat.batch}, {"offsets": flat.offsets}, {"lengths": [3, 4, 1]}):
        back = pf.Measure.from_flat(flat.atoms, weights=flat.weights, times=flat.times, **sets)
        assert back.atoms.shape == (3, 4, 2) and back.dtype == dtype
        for a, b in zip(back, mu, strict=True):
            b = b.strip()
            assert torch.equal(a.atoms, b.atoms)
            assert torch.allclose(a.log_weights, b.log_weights)
            assert (a.times is None) if not timed else torch.equal(a.times, b.times)


def test_sets_may_be_mixed_up():
    x = torch.arange(6.0)[:, None]
    mu = pf.Measure.from_flat(x, batch=torch.tensor([2, 0, 1, 2, 0, 2]))
    assert [m.atoms.flatten().tolist() for m in mu] == [[1, 4], [2], [0, 3, 5]]
    assert torch.allclose(mu.mass, torch.ones(3))


def test_gradients_reach_the_flat_atoms_and_weights():
    x, a = torch.randn(5, 2), torch.rand(5) + 0.1
    batch = torch.tensor([1, 0, 1, 1, 0])

    def means(x, a):
        return pf.Measure.from_flat(x, batch=batch, weights=a).mean()

    assert torch.autograd.gradcheck(means, (x.requires_grad_(), a.requires_grad_()))


def test_padding_of_a_flat_batch_is_never_seen():
    """The last atom of a set, whose copies pad it, may have no mass and be NaN."""
    x = torch.tensor([[1.0], [torch.nan], [2.0], [3.0], [4.0]])
    mu = pf.Measure.from_flat(x, lengths=[2, 3], weights=torch.tensor([1.0, 0, 1, 1, 1]))
    assert mu.atoms.isfinite().all() and mu.mean().flatten().tolist() == [1.0, 3.0]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_and_back(layout):
    mu = ragged()
    parts = [m.strip() for m in mu]
    nested = lambda name: torch.nested.nested_tensor(
        [getattr(m, name) for m in parts], layout=layout
    )
    back = pf.Measure.from_nested(nested("atoms"), nested("weights"), nested("times"))
    assert back.allclose(mu, rtol=1e-14, atol=0)
    out = back.to_nested()
    for part, x, a, t in zip(parts, *(n.unbind() for n in out), strict=True):
        assert torch.equal(part.atoms, x) and torch.equal(part.times, t)
        assert torch.allclose(part.weights, a)
    uniform = pf.Measure.from_nested(nested("atoms"))
    assert uniform.times is None and torch.allclose(uniform.mass, torch.ones(3))


FLAT = {
    "an empty set": ({"batch": torch.tensor([0, 0, 2])}, "the first of which is set 1"),
    "an empty set, by lengths": ({"lengths": [3, 0]}, "Every set needs at least one atom"),
    "too long": ({"lengths": [3, 1]}, "sum to the number of atoms, 3, got 4"),
    "offsets without an end": ({"offsets": torch.tensor([0, 2])}, "from 0 to the number"),
    "a negative set": ({"batch": torch.tensor([0, -1, 0])}, "from 0, got -1"),
    "sets of other length": ({"batch": torch.tensor([0, 0])}, "The set of each atom"),
    "sets in floats": ({"batch": torch.ones(3)}, "vector of whole numbers, got torch.float"),
    "nothing": ({}, "got none"),
    "two at once": ({"lengths": [3], "offsets": [0, 3]}, "got `lengths` and `offsets`"),
    "weights of other length": ({"lengths": [3], "weights": [1.0]}, "`weights` must have shape"),
}


@pytest.mark.unhooked
@pytest.mark.parametrize("name", FLAT)
def test_messages_of_flat_batches(name):
    sets, words = FLAT[name]
    with pytest.raises(ValueError, match=words):
        pf.Measure.from_flat(torch.zeros(3, 1), **sets)


@pytest.mark.unhooked
def test_messages_of_other_formats():
    mu = measure()
    with pytest.raises(ValueError, match=r"Measure.stack\(\[mu\]\)"):
        mu.to_flat()
    with pytest.raises(ValueError, match="must be a nested tensor, got a plain one"):
        pf.Measure.from_nested(torch.zeros(2, 3, 1))
    nested = torch.nested.nested_tensor([torch.zeros(2, 1)], layout=torch.jagged)
    with pytest.raises(ValueError, match="one number per atom"):
        pf.Measure.from_nested(
            nested, torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged)
        )
    with pytest.raises(ValueError, match="all sets one after another"):
        pf.Measure.from_flat(torch.zeros(2, 3, 1), lengths=[3])
    with pytest.raises(ValueError, match=r"int64. Convert with `atoms.astype\(float\)`"):
        pf.Measure(np.zeros((2, 1), dtype=int))
    with pytest.raises(ValueError, match="a list of integers"):
        pf.Measure([[1], [2]])
    with pytest.raises(ValueError, match="unequal sizes"):
        pf.Measure([[[1.0]], [[1.0], [2.0]]])
    with pytest.raises(TypeError, match="torch.stack"):
        pf.Measure([torch.zeros(2), torch.zeros(2)])
    with pytest.raises(TypeError, match="array of"):
        pf.Measure(np.array([["a"]]))
    with pytest.raises(TypeError, match="`T` must return a floating-point tensor.*got ndarray"):
        mu.push(lambda x: x.numpy())
    with pytest.raises(TypeError, match="pf.collate"):
        pf.Measure.stack([(mu, 1), (mu, 0)])


# Closeness


def test_close_measures():
    mu = measure()
    p = torch.randperm(mu.n)
    permuted = pf.Measure(mu.atoms[p], log_weights=mu.log_weights[p], times=mu.times[p])
    for other in (mu, mu.split(3), permuted, pf.Measure.mixture([mu, mu])):
        assert mu.allclose(other, rtol=0, atol=0) and other.allclose(mu, rtol=0, atol=0)
    moved = mu.push(lambda x: x + 1e-7)
    assert mu.allclose(moved) and not mu.allclose(moved, rtol=1e-9)
    heavier = pf.Measure(mu.atoms, mu.weights * (1 + 1e-4), times=mu.times)
    assert not mu.allclose(heavier) and mu.allclose(heavier, rtol=1e-3)


def test_closeness_does_not_depend_on_the_order_of_rounded_points():
    """(0, 1) and (1e-12, 0) change places when sorted after rounding, and are matched anyway."""
    x = torch.tensor([[0.0, 1.0], [1e-12, 0.0]])
    y = torch.tensor([[1e-12, 1.0], [0.0, 0.0]])
    assert pf.Measure(x).allclose(pf.Measure(y))


def test_tiny_masses_are_not_all_close():
    """Masses are compared with the total mass, and not with 1."""
    logs = torch.full((1,), -600.0)
    a, b = (pf.Measure(torch.full((1, 1), v), log_weights=logs) for v in (0.0, 1.0))
    assert not a.allclose(b) and a.allclose(a.split(2))


def test_times_and_zero_masses_in_closeness():
    x = torch.zeros(2, 1)
    a, b = (pf.Measure(x, times=torch.tensor(t)) for t in ([0.0, 1.0], [0.0, 2.0]))
    assert a.allclose(a) and not a.allclose(b)
    dead = pf.Measure(torch.tensor([[0.0], [7.0]]), torch.tensor([1.0, 0.0]))
    assert dead.allclose(pf.Measure(x)) and dead.allclose(dead.strip())


def test_batches_are_close_if_all_their_measures_are():
    mu = ragged()
    assert mu.allclose(mu.split(2)) and mu.float().allclose(mu.float().split(3))
    twice = pf.Measure.stack([mu, mu])
    assert twice.allclose(twice.split(2))
    other = pf.Measure.stack([*list(mu)[:2], measure(1)])
    assert not mu.allclose(other)
    assert not mu.push(lambda x: x * torch.nan).allclose(mu)
    with pytest.raises(ValueError, match="batch shape"):
        mu.allclose(mu[:2])
