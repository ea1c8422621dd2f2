"""What users write and the library calls: errors name the class or function that went wrong."""

import pytest
import torch

import pushforward as pf

pytestmark = pytest.mark.unhooked

X = torch.eye(3, dtype=torch.float64)[:, :2]
MU = pf.Measure(X)


class Scoring(pf.Affinity):
    def scores(self, mu, nu):
        return torch.ones(3, 3, dtype=torch.float64)


class Normalising(pf.Normaliser):
    def relate(self, scores, log_a, log_b, *, start=None):
        return scores.matrix()


class Listing(pf.InContextMap):
    def evaluate(self, mu, x):
        return x.tolist()


class Losing(pf.InContextMap):
    def evaluate(self, mu, x):
        return x[..., :1, :]


class Conditioned(pf.InContextMap):
    def condition(self, mu, queries=None, starts=None):
        return mu.atoms


class Number(pf.InContextMap):
    def evaluate(self, mu, x):
        return x


@pf.maps.lipschitz_bound.register(Number)
def _(gamma, radius):
    return 1.0


def few_arguments():
    class Few(pf.InContextMap):
        def condition(self, mu):
            return lambda x, t: x


def tableau(**changes):
    right = {"order": 2, "nodes": (0.0, 0.5), "rows": ((), (0.5,)), "weights": (0.0, 1.0)}
    return type("Method", (pf.flows.RungeKutta,), right | changes)


CASES = {
    "scores": (lambda: pf.relate(MU, MU, affinity=Scoring()), "`Scoring.scores` must return a Sc"),
    "a relation": (
        lambda: pf.relate(MU, MU, normaliser=Normalising()),
        "`Normalising.relate` must return a Relation, got Tensor",
    ),
    "a list of images": (lambda: Listing().push(MU), r"`Listing` must give.*, 3, e\), got list"),
    "too few images": (lambda: Losing()(MU, X), r"`Losing` must give.*got \(1, 2\)"),
    "images inside": (lambda: (Number() @ Listing()).push(MU), "`Listing` must give"),
    "no function": (lambda: Conditioned().push(MU), "`Conditioned.condition` must return a func"),
    "few arguments": (few_arguments, r"`Few.condition` is called as .*mu, queries, starts"),
    "a bound": (lambda: Number().lipschitz(1.0), "of Number` must return a Lipschitz, got float"),
    "a bound inside": (
        lambda: pf.Residual(Number()).lipschitz(1.0),
        "of Number` must return a Lipschitz",
    ),
    "weights of a method": (lambda: tableau(weights=(0.5, 1.0)), "must sum to one, got 1.5"),
    "rows of a method": (lambda: tableau(rows=((), ())), r"rows of \[0, 0\]"),
    "stages of a method": (lambda: tableau(nodes=(0.0,)), "got 1 nodes, 2 weights"),
    "an array of images": (lambda: MU.push(lambda x: x.numpy()), "`T` must return.*got ndarray"),
    "integer images": (lambda: MU.push(lambda x: x.long()), "`T` must return.*torch.int64"),
    "a list of numbers": (lambda: MU.push(lambda x: x.tolist()), "`T` must return.*got list"),
    "an encoder of points": (
        lambda: pf.relate(MU, MU, affinity=pf.Encoded(torch.nn.Linear(2, 2), X)),
        r"`q` is called as q\(mu, x\)",
    ),
    "a function of points": (
        lambda: pf.relate(MU, MU, affinity=pf.Pairs(lambda x, y: (x - y).sum(-1))),
        r"called as function\(mu, nu, x, y\)",
    ),
    "queries and keys": (lambda: pf.relate(X, X), r"affinity=pf.Encoded\(q, k\)"),
    "two dtypes": (lambda: pf.relate(MU, MU.to(torch.float32)), "must share their dtype"),
    "a velocity that is none": (lambda: pf.flow(Listing(), MU, t1=1.0), "`Listing` must return a"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_author_is_named(name):
    call, words = CASES[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()
