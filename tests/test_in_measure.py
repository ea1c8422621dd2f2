"""Continuity in the measure: jumps along paths are found, steep maps are not taken for them."""

import math

import pytest
import torch

import pushforward as pf
from pushforward.representation import MapBox, Verdict, zoo
from pushforward.representation.continuity import Outcome, Region, continuity_in_measure
from pushforward.representation.continuity._paths import Mixture, Motion

pytestmark = pytest.mark.unhooked


def law(n, g):
    return pf.Measure(2 * torch.rand(n, 2, generator=g) - 1)


def shift(value):
    """The map that adds a function of points and weights to every point."""
    return lambda mu: mu.moved(mu.atoms + value(mu.atoms, mu.normalise().weights))


def kernel_mean(score):
    """Attention with any score, on log-weights."""
    return lambda mu: mu.moved(
        mu.atoms + (score(mu.atoms) + mu.log_weights).softmax(-1) @ mu.atoms
    )


def attention(scale):
    return kernel_mean(lambda x: scale * (x @ x.mT))


def pairwise(x):
    return (x[:, None] - x[None]).norm(dim=-1)


def determinant(x, w):
    centred = x - w @ x
    return torch.linalg.det((w[:, None] * centred).mT @ centred)


def standardised(eps):
    def z_score(x, w):
        centred = x - w @ x
        deviation = (w @ centred.square() + eps).sqrt()
        return centred / torch.where(deviation > 0, deviation, 1) - x

    return shift(z_score)


def slow(m):
    """A modulus of continuity of 1 / log(1 / h) at 0."""
    return m.sign() / (1 - m.abs().clamp(1e-300, 1).log())


def near_mean(x, w):
    near = w * (pairwise(x) < 0.3)
    return near @ x / near.sum(-1)[:, None] - x


CONTINUOUS = {
    "attention, scale 1": attention(1),
    "attention, scale 100": attention(100),
    "attention, scale 1e4": attention(1e4),
    "four layers of scale 300": zoo.stack(2, 4, 300.0).push,
    "Vlasov flow": zoo.vlasov(2).push,
    "tanh(1e6 x)": zoo.steep,
    "counterexample": zoo.counterexample,
    "tanh(1e10 mean)": shift(lambda x, w: (1e10 * (w @ x)).tanh()),
    "half-space of slope 1e9": shift(lambda x, w: w @ (1e9 * x[:, :1]).tanh()),
    "z-score, eps 1e-12": standardised(1e-12),
    "root of the mean": shift(lambda x, w: (w @ x).abs().sqrt()),
    "kernel mean, width 1e-2": kernel_mean(lambda x: -5e3 * pairwise(x) ** 2),
}

JUMPS = {
    "max pooling": zoo.max_pooling,
    "min-max scaling": zoo.min_max_scaling,
    "median": zoo.median_centring,
    "sign of the mean": zoo.sign_of_mean,
    "threshold on a determinant": shift(lambda x, w: (determinant(x, w) > 0.02).double()),
    "atom nearest the mean": shift(lambda x, w: x[(x - w @ x).norm(dim=-1).argmin()]),
    "local mean": shift(near_mean),
    "number of atoms": shift(lambda x, w: 1 / len(x.unique(dim=0))),
    "heaviest atom": zoo.heaviest_atom,
    "diameter": shift(lambda x, w: pairwise(x).max()),
    "z-score": standardised(0),
    "masked mean": zoo.masked_pooling,
    "half-space": zoo.half_space_mass,
    "hard maximum": shift(lambda x, w: x[(x @ x.mT).argmax(-1)]),
}

UNRESOLVED = {
    "1/log(1/|mean|)": shift(lambda x, w: slow(w @ x)),
    "tanh(1e13 mean)": shift(lambda x, w: (1e13 * (w @ x)).tanh()),
}

EXPECTED = {
    Outcome.NOT_REFUTED: CONTINUOUS, Outcome.JUMPS: JUMPS, Outcome.UNRESOLVED: UNRESOLVED,
}  # fmt: skip

CASES = [
    pytest.param(f, outcome, id=name) for outcome, maps in EXPECTED.items()
    for name, f in maps.items()
]  # fmt: skip


@torch.no_grad()
def examine(f, size=6, seed=0, law=law, manifold=None):
    generator = torch.Generator().manual_seed(seed)
    points = torch.cat([law(size, generator).atoms for _ in range(8)])
    box = MapBox(f, law(size, generator))
    region = Region.around(points, box.manifold)
    return continuity_in_measure(box.pushes, law, size, region, generator)


@pytest.mark.parametrize("f,outcome", CASES)
def test_jumps_and_steep_maps_are_told_apart(f, outcome):
    found = examine(f)
    assert found.outcome is outcome, found
    assert (found.pair is not None) == (outcome is Outcome.JUMPS)
    if found.pair is not None:  # the two measures show it again
        mu, nu = found.pair
        assert float(pf.wasserstein(*(MapBox(f).push(m) for m in (mu, nu)))) > 0.01


@pytest.mark.exhaustive
@pytest.mark.parametrize("f,outcome", CASES)
def test_jumps_and_steep_maps_over_20_seeds(f, outcome):
    for size in (6, 30):
        assert {examine(f, size, seed).outcome for seed in range(20)} == {outcome}


@pytest.mark.parametrize("slope", [0.0, 1.0, 40.0])
def test_the_largest_quotient_is_a_sharp_lower_bound(slope):
    """x + c mean(mu) has the Lipschitz constant 1 + c, which a motion of all atoms attains."""
    found = examine(shift(lambda x, w: slope * (w @ x)))
    assert found.outcome is Outcome.NOT_REFUTED
    assert 0.9 * (1 + slope) < 10**found.log_quotient <= (1 + slope) * (1 + 1e-9)


def test_maps_on_manifolds_are_examined_there():
    """Flows on the sphere and of angles; a jump of the path itself is none of the map."""
    on_sphere = lambda n, g: law3(n, g).push(pf.Sphere().retract)
    law3 = lambda n, g: pf.Measure(torch.randn(n, 3, generator=g))
    field = pf.fields.SelfAttention(*(torch.eye(3),) * 3, manifold=pf.Sphere())
    turn = pf.Flow(field, t1=0.5, solver=pf.Euler(steps=5))
    assert examine(turn, law=on_sphere).outcome is Outcome.NOT_REFUTED
    angles = lambda n, g: pf.Measure(2 * math.pi * torch.rand(n, 1, generator=g))
    oscillators = pf.Flow(pf.fields.Kuramoto(1.0), t1=0.5, solver=pf.Euler(steps=5))
    assert examine(oscillators, law=angles).outcome is Outcome.NOT_REFUTED


def test_distances_along_paths():
    """W1 of two mixtures is the mass that changes places times W1 of the ends; in logarithms."""
    mu, nu = law(4, torch.Generator()), law(3, torch.Generator().manual_seed(1))
    path = Mixture(mu, nu)
    for s, t in ((-1.0, 0.5), (-12.0, -11.0), (3.0, 3.001)):
        exact = float(pf.wasserstein(path.at(s), path.at(t)))
        assert path.log_distance(s, t) == pytest.approx(math.log(exact), abs=1e-6)
    length = float(pf.wasserstein(mu, nu))
    deep = path.log_distance(-690.0, -689.0)
    assert deep == pytest.approx(-690 + math.log(math.expm1(1) * length), abs=1e-9)
    region = Region.around(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    motion = Motion(mu, mu.atoms + torch.tensor([0.3, 0.4]), region)
    assert motion.log_distance(0.25, 0.75) == pytest.approx(math.log(0.25))


# The verdict of `characterise`


def test_a_jump_is_the_verdict_with_its_witness():
    report = pf.characterise(zoo.max_pooling, law, size=6)
    assert report.verdict is Verdict.JUMPS and report.refuted
    assert report.witness.replay(zoo.max_pooling) > 0.1
    assert "jumps, or is steeper than" in str(report) and "moves the image by" in str(report)


def test_float32_cannot_tell():
    narrow = lambda n, g: law(n, g).to(torch.float32)
    report = pf.characterise(zoo.sign_of_mean, narrow, size=6)
    assert report.in_measure.outcome is Outcome.NOT_TRIED and not report.refuted
    assert "float32 cannot tell" in str(report)


def test_a_modulus_slower_than_any_power_is_not_refuted():
    """A jump keeps its gap over the decades, 1/log(1/h) loses more than half of it."""
    report = pf.characterise(lambda mu: mu.moved(slow(mu.atoms)), law, size=6)
    assert report.verdict is Verdict.UNKNOWN and "slower than any power" in str(report)
    assert report.continuity.slow and 0.2 < report.continuity.kept < 0.6
    step = lambda mu: mu.moved(mu.atoms + (mu.atoms[..., :1] > 0.1).double())
    assert pf.characterise(step, law, size=6).refuted


@pytest.mark.parametrize("value", ["mean", "median"])
def test_maps_that_ignore_weights_are_no_measure_maps(value):
    def middle(mu):
        points = mu.atoms
        centre = points.mean(-2, keepdim=True)
        if value == "median":
            centre = points.median(-2, keepdim=True).values
        return mu.moved(points + centre)

    for seed in range(4):
        report = pf.characterise(middle, law, size=6, seed=seed)
        assert (
            report.verdict is Verdict.NOT_A_MEASURE_MAP
            and "unequal" in str(report)
            or ("random weights" in str(report) or "halves" in str(report))
        )


def split(mu, distance):
    """Every atom in two halves, at a distance from each other; equal halves are one atom."""
    step = torch.zeros_like(mu.atoms)
    step[..., 0] = distance
    halves = mu.log_weights - math.log(2)
    atoms = torch.cat([mu.atoms - step, mu.atoms + step], -2)
    return pf.Measure.unchecked(atoms, torch.cat([halves, halves], -1))


def splits_heavy_atoms(mu):
    """Atoms near which there is more than 0.4 of the mass."""
    near = (1 - 5 * torch.cdist(mu.atoms, mu.atoms)).clamp_min(0)
    mass = (near @ mu.normalise().weights[..., None])[..., 0]
    return split(mu, (mass - 0.4).clamp_min(0))


def splits_in_a_corner(mu):
    return split(mu, (mu.atoms - 0.5).amin(-1).clamp_min(0))


@pytest.mark.parametrize("f", [splits_heavy_atoms, splits_in_a_corner])
def test_atoms_that_are_split_only_where_they_are_heavy_or_in_a_corner(f):
    """No draw has such atoms: weights are equal, and the corner of the box is empty."""

    def inner(n, g):
        x = 2 * torch.rand(n, 2, generator=g) - 1
        return pf.Measure(torch.where((x > 0.5).all(-1, keepdim=True), -x, x))

    for seed in range(4):
        assert pf.characterise(f, inner, size=12, seed=seed).verdict is Verdict.SPLITS_ATOMS
