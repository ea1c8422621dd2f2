"""Which relations one head represents, and how far it is from the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor

from ....affinities import Encoded, Matrix
from ....approximation import Realisation, realise
from ....measures import Measure
from ....pictures import Figure, series
from ....relations import Conditional, Coupling, Normaliser, Sinkhorn, Softmax, relate
from ..._checks import Check, bounded, built, holds, max, min, refuted
from ..._laws import box, simplex
from ..._statement import Setting, planted, statement

Target = Conditional | Coupling
SOFTMAX, SINKHORN = Softmax(), Sinkhorn(tol=1e-14)


def clouds(n: int, m: int, g: torch.Generator) -> tuple[Measure, Measure]:
    """Queries and keys of unequal weights."""
    return simplex(box(n, 1, g).atoms, g), simplex(box(m, 1, g).atoms, g)


def head_of(mu: Measure, nu: Measure, to: Normaliser, q: Tensor, k: Tensor) -> Target:
    """The relation of one head."""
    return cast(Target, relate(mu, nu, affinity=Encoded(q, k), normaliser=to))


def generic(mu: Measure, nu: Measure, to: Normaliser, g: torch.Generator) -> Target:
    """A relation in general position."""
    scores = Matrix(torch.randn(mu.n, nu.n, generator=g))
    return cast(Target, relate(mu, nu, affinity=scores, normaliser=to))


def targets(count: int, to: Normaliser, s: Setting) -> Iterator[tuple[Measure, Measure, Target]]:
    """Relations of 7 queries and 6 keys: of heads of dimension 2 to 4, and general ones."""
    g = s.generator()
    for k in range(count):
        mu, nu = clouds(7, 6, g)
        q, keys = (torch.randn(n, 2 + k % 3, generator=g) for n in (7, 6))
        yield mu, nu, head_of(mu, nu, to, q, keys) if k % 2 else generic(mu, nu, to, g)


def centred_rows(logs: Tensor) -> Tensor:
    r"""$L\,J_m$."""
    return logs - logs.mean(-1, keepdim=True)


def centred(logs: Tensor) -> Tensor:
    r"""$J_n\,L\,J_m$."""
    return centred_rows(logs) - centred_rows(logs).mean(-2, keepdim=True)


def singular_values(target: Target, nu: Measure) -> Tensor:
    """Singular values of the centred logarithm; those of rounding are zero."""
    logs = target.matrix().log()
    logs = centred(logs) if isinstance(target, Coupling) else centred_rows(logs - nu.log_weights)
    values = torch.linalg.svdvals(logs)
    return torch.where(values > 1e-10 * values[0], values, 0)


def exact_at_the_rank(to: Normaliser, limit: float, s: Setting) -> Iterator[Check | Figure]:
    """Targets realised at their rank, and in one dimension fewer."""
    wrong, error, gap, count = 0, 0.0, math.inf, s.pick(30, 8)
    for mu, nu, target in targets(count, to, s):
        values = singular_values(target, nu)
        rank = int((values > 0).sum())
        head = realise(target)
        wrong += head.rank != rank
        again = head_of(mu, nu, to, head.q, head.k).matrix()
        error = max(error, float((again - target.matrix()).abs().max()))
        gap = min(gap, realise(target, rank - 1).bound / float(values[0]))
    yield holds(float(wrong), 0.0, "the rank", count)
    yield built(error, limit, "a head of this dimension")
    yield refuted(gap > 1e-10, f"one dimension fewer leaves {gap:.1g} of the norm", gap)
    shown = series("singular values", range(1, len(values) + 1), values.clamp_min(1e-16), "stems")
    yield Figure("Centred logarithm of a target", "index", "singular value", (shown,), log="y")


@statement(
    "B.rank.softmax",
    "Section 4",
    "A positive conditional is that of one softmax head of dimension d if and only if d is at "
    "least the rank of its logarithm with centred rows.",
    r"d\ge\operatorname{rank}\bigl(\log(P/\mathbf 1b^\top)J_m\bigr),\qquad"
    r" J_m=I-\tfrac1m\mathbf 1\mathbf 1^\top",
    defect=planted(__name__, "centred_rows", lambda logs: logs),
    seconds=(0.2, 0.1),
    api=("realise", "approximation.realise_conditional"),
)
def softmax_rank(s: Setting) -> Iterator[Check | Figure]:
    """Conditionals realised by a head of their rank."""
    yield from exact_at_the_rank(SOFTMAX, 1e-13, s)


@statement(
    "B.rank.sinkhorn",
    "Section 4",
    "A positive coupling is that of one Sinkhorn head of dimension d if and only if d is at least "
    "the rank of its logarithm with centred rows and columns.",
    r"d\ge\operatorname{rank}\bigl(J_n\log\pi\,J_m\bigr)",
    defect=planted(__name__, "centred", centred_rows),
    seconds=(0.6, 0.2),
    api=("realise", "approximation.realise_coupling"),
)
def sinkhorn_rank(s: Setting) -> Iterator[Check | Figure]:
    """Couplings realised by a head of their rank."""
    yield from exact_at_the_rank(SINKHORN, 1e-12, s)


def generic_ranks(n: int, m: int) -> tuple[int, int]:
    """Of conditionals and of couplings."""
    return min(n, m - 1), min(n, m) - 1


@statement(
    "B.rank.generic",
    "the answer to the referee",
    "Almost all relations need the largest rank there is, and this dimension always suffices.",
    r"d=\min(n,m-1)\ \text{(softmax)},\qquad d=\min(n,m)-1\ \text{(Sinkhorn)}",
    defect=planted(__name__, "generic_ranks", lambda n, m: (min(n, m), min(n, m) - 1)),
    api=("realise",),
)
def generic_rank(s: Setting) -> Iterator[Check | Figure]:
    """Relations in general position, of several shapes."""
    g, wrong, seen = s.generator(), 0, []
    shapes = [(2, 3), (3, 2), (4, 4), (5, 7), (7, 5), (8, 8), (3, 9), (9, 3), (12, 6), (6, 12)]
    for n, m in shapes:
        mu, nu = clouds(n, m, g)
        ranks = [realise(generic(mu, nu, to, g)).rank for to in (SOFTMAX, SINKHORN)]
        wrong += sum(a != b for a, b in zip(ranks, generic_ranks(n, m), strict=True))
        seen.append(ranks)
    yield holds(float(wrong), 0.0, "ranks", 2 * len(shapes))
    least = [min(shape) for shape in shapes]
    pairs = zip(("softmax", "Sinkhorn"), zip(*seen, strict=True), strict=True)
    curves = tuple(series(name, least, ranks, "dots") for name, ranks in pairs)
    yield Figure("Dimensions needed", "min(n, m)", "rank", curves)


def dimension(n: int, m: int, d: int, absorbed: int) -> int:
    """The dimension of the set of relations of one head of dimension d."""
    return d * (n + m - absorbed - d)


def derivative(mu: Measure, nu: Measure, to: Normaliser, q: Tensor, k: Tensor) -> Tensor:
    """The derivative of the relation of a head in queries and keys, as a matrix."""
    relation = lambda q, k: head_of(mu, nu, to, q, k).matrix()
    with torch.enable_grad():
        slopes = torch.autograd.functional.jacobian(relation, (q, k))
    return torch.cat([slope.flatten(2).flatten(0, 1) for slope in slopes], -1)


@statement(
    "B.rank.count",
    "the referee's question",
    "The relations of one head of dimension d form a set of lower dimension than all relations, "
    "so that for small d almost no relation is one.",
    r"\dim=d\,(n+m-1-d)\ \text{(softmax)},\qquad\dim=d\,(n+m-2-d)\ \text{(Sinkhorn)}",
    defect=planted(__name__, "dimension", lambda n, m, d, absorbed: d * (n + m)),
    seconds=(0.8, 0.3),
    api=("Encoded", "relate"),
)
def dimension_count(s: Setting) -> Iterator[Check | Figure]:
    """The rank of the derivative of the relation in queries and keys, at random points."""
    g, wrong, shapes = s.generator(), 0, [(5, 6, 1), (5, 6, 2), (5, 6, 3), (4, 7, 2), (4, 6, 3)]
    shapes = shapes[: s.pick(5, 2)]
    for n, m, d in shapes:
        mu, nu = clouds(n, m, g)
        q, k = torch.randn(n, d, generator=g), torch.randn(m, d, generator=g)
        for to, absorbed in ((SOFTMAX, 1), (SINKHORN, 2)):
            values = torch.linalg.svdvals(derivative(mu, nu, to, q, k))
            rank = int((values > 1e-9 * values[0]).sum())
            wrong += rank != dimension(n, m, d, absorbed)
    yield holds(float(wrong), 0.0, "dimensions", 2 * len(shapes))
    shown = (values / values[0]).clamp_min(1e-18)
    curve = series("singular values", range(1, len(values) + 1), shown, "stems")
    caption = f"One Sinkhorn head: {rank} of {len(values)} directions change the relation."
    yield Figure("The derivative", "index", "singular value", (curve,), "y", caption)


def narrow(count: int, s: Setting) -> Iterator[tuple[Target, Realisation, Tensor, Target]]:
    """Targets in general position, best heads of dimension 1 to 3, singular values, relations."""
    g = s.generator()
    for k in range(count):
        mu, nu = clouds(7, 6, g)
        to = (SOFTMAX, SINKHORN)[k % 2]
        target = generic(mu, nu, to, g)
        for d in (1, 2, 3):
            best = realise(target, d)
            tail = singular_values(target, nu)[d:].norm()
            yield target, best, tail, head_of(mu, nu, to, best.q, best.k)
            q, keys = (x + 0.1 * torch.randn(x.shape, generator=g) for x in (best.q, best.k))
            yield target, best, tail, head_of(mu, nu, to, q, keys)


@statement(
    "B.rank.gap",
    "the referee's question",
    "A head of smaller dimension has at least the error of the singular values that it leaves "
    "out, and the truncated decomposition attains it up to what the normaliser absorbs.",
    r"\|\log P-\log\hat P\|_F\ge\tau_d=\Bigl(\sum_{i>d}\sigma_i^2\Bigr)^{1/2}",
    defect=planted(__name__, "centred_rows", lambda logs: logs),
    seconds=(0.6, 0.2),
    api=("approximation.Realisation",),
)
def gap(s: Setting) -> Iterator[Check | Figure]:
    """Best heads and heads around them, in general and in the centred norm."""
    norms, bounds, attained = [], [], []
    for k, (target, _, tail, head) in enumerate(narrow(s.pick(20, 6), s)):
        left = target.matrix().log() - head.matrix().log()
        norms.append(float(left.norm()))
        bounds.append(float(tail))
        if k % 2 == 0:  # the best head
            both = isinstance(target, Coupling)
            left = centred(left) if both else left - left.mean(-1, keepdim=True)
            attained.append(abs(float(left.norm() - tail)))
    ratios = [bound / norm for bound, norm in zip(bounds, norms, strict=True)]
    yield bounded(max(ratios), len(ratios), "logarithms")
    yield holds(max(attained), 1e-10, "in the centred norm equality", len(attained))
    dims = (1, 2, 3)
    best = series("best head of a target", dims, norms[-6::2], "dots")
    around = series("a head beside it", dims, norms[-5::2], "dots")
    curves = best, around, series("bound", dims, bounds[-6::2], "dashed")
    yield Figure("Error in logarithms", "dimension", "norm", curves)


def entry_gap(least: float, tail: float, size: int) -> float:
    r"""$p\,(1-e^{-\tau_d/\sqrt{nm}})$."""
    return -least * math.expm1(-tail / math.sqrt(size))


@statement(
    "B.rank.entry",
    "the referee's question",
    "Some entry of a head of smaller dimension is off by a share of the least entry.",
    r"\max_{ij}|P-\hat P|_{ij}\ge p\,\bigl(1-e^{-\tau_d/\sqrt{nm}}\bigr)\ge"
    r"\min\Bigl(\frac p2,\frac{p\,\tau_d}{2\sqrt{nm}}\Bigr),\quad p=\min P",
    defect=planted(
        __name__, "entry_gap", lambda least, tail, size: -math.expm1(-tail / size**0.5)
    ),
    seconds=(0.6, 0.2),
    api=("approximation.Realisation",),
    note="A weak bound: the least entry of a target is small.",
)
def entries(s: Setting) -> Iterator[Check]:
    """Largest errors of best heads and of heads around them."""
    ratios, weaker, same = [], [], 0.0
    for target, best, tail, head in narrow(s.pick(20, 6), s):
        p = target.matrix()
        bound = entry_gap(float(p.min()), float(tail), p.numel())
        same = max(same, abs(bound - best.entry_gap))
        ratios.append(bound / float((p - head.matrix()).abs().max()))
        share = float(tail) / math.sqrt(p.numel())
        weaker.append(float(p.min()) * min(1.0, share) / 2 / bound)
    yield bounded(max(ratios), len(ratios), "entries")
    yield bounded(max(weaker), len(weaker), "the simpler bound is weaker:")
    yield holds(same, 1e-13, "the bound of the library")


def tail_of(values: Tensor, d: int) -> float:
    r"""$\tau_d$."""
    return float(values[d:].norm())


def trained(
    relation: Callable[[Tensor, Tensor], Tensor],
    loss: Callable[[Tensor], Tensor],
    start: list[Tensor],
    steps: int,
) -> Tensor:
    """The relations of heads after some steps of L-BFGS, all starts at once."""
    q, k = (x.clone().requires_grad_() for x in start)
    method = torch.optim.LBFGS(
        [q, k], max_iter=steps, line_search_fn="strong_wolfe",
        tolerance_grad=1e-13, tolerance_change=1e-16,
    )  # fmt: skip

    def closure() -> Tensor:
        method.zero_grad()
        value = loss(relation(q, k)).sum()
        value.backward()
        return value

    with torch.enable_grad():
        method.step(closure)
    return relation(q, k)


@statement(
    "B.rank.trained",
    "the referee's question, fixed dimension",
    "No trained head of dimension d is better than the bounds, whatever it is trained for, and "
    "training reaches the first of them.",
    r"\inf_{q,k}\bigl\|\bigl(\log P-\log\hat P_{q,k}\bigr)J_m\bigr\|_F=\tau_d",
    defect=planted(__name__, "tail_of", lambda values, d: float(values[d - 1 :].norm())),
    seconds=(2.0, 0.4),
    api=("realise", "Encoded"),
)
def training(s: Setting) -> Iterator[Check | Figure]:
    """Heads trained for three losses, from around the best head and from random ones."""
    g = s.generator()
    mu, nu = clouds(4, 5, g)
    target = generic(mu, nu, SOFTMAX, g)
    p, values = target.matrix(), singular_values(target, nu)
    ratios, reached, by_entry = [], [], []
    of = lambda q, k: head_of(mu, nu, SOFTMAX, q, k).matrix()
    losses = {
        "logs": lambda x: (p.log() - x.log()).square().sum((-2, -1)),
        "entries": lambda x: 100 * (p - x).square().sum((-2, -1)),
        "largest entries": lambda x: (p - x).pow(8).sum((-2, -1)).pow(1 / 8),
        "centred": lambda x: centred_rows(p.log() - x.log()).square().sum((-2, -1)),
    }
    for d in (1, 2):
        best, bound = realise(target, d), tail_of(values, d)
        near = [x + 0.1 * torch.randn(2, *x.shape, generator=g) for x in (best.q, best.k)]
        far = [torch.randn(2, *x.shape, generator=g) for x in (best.q, best.k)]
        start = [torch.cat(pair) for pair in zip(near, far, strict=True)]
        for name, loss in losses.items():
            steps = s.pick(300, 150) if name == "centred" else s.pick(60, 20)
            end = trained(of, loss, start, steps)
            norms = centred_rows(p.log() - end.log()).norm(dim=(-2, -1))
            norms[(end == 0).any(-1).any(-1)] = torch.inf  # an entry that vanished: log 0
            ratios += (bound / norms).tolist()
            by_entry.append(best.entry_gap / float((p - end).abs().amax((-2, -1)).min()))
        reached.append(abs(float(norms.min()) / bound - 1))
    yield bounded(max(ratios), len(ratios), "logarithms of trained heads")
    yield bounded(max(by_entry), len(by_entry), "their entries")
    yield built(max(reached), 1e-8, "by training, a head at the bound,")
    shares = [1 / r for r in sorted(ratios) if r > 0]
    runs = range(1, len(shares) + 1)
    bound_line = series("bound", (1, len(shares)), (1.0, 1.0), "dashed")
    curves = series("trained", runs, shares, "dots"), bound_line
    yield Figure("Errors of trained heads", "run, sorted", "error / bound", curves, log="y")


ROOT = math.sqrt(8)


@statement(
    "B.rank.tv",
    "the referee's question",
    "The gap of a head in logarithms bounds how far its relation is in total variation.",
    r"\mathrm{TV}\le\tanh\frac{\mathrm{gap}}{\sqrt8}\ \text{(softmax, by row)},\qquad"
    r"\mathrm{TV}\le\frac{\mathrm{gap}}{\sqrt8}\ \text{(Sinkhorn)}",
    defect=planted(__name__, "ROOT", 4.0),
    seconds=(0.6, 0.2),
    api=("approximation.Realisation",),
)
def total_variation(s: Setting) -> Iterator[Check]:
    """Best heads, and two keys of equal mass, where the bound is attained."""
    ratios = []
    for target, _, _, head in narrow(s.pick(20, 6), s):
        left, away = target.matrix().log() - head.matrix().log(), target.matrix() - head.matrix()
        if isinstance(target, Coupling):
            size, apart = float(centred(left).norm()) / ROOT, float(away.abs().sum()) / 2
        else:
            size = math.tanh(float(centred_rows(left).norm()) / ROOT)
            apart = float(away.abs().sum(-1).max()) / 2
        ratios.append(apart / size)
    yield bounded(max(ratios), len(ratios), "heads")
    one, two = Measure(torch.zeros(1, 1)), Measure(torch.zeros(2, 1))
    for size in (0.1, 2.0):
        q, keys = torch.tensor([[size]]), torch.tensor([[1.0], [-1.0]])
        p, r = (head_of(one, two, SOFTMAX, x, keys).matrix() for x in (q, -q))
        gap = float(centred_rows(p.log() - r.log()).norm())
        ratio = float((p - r).abs().sum()) / 2 / math.tanh(gap / ROOT)
        yield bounded(ratio, 1, "two keys", least=1 - 1e-9)
