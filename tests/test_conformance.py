"""What every in-context map promises, for every implementation."""

import pytest
import torch
from cases import IDS, MAPS, measure, queries, worst

import pushforward as pf

TOL = 1e-12


@pytest.fixture(params=MAPS, ids=IDS)
def gamma(request):
    _, make, impl = request.param
    return make(impl)


def same(mu):
    """The same measure, written differently."""
    p = torch.randperm(mu.n)
    permuted = pf.Measure(mu.atoms[p], log_weights=mu.log_weights[p], times=mu.times[p])
    garbage = torch.cat([mu.atoms, torch.tensor([[torch.nan, torch.inf]])])
    logs = torch.cat([mu.log_weights, torch.tensor([-torch.inf])])
    times = torch.cat([mu.times, torch.tensor([-5.0])])
    return {
        "permuted": permuted,
        "one atom split": mu.split([0.2, 0.3, 0.5], atom=1),
        "duplicated": pf.Measure.mixture([mu, mu]),
        "zero-mass atom": pf.Measure(garbage, log_weights=logs, times=times),
        "scaled": pf.Measure(mu.atoms, mu.weights * 1e3, times=mu.times),
        "scaled by 1e-300": pf.Measure(mu.atoms, log_weights=mu.log_weights - 690, times=mu.times),
    }


@torch.no_grad()
def test_depends_on_the_measure_not_on_the_list(gamma):
    mu, (x, t) = measure(), queries()
    expected = gamma(mu, x, t)
    for name, other in same(mu).items():
        assert worst(gamma(other, x, t), expected) < TOL, name


@torch.no_grad()
def test_acts_query_by_query(gamma):
    mu, (x, t) = measure(), queries()
    assert worst(gamma(mu, x[1:2], t[1:2]), gamma(mu, x, t)[1:2]) < TOL


@torch.no_grad()
def test_push_call_and_curried_map_agree_to_the_bit(gamma):
    mu = measure()
    pushed = gamma.push(mu)
    assert torch.equal(pushed.atoms, gamma(mu, mu.atoms, mu.times))
    assert torch.equal(pushed.atoms, mu.push(gamma.at(mu)).atoms)
    curried = gamma.at(mu)
    for _ in range(2):
        assert torch.equal(pushed.atoms, curried(mu.atoms, mu.times))
    assert torch.equal(pushed.log_weights, mu.log_weights)
    assert torch.equal(pushed.times, mu.times)


@torch.no_grad()
def test_another_measure_is_pushed_point_by_point(gamma):
    mu, nu = measure(), measure(4)
    assert torch.equal(nu.push(gamma.at(mu)).atoms, gamma.at(mu)(nu.atoms, nu.times))


@torch.no_grad()
def test_a_ragged_batch_is_a_loop(gamma):
    clouds = [measure(6), measure(3), measure(1)]
    x, t = queries()
    together = gamma.push(pf.Measure.stack(clouds))
    for mu, image in zip(clouds, together, strict=True):
        assert image.n == mu.n
        assert worst(image, gamma.push(mu)) < TOL
    many = gamma(pf.Measure.stack(clouds), x.expand(3, -1, -1), t.expand(3, -1))
    for mu, y in zip(clouds, many, strict=True):
        assert worst(y, gamma(mu, x, t)) < TOL


@torch.no_grad()
def test_batches_broadcast(gamma):
    mu, (x, t) = measure(), queries()
    several = gamma(mu, torch.stack([x, x + 1]), torch.stack([t, t]))
    assert worst(several[1], gamma(mu, x + 1, t)) < TOL
    batch = pf.Measure.stack([mu, mu.push(lambda x: x - 1)])
    both = gamma(batch, x[None], t[None])
    assert both.shape[:2] == (2, 4)
    assert worst(both[0], gamma(mu, x, t)) < TOL


@pytest.mark.slow
def test_gradients(gamma):
    """Against finite differences: in atoms, weights and queries one by one, in all along a line.

    Parameters are many, and a random direction through all of them shows any one that is wrong.
    """
    mu, (x, t) = measure(4), queries(2)
    found = dict(gamma.named_parameters())
    names, values = list(found), [p.detach() for p in found.values()]

    def f(atoms, weights, x, *parameters):
        nu = pf.Measure(atoms, weights, times=mu.times)
        both = torch.func.functional_call(
            gamma, dict(zip(names, parameters, strict=True)), (nu, x, t)
        )
        return both

    inputs = [p.clone().requires_grad_() for p in (mu.atoms, mu.weights, x, *values)]
    assert torch.autograd.gradcheck(lambda *some: f(*some, *inputs[3:]), inputs[:3])
    assert torch.autograd.gradcheck(f, inputs, fast_mode=True)


def test_padding_and_zero_weights_get_no_gradient(gamma):
    atoms = torch.randn(4, 2)
    atoms[2] = torch.nan
    weights = torch.tensor([0.5, 1.0, 0.0, 0.25])
    atoms.requires_grad_(), weights.requires_grad_()
    mu = pf.Measure(atoms, weights, times=torch.zeros(4))
    x, _ = queries()
    (gamma(mu, x, torch.ones(4)).sum() + gamma.push(mu).mean().sum()).backward()
    assert atoms.grad[2].eq(0).all() and weights.grad[2] == 0
    assert atoms.grad.isfinite().all() and weights.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in gamma.parameters() if p.grad is not None)


@torch.no_grad()
def test_state_dict_round_trips(gamma):
    mu = measure()
    saved = {name: p.clone() for name, p in gamma.state_dict().items()}
    expected = gamma.push(mu)
    for p in gamma.parameters():
        p.add_(1)
    gamma.load_state_dict(saved)
    assert torch.equal(gamma.push(mu).atoms, expected.atoms)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype_and_device_are_kept(gamma, dtype, device):
    mu = measure().to(dtype)
    image = gamma.to(dtype).push(mu)
    assert image.atoms.dtype == dtype
    assert image.log_weights.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert image.atoms.device.type == device
    assert image.atoms.isfinite().all()
