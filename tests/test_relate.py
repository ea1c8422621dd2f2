"""What can be related: points, encoded or not, matrices, functions, batches, attention tensors."""

import math
import pickle
import warnings

import pytest
import torch
from related import TIGHT, cloud, pair, related, squared

import pushforward as pf


def test_matrix_function_mask_and_points_agree():
    mu, nu = pair()
    scores = -squared(mu, nu) / 0.7
    function = lambda mu, nu, x, y: -(x - y).square().sum(-1) / 0.7
    p = related(mu, nu).matrix()
    for what in (pf.Matrix(scores), pf.Pairs(function)):
        assert torch.allclose(
            pf.relate(mu, nu, affinity=what, normaliser=TIGHT).matrix(), p, atol=1e-12
        )
    everything = torch.ones(7, 9, dtype=torch.bool)
    near = pf.SquaredDistance(0.7)
    masked = pf.relate(mu, nu, affinity=near, normaliser=TIGHT, mask=everything)
    assert torch.allclose(masked.matrix(), p, atol=1e-12)
    assert float(masked.cost()) == pytest.approx(related(mu, nu).cost().item())


def test_heads_come_after_the_measures():
    """Scores (b, h, m, n) of measures (b,): element i meets measure i in all its heads."""
    w = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    mu, scores = pf.Measure(torch.randn(2, 6, 2), w), torch.randn(2, 2, 6, 6)
    rows = pf.relate(mu, mu, affinity=pf.Matrix(scores), normaliser=TIGHT).marginals()[0]
    assert torch.allclose(rows, (w / w.sum(-1, keepdim=True))[:, None].expand(2, 2, 6))
    q = torch.randn(2, 3, 6, 4)
    pi = pf.relate(mu, mu, affinity=pf.Encoded(q, q.flip(1)), normaliser=TIGHT)
    assert pi.shape == (2, 3, 6, 6)
    assert torch.allclose(pi.marginals()[0][0, 2], w[0] / 3)
    with pytest.raises(ValueError, match="`mu` and the scores must broadcast"):
        pf.relate(mu, mu, affinity=pf.Matrix(torch.randn(3, 2, 6, 6)))


def test_matrices_meet_batches():
    mu = pf.Measure(torch.randn(3, 4, 2), torch.rand(3, 4))
    pi = pf.relate(mu, mu, affinity=pf.Matrix(torch.randn(4, 4)), normaliser=pf.Sinkhorn())
    assert pi.shape == (3, 4, 4) and pi.converged.all()
    heads = torch.rand(3, 2, 4, 4) * (torch.rand(3, 2, 4, 4) > 0.2) + torch.eye(4)
    kappa = pf.Conditional.from_matrix(heads / heads.sum(-1, keepdim=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert kappa.project(mu, mu).converged.all()


def test_attention_tensors_of_other_models():
    heads = torch.randn(2, 4, 5, 5).softmax(-1)
    kappa = pf.Conditional.from_matrix(heads)
    assert torch.allclose(kappa.matrix(), heads)
    nu = cloud(5)
    assert torch.allclose(pf.Conditional.from_matrix(heads, nu).matrix(), heads)
    v = torch.randn(5, 3)
    assert torch.allclose(kappa.apply(v), heads @ v)
    causal = torch.randn(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
    assert torch.allclose(pf.Conditional.from_matrix(causal).matrix(), causal)
    assert torch.isfinite(pf.Conditional.from_matrix(causal).entropy()).all()
    half = heads.bfloat16()
    assert torch.allclose(pf.Conditional.from_matrix(half).matrix(), heads.float(), atol=1e-2)
    p = torch.rand(4, 6)
    pi = pf.Coupling.from_matrix(p / p.sum())
    assert torch.allclose(pi.matrix(), p / p.sum()) and pi.converged


def test_zeros_of_attention_tensors_have_no_gradient():
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    kappa = pf.Conditional.from_matrix(logits.softmax(-1))
    total = kappa.entropy().sum() + kappa.apply(torch.randn(3, 2)).sum() + kappa.matrix().sum()
    (grad,) = torch.autograd.grad(total, logits)
    rows = logits.detach().requires_grad_()
    p = rows.softmax(-1)
    (expected,) = torch.autograd.grad(-(p * p.clamp_min(1e-300).log()).sum(), rows)
    assert torch.isfinite(grad).all() and torch.isfinite(expected).all()


def test_pictures(tmp_path):
    mu, nu = pair(6, 5)
    near = pf.SquaredDistance(1.0)
    for normaliser in (pf.Softmax(), pf.Sinkhorn(), pf.relations.DualSoftmax()):
        r = pf.relate(mu, nu, affinity=near, normaliser=normaliser)
        figures = (
            pf.pictures.heatmap(r), pf.pictures.graph(r), pf.pictures.transported(r, mu, nu),
        )  # fmt: skip
        for i, figure in enumerate(figures):
            figure.savefig(tmp_path / f"{i}.png")
            assert (tmp_path / f"{i}.png").stat().st_size > 5000
    image = pf.pictures.heatmap(related(mu, nu)).axes[0].images[0].get_array()
    assert torch.allclose(torch.as_tensor(image), related(mu, nu).matrix())
    with pytest.raises(ValueError, match="one relation, got a batch"):
        pf.pictures.graph(pf.Conditional.from_matrix(torch.rand(2, 3, 3).softmax(-1)))
    with pytest.raises(ValueError, match="`nu` must be one cloud of 5 points in the plane"):
        pf.pictures.transported(related(mu, nu), mu, mu)


def test_encoders_see_their_own_measure():
    """Tensors and the encoders that make them give one relation; so do points and identities."""
    mu, nu = pair()
    q = lambda mu, x: x - mu.mean()
    near = pf.SquaredDistance(0.7)
    there = lambda a: pf.relate(mu, nu, affinity=a, normaliser=TIGHT).matrix()
    encoded = there(pf.Encoded(q, q, near))
    assert torch.equal(encoded, there(pf.Encoded(q(mu, mu.atoms), q(nu, nu.atoms), near)))
    assert torch.equal(there(near), there(pf.Encoded(mu.atoms, nu.atoms, near)))
    dots = pf.relate(mu, nu).matrix()
    assert torch.equal(dots, pf.relate(mu, nu, affinity=pf.Encoded(mu.atoms, nu.atoms)).matrix())


@pytest.mark.parametrize(
    "normaliser, kind",
    [
        (pf.Softmax(), pf.Conditional),
        (pf.relations.Hardmax(), pf.Conditional),
        (pf.Sinkhorn(steps=2), pf.Coupling),
        (pf.Sinkhorn(tol=1e-3), pf.Coupling),
        (pf.relations.Exact(), pf.Coupling),
        (pf.Sinkhorn(steps=2, slack=1.0), pf.relations.Masses),
        (pf.relations.DualSoftmax(), pf.relations.Masses),
        (pf.relations.Sigmoid(), pf.relations.Masses),
        (pf.relations.Exponential(), pf.relations.Masses),
        (pf.relations.Bilinear(), pf.relations.Signed),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else repr(x),
)
def test_what_comes_back(normaliser, kind):
    """The type of the relation; and at other queries it is the same relation, if it has any."""
    mu, nu = pair()
    pi = pf.relate(mu, nu, normaliser=normaliser)
    assert type(pi) is kind and pi.any_query == normaliser.any_query
    some = pf.Measure(mu.atoms[:3])
    scores = pf.Dot(1.0).scores(some, nu)
    if not pi.any_query:
        with pytest.raises(ValueError, match="relates atoms only"):
            pi.at(scores)
        return
    v = torch.randn(9, 2)
    there = pi.at(scores)
    assert type(there) is kind and there.shape == (3, 9)
    assert torch.allclose(there.apply(v), pi.apply(v)[:3], atol=1e-14)
    again = there.at(pi.costs if pi.costs is not None else pf.Dot(1.0).scores(mu, nu))
    assert torch.allclose(again.apply(v), pi.apply(v), atol=1e-14)


@pytest.mark.parametrize(
    "normaliser",
    [
        pf.Softmax(),
        pf.Sinkhorn(),
        pf.Sinkhorn(slack=1.0),
        pf.relations.DualSoftmax(),
        pf.relations.Exponential(),
        pf.relations.Bilinear(),
    ],
    ids=repr,
)
def test_relations_of_points_can_be_pickled(normaliser):
    """And the copy can still be evaluated at other queries."""
    mu, nu = pair()
    pi = pf.relate(mu, nu, normaliser=normaliser)
    copy = pickle.loads(pickle.dumps(pi))
    scores = pf.Dot(1.0).scores(pf.Measure(mu.atoms[:3]), nu)
    assert torch.equal(copy.matrix(), pi.matrix())
    assert torch.equal(copy.at(scores).apply(nu.atoms), pi.at(scores).apply(nu.atoms))


def test_relations_of_part_of_a_batch_relate_atoms_only():
    mu = pf.Measure(torch.randn(2, 5, 2))
    assert pf.relate(mu, mu).any_query and not pf.relate(mu, mu)[0].any_query


@pytest.mark.parametrize("normaliser", [pf.Sinkhorn(steps=2), pf.relations.Sigmoid()], ids=repr)
def test_an_ellipsis_stands_for_axes_of_the_batch(normaliser):
    mu = pf.Measure(torch.randn(2, 3, 5, 2))
    pi = pf.relate(mu, mu, normaliser=normaliser)
    assert torch.equal(pi[..., 0].matrix(), pi[:, 0].matrix())


CLOSED = [
    pf.Softmax(),
    pf.Sinkhorn(),
    pf.Sinkhorn(steps=3),
    pf.Sinkhorn(slack=1.0),
    pf.relations.DualSoftmax(),
    pf.relations.Sigmoid(),
    pf.relations.Exponential(),
    pf.relations.Bilinear(),
    pf.relations.Hardmax(),
    pf.relations.Exact(),
]


@pytest.mark.parametrize("normaliser", CLOSED, ids=str)
@pytest.mark.parametrize("wrong", [1e20, math.nan, math.inf], ids=str)
def test_scores_that_are_not_finite_are_refused(normaliser, wrong):
    """Dot products beyond float32 are, and so is what a function of pairs makes of them."""
    mu = pf.Measure(torch.randn(5, 2, dtype=torch.float32))
    far = wrong * mu.atoms.abs()
    dots = lambda mu, nu, x, y: far.sum(-1)[:, None] * far.sum(-1)[None]
    for affinity in (pf.Encoded(far, far), pf.Pairs(_tile_of(dots))):
        with pytest.raises(ValueError, match="Scores must be finite"):
            pf.relate(mu, mu, affinity=affinity, normaliser=normaliser)


def _tile_of(function):
    """A function of pairs that knows all its values: the rows asked for are found by shape."""
    return lambda mu, nu, x, y: function(mu, nu, x, y)[: x.shape[-3], : y.shape[-2]]


def test_a_bound_beyond_the_dtype_is_no_score():
    """Long queries and long keys that are orthogonal have the score 0."""
    mu = pf.Measure(torch.zeros(2, 2, dtype=torch.float32))
    q, k = torch.tensor([[1e30, 0.0]]).float(), torch.tensor([[0.0, 1e30]]).float()
    kappa = pf.relate(mu, mu, affinity=pf.Encoded(q.expand(2, 2), k.expand(2, 2)))
    assert torch.equal(kappa.matrix(), torch.full((2, 2), 0.5).float())


@pytest.mark.parametrize("normaliser", [pf.Sinkhorn(), pf.Sinkhorn(steps=5)], ids=str)
def test_scores_too_large_to_balance_are_refused(normaliser):
    """At 1e20, rounding of float64 moves a score by 1e4, and a mass by a factor of e^10000."""
    mu = pf.Measure(torch.randn(30, 2))
    for affinity in (pf.Matrix(1e20 * torch.randn(30, 30)), pf.SquaredDistance(1e-20)):
        with pytest.raises(ValueError, match=r"at most 4.5e\+15 to be balanced in float64, got"):
            pf.relate(mu, mu, affinity=affinity, normaliser=normaliser)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_has_not_converged_warns(size, dtype):
    mu = pf.Measure(torch.randn(20, 2, dtype=dtype))
    ask = lambda affinity: pf.relate(
        mu, mu, affinity=affinity, normaliser=pf.Sinkhorn(max_steps=300)
    )
    for affinity in (
        pf.Matrix(size * torch.randn(20, 20, dtype=dtype)),
        pf.SquaredDistance(1 / size),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pi = ask(affinity)
        assert bool(caught) == (not pi.converged)


def test_a_kernel_in_memory_saves_measuring_the_plan():
    """It is solved to less than the tolerance, by what rounding of the scores may add."""
    mu, nu = (pf.Measure(torch.rand(300, 3, dtype=torch.float32)) for _ in range(2))
    pi = pf.relate(mu, nu, affinity=pf.SquaredDistance(0.005), normaliser=pf.Sinkhorn(tol=1e-3))
    assert "residual" not in vars(pi)  # it is cached where it is measured
    assert pi.converged


def test_fixed_steps_promise_no_tolerance():
    """They never warn; the error that is left is the residual."""
    mu, nu = cloud(6), cloud(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pi = related(mu, nu, pf.Sinkhorn(steps=1), eps=0.05)
    assert not pi.converged and pi.residual > 1e-3


@pytest.mark.parametrize("normaliser", CLOSED, ids=str)
def test_an_empty_batch_of_measures(normaliser):
    mu, nu = pf.Measure(torch.zeros(0, 4, 2)), pf.Measure(torch.zeros(0, 3, 2))
    relation = pf.relate(mu, nu, normaliser=normaliser)
    assert relation.matrix().shape == (0, 4, 3)
    assert relation.apply(nu.atoms).shape == (0, 4, 2)
    if hasattr(relation, "residual"):
        assert relation.residual.shape == (0,)
    if isinstance(relation, pf.Conditional):
        assert relation.joint(mu).residual.shape == (0,)


def test_matrices_computed_in_float32_and_looked_at_in_float64():
    attention = torch.randn(8, 100, 100, dtype=torch.float32).softmax(-1).double()
    kappa = pf.Conditional.from_matrix(attention)
    assert torch.allclose(kappa.matrix().sum(-1), torch.ones(8, 100), atol=1e-14)
    pi = pf.Coupling.from_matrix(attention / 100)
    assert torch.allclose(pi.matrix().sum((-1, -2)), torch.ones(8), atol=1e-14)
