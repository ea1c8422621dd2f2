"""The Triton kernels against the reference: on a GPU with `--device cuda`, else interpreted.

The interpreter runs the same code on the CPU, slowly, so problems are small; the loops are split
and their tails are masked all the same. On a GPU larger problems follow.
"""

import interpreter
import pytest
import torch

from pushforward import ops

ON_GPU = interpreter.on_gpu()

pytestmark = pytest.mark.unhooked  # checks of shapes would wrap the kernels themselves

EPS = {torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture(autouse=True)
def _there(device):
    if ON_GPU and device == "cpu":
        pytest.skip("on a machine with a GPU these tests run with --device cuda")
    torch.set_default_dtype(torch.float32)


def inputs(m, n, d, e, dtype=torch.float32, batch=(2, 2), spread=1.0):
    """Points, values and log-weights; every fifth atom has no mass, and garbage."""
    q = (spread * torch.randn(*batch, m, d)).to(dtype)
    k, v = torch.randn(*batch, n, d).to(dtype), torch.randn(*batch, n, e).to(dtype)
    bias = torch.randn(*batch[:1], *[1] * (len(batch) - 1), n)
    if n > 4:
        bias[..., ::5] = -torch.inf
        k[..., ::5, :], v[..., ::5, :] = torch.nan, torch.inf
    return [q, k, v, bias]


def clock(m, n):
    """Times of a batch; some queries see nothing."""
    return torch.rand(2, 1, m), 0.05 + torch.rand(2, 1, n)


def run(op, tensors, times, impl, dtype=None):
    """The result and all gradients; minus infinity counts as 0 in the gradients."""
    tensors = [t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]
    args = tensors if op == "average" else [tensors[0], tensors[1], tensors[3]]
    out = getattr(ops, op)(*args, scale=0.7, times=times, impl=impl)
    upstream = torch.linspace(-1, 2, out.numel()).sin().view_as(out).to(out.dtype)
    shown = out.masked_fill(out == -torch.inf, 0)
    return [out.detach(), *torch.autograd.grad(shown, args, upstream)]


def compare(op, tensors, times=None, most=3.0):
    """At most a few times the error of the reference in the same precision.

    Where that is smaller than one rounding of the terms that are added, one rounding is allowed.
    """
    exact = run(op, tensors, times, "reference", torch.float64)
    dense = run(op, tensors, times, "reference")
    found = run(op, tensors, times, "triton")
    eps = EPS[tensors[0].dtype]
    size = max([1.0, *(t[t.isfinite()].abs().max() for t in tensors[:3] if t.numel())])
    terms = exact[0].numel() ** 0.5 * size**2
    for e, d, f in zip(exact, dense, found, strict=True):
        assert f.dtype == d.dtype and f.shape == d.shape
        hidden = e.isneginf()
        assert torch.equal(f.isneginf(), hidden)
        error = lambda t: (t.double() - e).masked_fill(hidden, 0).norm()  # noqa: B023
        assert error(f) <= most * error(d) + eps * (e.masked_fill(hidden, 0).norm() + terms)


SHAPES = {
    "narrow": (21, 300, 2, 3),
    "one coordinate": (3, 40, 1, 1),
    "four": (40, 33, 4, 4),
    "wide": (21, 140, 18, 5),
    "wide values": (5, 60, 3, 20),
    "two turns": (5, 40, 3, 70),
    "no coordinate": (4, 5, 0, 2),
    "whole tiles": (64, 128, 6, 7),
    "one atom": (3, 1, 5, 2),
}


@pytest.mark.parametrize("timed", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("op", ["average", "log_integral"])
def test_kernels_are_the_reference(op, shape, timed):
    compare(op, inputs(*shape), clock(*shape[:2]) if timed else None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(9, 40, 3, 2), (21, 70, 20, 7)], ids=["narrow", "wide"])
def test_half_precision(shape, dtype):
    compare("average", inputs(*shape, dtype=dtype))


@pytest.mark.parametrize("shape", [(9, 60, 2, 2), (9, 60, 9, 9)], ids=["narrow", "wide"])
@pytest.mark.parametrize("op", ["average", "log_integral"])
def test_small_scores_need_no_maximum(op, shape, monkeypatch):
    """One problem has small scores and one has large ones; each is right."""
    kernels = pytest.importorskip("pushforward.ops.kernels")
    monkeypatch.setattr(kernels._launch, "LARGE", 1)
    tensors = inputs(*shape)
    tensors[0] *= torch.tensor([1.0, 30.0])[:, None, None]
    tensors[1][..., 1:5, :] = 0.5  # the survey sees finite keys
    tensors[1].nan_to_num_(0.5)
    tensors[3][..., -7:] = -torch.inf
    compare(op, tensors)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, where sums overflow
def test_sums_out_of_range_are_formed_again(monkeypatch):
    """The first scores say nothing about those of later keys, or there is no first mass.

    Keys without mass are NaN and their values infinite in one head, and finite in the other.
    """
    kernels = pytest.importorskip("pushforward.ops.kernels")
    monkeypatch.setattr(kernels._launch, "LARGE", 1)
    tensors = inputs(9, 300, 9, 9, dtype=torch.bfloat16)
    tensors[1][:, 0, 200:] *= 40
    tensors[3][0, :, :140] = -torch.inf
    for points in tensors[1:3]:
        points[:, 0].nan_to_num_(0.5, 0.5)
    compare("average", tensors)


def test_views_are_not_copied_into_the_result():
    """Heads of a fused projection, transposed points and an expanded context."""
    q, k, v = torch.randn(2, 9, 3, 2, 3).unbind(2)
    tensors = [t.transpose(1, 2) for t in (q, k, v)] + [torch.randn(9)]
    tensors[1] = tensors[1][:1].expand(2, -1, -1, -1)
    tensors[2] = torch.randn(2, 2, 3, 9).mT
    compare("average", tensors)


@pytest.mark.parametrize("timed", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("op", ["average", "log_integral"])
def test_rounded_products(op, timed):
    """Errors of wide points are those of 11 bits; narrow points are not rounded."""
    times = clock(21, 140) if timed else None
    wide, narrow = inputs(21, 140, 18, 5), inputs(21, 140, 2, 3)
    exact = run(op, wide, times, "reference", torch.float64)
    found, accurate = (run(op, wide, times, impl) for impl in ("triton_half", "triton"))
    for e, f, a in zip(exact, found, accurate, strict=True):
        e, f, a = (t.double().masked_fill(t.isneginf(), 0) for t in (e, f, a))
        assert 1e-5 * e.norm() < (f - e).norm() < 4e-3 * e.norm()
        assert (a - e).norm() < 2e-6 * e.norm()
    both = (run(op, narrow, times, impl) for impl in ("triton_half", "triton"))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("op", ["average", "log_integral"])
def test_half_precision_is_not_rounded_again(op):
    """The bits are the same, and what atoms without mass hold does not matter either."""
    tensors = inputs(9, 40, 18, 5, dtype=torch.bfloat16)
    both = (run(op, tensors, None, impl) for impl in ("triton_half", "triton"))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 2)], ids=str)
def test_any_leading_axes(batch):
    tensors = [
        torch.randn(*batch, 5, 2),
        torch.randn(*batch, 7, 2),
        torch.randn(7, 3),
        torch.randn(7),
    ]
    compare("average", tensors)


@pytest.mark.parametrize("op", ["average", "log_integral"])
@pytest.mark.parametrize("sizes", [(3, 0), (0, 3)], ids=["no atoms", "no queries"])
def test_nothing_there(op, sizes):
    compare(op, inputs(*sizes, 2, 2))


def test_nan_stays_nan():
    """In the rows that see it, and in gradients; other queries have numbers."""
    q, k, v, b = (torch.randn(6, 2), torch.randn(40, 2), torch.randn(40, 2), torch.randn(40))
    q[1] = torch.nan
    found = run("average", [q, k, v, b], None, "triton")
    expected = run("average", [q, k, v, b], None, "reference")
    assert all(torch.equal(f.isnan(), e.isnan()) for f, e in zip(found, expected, strict=True))
    k[3, 1] = torch.nan
    assert ops.average(q, k, v, b, impl="triton").isnan().all()


@pytest.mark.parametrize("width", [1, 6], ids=["narrow", "wide"])
def test_gradients_of_large_scores(width):
    """All scores 1e6: each value gets the same gradient, though scores are rounded to 0.06."""
    q, k = torch.full((1, width), 1e4 / width), torch.full((90, width), 100.0)
    v = torch.randn(90, 1, requires_grad=True)
    out = ops.average(q, k, v, torch.zeros(90), impl="triton")
    (grad,) = torch.autograd.grad(out.sum(), v)
    assert (grad - 1 / 90).abs().max() < 1e-7 / 9


@pytest.mark.parametrize("spread", [0.01, 4.0], ids=["flat", "large scores"])
def test_gradients_of_queries_of_any_size(spread):
    """Upstream gradients from 1e-8 to 1e8: relative to these all rows are equally accurate."""
    tensors = [spread * torch.randn(70, 20), *(torch.randn(150, 20) for _ in range(2))]
    tensors.append(torch.zeros(150))
    upstream = torch.randn(70, 20) * 10 ** torch.linspace(-8, 8, 70)[torch.randperm(70), None]

    def gradients(impl, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        out = ops.average(*leaves, scale=0.7, impl=impl)
        return torch.autograd.grad(out, leaves, upstream.to(dtype))

    exact = gradients("reference", torch.float64)
    dense, found = (gradients(impl, torch.float32) for impl in ("reference", "triton"))
    sizes = [upstream.norm(dim=-1), *(t.norm() for t in exact[1:])]
    rows = lambda x: [x[0].norm(dim=-1), *(t.norm() for t in x[1:])]
    errors = lambda x: rows([a - b for a, b in zip(x, exact, strict=True)])
    for size, d, f in zip(sizes, errors(dense), errors(found), strict=True):
        assert (f / size).max() <= 3 * (d / size).max() + 1e-6


def test_gradients_of_values_that_are_zero():
    """Values say how upstream gradients are scaled; zeros say nothing."""
    q, k = torch.randn(9, 20), torch.randn(30, 20)
    v = torch.zeros(30, 6, requires_grad=True)
    upstream = 1e-9 * torch.randn(9, 6)
    (grad,) = torch.autograd.grad(
        ops.average(q, k, v, torch.zeros(30), impl="triton"), v, upstream
    )
    exact = (q.double() @ k.double().T).softmax(-1).T @ upstream.double()
    assert (grad - exact).norm() < 1e-6 * exact.norm()


def test_gradients_with_other_biases_than_those_prepared_for():
    """Points are prepared once. Biases of a later pass may be higher, and say how large it is."""
    kernels = pytest.importorskip("pushforward.ops.kernels")
    q, k, logs, upstream = (
        torch.randn(9, 20) / 9,
        torch.randn(30, 20),
        torch.zeros(30),
        torch.ones(9),
    )
    side, bias = kernels.ready((q, k), logs, 1.0, None), logs + 40
    _, *record = kernels.log_integral_parts(side, bias)
    found = kernels.vjp(side, bias, record, upstream, None, [True, True, True])
    leaves = [t.double().requires_grad_() for t in (q, k, bias)]
    out = ops.log_integral(*leaves, impl="reference")
    for f, e in zip(found, torch.autograd.grad(out.sum(), leaves), strict=True):
        assert (f - e).norm() < 1e-5 * e.norm()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, where sums overflow
def test_gradients_of_huge_biases_are_finite(monkeypatch):
    """Scores of size 1e8 are rounded to 8, and not by both passes alike."""
    kernels = pytest.importorskip("pushforward.ops.kernels")
    monkeypatch.setattr(kernels._launch, "LARGE", 1)
    leaves = [t.requires_grad_() for t in (torch.randn(9, 20), torch.randn(30, 20))]
    out = ops.log_integral(*leaves, torch.randn(30) - 1e8, scale=0.01, impl="triton")
    grads = torch.autograd.grad(out.sum(), leaves)
    assert out.isfinite().all() and all(g.isfinite().all() for g in grads)


def test_any_combination_of_gradients():
    tensors = inputs(5, 30, 2, 2)
    expected = run("average", tensors, None, "triton")[1:]
    upstream = torch.linspace(-1, 2, 40).sin().view(2, 2, 5, 2)
    for wanted in (1, 2, 4, 8):
        some = [t.clone().requires_grad_(bool(wanted >> i & 1)) for i, t in enumerate(tensors)]
        ops.average(*some, scale=0.7, impl="triton").backward(upstream)
        for t, e in zip(some, expected, strict=True):
            assert t.grad is None or torch.equal(t.grad, e)


def test_the_same_bits_each_time():
    tensors = inputs(21, 140, 6, 6)
    first, second = (run("average", tensors, None, "triton") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_operators_are_registered_right():
    from pushforward.ops.kernels import _operators as operators

    q, k, v, b = (torch.randn(1, 2, n, 2) for n in (5, 9, 9, 2))
    arguments = (q, k, v, torch.randn(1, 2, 9), 1.0, None, None, [True, False])
    arguments = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments)
    torch.library.opcheck(operators.reduce, arguments)


def test_compiles_without_a_break():
    tensors = [
        t.requires_grad_() for t in (torch.randn(5, 2), torch.randn(9, 2), torch.randn(9, 3))
    ]
    f = lambda q, k, v: ops.average(q, k, v, torch.zeros(9), impl="triton").square().sum()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors), f(*tensors))
    for a, b in zip(
        *(torch.autograd.grad(g(*tensors), tensors) for g in (compiled, f)), strict=True
    ):
        assert torch.equal(a, b)


def test_what_the_kernels_refuse():
    q = torch.randn(3, 2)
    with pytest.raises(ValueError, match="float64.*impl='streamed'"):
        ops.log_integral(q.double(), q.double(), torch.zeros(3).double(), impl="triton")
    wide = torch.randn(3, 300)
    with pytest.raises(ValueError, match="at most 256, got 300"):
        ops.log_integral(wide, wide, torch.zeros(3), impl="triton")
    x = q.clone().requires_grad_()
    out = ops.average(x, q, q, torch.zeros(3), impl="triton")
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.skipif(not ON_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("width", [2, 6], ids=["narrow", "wide"])
def test_more_problems_than_a_grid_has_rows(width):
    compare("average", inputs(4, 4, width, width, batch=(70_000,)))


@pytest.mark.skipif(not ON_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("width", [1, 3, 4, 16, 33, 64, 128, 256])
@pytest.mark.parametrize("sizes", [(1000, 4099), (63, 30_001), (4097, 129)], ids=str)
def test_large_problems(sizes, width, dtype):
    """Atoms without mass are garbage, so blocks in bfloat16 are formed again without them."""
    tensors = inputs(*sizes, width, width, dtype=dtype, batch=(2, 1), spread=width**-0.5)
    compare("average", tensors)
    compare("log_integral", tensors)
    compare("average", tensors, clock(*sizes))


HOPPER = {
    "odd sizes": (3000, 1025, 64, 64),
    "narrower than its block": (2500, 700, 40, 24),
    "one atom": (3001, 1, 64, 40),
    "scores of every size": (2300, 2048, 48, 64),
}


def test_which_points_the_copying_unit_reads():
    """Heads of a projection as they are; no address that is not aligned, no copies of one head."""
    from pushforward.ops.kernels._hopper import _copied, available

    x = torch.empty(2, 9, 3, 40, dtype=torch.bfloat16).transpose(1, 2)
    assert _copied(x) and _copied(x[..., :33]) and _copied(x[:1, :1, :1]) and _copied(x[..., 8:])
    for other in (x[..., 1:], x.mT, x[:1].expand(2, -1, -1, -1), x[..., :36].contiguous()):
        assert not _copied(other)
    assert not available(torch.device("cpu"))


def side_by_side(case, dtype, batch=3, heads=7):
    """Points and biases; heads lie side by side, as a projection leaves them."""
    m, n, d, e = case
    apart = lambda length, width: (
        torch.randn(batch, length, heads, width).transpose(1, 2).to(dtype)
    )
    q, k, v = apart(m, d) / d**0.5, apart(n, d), apart(n, e)
    bias = torch.randn(batch, heads, n)
    bias[:, 1:, ::5] = -torch.inf
    bias[1, :, n // 3 :] = -torch.inf
    bias[2, 3] = -torch.inf
    if case is HOPPER["scores of every size"]:
        q, bias[0, :, :500] = q * 300, -torch.inf
    return q, k, v, bias


@pytest.mark.skipif(not ON_GPU, reason="Gluon has no interpreter")
@pytest.mark.parametrize("case", HOPPER.values(), ids=HOPPER)
def test_gluon_is_its_twin(case, monkeypatch):
    """With strides of heads, dead atoms, padding, a problem without mass, and poisoned results."""
    from pushforward.ops.kernels import _hopper as hopper, _launch as launch

    device = torch.device("cuda", torch.cuda.current_device())
    if not hopper.available(device):
        pytest.skip("needs compute capability 9.0 and Triton 3.6")
    monkeypatch.setattr(launch, "LARGE", 1)
    n, dtype = case[1], torch.bfloat16
    q, k, v, bias = side_by_side(case, dtype)
    assert hopper.takes(q, k, v, bias)
    torch.use_deterministic_algorithms(True)  # fills empty tensors with NaN
    try:
        found = launch.forward((q, k, v, bias), 1.0, None)
        monkeypatch.setattr(hopper, "takes", lambda *_: False)
        twin = launch.forward((q, k, v, bias), 1.0, None)
    finally:
        torch.use_deterministic_algorithms(False)
    empty = twin.total == 0
    assert torch.equal(found.total == 0, empty) and empty[2, 3].all()
    assert (found.peak[empty] == -torch.inf).all() and (found.out[empty] == 0).all()
    log = lambda x: (x.peak + x.total.log2()).masked_fill(empty, 0)
    assert (log(found) - log(twin)).abs().max() <= 1e-6 * (1 + log(twin).abs().max()) * n**0.25
    error = (found.out.float() - twin.out.float()).norm()
    assert error <= EPS[dtype] * twin.out.float().norm()


@pytest.mark.skipif(not ON_GPU, reason="Gluon has no interpreter")
@pytest.mark.parametrize(
    "sizes", [(1900, 1025, 64), (1800, 77, 40), (1999, 1, 33), (900, 513, 100)], ids=str
)
def test_log_integrals_in_gluon_are_their_twins(sizes, monkeypatch):
    """With garbage in atoms without mass, a problem without mass, and scores of every size."""
    from pushforward.ops.kernels import _hopper as hopper, _launch as launch

    (m, n, d), batch = sizes, (3, 7)
    if not hopper.available(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip("needs compute capability 9.0 and Triton 3.6")
    monkeypatch.setattr(launch, "LARGE", 1)
    q, k, _, bias = inputs(m, n, d, 0, batch=batch)
    bias = bias.expand(*batch, n).clone()
    bias[2, 3] = -torch.inf
    q[1] *= 40
    assert hopper.takes_log(q, k, bias)
    found = launch.forward((q, k, k[..., :0], bias), 1.0, None).log_z
    monkeypatch.setattr(hopper, "takes_log", lambda *_: False)
    twin = launch.forward((q, k, k[..., :0], bias), 1.0, None).log_z
    empty = twin.isneginf()
    assert torch.equal(found.isneginf(), empty) and empty[2, 3].all() and not empty[0].any()
    # One rounding of the largest score in each.
    most = 2 * 2**-23 * twin[~empty].abs().max()
    assert (found - twin).masked_fill(empty, 0).abs().max() <= most


@pytest.mark.skipif(not ON_GPU, reason="Gluon has no interpreter")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wanted", ["all", "bias", "values", "keys"])
@pytest.mark.parametrize("case", HOPPER.values(), ids=HOPPER)
def test_gradients_in_gluon_are_their_twins(case, wanted, dtype, monkeypatch):
    """The same bits in every run, and those of Triton up to rounding, in poisoned memory."""
    from pushforward.ops.kernels import _hopper as hopper, _launch as launch

    if not hopper.available(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip("needs compute capability 9.0 and Triton 3.6")
    if wanted != "all" and case is not HOPPER["odd sizes"]:
        pytest.skip("once is enough")
    monkeypatch.setattr(launch, "LARGE", 1)
    monkeypatch.setattr(launch, "split", lambda *_: 1)
    tensors = side_by_side(case, dtype)
    result = launch.forward(tensors, 1.0, None)
    upstream = torch.randn_like(result.out), torch.randn_like(result.log_z)
    asked = [wanted in ("all", name) for name in ("queries", "keys", "values", "bias")]
    torch.use_deterministic_algorithms(True)  # fills empty tensors with NaN
    try:
        every = []
        for gluon in (True, True, False):
            monkeypatch.setattr(hopper, "takes_gradient", lambda *_, gluon=gluon: gluon)
            found = launch.backward(tensors, 1.0, None, result, upstream, list(asked))
            every.append([x for x, want in zip(found, asked, strict=True) if want])
    finally:
        torch.use_deterministic_algorithms(False)
    for one, again, twin in zip(*every, strict=True):
        assert torch.equal(one, again)
        error = (one.float() - twin.float()).norm()
        assert error <= EPS[dtype] * twin.float().norm()
