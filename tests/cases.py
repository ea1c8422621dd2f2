"""What the tests are run on: every kind of map, and measures of every kind."""

import torch
from implementations import HERE

import pushforward as pf


class Drift(pf.InContextMap):
    """What a user writes: a subclass with `evaluate` alone."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(0.3))

    def evaluate(self, mu, x):
        return x + self.rate * (mu.mean()[..., None, :] - x).tanh()


def attention(impl, **options):
    return pf.Attention(2, heads=2, head_dim=3, impl=impl, **options)


def transformer(impl, *, step=1.0, width=None, out_dim=None, **shared):
    block = pf.Block(impl=impl, **shared)
    return pf.Transformer(
        2, depth=2, heads=2, hidden=5, step=step, width=width, out_dim=out_dim, block=block
    )


ATTENTIVE = {
    "softmax": lambda impl: attention(impl),
    "sinkhorn": lambda impl: attention(impl, normaliser=pf.Sinkhorn(steps=4)),
    "squared distance": lambda impl: attention(impl, affinity=pf.SquaredDistance(1.5)),
    "squared distance, sinkhorn": lambda impl: attention(
        impl, affinity=pf.SquaredDistance(1.5), normaliser=pf.Sinkhorn(steps=4)
    ),
    "sinkhorn to a tolerance": lambda impl: attention(impl, normaliser=pf.Sinkhorn(tol=1e-14)),
    "unbalanced": lambda impl: attention(impl, normaliser=pf.Sinkhorn(tol=1e-14, slack=0.5)),
    "dual softmax": lambda impl: attention(impl, normaliser=pf.relations.DualSoftmax()),
    "sigmoid": lambda impl: attention(impl, normaliser=pf.relations.Sigmoid(bias=0.5)),
    "unnormalised": lambda impl: attention(impl, normaliser=pf.relations.Exponential()),
    "linear": lambda impl: attention(impl, normaliser=pf.relations.Bilinear()),
    "linear, squared distance": lambda impl: attention(
        impl, normaliser=pf.relations.Bilinear(), affinity=pf.SquaredDistance(1.5)
    ),
    "linear, causal": lambda impl: attention(
        impl, normaliser=pf.relations.Bilinear(), mask=pf.Causal()
    ),
    "hardmax": lambda impl: attention(impl, normaliser=pf.relations.Hardmax()),
    "causal": lambda impl: attention(impl, mask=pf.Causal()),
    "residual": lambda impl: pf.Residual(attention(impl), step=0.7),
    "composition": lambda impl: attention(impl) @ pf.MLP(2, 6, skip=True) @ attention(impl),
    "transformer": lambda impl: transformer(impl, step=0.5),
    "pre-norm": lambda impl: transformer(impl, norm=pf.PreNorm()),
    "post-norm, causal": lambda impl: transformer(impl, norm=pf.PostNorm(), mask=pf.Causal()),
    "wide": lambda impl: transformer(impl, width=4, out_dim=3),
    "with dropout": lambda impl: transformer(impl, dropout=0.5, norm=pf.PreNorm()).eval(),
}
PLAIN = {
    "flow": lambda impl: pf.Flow(attention(impl), t1=0.5, solver=pf.RK4(steps=3)),
    "flow, sinkhorn": lambda impl: pf.Flow(
        attention(impl, normaliser=pf.Sinkhorn(tol=1e-13)),
        t1=0.5,
        solver=pf.flows.Midpoint(steps=4),
    ),
    "flow, causal": lambda impl: pf.Flow(
        attention(impl, mask=pf.Causal()), t1=0.5, solver=pf.Euler(steps=3)
    ),
    "flow, checkpointed": lambda impl: pf.Flow(
        attention(impl),
        t1=0.5,
        solver=pf.Euler(steps=4),
        gradients=pf.flows.Backprop(checkpoint=2),
    ),
    "split flow": lambda impl: pf.Flow(
        pf.fields.Sum(attention(impl), pf.MLP(2, 5)), t1=0.5, solver=pf.flows.LieSplit(steps=3)
    ),
    "pairwise": lambda impl: pf.fields.Pairwise(lambda x, y: torch.sin(y - x)),
    "cucker-smale": lambda impl: pf.fields.CuckerSmale(),
    "kuramoto": lambda impl: pf.fields.Kuramoto(2.0, dim=2),
    "second order": lambda impl: pf.fields.SecondOrder(
        pf.fields.Pairwise(lambda z, w: (w - z)[..., :1])
    ),
    "layers": lambda impl: pf.Flow(
        pf.fields.Layers([attention(impl), attention(impl)]),
        t1=1.0,
        solver=pf.flows.Midpoint(steps=2),
    ),
    "mlp": lambda impl: pf.MLP(2, 6),
    "mlp with skip": lambda impl: pf.MLP(2, 6, skip=True, activation=torch.tanh),
    "pointwise": lambda impl: pf.Pointwise(torch.nn.Linear(2, 3)),
    "dropout": lambda impl: pf.Dropout(0.5).eval(),
    "dropout of nothing": lambda impl: pf.Dropout(0.0),
    "a user's map": lambda impl: Drift(),
    "a user's map, composed": lambda impl: pf.Compose(Drift(), pf.MLP(2, 4), Drift()),
}
MAPS = [(name, make, impl) for name, make in ATTENTIVE.items() for impl in HERE]
MAPS += [(name, make, None) for name, make in PLAIN.items()]
IDS = [name if impl is None else f"{name}, {impl}" for name, _, impl in MAPS]


def measure(n=6, d=2, mass=1.7):
    """Random atoms, weights over three orders of magnitude, times with ties."""
    weights = (2.0 * torch.randn(n)).softmax(0) * mass
    return pf.Measure(torch.randn(n, d), weights, times=torch.arange(n) // 2 / 3)


def queries(m=4, d=2):
    """Points that are no atoms, and times at which they see at least one."""
    return torch.randn(m, d), torch.linspace(0, 1, m)


def worst(a, b):
    """Largest difference of two tensors or of the atoms of two measures."""
    a, b = (t.atoms if isinstance(t, pf.Measure) else t for t in (a, b))
    return (a - b).abs().max().item()
