"""Corollary 1: what transformers approximate, built exactly, and trained for seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...._tools.fits import power
from ....distances import wasserstein
from ....flows import RK4, Flow
from ....flows.fields import CuckerSmale, Linear, Pairwise
from ....maps import (
    MLP,
    Attention,
    Block,
    Compose,
    InContextMap,
    Pointwise,
    PreNorm,
    Residual,
    Transformer,
    trained_flock,
)
from ....measures import Measure
from ....pictures import Figure, series
from ....representation import zoo
from ..._checks import Check, bounded, built, holds, max, quoted, rate
from ..._laws import box, gap, simplex
from ..._statement import Setting, planted, statement


def uniform_head(dim: int, V: Tensor, W: Tensor) -> InContextMap:
    r"""Attention with $Q=0$, which averages over all tokens: $x+WV\bar\mu$."""
    gamma = Attention(dim, head_dim=len(V))
    for layer, weight in ((gamma.Q, 0 * V), (gamma.K, V), (gamma.V, V), (gamma.W, W)):
        layer.weight.copy_(weight)
    return Residual(gamma)


def value_matrix(E: Tensor, F: Tensor) -> Tensor:
    """What the head has to add to a point, before the linear map."""
    return torch.linalg.solve(E, F - E)


@statement(
    "A.cor1.linear",
    "Corollary 1",
    "The solution map of a linear Vlasov equation is a transformer of one uniform head and one "
    "linear map, for any number of tokens.",
    r"V[\mu](x)=Ax+B\bar\mu:\qquad G=E\circ\bigl(x+E^{-1}(F-E)\bar\mu\bigr),\quad"
    r" E=e^A,\ F=e^{A+B}",
    defect=planted(__name__, "value_matrix", lambda E, F: torch.linalg.solve(E, F)),
    seconds=(0.2, 0.1),
    api=("Attention", "fields.Linear", "Flow"),
)
def linear_flow(s: Setting) -> Iterator[Check]:
    """The transformer against the flow of weighted contexts of 1 to 1000 tokens."""
    g, d, errors = s.generator(), 2, []
    A, B = (torch.randn(2, d, d, generator=g) / 2).unbind(0)
    E, F = torch.linalg.matrix_exp(A), torch.linalg.matrix_exp(A + B)
    last = nn.Linear(d, d, bias=False)
    last.weight.copy_(E)
    model = Compose(uniform_head(d, value_matrix(E, F), torch.eye(d)), Pointwise(last))
    flow = Flow(Linear(A, B), t1=1.0, solver=RK4(steps=200))
    for n in s.pick((1, 3, 30, 1000), (1, 30)):
        mu = simplex(box(n, d, g).atoms, g)
        errors.append(gap(model.push(mu).atoms, flow.push(mu).atoms))
    yield built(max(errors), 1e-9)


def features(x: Tensor) -> Tensor:
    r"""The token $(x,\sin x,\cos x,0,0)$."""
    return torch.cat([x, x.sin(), x.cos(), torch.zeros_like(x), torch.zeros_like(x)], -1)


def refreshed(z: Tensor) -> Tensor:
    """The token of the first coordinate, anew."""
    return features(z[..., :1])


def kept(z: Tensor) -> Tensor:
    """The token with the sine and cosine that it had."""
    return torch.cat([z[..., :3], torch.zeros_like(z[..., 3:])], -1)


def product_layer(step: float) -> MLP:
    r"""Adds $h(Sc-Cs)$ to the first of $(x,s,c,S,C)$, with squares as the activation.

    $4ab=(a+b)^2-(a-b)^2$.
    """
    layer = MLP(5, 4, skip=True, activation=torch.square)
    for parameter in layer.parameters():
        parameter.zero_()
    layer.A1.weight[:, 1:].copy_(
        torch.tensor([[0.0, 1, 1, 0], [0, 1, -1, 0], [1, 0, 0, 1], [-1, 0, 0, 1]])
    )
    layer.A2.weight[0].copy_(step / 4 * torch.tensor([1.0, -1, -1, 1]))
    return layer


def oscillators(depth: int) -> InContextMap:
    """A head that averages sines and cosines, a product, and the features anew, in turn."""
    V = torch.eye(5)[1:3]  # reads (s, c), and writes the averages to (S, C)
    head = uniform_head(5, V, torch.eye(5)[:, 3:])
    block = [head, product_layer(1 / depth), Pointwise(refreshed)]
    first, last = Pointwise(features), Pointwise(lambda z: z[..., :1])
    return Compose(first, *block * depth, last)


@statement(
    "A.cor1.kuramoto",
    "Corollary 1",
    "The flow of coupled oscillators is approximated by transformers of L blocks with an error of "
    "order 1/L that does not grow with the number of tokens.",
    r"V[\mu](x)=\int\sin(y-x)\,d\mu(y),\qquad\text{tokens }(x,\sin x,\cos x,0,0),\qquad"
    r" \text{error}\le\frac{e^2-1}{2L}",
    defect=planted(__name__, "refreshed", kept),
    api=("Transformer", "fields.Pairwise"),
    note="A layer that computes sines stands for an MLP as near to it as one likes.",
)
def oscillators_as_tokens(s: Setting) -> Iterator[Check | Figure]:
    """Transformers of several depths against the flow, for several numbers of tokens."""
    g, depths = s.generator(), s.pick((4, 16, 64), (4, 8, 16))
    field = Pairwise(lambda x, y: torch.sin(y - x))
    # |x''| <= 2, and the field has Lipschitz constants 1 and 1: the bound of Euler's steps.
    limit = lambda depth: (math.e**2 - 1) / (2 * depth)
    curves = {}
    for n in s.pick((5, 50, 200), (5, 50)):
        mu = Measure(2 * box(n, 1, g).atoms)
        exact = Flow(field, t1=1.0, solver=RK4(steps=20)).push(mu).atoms
        curves[n] = [gap(oscillators(L).push(mu).atoms, exact) for L in depths]
        yield built(curves[n][-1], limit(depths[-1]), f"{depths[-1]} blocks, {n} tokens:")
        order = power(list(zip(map(float, depths), curves[n], strict=True)))[0]
        yield rate(order, -1.0, 0.15, f"rate for {n} tokens")
    shares = [
        e / limit(L) for errors in curves.values() for e, L in zip(errors, depths, strict=True)
    ]
    yield bounded(max(shares), len(shares), "bound without n")
    yield Figure(
        "A transformer for coupled oscillators",
        "blocks",
        "largest error",
        tuple(series(f"{n} tokens", depths, errors) for n, errors in curves.items()),
        log="xy",
    )


TOKENS = 16
"""Tokens of the contexts in training."""


def contexts(count: int, n: int, generator: torch.Generator) -> Measure:
    """Contexts on the line: two groups of tokens at random places, of random weights."""
    draw = lambda *shape: torch.rand(*shape, generator=generator)
    centres = (3 * draw(count, 2) - 1.5).gather(-1, (2 * draw(count, n)).long())
    weights = -draw(count, n).clamp_min(1e-6).log()
    return Measure((centres + draw(count, n) - 0.5)[..., None], weights).normalise()


def images(model: InContextMap, mu: Measure) -> Tensor:
    """The images of the tokens."""
    return model.push(mu).atoms


def alone(model: InContextMap, mu: Measure) -> Tensor:
    """The same if every token sees itself only: contexts of one atom."""
    return model.push(Measure(mu.atoms[..., None, :])).atoms[..., 0, :]


def trained(mu: Measure, exact: Tensor, steps: int, generator: torch.Generator) -> InContextMap:
    """A transformer of two blocks, by gradient descent on the squared error of its images."""
    model = Residual(Transformer(1, depth=2, heads=2, width=16, block=Block(norm=PreNorm())))
    method = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(method, 2e-2, total_steps=steps)
    for _ in range(steps):
        some = torch.randint(len(exact), (32,), generator=generator)
        batch = Measure(mu.atoms[some], log_weights=mu.log_weights[some])
        with torch.enable_grad():
            loss = (images(model, batch) - exact[some]).square().mean()
            method.zero_grad()
            loss.backward()
        method.step()
        schedule.step()
    return model


@statement(
    "A.cor1.trained",
    "Corollary 1",
    "A transformer of two blocks that is trained for seconds, on contexts of 16 tokens, "
    "approximates the flow of coupled oscillators. The error does not grow with the number of "
    "tokens.",
    r"\frac{\mathbb E\int|\Gamma(\mu,x)-G(\mu,x)|\,d\mu}{\mathbb E\int|G(\mu,x)-x|\,d\mu}\le0.15,"
    r"\qquad\dot x=\int\sin(y-x)\,d\mu_t(y)",
    defect=planted(__name__, "images", alone),
    seconds=(5.0, 2.5),
    api=("Transformer", "Block", "PreNorm", "Flow"),
    note="The corollary is about all measures at once. This is a mean over random ones: the error "
    "at the worst measure is larger.",
)
def small_network(s: Setting) -> Iterator[Check | Figure]:
    """Errors at new contexts of as many tokens, of 4 times and of 16 times as many."""
    g = s.generator()
    torch.manual_seed(s.seed)
    flow = Flow(Pairwise(lambda x, y: torch.sin(y - x)), t1=1.0, solver=RK4(steps=8))
    data = contexts(512, TOKENS, g)
    model = trained(data, flow.push(data).atoms, s.pick(400, 200), g)
    sizes, means, noises = [TOKENS * k for k in s.pick((1, 4, 16), (1, 4))], [], []
    for n in sizes:
        mu = contexts(64, n, g)
        exact = flow.push(mu).atoms
        far, moved = (
            mu.integrate(x.norm(dim=-1)) for x in (images(model, mu) - exact, exact - mu.atoms)
        )
        shares = far / moved.mean()
        means.append(float(shares.mean()))
        noises.append(float(shares.std()) / len(shares) ** 0.5)
    # The same network without context, which moves each token alone, stays at 0.7.
    yield built(means[0], 0.15, "by training, relative to the mean movement,")
    for n, mean, noise in zip(sizes[1:], means[1:], noises[1:], strict=True):
        allowed = means[0] + 3 * (noises[0] ** 2 + noise**2) ** 0.5
        yield bounded(mean / allowed, 64, f"the error for {n} tokens:")
    x = torch.linspace(-2, 2, 81)[:, None]
    curves = []
    for k, place in enumerate((-1.0, 1.0)):
        nu = Measure(place + contexts(1, 64, g).atoms[0] / 2)
        curves += [
            series(f"context {k + 1}, flow", x[:, 0], flow(nu, x)[:, 0], "dashed"),
            series(f"context {k + 1}, network", x[:, 0], model(nu, x)[:, 0]),
        ]
    yield Figure("Images of points in two contexts", "point", "image", tuple(curves))


LARGEST = 0.01
"""The mean error that the trained model of the library stays below, at any number of tokens."""


def flocks(count: int, n: int, generator: torch.Generator) -> Measure:
    """Flocks of n birds in the box: samples of three Gaussians, with random weights."""
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    centres = 1.2 * normal(count, 3, 4)
    scales = 0.15 + 0.5 * torch.rand(count, 3, 1, generator=generator)
    own = torch.randint(3, (count, n), generator=generator)
    row = torch.arange(count)[:, None]
    birds = centres[row, own] + scales[row, own] * normal(count, n, 4)
    weights = -torch.rand(count, n, generator=generator).clamp_min(1e-6).log()
    return Measure(birds.clamp(-2.5, 2.5), weights).normalise()


@statement(
    "A.cor1.network",
    "Corollary 1",
    "A transformer that was trained on flocks of 16 to 128 birds approximates the solution map of "
    "Cucker-Smale flocking. The error does not grow with the number of birds.",
    r"\frac{\int|\Gamma(\mu,x)-G(\mu,x)|\,d\mu}{\int|G(\mu,x)-x|\,d\mu}\le0.01\text{ in the mean},"
    r"\qquad\dot v=\int\frac{3\,(w-v)}{1+|x-y|^2}\,d\mu_t(y,w)",
    defect=planted(__name__, "images", alone),
    seconds=(3.0, 1.0),
    api=("maps.trained_flock", "fields.CuckerSmale", "Flow"),
    note="The corollary is about all measures at once. This is a mean over random ones: the error "
    "at the worst measure is much larger.",
)
def trained_network(s: Setting) -> Iterator[Check | Figure]:
    """The trained model that comes with the library, at new flocks of several sizes."""
    g, model = s.generator(), trained_flock().to(torch.get_default_dtype())
    field = CuckerSmale(lambda r: 3 / (1 + r.square()))
    flow = Flow(field, t1=1.0, solver=RK4(steps=8))
    sizes, means = s.pick((16, 64, 256, 1024), (16, 128)), []
    for n in sizes:
        mu = flocks(s.pick(8, 4), n, g)
        exact = flow.push(mu).atoms
        far, moved = (
            mu.integrate(x.norm(dim=-1)) for x in (images(model, mu) - exact, exact - mu.atoms)
        )
        means.append(float((far / moved).mean()))
        yield built(means[-1], LARGEST, f"by training, {n} birds, relative to the movement:")
    yield Figure(
        "The error of a trained network", "birds", "error over movement",
        (series("mean error", sizes, means),), log="xy",
    )  # fmt: skip


def uniform_distance(difference: Tensor) -> float:
    """The largest distance of the images of a point."""
    return float(difference.norm(dim=-1).max())


@statement(
    "A.cor1.bound",
    "appendix B.5",
    "If two in-context maps are uniformly close, so are their maps between measures.",
    r"W_1\bigl(f_G(\mu),f_H(\mu)\bigr)\le\sup_x|G(\mu,x)-H(\mu,x)|",
    defect=planted(
        __name__, "uniform_distance", lambda difference: float(difference.norm(dim=-1).min())
    ),
    seconds=(0.3, 0.1),
    api=("wasserstein",),
)
def close_maps(s: Setting) -> Iterator[Check]:
    """Pairs of maps, with the largest distance over the atoms alone; a translation attains it."""
    g, worst, pairs = s.generator(), 0.0, s.pick(100, 20)
    kinds = (zoo.attention, zoo.stack, zoo.mlp, zoo.vlasov)
    for k in range(pairs):
        G, H = (kinds[i % 4](2, seed=i) for i in (k, k + 1 + k // 4))
        mu = simplex(box(6, 2, g).atoms, g)
        distance = float(wasserstein(G.push(mu), H.push(mu)))
        worst = max(worst, distance / uniform_distance(G(mu, mu.atoms) - H(mu, mu.atoms)))
    yield bounded(worst, pairs, least=0.5)
    mu, c = box(6, 2, g), torch.tensor([0.3, -0.4])
    attained = float(wasserstein(mu, mu.push(lambda x: x + c)))
    yield holds(
        abs(attained / uniform_distance(c.expand(6, 2)) - 1), 1e-12, "translation: equality"
    )


def token_dim(dim: int, out_dim: int) -> int:
    """The dimension of tokens that the theorem asks for."""
    return dim + 3 * out_dim


@statement(
    "A.cor1.size",
    "Theorem 1 of Furuya, de Hoop and Peyre",
    "Tokens of dimension d + 3d' and d' heads of dimension 1 suffice, whatever the accuracy and "
    "the number of tokens.",
    r"\Gamma:\mathcal P(\Omega)\times\Omega\to\mathbb R^{d'},\quad\Omega\subset\mathbb R^d:\qquad"
    r" \text{tokens in }\mathbb R^{d+3d'},\ d'\text{ heads of dimension }1",
    defect=planted(__name__, "token_dim", lambda dim, out_dim: dim + 2 * out_dim),
    api=("Transformer.universal",),
)
def sizes_of_the_theorem(s: Setting) -> Iterator[Check]:
    """The sizes of the architecture; atoms that are split change nothing."""
    g, off, errors = s.generator(), 0, []
    for dim, out_dim in ((2, 1), (1, 1), (3, 2)):
        model = Transformer.universal(dim, out_dim, depth=2)
        heads = [m for m in model.modules() if isinstance(m, Attention)]
        sizes = {(m.dim, m.heads, m.head_dim) for m in heads}
        off += sizes != {(token_dim(dim, out_dim), out_dim, 1)}
        mu = box(5, dim, g)
        whole, parts = model.push(mu), model.push(mu.split([0.3, 0.7]))
        errors.append(float(wasserstein(whole, parts)))
    yield built(off, 0, "sizes:")
    yield holds(max(errors), 1e-12, "split atoms: the same measure")
    yield quoted("that they suffice for every accuracy")
