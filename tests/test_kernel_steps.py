"""Sinkhorn steps by kernels against the steps one by one, on a GPU or interpreted.

The interpreter runs programs one after another, so there each problem has one program; several
that wait for each other run on a GPU only (`--device cuda`).
"""

import math
import random
from dataclasses import replace

import interpreter
import pytest
import torch

import pushforward as pf
from pushforward.affinities import Features, PointScores
from pushforward.sinkhorn import Problem, alternate

ON_GPU = interpreter.on_gpu()

pytestmark = pytest.mark.unhooked  # checks of shapes would wrap the kernels themselves

gpu_only = pytest.mark.skipif(not ON_GPU, reason="needs programs that run at the same time")


@pytest.fixture(autouse=True)
def _there(device, monkeypatch):
    """Kernels run here, and memory that nothing was written to is NaN."""
    if ON_GPU and device == "cpu":
        pytest.skip("on a machine with a GPU these tests run with --device cuda")
    if not ON_GPU:
        kernels = pf.ops.implementation("triton")
        monkeypatch.setattr(pf.affinities._points, "_kernels", lambda device: kernels)
    torch.set_default_dtype(torch.float32)
    interpreter.poison(monkeypatch)


def cloud(*shape, dead=False, like=None):
    """Points, and log-weights; every fifth atom may have no mass."""
    x = torch.randn(*shape) if like is None else like
    logs = torch.randn(x.shape[:-1])
    if dead:
        logs[..., ::5] = -torch.inf
    return x, logs.log_softmax(-1)


def squared(x, eps):
    return Features(x, -x.square().sum(-1) / eps)


def problem(q, k, eps=None, scale=0.7, **options):
    """Scores and marginals of two clouds, for the dot product or the squared distance."""
    (x, log_a), (y, log_b) = q, k
    if eps is None:
        return PointScores(Features(x, None), Features(y, None), scale), Problem(
            log_a, log_b, **options
        )
    return PointScores(squared(x, eps), squared(y, eps), 2 / eps), Problem(log_a, log_b, **options)


def in_double(scores, marginals):
    masses = marginals.log_masses
    masses = None if masses is None else (masses[0].double(), masses[1].double())
    logs = {"log_a": marginals.log_a.double(), "log_b": marginals.log_b.double()}
    return scores.to(torch.float64), replace(marginals, log_masses=masses, **logs)


def one_by_one(scores, marginals, g, steps):
    """The steps one by one, by the dense reference."""
    return alternate(replace(scores, impl="reference"), marginals, g, steps)


def compare(scores, marginals, steps, start=None):
    """At most a few times the error of the steps one by one, or some roundings of the scores."""
    g = torch.zeros_like(marginals.log_b) if start is None else start
    logs = (marginals.log_a, marginals.log_b)
    found = scores.alternated(
        logs, g, marginals.damping, marginals.log_masses, marginals.symmetric, steps
    )
    expected = one_by_one(scores, marginals, g, steps)
    exact = one_by_one(*in_double(scores, marginals), g.double(), steps)
    assert found is not None and found.shape == expected.shape and found.dtype == expected.dtype
    assert torch.equal(found, alternate(scores, marginals, g, steps))
    error = lambda t: (t.double() - exact).abs().max().item()
    rounding = 2**-23 * (1 + scores.size().item() + exact.abs().max().item())
    assert error(found) <= 3 * error(expected) + rounding


CASES = {
    "dead atoms": lambda: (*problem(cloud(21, 2, dead=True), cloud(140, 2, dead=True)), 3),
    "slack and masses": lambda: (
        *problem(
            cloud(21, 3), cloud(70, 3), eps=1.5, slack=(1.0, 2.5),
            log_masses=(torch.tensor([0.3]), torch.tensor([-0.4])),
        ),
        3,
    ),
    "slack on one side": lambda: (
        *problem(cloud(9, 3), cloud(14, 3), eps=1.5, slack=(math.inf, 2.0)),
        3,
    ),
    "heads broadcast": lambda: (*problem(cloud(2, 1, 20, 4), cloud(1, 3, 12, 4, dead=True)), 3),
    "one atom": lambda: (*problem(cloud(3, 1), cloud(1, 1)), 3),
    "three leading axes": lambda: (*problem(cloud(2, 1, 2, 5, 2), cloud(7, 2)), 2),
    "huge scores": lambda: (*problem(cloud(30, 2), cloud(20, 2), scale=1e4), 6),
    "tiny temperature": lambda: (*problem(cloud(40, 3), cloud(40, 3), eps=1e-3), 6),
    "rows of another length": lambda: (*problem(cloud(130, 2), cloud(3, 2)), 2),
    "wide, shares, dead atoms": lambda: (
        *problem(cloud(20, 5, dead=True), cloud(600, 5, dead=True)),
        3,
    ),
    "wide, slack and masses": lambda: (
        *problem(
            cloud(21, 33), cloud(70, 33), eps=9.0, slack=(1.0, 2.5),
            log_masses=(torch.tensor([0.3]), torch.tensor([-0.4])),
        ),
        3,
    ),
    "wide, heads broadcast": lambda: (*problem(cloud(2, 1, 20, 64), cloud(1, 3, 12, 64)), 2),
    "wide, huge scores": lambda: (*problem(cloud(300, 16), cloud(40, 16), scale=1e3), 6),
    "wide, tiny temperature": lambda: (*problem(cloud(40, 16), cloud(400, 16), eps=1e-2), 6),
    "widest": lambda: (*problem(cloud(9, 256), cloud(5, 256), scale=0.1), 2),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_steps_are_the_steps_one_by_one(case):
    compare(*case())


@pytest.mark.parametrize("width", [2, 20])
def test_symmetric_steps(width):
    x, logs = cloud(2, 70, width, dead=True)
    for steps in (1, 4):  # potentials end on either side
        compare(*problem((x, logs), (x, logs), eps=1.0, symmetric=True), steps)


def one_launch_each(monkeypatch):
    """Half-steps of narrow points are launches of their own, as they are for many pairs."""
    monkeypatch.setattr(pf.ops.implementation("triton")._tiles, "SEPARATE", 1)


def test_half_steps_of_one_launch_each(monkeypatch):
    one_launch_each(monkeypatch)
    compare(*problem(cloud(2, 530, 2, dead=True), cloud(2, 21, 2, dead=True)), 3)
    q, k = cloud(20, 3), cloud(600, 3)
    compare(*problem(q, k, eps=1.5, slack=(1.0, 2.5)), 3)
    compare(*problem(q, k, eps=1e-3), 6)
    compare(*problem(q, k), 3, start=1000 + torch.randn(600))
    x, logs = cloud(2, 520, 1, dead=True)
    for steps in (1, 2):
        compare(*problem((x, logs), (x, logs), eps=1.0, symmetric=True), steps)


@pytest.mark.parametrize("dead", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize(("length", "width"), [(9, 2), (530, 2), (9, 20), (600, 20)])
def test_a_problem_without_mass(length, width, dead, monkeypatch):
    """Its potentials are infinite; the other problem has what it would have alone."""
    one_launch_each(monkeypatch)  # of the two lengths, only the larger one is so
    sides = cloud(2, 7, width), cloud(2, length, width)
    for side in dead:
        sides[side][1][0] = -torch.inf
    scores, marginals = problem(*sides)
    g = torch.zeros(2, length)
    for steps in (1, 3):
        found, expected = (f(scores, marginals, g, steps) for f in (alternate, one_by_one))
        assert expected[0].isinf().all() and torch.equal(found[0], expected[0])
        assert (found[1] - expected[1]).abs().max() < 1e-5


@pytest.mark.parametrize(("length", "width"), [(40, 2), (300, 20)])
def test_a_start_far_away(length, width):
    """The last log-integral is then hundreds off, and no shift for the next one."""
    scores, marginals = problem(cloud(length, width), cloud(30, width), slack=(1.0, 0.5))
    compare(scores, marginals, 3, start=1000 + torch.randn(30))
    compare(scores, marginals, 3, start=-1000 + torch.randn(30))
    start = torch.full((30,), torch.nan)  # what an atom without mass has does not matter
    start[1:] = 0
    marginals.log_b[0] = -torch.inf
    found = alternate(scores, marginals, start, 3)
    assert torch.equal(found, alternate(scores, marginals, start.nan_to_num(7.0), 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [2, 20])
def test_points_in_half_precision(dtype, width):
    (x, log_a), (y, log_b) = cloud(9, 2, width), cloud(12, 2, width)  # heads are not leading
    x, y = (t.to(dtype).transpose(0, 1) for t in (x, y))
    compare(*problem((x, log_a.mT), (y, log_b.mT)), 2)


@pytest.mark.parametrize("width", [2, 20])
def test_nan_stays_nan(width):
    (x, log_a), k = cloud(6, width), cloud(300, width)
    x[1] = torch.nan
    scores, marginals = problem((x, log_a), k)
    assert alternate(scores, marginals, torch.zeros(300), 2).isnan().all()


def test_several_launches(monkeypatch):
    scores, marginals = problem(cloud(9, 2), cloud(12, 2))
    whole = alternate(scores, marginals, torch.zeros(12), 5)
    monkeypatch.setattr(pf.ops.implementation("triton")._steps, "MOST", 2)
    assert (alternate(scores, marginals, torch.zeros(12), 5) - whole).abs().max() < 1e-6


def test_programs_fit_the_device():
    """Those that wait for each other all run at once, and each has something to do."""
    planned = pf.ops.implementation("triton")._steps.planned
    for problems in (1, 3, 50, 1000, 5000):
        for m, n in ((1, 1), (64, 64), (300, 7), (4096, 4096), (5000, 70_000)):
            plan = planned(problems, m, n, 3, 132)
            if plan.programs is None:
                assert problems * m * n >= 1 << 28
                continue
            assert 1 <= plan.programs <= -(-max(m, n) // plan.rows)
            assert plan.programs == 1 or problems * plan.programs * plan.warps <= 16 * 132


def test_shares_of_wide_points():
    """All programs are there at once; a few long columns are shared, also if interpreted."""
    launch = pf.ops.implementation("triton")._steps
    for d in (16, 32, 64, 128, 256):
        for problems, m, n in ((1, 4096, 4096), (8, 4096, 4096), (1, 9, 70_000), (4096, 64, 64)):
            plan = launch.wide_planned(problems, m, n, d, halves=2, processors=132, memory=233_472)
            warps = plan.resident * plan.tile.warps
            assert 8 <= plan.registers <= 65_536 // (32 * warps)
            assert plan.programs == 1 or problems * plan.programs <= 132 * plan.resident
    assert launch.wide_planned(1, 9, 9, 256, halves=2, processors=8, memory=65_536) is None
    plan = launch._wide_plan(torch.empty(20, 5), torch.empty(600, 5))
    assert ON_GPU or plan.shares[0] > 1


def test_gradients_go_through_the_steps():
    """With gradients the steps are recorded; without, they are one launch. Both are the same."""
    (x, log_a), k = cloud(6, 2), cloud(5, 2)
    mu, nu = pf.Measure(x.requires_grad_(), log_weights=log_a), pf.Measure(k[0])
    call = lambda: pf.relate(
        mu, nu, affinity=pf.SquaredDistance(1.0), normaliser=pf.Sinkhorn(steps=3)
    )
    with torch.no_grad():
        plain = call().g
    assert (plain - call().g.detach()).abs().max() < 1e-6
    (grad,) = torch.autograd.grad(call().g.square().sum(), x)
    assert grad.abs().max() > 1e-3


@pytest.mark.parametrize(("width", "large"), [(2, 1 << 26), (2, 1), (5, 1)])
def test_gradients_by_one_pass(width, large, monkeypatch):
    """At most twice the error of autograd through the same steps one by one."""
    monkeypatch.setattr(pf.ops.implementation("triton")._launch, "LARGE", large)
    made = cloud(2, 21, width, dead=True), cloud(2, 14, width, dead=True)
    masses = torch.tensor([[0.2], [0.1]]), torch.tensor([[0.3], [-0.2]])
    numbers = [*made[0], *made[1], torch.randn(2, 14)]

    def gradients(impl, dtype):
        leaves = [t.detach().to(dtype).requires_grad_() for t in numbers]
        x, log_a, y, log_b, g = leaves
        scores = PointScores(squared(x, 2.0), squared(y, 2.0), 1.0, impl=impl)
        logs = tuple(t.to(dtype) for t in masses)
        marginals = Problem(log_a, log_b, (math.inf, 3.0), log_masses=logs)
        out = alternate(scores, marginals, g, 3)
        return torch.autograd.grad(out.masked_fill(log_b == -math.inf, 0).square().sum(), leaves)

    exact = gradients("reference", torch.float64)
    size = max(t.norm() for t in exact)
    error = lambda found: max((a - b).norm() / size for a, b in zip(found, exact, strict=True))
    found = error(gradients("triton", torch.float32))
    monkeypatch.setattr(pf.sinkhorn._alternate, "_recorded", lambda *_: None)
    assert found < 2 * error(gradients("triton", torch.float32)) + 3e-7


RECORDED = {
    "dead atoms": dict(dead=True),
    "slack": dict(slack=(2.0, 5.0), batch=(2, 1), dead=True),
    "symmetric": dict(symmetric=True, m=40, n=40),
    "bfloat16": dict(dtype=torch.bfloat16),
    "large scores": dict(scale=3.0, dead=True, large=True),
    "far biases": dict(spread=40.0, large=True),
    "shares of many keys": dict(m=20, n=600, shares=(2, 1)),
    "shares of many queries": dict(m=600, n=20, shares=(1, 2)),
    "shares, symmetric": dict(m=520, n=520, symmetric=True, shares=(2, 2)),
}


@pytest.mark.parametrize("case", RECORDED.values(), ids=RECORDED)
def test_steps_are_recorded_and_gone_back_in_one_launch(case, monkeypatch):
    """Gradients of wide points, log-weights, start and constants, against autograd in float64.

    Where there are many columns, programs share those of a block of rows.
    """
    given = dict(
        m=50, n=70, batch=(2,), dead=False, slack=(math.inf, math.inf), symmetric=False,
        scale=0.3, spread=1.0, large=False, dtype=torch.float32, shares=(1, 1),
    ) | case  # fmt: skip
    m, n, batch, d, count = given["m"], given["n"], given["batch"], 9, 4
    (x, log_a), (y, log_b) = (cloud(*batch, size, d, dead=given["dead"]) for size in (m, n))
    if given["symmetric"]:
        y, log_b = x, log_a
    log_b = (given["spread"] * log_b).log_softmax(-1)
    points = [t.to(given["dtype"]) for t in (x, y)]
    start = torch.randn(*batch, n)
    masses = torch.randn(*batch, 1), torch.randn(*batch, 1)
    tau = [1.0 if math.isinf(r) else r / (1 + r) for r in given["slack"]]
    numbers = [log_a, log_b, start]
    if tau != [1.0, 1.0]:
        numbers += [t.expand(*batch, size) for t, size in zip(masses, (m, n), strict=True)]
    kernels, launches = pf.ops.implementation("triton"), []
    assert ON_GPU or kernels._steps._wide_plan(x, y).shares == given["shares"]
    for name in ("adjoint_steps", "term_factors"):
        once = getattr(kernels, name)
        counted = lambda *a, name=name, once=once: launches.append(name) or once(*a)
        monkeypatch.setattr(kernels, name, counted)

    def run(impl, dtype):
        leaves = [t.detach().to(dtype if t.dtype == torch.float32 else t.dtype) for t in points]
        if dtype == torch.float64:
            leaves = [t.double() for t in leaves]
        leaves = [t.requires_grad_() for t in (*leaves, *(t.detach().to(dtype) for t in numbers))]
        factors = [given["scale"], *tau]
        out, *_ = pf.sinkhorn._alternate.take_steps(
            leaves, [], factors, given["symmetric"], impl, count
        )
        live = log_b != -torch.inf
        upstream = torch.linspace(-1, 2, out.numel()).sin().view_as(out).to(dtype) * live
        return [out.detach()[live], *torch.autograd.grad(out, leaves, upstream)]

    exact, found = run("streamed", torch.float64), run("triton", torch.float32)
    # Elsewhere terms are grouped by distances of all their potentials.
    few = not given["large"] and not given["symmetric"] and tau == [1.0, 1.0]
    assert launches[0] == "adjoint_steps" and ("term_factors" in launches) == few
    size = max(t.norm() for t in exact[3:])
    eps = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[given["dtype"]]
    for e, f in zip(exact, found, strict=True):
        most = eps if f.dtype == torch.bfloat16 else 1e-5
        assert (f.double() - e).norm() <= most * max(e.norm(), 1e-2 * size)


@pytest.mark.parametrize("seed", [79323, 86472, 193121])
def test_terms_of_plans_that_change_much_are_not_one_group(seed):
    """Small potentials whose plans are far apart: as one group these lost up to all digits."""
    torch.manual_seed(seed)
    draw = random.Random(seed).choice
    m, n, count = draw([2, 3, 4, 6]), draw([2, 3, 4, 6]), draw([1, 2, 3, 5, 8])
    x, y = torch.randn(m, 5) * draw([1, 2, 3, 4]), torch.randn(n, 5) * draw([0.5, 1, 2])
    logs = [(torch.randn(k) * draw([0.1, 2])).log_softmax(-1) for k in (m, n)]
    numbers = [x, y, *logs, draw([5, 10, 13]) * (2 * torch.rand(n) - 1)]
    factors, upstream = [draw([0.5, 1, 2]), 1.0, 1.0], torch.randn(n)

    def gradients(impl, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in numbers]
        out, *_, largest = pf.sinkhorn._alternate.take_steps(
            leaves, [], factors, False, impl, count
        )
        assert impl == "streamed" or largest < 15
        return torch.autograd.grad(out, leaves[:2], upstream.to(dtype))

    exact, found = gradients("streamed", torch.float64), gradients("triton", torch.float32)
    for e, f in zip(exact, found, strict=True):
        assert (f - e).norm() < 2e-5 * e.norm()


def test_where_steps_are_not_one_launch():
    scores, marginals = problem(cloud(6, 2), cloud(5, 2))

    def at_once(scores=scores, g=None, **changes):
        changed = replace(marginals, **changes)
        logs, g = (changed.log_a, changed.log_b), torch.zeros(5) if g is None else g
        return scores.alternated(logs, g, (1.0, 1.0), None, False, 2) is not None

    assert at_once()
    assert not at_once(replace(scores, impl="streamed"))
    assert not at_once(replace(scores, times=(torch.zeros(6), torch.zeros(5))))
    assert not at_once(scores.to(torch.float64))
    assert not at_once(g=torch.zeros(5).double())
    assert not at_once(log_a=marginals.log_a.clone().requires_grad_())
    wide, _ = problem(cloud(6, 257), cloud(5, 257))
    assert not at_once(wide)
    vmapped = torch.func.vmap(lambda g: alternate(scores, marginals, g, 2))(torch.zeros(2, 5))
    assert (vmapped - alternate(scores, marginals, torch.zeros(5), 2)).abs().max() < 1e-6
    with torch.autograd.forward_ad.dual_level():
        g = torch.autograd.forward_ad.make_dual(torch.zeros(5), torch.ones(5))
        assert not at_once(g=g)


def test_the_operator_is_registered_right():
    operator = pf.ops.implementation("triton").take_steps
    (x, log_a), (y, log_b) = cloud(1, 2, 5, 2), cloud(1, 2, 4, 2)
    arguments = ([x, y], [log_a, log_b], [], torch.zeros(1, 2, 4), 1.0, [1.0, 1.0], 1, False)
    torch.library.opcheck(operator, arguments)
    out = operator(*arguments[:3], torch.zeros(1, 2, 4, requires_grad=True), *arguments[4:])
    with pytest.raises(NotImplementedError, match="Sinkhorn steps with .* have no gradient"):
        out.sum().backward()


def test_compiles_without_a_break():
    scores, marginals = problem(cloud(6, 2), cloud(5, 2), eps=1.0)
    f = lambda g: alternate(scores, marginals, g, 2)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.zeros(5)), f(torch.zeros(5)))


@gpu_only
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 16, 33, 64, 128, 256])
@pytest.mark.parametrize("sizes", [(5000, 5000), (4099, 63), (300, 9000)], ids=str)
def test_several_programs(sizes, width):
    m, n = sizes
    compare(*problem(cloud(3, m, width, dead=True), cloud(3, n, width, dead=True), eps=0.5), 7)
    compare(*problem(cloud(m, width), cloud(n, width), eps=0.05, slack=(1.0, 20.0)), 7)
    if width > 4:
        for dtype in (torch.float16, torch.bfloat16):
            (x, log_a), (y, log_b) = cloud(m, width), cloud(n, width)
            compare(*problem((x.to(dtype), log_a), (y.to(dtype), log_b), scale=0.2), 7)


@gpu_only
def test_many_small_problems():
    compare(*problem(cloud(4096, 64, 3, dead=True), cloud(4096, 64, 3), eps=0.5), 20)
    compare(*problem(cloud(70_000, 4, 2), cloud(70_000, 3, 2)), 3)
    compare(*problem(cloud(4096, 64, 16, dead=True), cloud(4096, 64, 16), eps=4.0), 20)


@gpu_only
def test_symmetric_steps_of_several_programs():
    for width in (3, 64):
        x, logs = cloud(5000, width)
        compare(*problem((x, logs), (x, logs), eps=0.5, symmetric=True), 11)


@gpu_only
@pytest.mark.parametrize("width", [3, 64])
def test_the_same_bits_each_time(width):
    scores, marginals = problem(cloud(3, 4096, width), cloud(3, 4096, width), eps=0.1)
    first, *others = (alternate(scores, marginals, torch.zeros(3, 4096), 50) for _ in range(5))
    assert all(torch.equal(first, g) for g in others)
