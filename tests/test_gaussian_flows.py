"""Flows of Gaussians against recursions and closed forms."""

import math

import pytest
import torch
from cases import worst
from flow_cases import I2

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked


GAUSSIAN = {
    "softmax": dict(),
    "squared distance": dict(affinity=pf.SquaredDistance(2.0)),
    "sinkhorn": dict(normaliser=pf.Sinkhorn(tol=1e-15)),
    "linear": dict(normaliser=pf.relations.Bilinear()),
}


def gaussian_problem(d=2):
    """Matrices small enough for the nodes to resolve the integrals."""
    Q, K, V = (0.5 * torch.randn(3, d, d)).unbind(0)
    return Q, K, V, 0.3 * torch.randn(d), 0.15 * torch.eye(d) + 0.02


@pytest.mark.parametrize("solver", [pf.Euler(10), pf.flows.Midpoint(10), pf.RK4(10)], ids=repr)
@pytest.mark.parametrize("name", GAUSSIAN)
@pytest.mark.filterwarnings("ignore:Sinkhorn stopped")  # a tolerance below rounding
def test_gaussians_follow_the_recursions(name, solver):
    """Rows 1, 5, 6, 8 (E11): weighted Gauss-Hermite tokens are the mean-field limit, 1e-12."""
    torch.manual_seed(1)
    Q, K, V, mean, cov = gaussian_problem()
    field = pf.fields.SelfAttention(Q, K, V, **GAUSSIAN[name])
    mu = pf.Measure.gaussian(mean, cov, order=20)
    limit = pf.flows.gaussian(field, mean, cov, t1=1.0, solver=solver, save=10)
    path = pf.flow(field, mu, t1=1.0, solver=solver, save=10, queries=torch.ones(1, 2))
    means, covs = path.moments()
    assert worst(means, limit.means) < 1e-12 and worst(covs, limit.covariances) < 1e-12
    assert worst(path.queries, limit(torch.ones(1, 2))) < 1e-11


def test_softmax_gaussian_layer_by_hand():
    """Row 1: M = I + hV Sigma A, alpha' = M alpha + hV alpha, Sigma' = M Sigma M^T."""
    Q, K, V, mean, cov = gaussian_problem()
    A, h = K.mT @ Q, 0.1
    path = pf.flows.gaussian(
        pf.fields.SelfAttention(Q, K, V), mean, cov, t1=1.0, solver=pf.Euler(10)
    )
    for _ in range(10):
        M = I2() + h * V @ cov @ A
        mean, cov = M @ mean + h * V @ mean, M @ cov @ M.mT
    assert worst(path.means[-1], mean) < 1e-14 and worst(path.covariances[-1], cov) < 1e-14


@pytest.mark.parametrize("kind", ["any", "skew"])
def test_softmax_gaussian_flow_in_closed_form(kind):
    """Rows 2 and 3, V = vI."""
    torch.manual_seed(2)
    A, v, t = 0.5 * torch.randn(2, 2), 0.7, 0.6
    A = A - A.mT if kind == "skew" else A
    mean, cov = torch.tensor([0.3, -0.5]), 0.4 * I2() + 0.1
    field = pf.fields.SelfAttention(A, I2(), v * I2())
    path = pf.flows.gaussian(field, mean, cov, t1=t, solver=pf.Dopri5(1e-13, 1e-15))
    exact = torch.linalg.inv(torch.linalg.inv(cov) - v * t * (A + A.mT))
    assert worst(path.covariances[-1], exact) < 1e-11
    if kind == "skew":
        assert worst(path.covariances[-1], cov) < 1e-11
        moved = torch.linalg.matrix_exp(v * t * (I2() + cov @ A)) @ mean
        assert worst(path.means[-1], moved) < 1e-11


def test_softmax_gaussian_flow_on_the_line():
    """Row 4, particles and limit, up to near the blow-up at 1/(2vaS)."""
    v, a, S, m, one = 0.8, 0.6, 0.5, 0.4, torch.eye(1)
    field = pf.fields.SelfAttention(a * one, one, v * one)
    t = 0.6 / (2 * v * a * S)
    S_t = S / (1 - 2 * v * a * S * t)
    m_t = m * math.exp(v * t) * (1 - 2 * v * a * S * t) ** -0.5
    limit = pf.flows.gaussian(field, m * one[0], S * one, t1=t, solver=pf.RK4(2000))
    assert abs(limit.covariances[-1].item() - S_t) < 1e-11
    assert abs(limit.means[-1].item() - m_t) < 1e-11
    past = lambda solver: pf.flows.gaussian(field, m * one[0], S * one, t1=2 * t, solver=solver)
    with pytest.raises(pf.flows.FlowError, match="Worst is atom") as caught:
        past(pf.Dopri5(1e-8))
    assert abs(caught.value.time - t / 0.6) < 1e-2 * t


def test_squared_distance_keeps_the_mean_direction():
    """Row 5 with Q = K: the mean follows exp(Vt)."""
    torch.manual_seed(3)
    Q, V = 0.6 * torch.randn(2, 2), 0.5 * torch.randn(2, 2)
    mean, cov = torch.tensor([0.3, -0.5]), 0.4 * I2() + 0.1
    field = pf.fields.SelfAttention(Q, Q, V, affinity=pf.SquaredDistance(2.0))
    path = pf.flows.gaussian(field, mean, cov, t1=1.0, solver=pf.RK4(200))
    assert worst(path.means[-1], torch.linalg.matrix_exp(V) @ mean) < 1e-10


@pytest.mark.parametrize("normaliser", [pf.Softmax(), pf.Sinkhorn()], ids=["softmax", "sinkhorn"])
def test_gaussian_flows_refuse_an_indefinite_covariance(normaliser):
    eye = torch.eye(2)
    field = pf.fields.SelfAttention(eye, eye, -eye, normaliser=normaliser)
    with pytest.raises(ValueError, match="positive definite"):
        pf.flows.gaussian(field, 0 * eye[0], torch.tensor([[1.0, 2.0], [2.0, 1.0]]), t1=0.1)


def test_gaussian_flows_refuse_an_asymmetric_covariance():
    eye = torch.eye(2)
    field = pf.fields.SelfAttention(eye, eye, -eye)
    with pytest.raises(ValueError, match="symmetric"):
        pf.flows.gaussian(field, 0 * eye[0], torch.tensor([[1.0, 0.9], [0.0, 1.0]]), t1=0.1)


@pytest.mark.parametrize("normaliser", [pf.Softmax(), pf.Sinkhorn()], ids=["softmax", "sinkhorn"])
def test_singular_gaussians_flow_where_no_inverse_is_taken(normaliser):
    """The flow depends continuously on the covariance; Sinkhorn's formula inverts it."""
    Q, K, V, mean, _ = gaussian_problem()
    field = pf.fields.SelfAttention(Q, K, V, normaliser=normaliser)
    line = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    end = lambda cov: pf.flows.gaussian(field, mean, cov, t1=0.1).covariances[-1]
    if isinstance(normaliser, pf.Sinkhorn):
        with pytest.raises(ValueError, match="positive definite"):
            end(line)
    else:
        assert worst(end(line), end(line + 1e-9 * I2())) < 1e-8
        assert worst(end(0 * line), 0 * line) == 0
