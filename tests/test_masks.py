"""Relations on patterns of allowed pairs: support, parts, partners."""

import pytest
import torch
from related import TIGHT, extreme, squared

import pushforward as pf


def test_disconnected_masks_have_a_gauge_each():
    mu, nu = pf.Measure(torch.randn(6, 2)), pf.Measure(torch.randn(6, 2))
    mask = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).bool()
    x = mu.atoms.clone().requires_grad_()
    pi = pf.relate(mu, nu, affinity=pf.Encoded(x, nu.atoms), normaliser=TIGHT, mask=mask)
    p = pi.matrix()
    assert (p[~mask] == 0).all() and pi.converged
    f, g = pi.potentials
    for part in (slice(0, 2), slice(2, 6)):
        assert float(f[part].sum().item()) == pytest.approx(g[part].sum().item(), abs=1e-10)
    direction = torch.randn(6, 6)
    (grad,) = torch.autograd.grad((p * direction).sum(), x)
    eps, e = 1e-5, torch.zeros(6, 2)
    e[3, 1] = eps
    value = lambda x: (
        pf.relate(mu, nu, affinity=pf.Encoded(x, nu.atoms), normaliser=TIGHT, mask=mask).matrix()
        * direction
    ).sum()
    with torch.no_grad():
        slope = (value(x + e) - value(x - e)) / (2 * eps)
    assert float(grad[3, 1]) == pytest.approx(slope.item(), abs=1e-8)


def test_no_support_is_an_error():
    mu = pf.Measure(torch.randn(4, 2))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[:2, 1:] = False  # two rows share one column
    with pytest.raises(ValueError, match=r"0.25 of the mass cannot be matched.*no support"):
        pf.relate(mu, mu, normaliser=pf.Sinkhorn(), mask=mask)
    heavy = pf.Measure(mu.atoms, torch.tensor([5.0, 1.0, 1.0, 1.0]))
    fits = pf.relate(mu, heavy, normaliser=pf.Sinkhorn(), mask=mask)
    assert fits.converged  # other marginals leave room
    loose = pf.relate(mu, mu, normaliser=pf.Sinkhorn(slack=1.0), mask=mask)
    assert loose.residual < 1e-5 and (loose.matrix()[:2, 1:] == 0).all()


def test_causal_masks_tend_to_the_identity():
    mu = pf.Measure(torch.randn(5, 2))
    mask = torch.ones(5, 5).tril().bool()
    ask = lambda normaliser: pf.relate(
        mu, mu, affinity=pf.Matrix(torch.zeros(5, 5)), normaliser=normaliser, mask=mask
    )
    with pytest.warns(UserWarning, match="10 of its allowed pairs.*identity"):
        pi = ask(pf.Sinkhorn())
    assert torch.allclose(pi.matrix(), torch.eye(5) / 5, atol=1e-12) and pi.converged
    off = [k * ask(pf.Sinkhorn(steps=k)).matrix().tril(-1).max() for k in (1000, 2000, 4000)]
    assert float(off[1]) == pytest.approx(off[0].item(), rel=0.02)
    assert float(off[2]) == pytest.approx(off[1].item(), rel=0.01)
    rows = pf.Measure(mu.atoms, torch.tensor([1.0, 1, 1, 1, 2]))
    early = pf.Measure(mu.atoms, torch.tensor([2.0, 1, 1, 1, 1]))
    free = pf.relate(rows, early, normaliser=pf.Sinkhorn(), mask=mask)
    assert free.converged and free.matrix().tril(-1).max() > 0.01


def test_partial_support_returns_the_limit():
    """One pair can carry no mass; the others are scaled as if it were forbidden."""
    mu = pf.Measure(torch.randn(3, 2))
    mask = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 1, 1]]).bool()
    with pytest.warns(UserWarning, match="2 of its allowed pairs"):
        pi = pf.relate(mu, mu, normaliser=TIGHT, mask=mask)
    early, late = (
        pf.relate(mu, mu, normaliser=pf.Sinkhorn(steps=k), mask=mask).matrix()
        for k in (5_000, 10_000)
    )
    limit = 2 * late - early  # it nears its limit like 1/steps
    assert (pi.matrix() - limit).abs().max() < 1e-4


def test_infinite_costs_and_tiny_weights():
    mu, nu, _ = extreme(12, 1.0, 0, even=False)
    scores = -squared(mu, nu)
    forbidden = torch.rand(12, 12) < 0.2
    forbidden.fill_diagonal_(False)
    pi = pf.relate(
        mu,
        nu,
        affinity=pf.Matrix(scores.masked_fill(forbidden, -torch.inf)),
        normaliser=pf.Sinkhorn(slack=10.0),
    )
    assert (pi.matrix()[forbidden] == 0).all() and torch.isfinite(pi.cost())


def test_atoms_without_a_partner_are_named():
    mu = pf.Measure(torch.randn(3, 2))
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    for normaliser in (
        pf.Softmax(),
        pf.relations.DualSoftmax(),
        pf.Sinkhorn(steps=2),
        pf.Sinkhorn(slack=1.0),
    ):
        with pytest.raises(ValueError, match=r"Every query with mass .* index \(1,\)"):
            pf.relate(mu, mu, mask=mask, normaliser=normaliser)
    with pytest.raises(ValueError, match="Every key with mass"):
        pf.relate(mu, mu, mask=mask.T, normaliser=pf.Sinkhorn(steps=2))
    assert pf.relate(mu, mu, mask=mask.T).matrix().isfinite().all()
    weightless = pf.Measure(mu.atoms, torch.tensor([1.0, 0.0, 1.0]))
    pi = pf.relate(weightless, mu, mask=mask, normaliser=pf.Sinkhorn())
    assert pi.converged and pi.matrix().isfinite().all()


def test_masses_of_parts_agree_up_to_rounding():
    """Float32 weights of a block mask, and of a causal one, have a coupling all the same."""
    mask = torch.block_diag(torch.ones(4, 3), torch.ones(3, 2)).bool()
    mu = pf.Measure(torch.randn(7, 2).float())
    nu = pf.Measure(torch.randn(5, 2).float(), torch.tensor([4 / 3] * 3 + [1.5] * 2).float())
    scores = torch.randn(7, 5).float()
    assert pf.relate(
        mu, nu, affinity=pf.Matrix(scores), mask=mask, normaliser=pf.Sinkhorn()
    ).converged
    a = torch.rand(6).float()
    mu, nu = (pf.Measure(torch.randn(6, 2).float(), w) for w in (a, 3.7 * a))
    with pytest.warns(UserWarning, match="total support"):
        pi = pf.relate(
            mu,
            nu,
            affinity=pf.Matrix(torch.randn(6, 6).float()),
            mask=torch.ones(6, 6).tril().bool(),
            normaliser=pf.Sinkhorn(),
        )
    assert pi.converged


@pytest.mark.parametrize("weight", [-60.0, -300.0])
def test_gradients_of_a_heavy_and_a_light_part(weight):
    mask = torch.block_diag(torch.ones(6, 6), torch.ones(6, 6)).bool()
    logs = torch.cat([torch.zeros(6), torch.full((6,), weight)])
    mu, v = pf.Measure(torch.zeros(12, 1), log_weights=logs), torch.randn(12, 2)
    scores = torch.randn(12, 12, requires_grad=True)
    grads = [
        torch.autograd.grad(
            pf.relate(mu, mu, affinity=pf.Matrix(scores), mask=mask, normaliser=to)
            .apply(v)
            .square()
            .sum(),
            scores,
        )[0]
        for to in (TIGHT, pf.Sinkhorn(steps=500))
    ]
    assert torch.allclose(*grads, atol=1e-9)
