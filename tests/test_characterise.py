"""The zoo: its closed forms, and the verdict of every map."""

import math
import re
from pathlib import Path

import pytest
import torch

import pushforward as pf
from pushforward.representation import Verdict, zoo

pytestmark = pytest.mark.unhooked


def law(d=2):
    return lambda n, g: pf.Measure(2 * torch.rand(n, d, generator=g) - 1)


# Closed forms


def test_alice_and_elise_need_three_tokens():
    with pytest.raises(ValueError, match="`n` must be at least 3"):
        zoo.alice_elise(2)


# Verdicts


class Counter:
    """Keeps state between calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, mu):
        self.calls += 1
        return mu.push(lambda x: x + 1e-3 * self.calls)


def failing(mu):
    raise RuntimeError("no such head")


@pytest.mark.parametrize(
    "f,said",
    [
        (failing, "it raised RuntimeError: no such head"),
        (lambda mu: mu.moved(mu.atoms * math.nan), "returned NaN or infinity"),
        (lambda mu: mu.atoms, "returned Tensor, not a Measure"),
        (lambda mu: mu.push(lambda x: x + torch.randn_like(x)), "it is random"),
        (Counter(), "it keeps state: a second call"),
        (lambda mu: mu.moved(mu.atoms[:, : 1 + int(mu.atoms[0, 0] > 0)]), "dimension of its im"),
        (lambda mu: pf.Measure.stack([mu, mu]), "a batch of measures"),
    ],
    ids=["raises", "nan", "tensor", "random", "state", "dimension", "batch"],
)
def test_maps_that_are_none(f, said):
    report = pf.characterise(f, law(), size=6)
    assert report.verdict is Verdict.UNKNOWN and said in report.reason
    assert not report.refuted and str(report) == f"could not be characterised: {report.reason}"


def test_maps_that_fail_later():
    """On measures that are no draws: small parts of the cloud."""
    for late in (lambda mu: None, lambda mu: mu.moved(mu.atoms[..., :1])):
        f = lambda mu, late=late: mu if mu.n >= 6 else late(mu)
        report = pf.characterise(f, law(), size=6)
        assert report.verdict is Verdict.UNKNOWN and report.reason, report.verdict


def test_witnesses_replay():
    """What they show is seen again, and not on a map that is good."""
    good = zoo.attention(2)
    for f in (zoo.smooth_counterexample, zoo.top_k, zoo.splitting):
        report = pf.characterise(f, law(), size=6)
        assert report.refuted and "because" in str(report)
        assert report.witness.replay(f) > 1e-6
        assert report.witness.replay(good) < 1e-3 * report.witness.replay(f)


def test_a_certified_bound_overrules_the_search():
    """A slope of 1e11 looks like a jump; its formula says otherwise."""
    cliff = pf.Compose(
        pf.Pointwise(torch.nn.Linear(2, 2)), pf.Pointwise(torch.tanh, dim=2)
    )  # fmt: skip
    with torch.no_grad():
        cliff.maps[0].f.weight.copy_(1e13 * torch.eye(2))
        cliff.maps[0].f.bias.zero_()
    assert pf.characterise(cliff.push, law(), size=6).verdict == Verdict.NOT_CONTINUOUS
    report = pf.characterise(cliff, law(), size=6)
    assert report.verdict == Verdict.IN_CONTEXT and 1e13 <= report.lipschitz.upper < 1.1e13


def test_constants_lie_between_their_bounds():
    for f in (zoo.mlp(2), zoo.vlasov(2), zoo.attention(2)):
        constant = pf.characterise(f, law(), size=6).lipschitz
        assert 0 < constant.lower <= constant.upper < math.inf


def test_the_same_seed_says_the_same():
    a, b = (pf.characterise(zoo.counterexample, law(), size=5, seed=3) for _ in range(2))
    assert str(a) == str(b) and torch.equal(a.witness.x, b.witness.x)
    c = pf.characterise(zoo.counterexample, law(), size=5, seed=4)
    assert not torch.equal(a.witness.x, c.witness.x)


def test_float32_maps():
    """The same verdicts where float32 can tell; maps of this library are tested in float64."""
    narrow = lambda n, g: pf.Measure((2 * torch.rand(n, 2, generator=g) - 1).float())
    assert pf.characterise(zoo.attention(2).float(), narrow, size=6).verdict == Verdict.IN_CONTEXT
    assert pf.characterise(zoo.bayes, narrow, size=6).verdict == Verdict.SPLITS_ATOMS
    found = pf.characterise(zoo.masked_pooling, narrow, size=6)
    assert "float32 cannot distinguish" in found.reason and not found.refuted
    steep = zoo.attention(2, 30.0).float()
    wide = lambda n, g: pf.Measure(10 * torch.randn(n, 2, generator=g).float())
    for seed in range(3):
        assert pf.characterise(steep, wide, seed=seed).verdict == Verdict.IN_CONTEXT


def test_witnesses_are_replayed_as_they_were_seen():
    """In float64 for a map of float32, with angles on a circle."""

    class Torn(pf.InContextMap):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Parameter(torch.ones(1, dtype=torch.float32))

        def evaluate(self, mu, x):
            return x + self.one * (x > 0)

    narrow = lambda n, g: pf.Measure((2 * torch.rand(n, 2, generator=g) - 1).float())
    found = pf.characterise(Torn(), narrow, size=6)
    assert found.verdict == Verdict.JUMPS
    assert found.witness.replay(Torn()) == pytest.approx(1, rel=0.5)


def test_maps_on_a_part_of_space():
    """On a sphere, on a torus, on positive numbers: the search stays where the points are."""
    eye = torch.eye(3)
    sphere = pf.fields.SelfAttention(2 * eye, eye, eye, manifold=pf.Sphere())
    on_it = lambda n, g: pf.Measure(torch.randn(n, 3, generator=g)).push(pf.Sphere().retract)
    flow = pf.Flow(sphere, t1=0.5, solver=pf.Euler(steps=2))
    assert pf.characterise(flow, on_it, size=8).verdict == Verdict.IN_CONTEXT
    turning = pf.Flow(pf.fields.Kuramoto(1.0), t1=1.0, solver=pf.Euler(steps=4))
    angles = lambda n, g: pf.Measure(6.28 * torch.rand(n, 1, generator=g))
    assert pf.characterise(turning, angles, size=8).verdict == Verdict.IN_CONTEXT

    def logarithm(mu):
        assert (mu.atoms > 0).all()
        return mu.moved(mu.atoms.log())

    positive = lambda n, g: pf.Measure(0.1 + torch.rand(n, 2, generator=g))
    assert pf.characterise(logarithm, positive, size=8).verdict == Verdict.IN_CONTEXT


def test_black_boxes_that_take_one_measure_at_a_time():
    def single(mu):
        assert not mu.batch_shape
        return zoo.counterexample(mu.detach())

    assert pf.characterise(single, law(), size=4).verdict == Verdict.NOT_CONTINUOUS


@pytest.mark.parametrize("size,offset", [(3.0, 0.0), (1e3, 0.0), (1.0, 1e4), (1e-3, 0.0)])
def test_honest_maps_at_any_scale_and_place(size, offset):
    """Centring and mean shift, on wide boxes and far from the origin."""

    def centred(mu):
        assert not mu.log_weights.isnan().any()
        return mu.push(lambda x: x - mu.normalise().mean()[..., None, :])

    where = lambda n, g: pf.Measure(size * (2 * torch.rand(n, 2, generator=g) - 1) + offset)
    report = pf.characterise(centred, where, size=6)
    assert report.verdict == Verdict.IN_CONTEXT and abs(report.continuity.exponent) < 0.1
    assert report.lipschitz.lower < 2.001


def test_slopes_that_stop_growing():
    """K grows with small masses and then stops at 1e7: steep, not torn."""

    def near(mu):
        w = mu.normalise().weights

        def G(x):
            square = (x[..., :, None, :] - mu.atoms[..., None, :, :]).square().sum(-1)
            mass = ((-50 * square).exp() * w[..., None, :]).sum(-1, keepdim=True)
            return (1e7 * x / (1 + 1e8 * mass)).tanh()

        return mu.push(G)

    assert pf.characterise(near, law(1), size=6).verdict == Verdict.IN_CONTEXT


def test_one_point_and_spheres():
    still = lambda n, g: pf.Measure(torch.tensor([[0.3, 0.4]]))
    assert "one point" in pf.characterise(zoo.root, still).reason
    one = torch.eye(3)
    field = pf.fields.SelfAttention(one, one, one, manifold=pf.Sphere())
    assert (
        pf.characterise(field, law(3), size=6).verdict == Verdict.NOT_CONTINUOUS
    )  # at the origin


def test_wrong_laws_are_said():
    with pytest.raises(TypeError, match="must return a Measure"):
        pf.characterise(zoo.bayes, lambda n, g: torch.rand(3, 2))
    with pytest.raises(TypeError, match=r"must take a number of atoms and a generator"):
        pf.characterise(zoo.bayes, lambda g: pf.Measure(torch.rand(3, 2)))
    dims = iter((2, 3))
    with pytest.raises(ValueError, match="of one dimension"):
        pf.characterise(zoo.bayes, lambda n, g: pf.Measure(torch.rand(3, next(dims))))
    with pytest.raises(ValueError, match="single measures"):
        pf.characterise(zoo.bayes, lambda n, g: pf.Measure(torch.rand(2, 3, 2)))
    with pytest.raises(TypeError, match="must be a function of a Measure to a Measure"):
        pf.characterise("model", law())


def verdicts(n, seeds):
    wrong = []
    for seed in seeds:
        for s in zoo.specimens(2, seed):
            report = pf.characterise(s.f, law(), size=n, seed=seed)
            if report.verdict != s.verdict:
                wrong.append((seed, s.name, str(report)))
    return wrong


@pytest.mark.parametrize("n", [6, 30])
def test_the_zoo_gets_its_verdicts(n):
    assert not verdicts(n, range(1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [6, 30])
def test_the_zoo_gets_its_verdicts_with_every_seed(n):
    assert not verdicts(n, range(20))


def test_the_page_of_the_zoo_is_the_zoo():
    page = (Path(__file__).parents[1] / "docs" / "zoo.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ", page, re.M)[1:]
    assert rows == [(s.name, str(s.verdict)) for s in zoo.specimens()]


def test_wrong_arguments_are_said():
    with pytest.raises(TypeError, match="law"):
        pf.characterise(zoo.bayes, torch.zeros(3, 2))
    with pytest.raises(ValueError, match="seed"):
        pf.characterise(zoo.bayes, law(), seed="x")
    with pytest.raises(ValueError, match="size"):
        pf.characterise(zoo.bayes, law(), size=0)
