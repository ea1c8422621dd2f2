"""The attack on the supremum: known largest errors are found, and nothing is made up."""

import json
import math

import pytest
import torch

import pushforward as pf
from pushforward.fitting import (
    Adversary,
    Attack,
    Box,
    Mixtures,
    Simulation,
    attack,
    evaluate,
    report,
)
from pushforward.fitting.judging import _attack

LAW = Mixtures(2)
ONCE = Attack(sizes=(2, 8), starts=8, steps=120, seeds=1)
SHORT = Attack(sizes=(2, 8), starts=4, steps=2, seeds=1)
SHIFT = pf.Pointwise(lambda x: x + 1)
PLACE = torch.tensor([1.5, -1.0], dtype=torch.float64)


class Bump(pf.InContextMap):
    """The shift by one, off by at most `height`, where the mean is at `PLACE`."""

    def __init__(self, height=0.3, sharpness=1.0):
        super().__init__()
        self.height, self.sharpness = height, sharpness

    def evaluate(self, mu, x):
        far = (mu.mean() - PLACE.to(x)).square().sum(-1)[..., None]
        error = self.height * torch.exp(-self.sharpness * far)
        return x + 1 + torch.stack([error, torch.zeros_like(error)], -1)


class Rare(pf.InContextMap):
    """The shift by one, off by up to 0.68 where 97 % of the mass is near the corner (2.5, 2.5)."""

    def evaluate(self, mu, x):
        near = mu.normalise().integrate(lambda y: torch.exp(-8 * (y - 2.5).square().sum(-1)))
        error = torch.sigmoid(25 * (near - 0.97))[..., None]
        return x + 1 + torch.stack([error, torch.zeros_like(error)], -1)


class Broken(pf.InContextMap):
    """The shift by one; not a number where the mean is right of 1."""

    def evaluate(self, mu, x):
        return x + 1 + 0 * (1 - mu.mean()[..., None, :1]).sqrt()


class ToOnePoint(torch.nn.Module):
    """All mass goes to a point, whatever the measure is."""

    def forward(self, mu):
        return pf.Measure(torch.ones(*mu.batch_shape, 1, 2))


@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_the_largest_error_is_found_and_not_exceeded(sharpness):
    found = attack(Bump(0.3, sharpness), SHIFT, LAW, ONCE)
    for row in found.rows:
        assert 0.99 * 0.3 <= row.found * found.displacement <= 0.3 + 1e-12
        assert row.start <= row.found and row.median <= row.found
        assert torch.allclose(row.measure.mean(), PLACE, atol=0.04)
    assert found.displacement == pytest.approx(2**0.5)


def test_the_found_measure_has_the_reported_error():
    found = attack(Bump(), SHIFT, LAW, SHORT)
    for row in found.rows:
        mu = row.measure
        gap = (Bump().push(mu).atoms - SHIFT.push(mu).atoms).norm(dim=-1)
        assert mu.integrate(gap).item() / found.displacement == pytest.approx(row.found)


def test_no_error_where_model_and_target_agree():
    target = pf.Flow(pf.fields.CuckerSmale(), t1=1.0, solver=pf.RK4(2))
    found = attack(target, target, LAW, Attack((3,), starts=4, steps=3, seeds=1, doubled=True))
    assert found.worst == found.rows[0].median == found.rows[0].gain == 0
    assert found.settled


def test_a_rare_error_is_found_that_random_draws_miss():
    scores = evaluate(Rare(), SHIFT, LAW, sizes=[2, 16], measures=200)
    assert max(row.worst for row in scores.rows) < 1e-3
    found = attack(Rare(), SHIFT, LAW, Attack(sizes=(2,), seeds=1))
    largest = 1 / (1 + math.exp(-25 * 0.03))
    assert 0.99 * largest < found.worst * found.displacement <= largest + 1e-12
    assert (found.measures[0].mean() > 2.4).all()


def test_an_error_in_points_alone_is_largest_in_a_corner():
    """The error |x|/10 is at most r sqrt(d)/10, for a map that ignores the measure."""
    found = attack(pf.Pointwise(lambda x: 1.1 * x + 1), SHIFT, LAW, ONCE)
    assert found.worst * found.displacement == pytest.approx(0.25 * 2**0.5)


def test_a_target_that_is_a_function_of_measures_is_compared_by_exact_transport(monkeypatch):
    """The order of the atoms does not matter: the image below is that of the shift."""
    monkeypatch.setattr(_attack, "DRAWS", 16)
    effort = Attack(sizes=(2,), starts=2, steps=80, seeds=1)
    backwards = lambda mu: pf.Measure(mu.atoms.flip(-2) + 1, mu.weights.flip(-1))
    assert attack(SHIFT, backwards, LAW, effort).worst < 1e-12
    found = attack(Bump(), backwards, LAW, effort)
    assert 0.99 * 0.3 <= found.worst * found.displacement <= 0.3 + 1e-12


def test_where_there_is_no_gradient_the_starts_are_judged(monkeypatch):
    monkeypatch.setattr(_attack, "DRAWS", 16)
    target = lambda mu: pf.Measure(torch.zeros(1, 2))
    found = attack(ToOnePoint(), target, LAW, SHORT)
    for row in found.rows:
        assert row.found == row.start == row.median
        assert row.found * found.displacement == pytest.approx(2**0.5)


def test_an_error_that_is_no_number_is_infinite_and_shown():
    found = attack(Broken(), SHIFT, LAW, ONCE)
    assert found.worst == math.inf and "inf" in str(found)
    assert found.measures[0].mean()[0] > 1
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["rows"][0]["found"] == "inf"


def test_measures_that_another_attack_found_are_tried():
    first = attack(Rare(), SHIFT, LAW, Attack(sizes=(2,), seeds=1))
    alone = attack(Rare(), SHIFT, LAW, SHORT)
    given = attack(Rare(), SHIFT, LAW, SHORT, starts=first.measures)
    assert alone.worst < 0.5 * first.worst
    for row in given.rows:  # with more atoms it is the same measure, with an atom split
        assert row.start >= first.worst * (1 - 1e-6)


@pytest.mark.parametrize(
    "starts, message",
    [
        ([pf.Measure(torch.full((2, 2), 2.6))], "box of radius 2.5"),
        ([pf.Measure(torch.zeros(9, 2))], "at most 8 atoms"),
        ([pf.Measure(torch.zeros(2, 3))], "in R\\^2"),
        (pf.Measure(torch.zeros(4, 3, 2, 2)), "single measures"),
        ([torch.zeros(2, 2)], "Measure"),
    ],
)
def test_starts_that_do_not_fit_are_refused(starts, message):
    with pytest.raises((ValueError, TypeError), match=message):
        attack(Bump(), SHIFT, LAW, SHORT, starts=starts)


def test_a_start_on_the_face_of_the_box_is_taken():
    atoms = torch.tensor([[2.5, -2.5], [0.0, 1.0]])
    attack(Bump(), SHIFT, LAW, SHORT, starts=pf.Measure(atoms, torch.tensor([1.0, 0.0])))


def test_a_law_beyond_the_box_is_refused():
    with pytest.raises(ValueError, match="`law` must draw points of the box of radius 1"):
        attack(Bump(), SHIFT, LAW, Attack(radius=1.0))


def test_a_target_that_does_not_move_has_no_unit():
    with pytest.raises(ValueError, match="displacement"):
        attack(Bump(), pf.Pointwise(lambda x: x), LAW, SHORT)


def test_maps_into_another_space_are_refused():
    with pytest.raises(ValueError, match="R\\^2"):
        attack(SHIFT, pf.Transformer(2, depth=1, out_dim=1), LAW, SHORT)
    with pytest.raises(ValueError, match="R\\^2"):
        attack(pf.Transformer(2, depth=1, out_dim=1), SHIFT, LAW, SHORT)


def test_the_seed_decides_everything():
    one, two, other = (attack(Bump(), SHIFT, LAW, SHORT, seed=seed) for seed in (1, 1, 2))
    assert one.to_dict() == two.to_dict() and one.worst != other.worst


def test_measures_climb_alone_however_many_at_once(monkeypatch):
    model = pf.Transformer(2, depth=1)
    together = attack(model, SHIFT, LAW, SHORT)
    monkeypatch.setattr(_attack, "PAIRS", 64)
    apart = attack(model, SHIFT, LAW, SHORT)
    for a, b in zip(together.rows, apart.rows, strict=True):
        assert a.found == pytest.approx(b.found, rel=1e-10)
        assert a.median == pytest.approx(b.median, rel=1e-10)


def test_doubling_reports_the_larger_error():
    effort = Attack(sizes=(2,), starts=4, steps=3, seeds=1)
    once = attack(Bump(), SHIFT, LAW, effort)
    again = attack(Bump(), SHIFT, LAW, Attack((2,), starts=8, steps=6, seeds=1))
    both = attack(Bump(), SHIFT, LAW, Attack((2,), starts=4, steps=3, seeds=1, doubled=True))
    assert both.worst == max(once.worst, again.worst)
    assert both.rows[0].gain == pytest.approx(again.worst / once.worst - 1)
    assert both.settled == (again.worst <= 1.2 * once.worst) and once.settled is None


def test_model_and_target_are_called_in_the_dtype_of_the_model():
    """Tests draw in float64; the model below is in float32."""
    model = pf.Transformer(2, depth=1).float()
    field = pf.fields.Linear(torch.eye(2).float(), torch.eye(2).float())
    turn = pf.Flow(field, t1=1.0, solver=pf.RK4(2))
    with torch.autocast("cpu", torch.bfloat16):
        found = attack(model, turn, LAW, SHORT)
    assert found.measures[0].dtype == torch.float32
    assert found.worst == pytest.approx(attack(model, turn, LAW, SHORT).worst)


@pytest.mark.parametrize(
    "field",
    [
        pf.fields.CuckerSmale(lambda r: 3 / (1 + r * r)),
        pf.fields.SelfAttention(*(c * torch.eye(2).double() for c in (2, 2, 0.25))),
    ],
    ids=["Cucker-Smale", "softmax"],
)
def test_gradients_through_the_steps_of_a_flow_are_right(field):
    G = pf.Flow(field, t1=1.0, solver=pf.RK4(2))
    mu = Box(2).draw(2, 3, torch.Generator().manual_seed(0)).double()

    def error(x, logs):
        nu = pf.Measure.unchecked(x, logs.log_softmax(-1))
        return nu.integrate((G.push(nu).atoms - x).norm(dim=-1))

    inputs = mu.atoms.requires_grad_(), mu.log_weights.requires_grad_()
    assert torch.autograd.gradcheck(error, inputs)


def test_a_report_has_mean_worst_draw_and_worst_found():
    result = report(Bump(), SHIFT, LAW, sizes=[16], measures=4, exact=1, effort=SHORT)
    text = str(result)
    for words in ("mean error", "worst draw", "W1", "worst found"):
        assert words in text
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["scores"]["rows"][0]["mean"] == result.scores.rows[0].mean
    assert data["supremum"]["rows"][1]["found"] == result.supremum.rows[1].found
    assert len(data["supremum"]["rows"][1]["measure"]["weights"]) == 8


def test_sizes_must_increase():
    with pytest.raises(ValueError, match="`sizes` must increase, got"):
        Attack(sizes=(8, 2))


def test_the_measures_of_an_adversary_climb_and_stay_on_the_box():
    task, generator = Simulation(SHIFT, LAW), torch.Generator().manual_seed(0)
    climbers = Adversary(count=32, sizes=(2,), atoms=64, fresh=0.0).begin(task, generator)
    means = []
    for k in range(40):
        losses = task.losses(Bump(), climbers.example(generator, k))
        losses.sum().backward()
        climbers.climb(generator, losses.detach())
        means.append(losses.mean().item())
    assert means[-1] > 3 * means[0]
    assert climbers.tensors["atoms/2"].abs().max() <= 2.5
    logs = climbers.tensors["logs/2"]
    assert logs.abs().max() <= 12 and logs.max() > 0 > logs.min()


def test_the_measures_with_the_smallest_errors_are_replaced():
    task, generator = Simulation(SHIFT, LAW), torch.Generator().manual_seed(0)
    climbers = Adversary(count=20, sizes=(2,), atoms=40, fresh=0.25).begin(task, generator)
    losses = task.losses(Bump(), climbers.example(generator, 0))
    losses.sum().backward()
    before = climbers.x.detach().clone()
    climbers.climb(generator, losses.detach())
    after = climbers.tensors["atoms/2"][climbers.chosen]
    # A step moves coordinates by at most a tenth of 0.4 r = 1.
    jumped = (after - before).abs().flatten(1).amax(1) > 0.1 + 1e-12
    least = losses.argsort()[:5]
    assert set(jumped.nonzero().flatten().tolist()) <= set(least.tolist())
    assert jumped.sum() >= 4
