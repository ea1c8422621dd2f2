"""Scores: tiles, transposes, batches, and how often a function of pairs is called."""

import pytest
import torch
from related import TIGHT, pair

import pushforward as pf
from pushforward._tools import tiles


def test_functions_go_tile_by_tile(monkeypatch):
    """Same numbers and gradients however small the tiles are."""
    mu, nu = pair()
    theta = torch.tensor(1.3, requires_grad=True)
    sizes = []

    def function(mu, nu, x, y):
        sizes.append(x.shape[-3] * y.shape[-2])
        return -theta * (x - y).square().sum(-1)

    results = []
    for tile in (1 << 20, 20):
        for kind in tiles.TILE:
            monkeypatch.setitem(tiles.TILE, kind, tile)
        sizes.clear()
        pi = pf.relate(mu, nu, affinity=pf.Pairs(function), normaliser=TIGHT)
        (slope,) = torch.autograd.grad(pi.cost(), theta)
        results.append((pi.apply(nu.atoms), slope))
    assert max(sizes) <= 20
    assert torch.allclose(results[0][0], results[1][0], atol=1e-12)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-9)


def counted(sizes):
    """A function of pairs that records how many pairs it is called with."""

    def function(mu, nu, x, y):
        sizes.append((x.shape[-3], y.shape[-2]))
        return -(x - y).square().sum(-1)

    return pf.Pairs(function)


@pytest.mark.parametrize("normaliser", [pf.Softmax(), pf.Sinkhorn(steps=3)])
def test_a_function_is_called_once_for_every_tile(normaliser, monkeypatch):
    """Every integral, and the mean score, forms every tile once."""
    mu, nu = pair()
    sizes = []
    pi = pf.relate(mu, nu, affinity=counted(sizes), normaliser=normaliser)
    for kind in tiles.TILE:
        monkeypatch.setitem(tiles.TILE, kind, 20)
    pi = pi.joint(mu) if isinstance(pi, pf.Conditional) else pi
    for call in (
        lambda: pi.scores.mean(nu.log_weights),
        lambda: pi.scores.over_keys(nu.log_weights),
        lambda: pi.scores.average(nu.atoms, nu.log_weights),
        lambda: pi.scores.size(),
        lambda: pi.assignment(),
        lambda: pi.apply(nu.atoms),
    ):
        sizes.clear()
        call()
        assert sum(m * n for m, n in sizes) == 7 * 9 and max(m for m, _ in sizes) == 2


def test_one_of_a_batch_stays_lazy(monkeypatch):
    """`relation[i]` of a function of pairs forms no matrix, neither then nor when applied."""
    mu, nu = pf.Measure(torch.randn(3, 40, 2)), pf.Measure(torch.randn(3, 50, 2))
    sizes = []
    pi = pf.relate(mu, nu, affinity=counted(sizes))
    expected, v = pi.matrix()[1], torch.randn(50, 2)
    for kind in tiles.TILE:
        monkeypatch.setitem(tiles.TILE, kind, 3 * 50 * 4)
    sizes.clear()
    one = pi[1]
    assert not sizes and one.shape == (40, 50)
    assert torch.allclose(one.apply(v), expected @ v, atol=1e-14)
    assert max(m for m, _ in sizes) == 4  # four rows of all three: what a tile may hold
    assert torch.allclose(one.matrix(), expected) and torch.allclose(pi[1:].matrix()[0], expected)


def test_some_points_keep_their_times():
    """Causal scores of a sample forbid what the scores of all points forbid."""
    x, t = torch.randn(6, 2), torch.arange(6)
    features = pf.affinities.Features(x, x[:, 0])
    scores = pf.affinities.PointScores(features, features, 0.5, times=(t, t))
    some, others = torch.tensor([4, 0, 2]), torch.tensor([1, 2, 5])
    assert torch.equal(scores.pick(some, others).matrix(), scores.matrix()[some][:, others])
    index = torch.stack([some, others])
    both = scores.pick(index, others)
    assert torch.equal(both.matrix()[1], scores.matrix()[others][:, others])


def all_scores():
    """The same scores from points, a matrix, a function, and as a change of others."""
    mu, nu = pf.Measure(torch.randn(2, 7, 2)), pf.Measure(torch.randn(2, 9, 2))
    points = pf.SquaredDistance(0.7).scores(mu, nu)
    square = lambda mu, nu, x, y: -(x - y).square().sum(-1) / 0.7
    tiles = pf.affinities.TileScores
    return {
        "points": points,
        "matrix": pf.Matrix(points.matrix()).scores(mu, nu),
        "pairs": pf.Pairs(square).scores(mu, nu),
        "mapped": tiles.mapped(points.scaled(2), lambda tile: tile / 2),
        "masked": points.forbidding(torch.zeros(7, 9, dtype=torch.bool)),
    }


@pytest.mark.parametrize("name", ["matrix", "pairs", "mapped", "masked"])
def test_all_scores_are_one_interface(name, monkeypatch):
    """Integrals, transposes, scales, dtypes and parts of a batch, in small tiles."""
    for kind in tiles.TILE:
        monkeypatch.setitem(tiles.TILE, kind, 40)
    made = all_scores()
    points, scores = made["points"], made[name]
    bias, v = torch.randn(2, 9), torch.randn(2, 9, 3)
    for change in (
        lambda s: s,
        lambda s: s.detach(),
        lambda s: s.scaled(3.0),
        lambda s: s.T.T,
        lambda s: s.to(torch.float64),
        lambda s: s.at(slice(1, 2)),
    ):
        a, b = change(points), change(scores)
        k = a.shape[0]
        g, f, w = bias[-k:], bias[-k:, :7], v[-k:]
        assert a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        assert torch.allclose(a.matrix(), b.matrix())
        assert torch.allclose(a.T.matrix(), b.T.matrix()) and b.T.shape == (k, 9, 7)
        assert torch.allclose(a.over_keys(g), b.over_keys(g))
        assert torch.allclose(a.over_queries(f), b.over_queries(f))
        assert torch.allclose(a.average(w, g), b.average(w, g))
        assert torch.allclose(a.mean(g), b.mean(g))
        assert torch.allclose(a.linear(w, g.exp()), b.linear(w, g.exp()))
        assert a.size() >= b.size() * (1 - 1e-12)
