"""The two reductions: the reference against the mathematics, the others against the reference."""

import math

import pytest
import torch
from implementations import HERE, here

from pushforward import ops

SIZES = [1, 63, 1000]
FAST = [impl for impl in HERE if impl != "reference"]


def inputs(m, n, dtype=torch.float64, *, timed=False):
    """Two batches, three heads; a third of the atoms of one batch has no mass, and garbage."""
    q, k, v = torch.randn(2, 3, m, 5), torch.randn(2, 3, n, 5), torch.randn(2, 3, n, 4)
    bias = torch.randn(2, 1, n)
    if n > 1:
        bias[0, :, ::3] = -torch.inf
        k[0, :, ::3], v[0, :, ::3] = torch.nan, torch.inf
    times = (torch.rand(2, 1, m), 0.1 + torch.rand(2, 1, n)) if timed else None
    return [t.to(dtype) for t in (q, k, v, bias)], times


def run(op, tensors, times, impl, grad):
    """The result and the gradients in everything, minus infinity counting as 0."""
    tensors = [t.clone().requires_grad_() for t in tensors]
    args = tensors if op == "average" else [tensors[0], tensors[1], tensors[3]]
    out = getattr(ops, op)(*args, times=times, impl=impl)
    shown = out.masked_fill(out == -torch.inf, 0)
    return [out.detach(), *torch.autograd.grad(shown, args, grad[: out.numel()].view_as(out))]


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("timed", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("op", ["log_integral", "average"])
def test_fast_is_the_reference_in_float64(op, m, n, timed, impl):
    tensors, times = inputs(m, n, timed=timed)
    grad = torch.randn(2 * 3 * m * 4)
    pairs = zip(
        run(op, tensors, times, impl, grad),
        run(op, tensors, times, "reference", grad),
        strict=True,
    )
    for got, expected in pairs:
        assert got.shape == expected.shape
        both = expected.isneginf()
        assert torch.equal(got.isneginf(), both)
        assert (got - expected).masked_fill(both, 0).abs().max() < 1e-12


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("timed", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (63, 1000), (1000, 63), (1000, 1000)])
@pytest.mark.parametrize("op", ["log_integral", "average"])
def test_fast_float32_is_as_good_as_dense_float32(op, m, n, timed, impl):
    """At most twice the error of the float32 reference, both against float64.

    Besides, a matrix product sums its terms one by one, where the reference sums in pairs: a
    random walk of max(m, n) roundings is allowed for, of terms that may cancel to nothing.
    """
    tensors, times = inputs(m, n, torch.float32, timed=timed)
    grad = torch.randn(2 * 3 * m * 4)
    exact = run(op, [t.double() for t in tensors], times, "reference", grad)
    dense = run(op, tensors, times, "reference", grad.float())
    fast = run(op, tensors, times, impl, grad.float())
    largest = lambda t: t[t.isfinite()].abs().max().double()
    terms = grad.norm() * max(largest(t) for t in tensors[:2]) * largest(tensors[2])
    for e, d, f in zip(exact, dense, fast, strict=True):
        hidden = e.isneginf()
        error = lambda t: (t.double() - e).masked_fill(hidden, 0).norm()  # noqa: B023
        size = e.masked_fill(hidden, 0).norm() + terms
        walk = max(m, n) ** 0.5 * torch.finfo(torch.float32).eps / 2
        assert error(f) <= 2 * error(d) + walk * size


@pytest.mark.parametrize("impl", HERE)
class TestDefinition:
    def test_against_loops(self, impl):
        """By the formula, one query and one atom at a time."""
        (q, k, v, bias), (asked, told) = inputs(3, 4, timed=True)
        bias, (asked, told) = torch.randn(2, 1, 4), (asked + 0.3, told)
        k, v = torch.randn_like(k), torch.randn_like(v)
        log_z = ops.log_integral(q, k, bias, times=(asked, told), impl=impl)
        mean = ops.average(q, k, v, bias, times=(asked, told), impl=impl)
        for b in range(2):
            for h in range(3):
                for i in range(3):
                    total, moment = 0.0, torch.zeros(4)
                    for j in range(4):
                        if told[b, 0, j] <= asked[b, 0, i]:
                            mass = (q[b, h, i] @ k[b, h, j] + bias[b, 0, j]).exp()
                            total, moment = total + mass, moment + mass * v[b, h, j]
                    if total == 0:
                        assert log_z[b, h, i] == -torch.inf
                        assert mean[b, h, i].eq(0).all()
                    else:
                        assert (log_z[b, h, i] - total.log()).abs() < 1e-13
                        assert (mean[b, h, i] - moment / total).abs().max() < 1e-13

    def test_scale(self, impl):
        """A factor of the dot products, in any dtype, with gradients."""
        (q, k, v, _), _ = inputs(3, 4)
        k, v = torch.randn_like(k), torch.randn_like(v)
        for f in (
            lambda q, s: ops.average(q, k, v, torch.zeros(4), scale=s, impl=impl),
            lambda q, s: ops.log_integral(q, k, torch.zeros(4), scale=s, impl=impl),
        ):
            assert (f(q, 0.3) - f(0.3 * q, 1.0)).abs().max() < 1e-13
            x = q.clone().requires_grad_()
            y = q.clone().requires_grad_()
            (gx,) = torch.autograd.grad(f(x, 0.3).sum(), x)
            (gy,) = torch.autograd.grad(f(0.3 * y, 1.0).sum(), y)
            assert (gx - gy).abs().max() < 1e-13

    def test_ties_are_seen(self, impl):
        q, k, v = torch.zeros(1, 1), torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [4.0]])
        times = torch.tensor([1]), torch.tensor([0, 1, 2])
        assert ops.average(q, k, v, torch.zeros(3), times=times, impl=impl).item() == 1.5

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("n", [0, 3])
    def test_nothing_to_see(self, impl, n, dtype):
        q, k, v = (torch.randn(s, 2, dtype=dtype).requires_grad_() for s in (4, n, n))
        bias = torch.full((n,), -torch.inf, dtype=dtype).requires_grad_()
        log_z = ops.log_integral(q, k, bias, impl=impl)
        mean = ops.average(q, k, v, bias, impl=impl)
        assert log_z.isneginf().all() and mean.eq(0).all()
        for out in (log_z.exp(), mean):
            for g in torch.autograd.grad(out.sum(), (q, k, v, bias), allow_unused=True):
                assert g is None or g.eq(0).all()

    def test_a_query_before_all_atoms(self, impl):
        q, k, v = (torch.randn(3, 2).requires_grad_() for _ in range(3))
        bias = torch.zeros(3, requires_grad=True)
        times = torch.tensor([-1.0, 0.0, 1.0]), torch.zeros(3)
        log_z = ops.log_integral(q, k, bias, times=times, impl=impl)
        mean = ops.average(q, k, v, bias, times=times, impl=impl)
        assert log_z[0] == -torch.inf and mean[0].eq(0).all()
        grads = torch.autograd.grad(log_z.exp().sum() + mean.sum(), (q, k, v, bias))
        assert all(g.isfinite().all() for g in grads)
        assert grads[0][0].eq(0).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_extremes(self, impl, dtype):
        """Logits of 1e4, weights of 1e-300, one atom, one dimension: finite and right."""
        q, k = torch.tensor([[100.0], [-100.0]], dtype=dtype), torch.tensor([[100.0]], dtype=dtype)
        tiny = torch.tensor([math.log(1e-300)], dtype=dtype)
        q.requires_grad_(), k.requires_grad_(), tiny.requires_grad_()
        log_z = ops.log_integral(q, k, tiny, impl=impl)
        expected = torch.tensor([1e4, -1e4], dtype=dtype) + tiny.detach()
        assert torch.allclose(log_z, expected, rtol=torch.finfo(dtype).eps, atol=0)
        mean = ops.average(q, k, k, tiny, impl=impl)
        assert torch.equal(mean, torch.full_like(mean, 100.0))
        for g in torch.autograd.grad(log_z.sum() + mean.sum(), (q, k, tiny)):
            assert g.isfinite().all()

    def test_large_logits_select(self, impl):
        q, k = torch.tensor([[1.0]]), torch.tensor([[-1e4], [1e4], [0.0]])
        v = torch.tensor([[1.0], [2.0], [3.0]])
        assert ops.average(q, k, v, torch.zeros(3), impl=impl).item() == 2.0

    def test_half_precision_keeps_the_weights(self, impl):
        """Weights 1 : 1.001 cannot be told apart in bf16 log-weights of size 700."""
        q, k = torch.zeros(1, 2, dtype=torch.bfloat16), torch.zeros(2, 2, dtype=torch.bfloat16)
        v = torch.tensor([[0.0], [256.0]], dtype=torch.bfloat16)
        bias = torch.tensor([0.0, math.log(1e-2)], dtype=torch.float32) - 700
        bias.requires_grad_()
        out = ops.average(q, k, v, bias, impl=impl)
        assert out.dtype == torch.bfloat16
        assert out.item() == pytest.approx(256 * 0.01 / 1.01, rel=2**-8)
        assert torch.autograd.grad(out.sum(), bias)[0].dtype == torch.float32
        assert ops.log_integral(q, k, bias, impl=impl).dtype == torch.float32

    @pytest.mark.parametrize("wanted", range(1, 16))
    def test_any_combination_of_gradients(self, impl, wanted):
        tensors, times = inputs(5, 7, timed=True)
        expected = run("average", tensors, times, "reference", torch.ones(2 * 3 * 5 * 4))[1:]
        chosen = [wanted >> i & 1 for i in range(4)]
        tensors = [t.clone().requires_grad_(bool(c)) for t, c in zip(tensors, chosen, strict=True)]
        ops.average(*tensors, times=times, impl=impl).sum().backward()
        for t, e, c in zip(tensors, expected, chosen, strict=True):
            assert (t.grad - e).abs().max() < 1e-12 if c else t.grad is None

    def test_autocast_leaves_the_scores_alone(self, impl, device):
        q, k, v = (torch.randn(9, 3, dtype=torch.float32) for _ in range(3))
        bias = torch.randn(9, dtype=torch.float32) - 300
        expected = ops.average(q, k, v, bias, impl=impl)
        with torch.autocast(device, dtype=torch.bfloat16):
            assert torch.equal(ops.average(q, k, v, bias, impl=impl), expected)


def test_functional_transforms():
    """`torch.func` works on the reference: Jacobians, batches of queries, of measures."""
    q, k, bias = torch.randn(4, 2), torch.randn(5, 2), torch.randn(5)
    f = lambda q, bias: ops.average(q, k, k, bias, impl="reference")
    jacobian = torch.func.jacrev(f)(q, bias)
    p = (q @ k.mT + bias).softmax(-1)
    mean = p @ k
    covariance = torch.einsum("mn,na,nb->mab", p, k, k) - mean[:, :, None] * mean[:, None, :]
    for i in range(4):
        assert (jacobian[i, :, i] - covariance[i]).abs().max() < 1e-13
    biases = torch.stack([bias, -bias, torch.full_like(bias, -torch.inf)])
    batched = torch.func.vmap(lambda b: f(q, b))(biases)
    assert torch.equal(batched[2], torch.zeros(4, 2))
    assert (batched[1] - f(q, -bias)).abs().max() < 1e-14


def test_the_default_follows_the_size(monkeypatch):
    asked = []
    for name in here():
        module = ops.implementation(name)
        answer = lambda q, *rest, name=name: asked.append(name) or q[:, 0]
        monkeypatch.setattr(module, "log_integral", answer)
    for n in (8, 400, 3000):
        ops.log_integral(torch.randn(n, 2), torch.randn(n, 2), torch.zeros(n))
    fast = ["fused", "fused"] if "fused" in here() else ["reference", "streamed"]
    assert asked == ["reference", *fast]


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("timed", [False, True], ids=["all", "causal"])
def test_gradients_of_large_logits(timed, impl):
    """All scores 1e6: the average is the mean and each value gets a gradient of 1/700."""
    v = torch.randn(700, 1, dtype=torch.float32, requires_grad=True)
    q, k = torch.full((1, 1), 1e4).float(), torch.full((700, 1), 100.0).float()
    times = (torch.zeros(1), torch.zeros(700)) if timed else None
    out = ops.average(q, k, v, torch.zeros(700).float(), times=times, impl=impl)
    (grad,) = torch.autograd.grad(out.sum(), v)
    assert (grad - 1 / 700).abs().max() < 1e-7 / 70


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("far", [1e8, -1e8])
def test_a_far_key_costs_the_near_ones_no_digits(impl, far):
    """Keys 0 and 1 beside one at 1e8, which the query hides: as good as dense float32."""
    q, k = torch.tensor([[-1.0 if far > 0 else 1.0]]), torch.tensor([[0.0], [1.0], [far]])
    v = torch.tensor([[0.0], [1.0], [5.0]])
    bias = torch.zeros(3)
    out = ops.average(*(t.float() for t in (q, k, v, bias)), impl=impl)
    assert abs(out.item() - ops.average(q, k, v, bias, impl="reference").item()) < 1e-6


@pytest.mark.parametrize("impl", FAST)
def test_anomaly_mode_finds_nothing(impl):
    """No NaN appears in any backward step, not even one that is thrown away."""
    tensors, _ = inputs(5, 9)
    tensors = [t.requires_grad_() for t in tensors]
    with torch.autograd.set_detect_anomaly(True):
        ops.average(*tensors, impl=impl).sum().backward()


def test_forward_mode_is_refused_where_it_is_missing():
    q, k, bias = torch.randn(3, 2), torch.randn(4, 2), torch.zeros(4)
    f = lambda impl: torch.func.jvp(
        lambda q: ops.log_integral(q, k, bias, impl=impl), (q,), (torch.ones_like(q),)
    )[1]
    assert f("reference").abs().max() > 0
    for impl in here()[1:]:
        with pytest.raises(NotImplementedError, match="forward-mode"):
            f(impl)


def test_integer_times_are_not_rounded():
    """A float32 query at 2^24 must not see an atom at 2^24 + 1."""
    one = torch.zeros(1, 1)
    times = torch.tensor([2.0**24], dtype=torch.float32), torch.tensor([2**24 + 1])
    for impl in here():
        assert ops.log_integral(one, one, torch.zeros(1), times=times, impl=impl) == -torch.inf


def _small(n, dtype):
    return (
        torch.randn(3, 2, dtype=dtype),
        torch.randn(n, 2, dtype=dtype),
        torch.randn(n, 2, dtype=dtype),
        torch.randn(n, dtype=dtype),
    )


@pytest.mark.parametrize("guard", [True, False], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("wrong", ["query", "infinite query", "key", "last key", "bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_nan_stays_nan(dtype, wrong, guard):
    """Averages are NaN exactly where the reference is; PyTorch's fused attention may say 0."""
    for n in (1, 2, 3, 6, 7, 8, 15, 16, 17, 40):
        q, k, v, b = _small(n, dtype)
        match wrong:
            case "query":
                q[1, 0] = math.nan
            case "infinite query":
                q[1, 0] = math.inf
            case "key":
                k[0, 1] = math.nan
            case "last key":
                k[-1, 0] = math.nan
            case "bias":
                b[n // 2] = math.nan
        expected, *others = (ops.average(q, k, v, b, impl=i, guard=guard) for i in here())
        assert expected.isnan().any()
        assert all(torch.equal(got.isnan(), expected.isnan()) for got in others)


@pytest.mark.parametrize("impl", HERE)
def test_gradients_of_what_is_nan_are_nan(impl):
    """Those of parameters that a NaN row reaches; another row's query has its own gradient."""
    q, k, v, b = _small(6, torch.float64)
    q[1] = math.nan
    inputs = [t.requires_grad_() for t in (q, k, v, b)]
    dq, dk, dv, db = torch.autograd.grad(ops.average(*inputs, impl=impl).sum(), inputs)
    assert dk.isnan().any() and dv.isnan().any() and db.isnan().any()
    assert dq[1].isnan().any() and dq[0].isfinite().all() and dq[2].isfinite().all()


@pytest.mark.parametrize("impl", FAST)
def test_a_context_without_mass_is_no_nan(impl):
    q, k, v, b = _small(6, torch.float32)
    b[:] = -torch.inf
    assert (ops.average(q, k, v, b, impl=impl) == 0).all()


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("width", [1, 3])
def test_keys_of_width_zero_leave_the_bias(width, impl):
    q, k = torch.zeros(2, 0), torch.zeros(3, 0)
    v, bias = torch.randn(3, width), torch.tensor([0.0, 1.0, 2.0])
    got = ops.average(q, k, v, bias, impl=impl)
    assert torch.allclose(got, (bias.softmax(0) @ v).expand(2, width))


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("scale", [1e30, 1e31, 1e300])
def test_an_atom_without_mass_never_beats_one_of_a_very_low_score(scale, impl):
    q, k = torch.ones(1, 1), torch.tensor([[-1.0], [0.0]])
    v, bias = torch.tensor([[3.0], [5.0]]), torch.tensor([0.0, -math.inf])
    assert ops.average(q, k, v, bias, scale=scale, impl=impl).item() == 3.0


TIMES = [torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int64, torch.float32]


@pytest.mark.parametrize("dtype", TIMES, ids=str)
def test_times_of_every_dtype_are_compared_as_numbers(dtype):
    q, k, v, b = _small(6, torch.float64)
    late, early = torch.tensor([0, 3, 5]), torch.arange(6)
    for impl in here():
        run = lambda *times, impl=impl: ops.average(q, k, v, b, times=times, impl=impl)
        expected = run(late.double(), early.double())
        assert torch.equal(run(late.to(dtype), early.to(dtype)), expected)
        assert torch.equal(run(late.to(dtype), early), expected)


def test_whole_times_are_not_rounded_beside_float32():
    """2^24 + 1 is after 2^24, and float32 has no 2^24 + 1."""
    q, k, v, b = _small(2, torch.float64)
    keys = torch.tensor([2**24, 2**24 + 1])
    for queries in (torch.full((3,), 2.0**24).float(), torch.full((3,), 2**24).int()):
        for impl in here():
            got = ops.average(q, k, v, b, times=(queries, keys), impl=impl)
            assert torch.equal(got, v[:1].expand(3, 2))


def test_tiles_of_decaying_sums_count_all_problems(monkeypatch):
    """Also those that only the terms have."""
    from pushforward._tools import tiles
    from pushforward.ops import _radial

    sizes, whole = [], tiles.distance_matrix

    def watched(x, y):
        sizes.append(whole(x, y).numel())
        return whole(x, y)

    monkeypatch.setattr(_radial, "distance_matrix", watched)
    ops.decaying_sum(
        torch.randn(1200, 2), torch.randn(16, 1200, 2), torch.randn(1200, 1), power=0.7
    )
    assert max(sizes) <= tiles.TILE["cpu"] and sum(sizes) == 16 * 1200**2


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("impl", ops.runnable("cpu", torch.float64))
def test_several_biases_on_the_same_points(impl, guard):
    q, k, v, biases = torch.randn(5, 2), torch.randn(3, 2), torch.randn(3, 4), torch.randn(4, 3)
    each = [ops.average(q, k, v, b, impl="reference") for b in biases]
    found = ops.average(q, k, v, biases, impl=impl, guard=guard)
    assert (found - torch.stack(each)).abs().max() < 1e-12
    each = [ops.log_integral(q, k, b, impl="reference") for b in biases]
    found = ops.log_integral(q, k, biases, impl=impl, guard=guard)
    assert (found - torch.stack(each)).abs().max() < 1e-12
