"""Maps that are only called: checked images, answers, images of small masses, steep pairs."""

import math

import pytest
import torch
from cases import measure

import pushforward as pf
from pushforward.representation import (
    BlackBoxError,
    CallRejected,
    MapBox,
    NotRecovered,
    call_model,
    rewritings,
    zoo,
)
from pushforward.representation.boxes import why_unusable
from pushforward.representation.continuity import Moves, Region, measured, steepest


def draws(count, n=5):
    """Measures, points and masses, as the search has them."""
    masses = torch.rand(count, n).log().log_softmax(-1)
    return (
        torch.randn(count, n, 2),
        masses,
        torch.randn(count, 2),
        10.0 ** -torch.arange(2, 2 + count),
    )


def test_images_are_checked_and_normalised():
    double = MapBox(lambda mu: pf.Measure(2 * mu.atoms, weights=torch.tensor([2.0, 0.0, 6.0])))
    out = double.push(pf.Measure(torch.tensor([[1.0], [2.0], [3.0]])))
    assert torch.allclose(out.weights, torch.tensor([0.25, 0.75])) and out.n == 2
    for f, said in (
        (lambda mu: mu.atoms, "returned Tensor, not a Measure"),
        (lambda mu: pf.Measure.stack([mu, mu]), "a batch of measures"),
        (lambda mu: mu.moved(mu.atoms / 0), "NaN or infinity"),
    ):
        with pytest.raises(BlackBoxError, match=said):
            MapBox(f).push(measure(3))


def test_exceptions_of_the_map_become_one_kind_of_error():
    def failing(mu):
        raise KeyError("no such head")

    with pytest.raises(CallRejected, match="it raised KeyError: 'no such head'"):
        MapBox(failing).push(measure(3))

    def own(mu):
        raise NotRecovered("as it is")

    with pytest.raises(NotRecovered, match="as it is"):
        call_model(own, measure(3))


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_images_of_small_masses_are_those_of_the_map(scale):
    """In batches and one by one: G in the context that contains the mass."""
    gamma, (atoms, log_weights, x, eta) = zoo.attention(2, scale), draws(4)

    def single(mu):
        if mu.batch_shape:
            raise ValueError("one at a time")
        return gamma.push(mu)

    together, one_by_one = (MapBox(f, measure(5)).images() for f in (gamma, single))
    assert together.batched and together.differentiable
    assert not one_by_one.batched and one_by_one.differentiable
    y = together.find(atoms, log_weights, x, eta)
    assert torch.allclose(y, one_by_one.find(atoms, log_weights, x, eta), rtol=1e-12)
    for k in range(4):
        weights = torch.cat([(1 - eta[k]) * log_weights[k].exp(), eta[k : k + 1]])
        context = pf.Measure(torch.cat([atoms[k], x[k : k + 1]]), weights)
        assert torch.allclose(y[k], gamma(context, x[k : k + 1])[0])


def test_images_that_are_not_known_are_nan():
    """Two halves of the mass, neither of them the whole."""
    atoms, log_weights, x, eta = draws(3)
    images = MapBox(zoo.splitting, measure(5)).images()
    assert images.find(atoms, log_weights, x, eta).isnan().all()


def test_answers_of_maps_and_of_their_push_forwards():
    """What an in-context map says itself is recovered from its push-forward."""
    gamma, mu, x = zoo.stack(2, 2), measure(6), torch.randn(3, 2)
    with torch.no_grad():
        own, recovered = (MapBox(f).answer(mu, x) for f in (gamma, gamma.push))
    assert torch.allclose(own, gamma(mu, x)) and torch.allclose(own, recovered, atol=1e-8)
    with pytest.raises(NotRecovered):
        MapBox(zoo.bayes).answer(mu, x)


def test_an_example_prepares_the_map_for_comparisons():
    """Float64 for a map of float32, and angles as points of a circle."""
    narrow, mu = zoo.attention(2).float(), pf.Measure(torch.randn(4, 2).float())
    assert MapBox(narrow, mu).dtype == torch.float64
    assert MapBox(narrow, mu).push(mu).dtype == torch.float64
    assert MapBox(narrow).push(mu).dtype == torch.float32
    assert next(narrow.parameters(), next(narrow.buffers(), None)).dtype == torch.float32
    turning = pf.Flow(pf.fields.Kuramoto(1.0), t1=0.1, solver=pf.Euler(steps=1))
    angles = pf.Measure(torch.tensor([[0.0], [2 * math.pi - 1e-9]]))
    embedded, plain = MapBox(turning, angles).push(angles), MapBox(turning).push(angles)
    assert embedded.dim == 2 and plain.dim == 1
    assert (embedded.atoms[0] - embedded.atoms[1]).norm() < 1e-8


def test_maps_from_which_nothing_can_be_concluded():
    mu, nu = measure(4), measure(4)
    calls = iter(range(100))
    after = lambda m: m.moved(m.atoms + next(calls))
    seen = []

    def remembers(m):
        seen.append(m is nu)
        return m.moved(m.atoms + sum(seen))

    state = torch.get_rng_state()
    assert (
        why_unusable(MapBox(after), mu, nu) == "it keeps state: a second call gives another output"
    )
    assert "a call changes the output of a later one" in why_unusable(MapBox(remembers), mu, nu)
    noisy = lambda m: m.moved(m.atoms + torch.randn_like(m.atoms))
    assert "it is random" in why_unusable(MapBox(noisy), mu, nu)
    assert why_unusable(MapBox(zoo.attention(2)), mu, nu) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_rewritings_are_the_same_measure():
    mu = pf.Measure(torch.randn(4, 2), torch.rand(4), times=torch.arange(4.0))
    for nu, index in rewritings(mu, torch.Generator()).values():
        assert torch.equal(nu.atoms, mu.atoms[index]) and torch.equal(nu.times, mu.times[index])
        assert float(pf.wasserstein(nu, mu.normalise())) < 1e-12


# Steep pairs


def reach(response, moves, x=None):
    mu = pf.Measure(2 * torch.rand(6, 2) - 1)
    region = Region.around(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    generator = torch.Generator().manual_seed(0)
    return steepest(response, [(mu, x)] * 2, region, generator, moves=moves)


@pytest.mark.parametrize("gradients", [True, False])
def test_the_steepest_pair_of_a_known_function(gradients):
    """The mean of x^2 is steepest, with slope 2 sqrt(2), in a corner of the square."""

    def response(mu, nu, x):
        a, b = (m.integrate(m.atoms.square().sum(-1)) for m in (mu, nu))
        return (a - b).abs() if gradients else (a - b).abs().detach()

    found = max(reach(response, Moves()), key=lambda pair: pair.ratio)
    assert (2.82 if gradients else 2.4) < found.ratio <= 2 * math.sqrt(2) + 1e-4
    again = measured(response, found.mu, found.nu)
    assert again.ratio == found.ratio and again.distance == found.distance
    half = measured(response, found.mu, found.nu, share=0.5)
    assert half.ratio == pytest.approx(2 * found.ratio)


def test_points_and_weights_move_only_if_they_may():
    gamma = zoo.attention(2, 3.0)

    def response(mu, nu, x):
        return (gamma(mu, x[None]) - gamma(nu, x[None])).norm()

    x = torch.zeros(2)
    still, moving = (
        reach(response, Moves(), x),
        reach(response, Moves(weights=True, point=True), x),
    )
    for pair in still:
        assert torch.equal(pair.x, x) and (pair.mu.weights - 1 / 6).abs().max() < 1e-12
    assert any(not torch.equal(pair.x, x) for pair in moving)
    assert max(p.ratio for p in moving) > max(p.ratio for p in still)


def test_maps_that_fail_have_no_steep_pair():
    def response(mu, nu, x):
        raise BlackBoxError("never")

    assert reach(response, Moves()) == []
    assert reach(lambda mu, nu, x: torch.zeros(()), Moves()) == []
