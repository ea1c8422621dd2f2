"""The numerical core against independent oracles, on random cases.

Each oracle computes the same in another way: sums in NumPy, a linear program, plain Sinkhorn, POT,
finite differences, a search. A case is determined by the name of its oracle and a seed, so that
the id of a failed test repeats it. A few seeds run always, many with `-m exhaustive`.
"""

import math

import numpy as np
import ot
import pytest
import torch
from implementations import HERE
from scipy.optimize import linprog

import pushforward as pf

ORACLES = {}
"""By name: the check of a seed, the number of seeds that always run, and of those that may."""

CHUNK = 50
"""Seeds of one exhaustive test."""


def oracle(few, many, *choices):
    """Register a check `check(seed, rng, *choices)`, under a name for each tuple of choices."""

    def register(check):
        for choice in choices or [()]:
            name = " ".join([check.__name__, *map(str, choice)])
            ORACLES[name] = (lambda seed, c=choice: check(seed, *c), few, many)
        return check

    return register


def close(case, got, expected, tolerance):
    """Fail with the case unless two arrays agree, relative to the largest finite entry."""
    got, expected = (np.asarray(a, dtype=np.float64) for a in (got, expected))
    assert got.shape == expected.shape, (case, got.shape, expected.shape)
    got, expected = got.ravel(), expected.ravel()
    infinite = np.isinf(expected)
    assert np.array_equal(got[infinite], expected[infinite]), (case, "infinities", got, expected)
    assert np.isfinite(got[~infinite]).all(), (case, "not finite", got)
    size = max(1.0, np.abs(expected[~infinite]).max(initial=0))
    error = np.abs(got[~infinite] - expected[~infinite]).max(initial=0) / size
    assert error <= tolerance, (case, f"error {error:.2e} above {tolerance:.2e}")


# Reductions


def reduction_case(rng, dtype):
    """Random shapes that broadcast, dead atoms with garbage, scores of any size, times."""
    pick = lambda *options: options[rng.integers(len(options))]
    batches = pick(
        ((), (), ()), ((2,),) * 3, ((3, 1), (1, 2), (3, 2)), ((2, 3), (3,), (2, 1)), ((2,), (), ())
    )
    m, n = (int(pick(1, 2, 5, 17, rng.integers(1, 70))) for _ in range(2))
    width, e = (int(rng.integers(1, 7)) for _ in range(2))
    size, timed, dead = (
        pick(1.0, 1.0, 1e-8, 30.0, 1e3),
        pick(None, "float", "int"),
        pick(0, 0, 0.4),
    )
    sizes = ((m, width), (n, width), (n, e), (n,))
    shapes = [(*batch, *s) for batch, s in zip((*batches, batches[1]), sizes, strict=True)]
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    scale = size / math.sqrt(width)
    arrays[3] = arrays[3] * arrays[3].dtype.type(pick(1.0, 20.0))
    gone = rng.random(shapes[3]) < dead
    arrays[3][gone] = -np.inf
    times = None
    if timed:
        times = tuple(rng.integers(0, 4, size=k) for k in (m, n))
        times = times if timed == "int" else tuple(t + 0.5 for t in times)
    case = dict(shapes=shapes, scale=scale, timed=timed, dead=dead, dtype=np.dtype(dtype).name)
    return case, arrays, scale, times


def reduce_by_hand(q, k, v, b, scale, times):
    """Scores, log-integral, probabilities and average, in float64."""
    scores = scale * (q @ np.swapaxes(k, -1, -2)) + b[..., None, :]
    if times is not None:
        scores = np.where(times[1] <= times[0][:, None], scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    masses = np.exp(scores - top)
    total = masses.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        logs = (np.log(total) + top)[..., 0]
    p = masses / np.where(total > 0, total, 1)
    return logs, p, p @ v


def summed(grad, shape):
    """The gradient of what was broadcast to a shape: the sum over its copies."""
    extra = grad.ndim - len(shape)
    grad = grad.sum(tuple(range(extra)))
    axes = tuple(i for i, s in enumerate(shape) if s == 1 and grad.shape[i] != 1)
    return grad.sum(axes, keepdims=True)


def gradients_by_hand(op, arrays, scale, p, out, up):
    """Of the sum of results times `up`: scores carry p up, or p <up, v - out>."""
    q, k, v, _ = arrays
    if op == "log_integral":
        flow, values = p * up[..., None], []
    else:
        flow = p * (up @ np.swapaxes(v, -1, -2) - (up * out).sum(-1)[..., None])
        values = [np.swapaxes(p, -1, -2) @ up]
    back, used = np.swapaxes(flow, -1, -2), arrays if values else [q, k, arrays[3]]
    found = [scale * (flow @ k), scale * (back @ q), *values, flow.sum(-2)]
    return [summed(g, a.shape) for g, a in zip(found, used, strict=True)]


PRECISIONS = ("float64", "float32")


@oracle(12, 1000, *((impl, p) for impl in HERE for p in PRECISIONS))
def reductions(seed, impl, dtype):
    """Both reductions, forward and backward.

    A score is rounded to eps of its size, and a weight e^s is as wrong as its score, relatively.
    """
    rng = np.random.default_rng(seed)
    case, arrays, scale, times = reduction_case(rng, dtype)
    wide = [a.astype(np.float64) for a in arrays]
    logs, p, mean = reduce_by_hand(*wide, scale, times)
    live = np.isfinite(wide[3])
    norms = [np.abs(a).max(initial=0) for a in (wide[0], wide[1], np.where(live, wide[3], 0))]
    top = scale * norms[0] * norms[1] * wide[0].shape[-1] + norms[2]
    tolerance = 30 * np.finfo(dtype).eps * (1 + top)
    garbage = [torch.from_numpy(a.copy()) for a in arrays]
    if live.shape == arrays[1].shape[:-1] == arrays[2].shape[:-1]:
        garbage[1][torch.from_numpy(~live)] = torch.nan  # NaN where there is no mass
        garbage[2][torch.from_numpy(~live)] = torch.inf
    clock = None if times is None else tuple(map(torch.from_numpy, times))
    for op, expected in (("log_integral", logs), ("average", mean)):
        inputs = [a.clone().requires_grad_() for a in garbage]
        used = inputs if op == "average" else [inputs[0], inputs[1], inputs[3]]
        out = getattr(pf.ops, op)(*used, scale=scale, times=clock, impl=impl)
        close((case, op), out.detach(), expected, tolerance)
        up = rng.standard_normal(expected.shape)
        shown = out.masked_fill(out == -torch.inf, 0)
        found = torch.autograd.grad(shown, used, torch.from_numpy(up).to(out.dtype))
        by_hand = gradients_by_hand(op, wide, scale, p, mean, up)
        for name, got, right in zip(
            "qkvb" if op == "average" else "qkb", found, by_hand, strict=True
        ):
            close((case, op, name), got, right, tolerance)


# Distances


@oracle(25, 1000)
def exact_distances(seed):
    """The optimal transport cost by HiGHS, whose tolerance is 1e-10."""
    rng = np.random.default_rng(seed)
    m, n, d = rng.integers(1, 8), rng.integers(1, 8), rng.integers(1, 4)
    x, y = rng.standard_normal((m, d)), rng.standard_normal((n, d)) * rng.choice([1, 1, 100])
    a, b = rng.random(m) ** 4 + 1e-3, rng.random(n) ** 4 + 1e-3
    if rng.random() < 0.3:
        a[0], x[-1] = (0.0 if m > 1 else 1.0), y[0]
    p = float(rng.choice([1, 1, 1.5, 2, 3]))
    masses = rng.random(2) + 0.5 if p == 1 and rng.random() < 0.5 else np.ones(2)
    a, b = masses[0] * a / a.sum(), masses[1] * b / b.sum()
    cost = np.linalg.norm(x[:, None] - y, axis=-1) ** p
    sums = np.concatenate([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
    tight = dict(primal_feasibility_tolerance=1e-10, dual_feasibility_tolerance=1e-10)
    right = np.concatenate([a / masses[0], b / masses[1]])
    solved = linprog(cost.ravel(), A_eq=sums, b_eq=right, method="highs", options=tight)
    expected = solved.fun ** (1 / p) + abs(masses[0] - masses[1])
    mu, nu = (pf.Measure(*map(torch.from_numpy, pair)) for pair in ((x, a), (y, b)))
    case = dict(seed=seed, m=m, n=n, d=d, p=p, masses=masses)
    close(case, pf.wasserstein(mu, nu, p=p), expected, 1e-8 if p == 1 else 1e-6)
    close((case, "reversed"), pf.wasserstein(nu, mu, p=p), expected, 1e-8 if p == 1 else 1e-6)


# Sinkhorn


def plain_sinkhorn(logits, log_a, log_b, steps=20_000):
    """Alternate scaling in the log domain; the matrix and the error of its rows."""
    f, g = np.zeros(len(log_a)), np.zeros(len(log_b))
    sums = lambda z, axis: np.logaddexp.reduce(z, axis)
    for k in range(steps):
        f = log_a - sums(logits + g, 1)
        g = log_b - sums(logits + f[:, None], 0)
        if k % 50 == 49:
            error = np.abs(np.exp(logits + f[:, None] + g).sum(1) - np.exp(log_a)).max()
            if error < 1e-14:
                break
    return np.exp(logits + f[:, None] + g), error


@oracle(10, 300)
def doubly_stochastic(seed):
    """Scaled matrices, some entries masked so that a scaling exists: a union of permutations."""
    rng = np.random.default_rng(seed)
    n, size = int(rng.integers(1, 8)), float(rng.choice([0.5, 2, 4]))
    logits = size * rng.standard_normal((n, n))
    if rng.random() < 0.5:
        kept = sum(np.eye(n)[rng.permutation(n)] for _ in range(rng.integers(1, n + 1))) > 0
        logits[~kept] = -np.inf
    right, error = plain_sinkhorn(logits, np.zeros(n), np.zeros(n))
    result = pf.doubly_stochastic(torch.from_numpy(logits), tol=1e-12)
    case = dict(seed=seed, n=n, size=size, masked=int(np.isinf(logits).sum()))
    assert bool(result.converged), case
    close(case, result.scaled, right, n * (float(result.residual) + error) + 1e-13)


@oracle(8, 300)
def sinkhorn_plans(seed):
    """POT's plan in the log domain, for the same temperature and weights."""
    rng = np.random.default_rng(seed)
    m, n, d = rng.integers(1, 9), rng.integers(1, 9), rng.integers(1, 4)
    eps = float(rng.choice([0.5, 1, 5]))
    x, y = rng.standard_normal((m, d)), rng.standard_normal((n, d))
    a, b = (w / w.sum() for w in (rng.random(m) + 0.05, rng.random(n) + 0.05))
    cost = ((x[:, None] - y) ** 2).sum(-1)
    right = ot.sinkhorn(
        a, b, cost, eps, method="sinkhorn_log", stopThr=1e-13, numItermax=20_000, warn=False
    )
    mu, nu = (pf.Measure(*map(torch.from_numpy, pair)) for pair in ((x, a), (y, b)))
    normaliser = pf.Sinkhorn(tol=1e-12)
    plan = pf.relate(mu, nu, affinity=pf.SquaredDistance(eps), normaliser=normaliser)
    case = dict(seed=seed, m=m, n=n, d=d, eps=eps)
    close(case, plan.matrix(), right, 1e-8)


@oracle(4, 100, ("balanced",), ("slack",), ("doubly stochastic",))
def implicit_gradients(seed, kind):
    """Differences of values that are solved to 1e-13, over 1e-5: errors of 1e-8 and 1e-10."""
    torch.manual_seed(seed)
    n, m, d = (int(k) for k in torch.randint(2, 6, (3,)))
    if kind == "doubly stochastic":
        inputs = [2 * torch.randn(n, n)]
        way = torch.randn(n, n)
        value = lambda L: (way * pf.doubly_stochastic(L, tol=1e-13).scaled).sum()
    else:
        inputs = [torch.randn(n, d), torch.randn(m, d), torch.randn(n), torch.randn(m)]
        way = torch.randn(n, d)
        normaliser = pf.Sinkhorn(tol=1e-13, slack=0.7 if kind == "slack" else math.inf)

        def value(x, y, a, b):
            mu, nu = (pf.Measure(z, log_weights=w.log_softmax(0)) for z, w in ((x, a), (y, b)))
            relation = pf.relate(mu, nu, affinity=pf.SquaredDistance(2.0), normaliser=normaliser)
            return (way * (relation.matrix() @ nu.atoms)).sum()

    live = [t.clone().requires_grad_() for t in inputs]
    grads = torch.autograd.grad(value(*live), live)
    for k, grad in enumerate(grads):
        move, h = torch.randn_like(inputs[k]), 1e-5
        shifted = lambda s, k=k, move=move: [
            t + s * move if i == k else t for i, t in enumerate(inputs)
        ]
        with torch.no_grad():
            slope = (value(*shifted(h)) - value(*shifted(-h))) / (2 * h)
        case = dict(seed=seed, kind=kind, n=n, m=m, d=d, input=k)
        close(case, (grad * move).sum(), slope, 1e-6)


# Lipschitz bounds

BOUNDED = {
    "softmax": lambda: pf.Attention(2, heads=2),
    "distance": lambda: pf.Attention(2, affinity=pf.SquaredDistance(1.5)),
    "sigmoid": lambda: pf.Attention(2, normaliser=pf.relations.Sigmoid()),
    "exponential": lambda: pf.Attention(2, normaliser=pf.relations.Exponential()),
    "bilinear": lambda: pf.Attention(2, normaliser=pf.relations.Bilinear()),
    "mlp": lambda: pf.MLP(2, 4, skip=True),
    "transformer": lambda: pf.Transformer(2, depth=1, hidden=4),
    "flow": lambda: pf.Flow(pf.Attention(2), t1=0.5, solver=pf.Euler(2)),
}


@oracle(1, 50, *((name,) for name in BOUNDED))
def lipschitz_bounds(seed, name):
    """The steepest point, atom and largest image that gradient ascent finds in a ball.

    Moving atom i of share a by dy moves the measure by a |dy| in W1.
    """
    torch.manual_seed(seed)
    gamma, radius = BOUNDED[name](), 0.3 + float(torch.rand(()))
    for p in gamma.parameters():
        p.data.mul_(1.5)
        p.requires_grad_(False)
    bound, n = gamma.lipschitz(radius), 3
    free = [torch.randn(1, 2), torch.randn(n, 2), torch.randn(n), torch.randn(2), torch.randn(2)]
    ball = lambda z: radius * z / (1 + z.square().sum(-1, keepdim=True)).sqrt()
    worst = {}
    for goal in ("x", "mu", "reach"):
        leaves = [t.clone().requires_grad_() for t in free]
        ascent = torch.optim.Adam(leaves, lr=0.2)
        for _ in range(15):
            x, y, w, u, v = leaves
            x, y, a = ball(x), ball(y), w.softmax(0)
            image = gamma(pf.Measure(y, a), x)[0]
            u, v = (torch.nn.functional.normalize(z, dim=0) for z in (u, v))
            if goal == "reach":
                found = image.norm() / bound.reach
            else:
                slopes = torch.autograd.grad(
                    image @ u, (x, y), create_graph=True, allow_unused=True
                )
                slope = slopes[0][0] if goal == "x" else slopes[1]
                if slope is None:
                    break  # a map of points alone
                slope = slope if goal == "x" else slope[0] / a[0]
                found = (slope @ v).abs() / max(getattr(bound, goal), 1e-300)
            worst[goal] = max(worst.get(goal, 0.0), found.item())
            grads = torch.autograd.grad(-found, leaves, allow_unused=True)
            for leaf, grad in zip(leaves, grads, strict=True):
                leaf.grad = grad
            ascent.step()
    case = dict(seed=seed, name=name, radius=radius, bound=bound, worst=worst)
    assert max(worst.values()) <= 1 + 1e-9, case
    assert all(k > 0 for goal, k in worst.items() if getattr(bound, goal) < math.inf), case


# Running


@pytest.mark.parametrize(
    ("name", "seed"), [(name, k) for name, (_, few, _) in ORACLES.items() for k in range(few)]
)
def test_sample(name, seed):
    ORACLES[name][0](seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        (name, k, min(k + CHUNK, many) - 1)
        for name, (_, _, many) in ORACLES.items()
        for k in range(0, many, CHUNK)
    ],
)
def test_all(name, first, last):
    wrong = {}
    for seed in range(first, last + 1):
        try:
            ORACLES[name][0](seed)
        except Exception as error:  # go on: how many fail is part of the finding
            wrong[seed] = str(error)[:500]
    assert not wrong, f"{name}: {len(wrong)} of {last - first + 1} seeds fail: {wrong}"
