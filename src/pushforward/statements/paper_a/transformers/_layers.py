"""Layers of transformers, their Lipschitz constants, and contexts that converge."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...._tools.fits import power
from ....distances import wasserstein
from ....flows.fields import SelfAttention
from ....maps import MLP, Attention, Compose, InContextMap, Lipschitz, Residual, Transformer, norm
from ....measures import Measure
from ....ops import runnable
from ....pictures import Figure, series
from ....relations import Exponential, Hardmax, Normaliser, Softmax
from ....representation import zoo
from ..._checks import Check, bounded, holds, max, rate, refuted
from ..._laws import attention_field, ball, box, gap, simplex
from ..._statement import Setting, planted, statement


def score_factor(width: int) -> float:
    """By what the product of query and key is multiplied."""
    return width**-0.5


def token_by_token(gamma: Attention, mu: Measure, x: Tensor) -> Tensor:
    """Formula (22) with loops over heads, queries and tokens."""
    images = x.clone()
    for Q, K, WV in zip(*gamma.matrices(), strict=True):
        for i in range(len(x)):
            scores = [score_factor(len(Q)) * float((Q @ x[i]) @ (K @ y)) for y in mu.atoms]
            masses = [float(a) * math.exp(t) for a, t in zip(mu.weights, scores, strict=True)]
            for mass, y in zip(masses, mu.atoms, strict=True):
                images[i] += mass / sum(masses) * (WV @ y)
    return images


@statement(
    "A.eq20",
    "(20)-(22)",
    "Attention adds to a point, for every head, an average of the values of all tokens, weighted "
    "by their masses and by the exponentials of their scores.",
    r"\Gamma(\mu,x)=x+\sum_hW^h\sum_jp_j^hV^hx_j,\qquad"
    r" p_j^h\propto a_j\,e^{\langle Q^hx,K^hx_j\rangle/\sqrt k}",
    defect=planted(__name__, "score_factor", lambda width: 1 / width),
    seconds=(0.2, 0.1),
    api=("Attention", "Residual"),
)
def attention_by_hand(s: Setting) -> Iterator[Check]:
    """All implementations of a layer against loops over heads and tokens."""
    g, errors = s.generator(), []
    for _ in range(s.pick(10, 3)):
        mu, x = simplex(box(6, 3, g).atoms, g), box(4, 3, g).atoms
        for impl in runnable("cpu", torch.float64):
            gamma = Attention(3, heads=2, head_dim=4, impl=impl)
            errors.append(gap(Residual(gamma)(mu, x), token_by_token(gamma, mu, x)))
    yield holds(max(errors), 1e-13, trials=len(errors))


def normaliser() -> Normaliser:
    """What makes an average of the scores."""
    return Softmax()


@statement(
    "A.eq20.hull",
    "(20)",
    "The average of a head lies in the convex hull of the values of the tokens.",
    r"\sum_jp_jVx_j\in\operatorname{conv}\{Vx_j\}",
    defect=planted(__name__, "normaliser", Exponential),
    api=("fields.SelfAttention",),
)
def in_the_hull(s: Setting) -> Iterator[Check | Figure]:
    """Images in 64 directions, as shares of the extent of the values, for scores up to 1e3."""
    g, worst, trials = s.generator(), 0.0, s.pick(50, 10)
    angles = torch.arange(65) * (2 * math.pi / 64)
    directions = torch.stack([angles.cos(), angles.sin()], -1)
    for k in range(trials):
        plain = attention_field(2, 1.0, g)
        strength = 10.0 ** (k % 4)
        field = SelfAttention(strength * plain.Q, plain.K, plain.V, normaliser=normaliser())
        mu = simplex(box(8, 2, g).atoms, g)
        values, images = mu.atoms @ field.V.mT, field(mu, 2 * box(20, 2, g).atoms)
        low, high = (values @ directions.mT).aminmax(dim=0)
        share = (images @ directions.mT - low) / (high - low)
        worst = max(worst, float(share.max()))
    yield bounded(worst, trials * 64 * 20, least=0.9)
    hull = values[(values @ directions.mT).argmax(0)]
    yield Figure(
        "Images of attention in the hull of the values",
        "first coordinate",
        "second coordinate",
        (
            series("hull", hull[:, 0], hull[:, 1], "dashed"),
            series("values", values[:, 0], values[:, 1], "dots"),
            series("images", images[:, 0], images[:, 1], "dots"),
        ),
    )


def allowed(bound: Lipschitz, moved: Tensor, distance: Tensor) -> Tensor:
    """How far images may move, by the bound."""
    return bound.x * moved + bound.mu * distance


def layers() -> list[InContextMap]:
    """Layers and stacks with random parameters."""
    small = lambda: Attention(2, head_dim=2)
    return [
        Attention(2, heads=2, head_dim=3), small(), SelfAttention(*torch.randn(3, 2, 2).unbind(0)),
        SelfAttention(*torch.randn(3, 4, 2, 2).unbind(0)), Residual(small(), step=0.5),
        Compose(small(), MLP(2, 3), small()), Transformer(2, depth=2, heads=2, hidden=4),
        zoo.stack(2, 2, 1.0, 0),
    ]  # fmt: skip


@statement(
    "A.attn.lip",
    "Section 4.1",
    "Attention is Lipschitz on every ball, in the point and in the context, and so are stacks of "
    "layers.",
    r"|\Gamma(\mu,x)-\Gamma(\nu,y)|\le vbR^2\,|x-y|+v\,e^{2bR^2}(1+2bR^2)\,W_1(\mu,\nu),\quad"
    r" b=\|Q^\top K\|,\ v=\|V\|",
    defect=planted(__name__, "allowed", lambda bound, moved, distance: bound.x * moved),
    seconds=(1.2, 0.2),
    api=("InContextMap.lipschitz", "maps.Lipschitz"),
)
def lipschitz_on_balls(s: Setting) -> Iterator[Check | Figure]:
    """The constants of one head; pairs of points and contexts at distances from 1 to 1e-4."""
    g, R = s.generator(), 0.8
    made = layers()
    one = attention_field(2, 1.0, g)
    b, v = norm(one.Q.mT @ one.K), norm(one.V)
    found, swing = one.lipschitz(R), 2 * b * R**2
    yield holds(abs(found.x / (v * b * R**2) - 1), 1e-11, "constant in the point")
    yield holds(abs(found.mu / (v * math.exp(swing) * (1 + swing)) - 1), 1e-11, "in the context")
    scales, pairs = (1.0, 1e-1, 1e-2, 1e-3, 1e-4), s.pick(60, 10)
    worst = dict.fromkeys(scales, 0.0)
    for gamma in made:
        bound = gamma.lipschitz(R)
        for k in range(pairs):
            size = scales[k % 5]
            here, there = (R * ball(9, 2, g).atoms for _ in range(2))
            there = here + size * (there - here)
            weights = torch.rand(5, generator=g) + 0.05
            mu = Measure(here[:5], weights).normalise()
            nu = Measure(there[:5], weights ** (1 + size * torch.randn(5, generator=g)))
            nu = nu.normalise()
            moved = (here - there)[5:].norm(dim=-1)
            apart = (gamma(mu, here[5:]) - gamma(nu, there[5:])).norm(dim=-1)
            ratio = float((apart / allowed(bound, moved, wasserstein(mu, nu))).max())
            worst[size] = max(worst[size], ratio)
    yield bounded(max(worst.values()), pairs * len(made), least=1e-4)
    yield Figure(
        "Movement of images as a share of the bound",
        "distance of the pairs",
        "largest share",
        (series("8 maps", worst.keys(), worst.values(), "dots"),),
        log="xy",
    )


def leader(R: float) -> float:
    """Where the leader is."""
    return R


@statement(
    "A.attn.leader",
    "Castin, Ablin and Peyre, beside Section 4.1",
    "In the Euclidean norm of all tokens together the Lipschitz constant of attention grows with "
    "their number: one leader moves all others.",
    r"\bigl\|D(x_1,\dots,x_n)\bigr\|\approx\sqrt n\quad\text{at}\quad"
    r" x_1=Ru,\ x_2=\dots=x_n=\tfrac R2u",
    defect=planted(__name__, "leader", lambda R: R / 2),
    api=("fields.SelfAttention",),
)
def leaders_are_steep(s: Setting) -> Iterator[Check | Figure]:
    """The norm of the Jacobian of all tokens, by automatic differentiation."""
    one = torch.eye(2)
    field = SelfAttention(one, one, one)
    tokens = lambda flat: field.push(Measure(flat.reshape(-1, 2))).atoms.flatten()
    sizes, norms = s.pick((8, 32, 128), (8, 32)), []
    for n in sizes:
        R = 3 * math.sqrt(4 * math.log(n))
        x = torch.tensor([[leader(R), 0.0]] + [[R / 2, 0.0]] * (n - 1))
        with torch.enable_grad():
            J = torch.autograd.functional.jacobian(tokens, x.flatten())
        norms.append(float(torch.linalg.matrix_norm(J, 2)))
        yield rate(norms[-1] / math.sqrt(n), 1.0, 0.02, f"over sqrt(n) at n = {n}:")
    yield Figure(
        "Norm of the Jacobian beside a leader",
        "tokens",
        "norm",
        (
            series("measured", sizes, norms, "dots"),
            series("square root", sizes, [math.sqrt(n) for n in sizes], "dashed"),
        ),
        log="xy",
    )


def hard() -> Normaliser:
    """All mass on the highest score."""
    return Hardmax()


def across(made: Normaliser, strength: float, h: float) -> float:
    """How far the images of h and -h are apart, for tokens at 1 and -1."""
    one = torch.eye(1)
    field = SelfAttention(strength * one, one, one, normaliser=made)
    images = field(Measure(torch.tensor([[1.0], [-1.0]])), torch.tensor([[h], [-h]]))
    return gap(images[0], images[1])


@statement(
    "A.attn.hard",
    "beside (24)",
    "Attention to the highest score alone, and pooling over a part of the context, are not "
    "continuous. Softmax is, however steep.",
    r"\lim_{h\to0}|\Gamma(\mu,h)-\Gamma(\mu,-h)|=2\ \text{(hardmax)},\quad 0\ \text{(softmax)}",
    defect=planted(__name__, "hard", Softmax),
    api=("relations.Hardmax", "representation.zoo.masked_pooling"),
)
def hard_attention_jumps(s: Setting) -> Iterator[Check | Figure]:
    """Two queries beside a tie; a small mass that enters a part; the steep softmax."""
    distances = [10.0**-k for k in (2, 4, 6, 8, 10)]
    ends = torch.tensor([[-1.0], [1.0]])
    inside = lambda mass: Measure(ends, torch.tensor([1 - mass, mass]))
    outside = lambda mass: Measure(ends * torch.tensor([[1.0], [-1.0]]), inside(mass).weights)
    hardmax = [across(hard(), 300.0, h) for h in distances]
    softmax = [across(Softmax(), 300.0, h) for h in distances]
    pooled = [
        gap(zoo.masked_pooling(inside(h)).atoms[0], zoo.masked_pooling(outside(h)).atoms[0])
        for h in distances
    ]
    for name, jumps, size in (("hardmax", hardmax, 2.0), ("pooling", pooled, 1.0)):
        seen = all(abs(jump - size) <= 0.01 * size for jump in jumps)
        said = f"{name} jumps by {jumps[-1]:.3g} at distance {distances[-1]:.0e}"
        yield refuted(seen, said, jumps[-1])
    # By the Lipschitz constant in the point; differences of values of size 1 are rounded.
    steep = max((j - 1e-15) / (300 * 2 * h) for j, h in zip(softmax, distances, strict=True))
    yield bounded(steep, len(distances), "softmax of scale 300")
    yield Figure(
        "Jumps of hard attention and pooling",
        "distance",
        "distance of the images",
        (
            series("hardmax", distances, hardmax, "dots"),
            series("pooling over a part", distances, pooled, "dots"),
            series("softmax, scale 300", distances, softmax, "line"),
        ),
        log="xy",
    )


def cells(n: int) -> Measure:
    r"""The centres of $n$ equal cells of $[-1,1]$."""
    return Measure.grid(-1.0, 1.0, size=n)


@statement(
    "A.eq24",
    "(24)-(25)",
    "If contexts converge, so do the images of points and the push-forwards.",
    r"W_1(\mu_n,\mu)\to0\ \Rightarrow\ \Gamma(\mu_n,x)\to\Gamma(\mu,x),\quad"
    r"\Gamma(\mu_n,\cdot)_\sharp\mu_n\to\Gamma(\mu,\cdot)_\sharp\mu",
    defect=planted(__name__, "cells", lambda n: Measure(torch.linspace(-1, 1, n + 1)[:-1, None])),
    api=("Measure.grid", "wasserstein"),
)
def contexts_converge(s: Setting) -> Iterator[Check | Figure]:
    """Midpoint grids against a fine one: the midpoint rule is of order 2, the distance of 1."""
    half = torch.full((1, 1), 0.5)
    field, x = Residual(SelfAttention(half, half, half)), torch.linspace(-1, 1, 9)[:, None]
    fine = cells(s.pick(2000, 1000))
    exact, pushed, bound = field(fine, x), field.push(fine), field.lipschitz(1.0)
    sizes, rows = s.pick((5, 10, 20, 40, 80), (5, 10, 20)), []
    for n in sizes:
        mu = cells(n)
        rows.append(
            (gap(field(mu, x), exact), float(wasserstein(field.push(mu), pushed)),
             float(wasserstein(mu, fine)))
        )  # fmt: skip
    points, pushes, distances = zip(*rows, strict=True)
    fitted = lambda errors: power(list(zip(map(float, sizes), errors, strict=True)))[0]
    yield rate(fitted(points), -2.0, 0.05, "rate at points")
    yield rate(fitted(pushes), -1.0, 0.05, "rate of push-forwards")
    share = lambda errors, c: max(e / (c * w) for e, w in zip(errors, distances, strict=True))
    yield bounded(share(points, bound.mu), len(sizes), "at points")
    yield bounded(share(pushes, bound.measure), len(sizes), "push-forwards")
    yield Figure(
        "Contexts that converge",
        "tokens",
        "error",
        (
            series("at points", sizes, points),
            series("push-forward", sizes, pushes),
            series("context", sizes, distances, "dashed"),
        ),
        log="xy",
    )


def image_of(gamma: MLP, mu: Measure, x: Tensor) -> Tensor:
    """The images of points."""
    return gamma(mu, x)


@statement(
    "A.eq55",
    "(55)-(57)",
    "An MLP acts point by point, whatever the context.",
    r"F(x)=\varsigma x+A_2\,\sigma(A_1x+b_1)+b_2,\qquad \varsigma\in\{0,1\}",
    defect=planted(__name__, "image_of", lambda gamma, mu, x: gamma(mu, x - mu.mean())),
    api=("MLP",),
)
def point_by_point(s: Setting) -> Iterator[Check]:
    """The formula, with and without skip; another context changes no bit."""
    g, formula, contexts = s.generator(), [], []
    for k in range(s.pick(20, 4)):
        gamma = MLP(2, 5, skip=bool(k % 2), activation=torch.tanh)
        mu, nu, x = box(6, 2, g), box(3, 2, g), box(7, 2, g).atoms
        hidden = (x @ gamma.A1.weight.mT + gamma.A1.bias).tanh()
        exact = k % 2 * x + hidden @ gamma.A2.weight.mT + gamma.A2.bias
        formula.append(gap(image_of(gamma, mu, x), exact))
        contexts.append(gap(image_of(gamma, mu, x), image_of(gamma, nu, x)))
    yield holds(max(formula), 1e-14, "formula", len(formula))
    yield holds(max(contexts), 0.0, "in another context", len(contexts))


def increment(A: InContextMap, H: MLP, mu: Measure, x: Tensor) -> Tensor:
    """Formula (61), written out."""
    moved = A(mu, x)
    return moved + H(mu, x + moved)


@statement(
    "A.eq58",
    "(58)-(61)",
    "A block of attention and MLP is the identity plus one increment.",
    r"F\circ\Gamma=\mathrm{Id}+\mathcal V,\qquad"
    r" \mathcal V=\mathcal A+H\circ(\mathrm{Id}+\mathcal A)",
    defect=planted(__name__, "increment", lambda A, H, mu, x: A(mu, x) + H(mu, x)),
    api=("Compose", "Residual"),
)
def block_increment(s: Setting) -> Iterator[Check]:
    """Blocks with random parameters against the formula."""
    g, errors = s.generator(), []
    for _ in range(s.pick(20, 4)):
        A, H, mu = Attention(2, heads=2, head_dim=2), MLP(2, 6), box(9, 2, g)
        block = Compose(Residual(A), Residual(H))
        errors.append(gap(block.push(mu).atoms, mu.atoms + increment(A, H, mu, mu.atoms)))
    yield holds(max(errors), 1e-14, trials=len(errors))
