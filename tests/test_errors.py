"""Wrong inputs: each error says what was expected, what came, and what to do."""

import re

import pytest
import torch

import pushforward as pf
from pushforward import ops

pytestmark = pytest.mark.unhooked

X, MU = torch.ones(3, 2, dtype=torch.float64), pf.Measure(torch.ones(3, 2, dtype=torch.float64))
TIMED = pf.Measure(torch.ones(3, 2, dtype=torch.float64), times=torch.tensor([1.0, 2.0, 3.0]))
ones = lambda *shape: torch.ones(*shape, dtype=torch.float64)
NAN, INF = torch.nan, torch.inf
GAMMA, E = pf.Attention(2).double(), torch.eye(2, dtype=torch.float64)

CASES = {
    "weights of another length": (lambda: pf.Measure(X, torch.ones(4)), "shape (3,), got (4,)"),
    "negative weights": (lambda: pf.Measure(X, torch.tensor([1.0, -2, 3])), "non-negative, got"),
    "NaN weights": (lambda: pf.Measure(X, torch.tensor([1.0, NAN, 3])), "NaN"),
    "infinite weights": (lambda: pf.Measure(X, torch.tensor([1.0, INF, 3])), "finite, got +inf"),
    "NaN log-weights": (
        lambda: pf.Measure(X, log_weights=torch.tensor([1.0, NAN, 3])),
        "`log_weights` must be numbers",
    ),
    "no mass": (lambda: pf.Measure(X, torch.zeros(3)), "positive total mass"),
    "no mass in a batch": (
        lambda: pf.Measure(torch.ones(2, 3, 1), torch.tensor([[1.0, 1, 1], [0, 0, 0]])),
        "positive total mass",
    ),
    "both weights": (
        lambda: pf.Measure(X, torch.ones(3), log_weights=torch.ones(3)),
        "not both",
    ),
    "no atoms": (lambda: pf.Measure(torch.ones(0, 2)), "at least one atom"),
    "flat atoms": (lambda: pf.Measure(torch.ones(3)), "points[:, None]"),
    "integer atoms": (lambda: pf.Measure(torch.ones(3, 2).long()), "floating point, got"),
    "a list of integers": (lambda: pf.Measure([[1]]), "floating point, got a list of integers"),
    "a word": (lambda: pf.Measure("atoms"), "must be a Tensor, got str"),
    "NaN atoms": (lambda: pf.Measure(torch.tensor([[1.0], [NAN]])), "weight zero to leave"),
    "weights of another dtype": (
        lambda: pf.Measure(X.double(), torch.ones(3, dtype=torch.float32)),
        "share their dtype",
    ),
    "weights on another device": (
        lambda: pf.Measure(X, torch.ones(3, dtype=torch.float64, device="meta")),
        "share their device",
    ),
    "queries on another device": (
        lambda: pf.Attention(2).double()(MU, ones(5, 2).to("meta")),
        "share their device",
    ),
    "a map on another device": (
        lambda: pf.Attention(2).double().to("meta").push(MU),
        "is on meta",
    ),
    "times of another length": (lambda: pf.Measure(X, times=torch.ones(4)), "`times` must have"),
    "NaN times": (lambda: pf.Measure(X, times=torch.tensor([1.0, NAN, 2])), "`times` must be"),
    "an empty stack": (lambda: pf.Measure.stack([]), "at least one measure"),
    "a stack of two spaces": (
        lambda: pf.Measure.stack([MU, pf.Measure(ones(3, 1))]),
        "R^2 and R^1",
    ),
    "a stack of two dtypes": (lambda: pf.Measure.stack([MU, pf.Measure(X.float())]), "dtype"),
    "times for some": (lambda: pf.Measure.stack([MU, TIMED]), "all measures times"),
    "a push that loses atoms": (lambda: MU.push(lambda x: x[:2]), "keeps the number of atoms"),
    "integrand of the wrong length": (lambda: MU.integrate(ones(4)), "one value per atom"),
    "indexing a single measure": (lambda: MU[0], "Only batch axes"),
    "length of a single measure": (lambda: len(MU), "`mu.n`"),
    "a singular covariance": (
        lambda: pf.Measure.gaussian(torch.zeros(2), torch.ones(2, 2)),
        "positive definite",
    ),
    "too many nodes": (lambda: pf.Measure.gaussian(torch.zeros(9), torch.eye(9)), "10^7 nodes"),
    "a grid upside down": (lambda: pf.Measure.grid(1.0, 0.0, size=3), "low < high"),
    "shares that do not add up": (lambda: MU.split([0.5, 0.6]), "sum to one"),
    "an atom that is not there": (lambda: MU.split(2, atom=7), "one of 3 atoms"),
    "a sample of nothing": (lambda: MU.sample(0), "at least 1"),
    "queries of another dimension": (
        lambda: pf.Attention(2).double()(MU, ones(5, 3)),
        "queries in R^2, got `x` in R^3",
    ),
    "a context of another dimension": (
        lambda: pf.Attention(2, context_dim=3).double()(MU, ones(5, 2)),
        "contexts in R^3, got `mu` in R^2",
    ),
    "different spaces": (
        lambda: pf.Pointwise(torch.sin)(MU, ones(5, 3)),
        "share their space",
    ),
    "queries of another dtype": (
        lambda: pf.Attention(2).double()(MU, torch.ones(5, 2, dtype=torch.float32)),
        "share their dtype",
    ),
    "a map of another dtype": (lambda: pf.Attention(2).float().push(MU), "float32 parameters"),
    "queries that are no points": (lambda: pf.Attention(2).double()(MU, ones(2)), "(..., m, d)"),
    "batches that do not fit": (
        lambda: pf.Pointwise(torch.sin)(pf.Measure(ones(2, 3, 2)), ones(5, 4, 2)),
        "must broadcast",
    ),
    "tokens for a context": (lambda: pf.Attention(2)(X, X), "must be a Measure"),
    "causal without times": (
        lambda: pf.Attention(2, mask=pf.Causal()).double().push(MU),
        "The context came without",
    ),
    "causal queries without times": (
        lambda: pf.Attention(2, mask=pf.Causal()).double()(TIMED, ones(5, 2)),
        "The queries came without",
    ),
    "attending to nothing": (
        lambda: pf.Transformer(2, depth=1, block=pf.Block(mask=pf.Causal())).double()(
            TIMED, ones(1, 2), ones(1) / 2
        ),
        "attends to nothing",
    ),
    "times of the wrong shape": (
        lambda: pf.Attention(2, mask=pf.Causal()).double()(TIMED, ones(5, 2), ones(4)),
        "`t` must have shape (5,)",
    ),
    "query times alone": (
        lambda: pf.Attention(2).double()(MU, ones(5, 2), ones(5)),
        "the context has none",
    ),
    "causal Sinkhorn": (
        lambda: pf.Attention(2, mask=pf.Causal(), normaliser=pf.Sinkhorn(steps=3)),
        "identity",
    ),
    "cross Sinkhorn without a measure": (
        lambda: pf.Attention(2, context_dim=2, normaliser=pf.Sinkhorn(steps=3)).double()(
            MU, ones(5, 2)
        ),
        "pf.Measure(x)",
    ),
    "no heads": (lambda: pf.Attention(2, heads=0), "`heads` must be a whole number"),
    "half a head": (lambda: pf.Attention(2, heads=1.5), "`heads` must be a whole number"),
    "negative steps": (lambda: pf.Sinkhorn(steps=-1), "at least 0, got -1"),
    "a learned temperature": (
        lambda: pf.SquaredDistance(torch.tensor(1.0)),
        "`eps` must be a number, got Tensor. A learned temperature divides the points",
    ),
    "a tolerance in words": (lambda: pf.Sinkhorn(tol="1e-5"), "`tol` must be a number, got str"),
    "a class that needs arguments": (
        lambda: pf.relate(MU, MU, affinity=pf.SquaredDistance),
        "Create an instance: `SquaredDistance(eps=...)`",
    ),
    "values that are a measure": (
        lambda: pf.relate(MU, MU).apply(MU),
        "Its points are `.atoms`",
    ),
    "values without an axis": (
        lambda: pf.relate(MU, MU).apply(ones(MU.n)),
        "`values[:, None]`",
    ),
    "a start for softmax": (
        lambda: pf.relate(MU, MU, start=ones(MU.n)),
        "Only Sinkhorn has a `start`",
    ),
    "tokens to a layer": (lambda: pf.Attention(2)(ones(5, 2)), "`gamma.push(mu)`"),
    "relations of tokens": (
        lambda: pf.Transformer(2, depth=1).relations(ones(5, 2)),
        "`mu` must be a Measure, got Tensor",
    ),
    "no samples": (lambda: pf.relate(MU, MU).sample(0), "`size` must be"),
    "steps and a tolerance": (lambda: pf.Sinkhorn(steps=3, tol=1e-3), "not both"),
    "no tolerance at all": (lambda: pf.Sinkhorn(tol=0.0), "`tol` must be positive"),
    "negative memory": (lambda: pf.Sinkhorn(memory=-1), "`memory` must be a whole number"),
    "negative slack": (lambda: pf.Sinkhorn(slack=-1.0), "`slack` must be positive"),
    "points instead of a measure": (
        lambda: pf.relate(MU.atoms, MU),
        "`mu` must be a Measure, got Tensor",
    ),
    "too few queries": (
        lambda: pf.relate(MU, MU, affinity=pf.Encoded(MU.atoms[:2], MU.atoms)),
        "`q` must have one row per atom",
    ),
    "queries and keys of other widths": (
        lambda: pf.relate(MU, MU, affinity=pf.Encoded(MU.atoms, ones(MU.n, 3))),
        "same width",
    ),
    "a matrix of another shape": (
        lambda: pf.relate(MU, MU, affinity=pf.Matrix(ones(3, 4))),
        "One score per pair",
    ),
    "scores of +inf": (
        lambda: pf.relate(MU, MU, affinity=pf.Matrix(ones(MU.n, MU.n).mul(torch.inf))),
        "A cost of +inf is a score of -inf",
    ),
    "a class of normaliser": (
        lambda: pf.relate(MU, MU, normaliser=pf.Softmax),
        "Create an instance: `Softmax()`",
    ),
    "a mask of numbers": (
        lambda: pf.relate(MU, MU, mask=ones(MU.n, MU.n)),
        "must be boolean",
    ),
    "values of another length": (
        lambda: pf.relate(MU, MU).apply(ones(MU.n + 1, 2)),
        "one row per key",
    ),
    "an affinity that sums too much": (
        lambda: pf.relate(MU, MU, affinity=pf.Pairs(lambda mu, nu, x, y: (x - y).sum())),
        "one number per pair",
    ),
    "a matrix instead of an affinity": (
        lambda: pf.relate(MU, MU, affinity=ones(MU.n, MU.n)),
        "`affinity` must be an Affinity, got Tensor. A matrix of scores is `pf.Matrix(A)`",
    ),
    "a function instead of an affinity": (
        lambda: pf.relate(MU, MU, affinity=lambda mu, nu, x, y: (x - y).sum(-1)),
        "A function of pairs is `pf.Pairs(function)`",
    ),
    "a layer instead of an affinity": (
        lambda: pf.relate(MU, MU, affinity=pf.Attention(2)),
        "`layer.relation(context, queries)`",
    ),
    "a matrix in attention": (
        lambda: pf.Attention(2, affinity=pf.Matrix(ones(2, 2))),
        "`affinity` must be a PointAffinity, got Matrix",
    ),
    "an encoder that is none": (
        lambda: pf.Encoded(3.0, ones(2, 2)),
        "`q` must be a tensor, or an encoder called as q(mu, x), got float",
    ),
    "a number": (lambda: pf.relate(MU, MU, affinity=pf.Matrix(3.0)), "`values` must be a Tensor"),
    "a confidence of 1340": (
        lambda: pf.Conditional.from_matrix(1340 * ones(2, 2)),
        "a sum over heads or tokens is no probability",
    ),
    "negative masses": (lambda: pf.Coupling.from_matrix(-ones(2, 2)), "must hold masses"),
    "assignments in a layer": (
        lambda: pf.Attention(2, normaliser=pf.relations.Exact()),
        "is defined on atoms only",
    ),
    "a joint with the wrong measure": (
        lambda: pf.relate(MU, MU).joint(pf.Measure(ones(2, 2))),
        "as the relation has, got 2",
    ),
    "a projection with slack": (
        lambda: pf.relate(MU, MU).project(MU, MU, normaliser=pf.Sinkhorn(slack=1.0)),
        "keeps both marginals",
    ),
    "a negative temperature": (lambda: pf.SquaredDistance(-1.0), "must be positive"),
    "layers that do not fit": (
        lambda: pf.Compose(pf.MLP(2, 4, out_dim=3), pf.Attention(2)),
        "MLP ends in R^3, Attention begins in R^2",
    ),
    "nothing to compose": (lambda: pf.Compose(), "at least one map"),
    "a skip between spaces": (lambda: pf.MLP(2, 4, out_dim=3, skip=True), "out_dim = dim"),
    "no depth": (lambda: pf.Transformer(2, depth=0), "at least 1"),
    "no width": (lambda: pf.Transformer(2, depth=1, width=0), "at least 1"),
    "an MLP without hidden units": (lambda: pf.MLP(2, 0), "`hidden` must be"),
    "a model that loses tokens": (
        lambda: pf.from_sequence_model(lambda x: x[:1])(MU),
        "one point for each token",
    ),
    "tokens to push": (lambda: pf.Attention(2).push(X), "`mu` must be a Measure"),
    "tokens to curry": (lambda: pf.Attention(2).at(X), "`mu` must be a Measure"),
    "a cross map pushing its context": (
        lambda: pf.Attention(3, context_dim=2).double().push(MU),
        "queries.push(gamma.at(mu))",
    ),
    "a context of another space, pushed": (
        lambda: pf.Attention(5).double().push(MU),
        "contexts in R^5",
    ),
    "a name for a norm": (lambda: pf.Block(norm="pre"), "pf.PreNorm()"),
    "a norm of one coordinate": (
        lambda: pf.Transformer(1, depth=1, block=pf.Block(norm=pf.PreNorm())),
        "`width=`",
    ),
    "a list to compose": (lambda: pf.Compose([pf.MLP(2, 2)]), "Compose(*maps)"),
    "an empty region": (lambda: MU.restrict(lambda x: x[..., 0] > 9), "no mass"),
    "distance between spaces": (
        lambda: pf.wasserstein(MU, pf.Measure(ones(3, 1))),
        "R^2 and R^1",
    ),
    "distance of tensors": (lambda: pf.wasserstein(X, X), "must be a Measure, got Tensor"),
    "an exponent below one": (lambda: pf.wasserstein(MU, MU, p=0.5), "at least 1"),
    "a negative bandwidth": (lambda: pf.mmd(MU, MU, bandwidth=0.0), "must be positive"),
    "a negative eps": (lambda: pf.sinkhorn_divergence(MU, MU, eps=0.0), "must be positive"),
    "no parts": (lambda: MU.split(0), "positive count"),
    "NaN shares": (lambda: MU.split([NAN, 1.0]), "sum to one"),
    "a negative tolerance": (lambda: MU.merge(-1.0), "`tol` must be at least 0"),
    "a short list of times": (lambda: pf.Measure(X, times=[1, 2]), "`times` must have shape (3,)"),
    "a list of weights": (lambda: pf.Measure.mixture([MU], [1.0]), "must be a Tensor, got list"),
    "a stack of tensors": (lambda: pf.Measure.stack([X]), "must be a Measure, got Tensor"),
    "a mask of integers": (lambda: MU.restrict(torch.tensor([1, 0, 1])), "must be boolean"),
    "a mixture of batches": (
        lambda: pf.Measure.mixture([MU, pf.Measure(ones(2, 3, 2))]),
        "share their batch shape",
    ),
    "distances of unlike batches": (
        lambda: pf.wasserstein(pf.Measure(ones(2, 3, 1)), pf.Measure(ones(3, 3, 1))),
        "must broadcast",
    ),
    "an integer measure": (lambda: MU.to(torch.int64), "floating point, got"),
    "a NaN mean": (lambda: pf.Measure.gaussian(NAN, 1.0), "`mean` must be a number, got NaN"),
    "a skew covariance": (
        lambda: pf.Measure.gaussian(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]])),
        "symmetric",
    ),
    "half a cell": (lambda: pf.Measure.grid(0.0, 1.0, size=2.5), "`size` must be a whole number"),
    "a module in a composition": (lambda: pf.Compose(torch.nn.Linear(2, 2)), "pf.Pointwise"),
    "a module in a residual": (lambda: pf.Residual(torch.nn.Linear(2, 2)), "pf.Pointwise"),
    "a residual between spaces": (lambda: pf.Residual(pf.MLP(2, 4, out_dim=1)), "R^2 to R^1"),
    "a residual between spaces, unseen": (
        lambda: pf.Residual(pf.Pointwise(lambda x: x[..., :1])).push(MU),
        "stays in its space",
    ),
    "cross-attention inside a composition": (
        lambda: pf.Compose(pf.Attention(2, context_dim=3), pf.MLP(2, 4)),
        "Only the last map",
    ),
    "a name for a normaliser": (lambda: pf.Attention(2, normaliser="sinkhorn"), "Normaliser"),
    "a class for an affinity": (
        lambda: pf.Attention(2, affinity=pf.Dot),
        "Create an instance: `Dot()`",
    ),
    "False for a mask": (lambda: pf.Attention(2, mask=False), "None for no mask"),
    "a layer with an unknown implementation": (
        lambda: pf.Attention(2, impl="fast"),
        "'reference', 'streamed'",
    ),
    "no head": (lambda: pf.Attention(2, head_dim=0), "`head_dim` must be"),
    "a pre-norm network on another space": (
        lambda: (
            pf.Transformer(2, depth=1, block=pf.Block(norm=pf.PreNorm()))
            .double()
            .push(pf.Measure(ones(3, 3)))
        ),
        "in R^2, got",
    ),
    "an infinite exponent": (lambda: pf.wasserstein(MU, MU, p=INF), "finite"),
    "an infinite eps": (lambda: pf.sinkhorn_divergence(MU, MU, eps=INF), "must be finite"),
    "a divergence of some steps": (
        lambda: pf.sinkhorn_divergence(MU, MU, eps=1.0, normaliser=pf.Sinkhorn(steps=5)),
        "needs plans to a tolerance",
    ),
    "a divergence with two slacks": (
        lambda: pf.sinkhorn_divergence(MU, MU, eps=1.0, normaliser=pf.Sinkhorn(slack=(1.0, 2.0))),
        "treats both measures alike",
    ),
    "a divergence by softmax": (
        lambda: pf.sinkhorn_divergence(MU, MU, eps=1.0, normaliser=pf.Softmax()),
        "must be a Sinkhorn, got Softmax",
    ),
    "no steps": (lambda: pf.Sinkhorn(max_steps=0), "at least 1"),
    "no projections": (lambda: pf.sliced_wasserstein(MU, MU, projections=0), "at least 1"),
    "flat queries": (lambda: ops.log_integral(ones(2), X, ones(3)), "(..., n, k)"),
    "a list of queries": (lambda: ops.log_integral([1.0], X, ones(3)), "`q` must be a Tensor"),
    "one tensor of times": (lambda: ops.log_integral(X, X, ones(3), times=ones(3)), "a pair"),
    "reductions of unlike batches": (
        lambda: ops.log_integral(ones(2, 3, 2), ones(4, 3, 2), ones(3)),
        "must broadcast",
    ),
    "an unknown implementation": (
        lambda: ops.log_integral(X, X, torch.ones(3), impl="fast"),
        "'reference', 'streamed'",
    ),
    "a half-precision bias": (
        lambda: ops.log_integral(X, X, torch.ones(3, dtype=torch.bfloat16)),
        "change the measure",
    ),
    "widths that differ": (lambda: ops.log_integral(X, ones(3, 4), ones(3)), "width"),
    "a bias of another length": (lambda: ops.log_integral(X, X, torch.ones(4)), "a row per atom"),
    "op times of the wrong shape": (
        lambda: ops.log_integral(X, X, torch.ones(3), times=(torch.ones(2), torch.ones(3))),
        "one per query (3)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    call, words = CASES[name]
    with pytest.raises((ValueError, TypeError, IndexError), match=re.escape(words)):
        call()


def test_a_causal_map_must_be_able_to_see_times():
    with pytest.raises(TypeError, match="condition"):

        class Late(pf.InContextMap):
            causal = True

            def evaluate(self, mu, x):
                return x
