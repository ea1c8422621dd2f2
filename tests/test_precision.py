"""Relations in float32: when they are computed in float64, stored kernels, certificates."""

import pytest
import torch
from related import extreme, pair, related

import pushforward as pf
from pushforward.sinkhorn import StoredKernel


def test_results_are_of_the_dtype_of_the_points():
    mu, nu = pair()
    for size in (0.1, 1.0, 2.0):
        m, n = (pf.Measure((size * t.atoms).float()) for t in (mu, nu))
        pi = related(m, n, pf.Sinkhorn(), eps=0.1)
        out = (pi.matrix(), pi.cost(), pi.entropy(), *pi.potentials, *pi.marginals())
        assert {t.dtype for t in out} == {torch.float32} and pi.converged
        assert pi.transpose().matrix().dtype == pi.conditional().matrix().dtype == torch.float32


def test_below_the_floor_of_float32_it_computes_in_float64():
    mu, nu, eps = extreme(100, 1e-3, 0, even=True)
    mu, nu = mu.to(torch.float32), nu.to(torch.float32)
    for tol, dtype in ((1e-3, torch.float32), (1e-8, torch.float64)):
        pi = related(mu, nu, pf.Sinkhorn(tol=tol), eps=eps)
        assert pi.converged and pi.scores.dtype == dtype
        assert pi.apply(nu.atoms).dtype == torch.float32


def test_masses_rounded_to_float32_are_one_all_the_same():
    mu, nu = pf.Measure(torch.rand(300, 1).float()), pf.Measure(torch.rand(170, 1).float())
    pi = pf.relate(mu, nu, normaliser=pf.Sinkhorn(tol=1e-10))
    assert float(pi.converged and pi.steps < 100 and pi.matrix().sum()) == pytest.approx(
        1, abs=1e-12
    )


def outlier():
    q, k = 0.3 * torch.randn(20, 2).float(), 0.3 * torch.randn(20, 2).float()
    k[0, 0] += 11
    return pf.relate(
        pf.Measure(q), pf.Measure(k), affinity=pf.SquaredDistance(1.0), normaliser=pf.Sinkhorn()
    )


def deep_column(dtype, **options):
    scores = torch.zeros(5, 5, dtype=dtype)
    scores[:, 0] = -150 if dtype == torch.float32 else -900
    mu = pf.Measure(torch.zeros(5, 1, dtype=dtype))
    return pf.relate(
        mu, mu, affinity=pf.Matrix(scores), normaliser=pf.Sinkhorn(tol=1e-5, **options)
    )


@pytest.mark.parametrize(
    "solve",
    [
        outlier,
        lambda: deep_column(torch.float32),
        lambda: deep_column(torch.float64, anneal=False),
        lambda: deep_column(torch.float32, slack=1e3),
    ],
    ids=["outlier", "float32", "float64", "slack"],
)
def test_kernels_stored_too_far_away_are_stored_anew(solve):
    """A key so far off that its column underflows in the kernel of the start."""
    assert solve().residual < 1e-5 and solve().steps <= 30


@pytest.mark.parametrize("batch", [(), (2,)])
def test_careful_products_leave_the_rounding_of_entries(batch):
    """A kernel rounded to float32, against the scores themselves, on both sides."""
    x, y = torch.randn(*batch, 3000, 2), torch.randn(*batch, 400, 2)
    log_b = torch.randn(400).log_softmax(-1).expand(*batch, 400)
    scores = pf.affinities.scores(pf.SquaredDistance(0.5), x, y, log_b)
    kernel = StoredKernel.normal(scores, log_b, torch.zeros_like(log_b), torch.float32)
    bias = torch.randn(*batch, 3000).log_softmax(-1)
    for k in (kernel, kernel.with_care()):
        for ours, truth in (
            (k.over_keys(log_b), scores.over_keys(log_b)),
            (k.T.over_keys(bias + k.f), scores.T.over_keys(bias + k.f)),
        ):
            assert (ours - truth).abs().max() < k.rounding / (2 if k.careful else 50)


def test_claims_of_rounded_kernels_are_true():
    """Potentials to 1e-6 from float32 entries: the plan's error in float64 is what is said."""
    x, y = torch.rand(2100, 3), torch.rand(2100, 3)
    with torch.no_grad():
        pi = pf.relate(
            pf.Measure(x),
            pf.Measure(y),
            affinity=pf.SquaredDistance(0.02),
            normaliser=pf.Sinkhorn(tol=1e-6),
        )
        rows, columns = (pi.matrix().sum(k) for k in (1, 0))
    wrong = max(float((m - 1 / 2100).abs().sum()) for m in (rows, columns))
    assert pi.converged and wrong <= pi.residual * (1 + 1e-6)


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e6])
def test_certificates_of_scores_with_an_offset(offset):
    """In float32 a common offset of the scores leaves potentials no digits: float64 is used."""
    a, b = torch.rand(20), torch.rand(20)
    mu, nu = (pf.Measure(torch.zeros(20, 1), w).to(torch.float32) for w in (a, b))
    pi = pf.relate(
        mu, nu, affinity=pf.Matrix(torch.randn(20, 20).float() + offset), normaliser=pf.Sinkhorn()
    )
    p = pi.matrix().double()
    assert pi.converged and (p.sum(-1) - a / a.sum()).abs().sum() < 1e-6
    assert (p.sum(-2) - b / b.sum()).abs().sum() < 1e-6
    far = pf.Measure(torch.randn(9, 2).float() + 1e4)
    near = pf.Measure(1e-3 * torch.randn(9, 2).float())
    kappa = pf.relate(far, near, affinity=pf.SquaredDistance(1.0))
    assert float(kappa.joint(far).matrix().sum()) == pytest.approx(1, abs=1e-5)


def test_functions_are_called_in_their_own_dtype():
    linear = torch.nn.Linear(2, 4, bias=False).float()
    mu = pf.Measure(torch.randn(6, 2).float())
    function = lambda mu, nu, x, y: 900 * (linear(x) * linear(y)).sum(-1)
    pi = pf.relate(mu, mu, affinity=pf.Pairs(function), normaliser=pf.Sinkhorn(tol=1e-5))
    assert pi.converged and pi.scores.dtype == torch.float64


@pytest.mark.parametrize("options", [{}, {"slack": 1.0}], ids=["coupling", "slack"])
def test_without_memory_every_step_streams(options, monkeypatch):
    """No kernel is stored, in the solve or in its gradients, and the relation is the same."""
    mu, nu = pair(30, 40)
    near, results = pf.SquaredDistance(0.3), []
    made, real = [], StoredKernel.__init__
    count = lambda *args, **more: made.append(1) or real(*args, **more)
    monkeypatch.setattr(StoredKernel, "__init__", count)
    for memory in (None, 30 * 40 * 8 - 1, 0):
        made.clear()
        x = mu.atoms.clone().requires_grad_()
        to = pf.Sinkhorn(tol=1e-12, memory=memory, **options)
        pi = pf.relate(pf.Measure(x, mu.weights), nu, affinity=near, normaliser=to)
        (grad,) = torch.autograd.grad(pi.apply(nu.atoms).square().sum(), x)
        assert bool(made) == (memory is None)
        results.append((pi.matrix().detach(), grad))
    for p, grad in results[1:]:
        assert torch.allclose(p, results[0][0], atol=1e-11)
        assert torch.allclose(grad, results[0][1], atol=1e-9)
