r"""Systems of second order: flocking, oscillators. Tokens are pairs $(x,v)$."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ....flows import RK4, Flow
from ....flows.fields import CuckerSmale, Pairwise, SecondOrder
from ....measures import Measure
from ....pictures import Figure, series
from ....representation import Verdict, characterise
from ..._checks import Check, Kind, bounded, holds, refuted
from ..._laws import box, gap, shuffled, simplex
from ..._statement import Setting, planted, statement
from ._solutions import mass_defect, recovery_orders


def influence(r: Tensor) -> Tensor:
    r"""$\psi(r)=(1+r^2)^{-1/2}$."""
    return (1 + r.square()).rsqrt()


def normalised(r: Tensor) -> Tensor:
    """The same, divided by its sum over all others: it is not symmetric any more."""
    return influence_of(r) / influence_of(r).mean(-1, keepdim=True)


influence_of = influence


def spread(mu: Measure) -> Tensor:
    r"""$\int|v-\bar v|^2d\mu$ of tokens $(x,v)$."""
    v = (mu.atoms - mu.mean())[:, 2:]
    return mu.weights @ v.square().sum(-1)


@statement(
    "A.cs",
    "Section 1.1",
    "The solution map of the kinetic Cucker-Smale equation is support preserving, with a "
    "continuous in-context map. It keeps the momentum and brings velocities together.",
    r"\dot x=v,\quad\dot v=\int\psi(|x-y|)\,(w-v)\,d\mu(y,w):\qquad"
    r" \int|v-\bar v|^2d\mu_t\le e^{-2\psi(\max D_X)\,t}\int|v-\bar v|^2d\mu_0",
    defect=planted(__name__, "influence", normalised),
    seconds=(5.0, 0.1),
    api=("fields.CuckerSmale", "recover", "characterise"),
)
def cucker_smale(s: Setting) -> Iterator[Check | Figure]:
    """Masses, recovery, momentum; the verdict on the solution map as a black box."""
    g = s.generator()
    mu, x = simplex(box(8, 4, g).atoms, g), box(2, 4, g).atoms
    flow = Flow(CuckerSmale(influence), t1=1.0, solver=RK4(steps=10))
    f = lambda nu: shuffled(flow.push(nu), g)
    end = flow.push(mu)
    yield holds(mass_defect(mu, f(mu)), 1e-12, "masses:")
    yield from recovery_orders(f, flow, mu, x)
    yield holds(gap(mu.mean()[2:], end.mean()[2:]), 1e-13, "momentum:")
    # The diameter of velocities falls, so until time 1 no two birds are further apart than this.
    far = torch.stack([torch.pdist(half).max() for half in mu.atoms.chunk(2, -1)]).sum()
    slowed = float(spread(end) / ((-2 * influence_of(far)).exp() * spread(mu)))
    yield bounded(slowed, 1, "spread of velocities:")
    if not s.quick:
        short = Flow(CuckerSmale(influence), t1=1.0, solver=RK4(steps=5))
        report = characterise(short.push, lambda n, g: box(n, 4, g), size=6, seed=s.seed)
        right = report.verdict is Verdict.IN_CONTEXT
        wanted = "The verdict is the expected one."
        yield Check(Kind.FOR_ALL, right, str(report.verdict), criterion=wanted)
    way = torch.cat([x[:1], flow(mu, x[:1])])
    yield Figure(
        "A flock, and a probe that it does not see",
        "first coordinate",
        "second coordinate",
        (
            series("at the beginning", mu.atoms[:, 0], mu.atoms[:, 1], "dots"),
            series("at the end", end.atoms[:, 0], end.atoms[:, 1], "dots"),
            series("probe", way[:, 0], way[:, 1]),
        ),
    )


def pull(r: float) -> float:
    r"""The $\psi(r)=1/(1+r^2)$ of the theory."""
    return 1 / (1 + r**2)


def primitive(r: float) -> float:
    r"""$\int_0^r\psi$."""
    return pull(0.0) * math.atan(r)


@statement(
    "A.cs.exact",
    "beside Section 1.1",
    "With constant influence the flock has a closed form. In general velocities become equal if "
    "their diameter is smaller than the integral of the influence beyond the diameter of the "
    "flock. Two birds do so only then.",
    r"D_V(0)<\int_{D_X(0)}^\infty\psi\ \Rightarrow\ D_V(t)\le D_V(0)\,e^{-\psi(\max D_X)t},"
    r"\qquad D_V(t)+\int_{D_X(0)}^{D_X(t)}\psi=D_V(0)\ \text{(two birds)}",
    defect=planted(__name__, "pull", lambda r: 2 / (1 + r**2)),
    seconds=(0.4, 0.2),
    api=("fields.CuckerSmale", "Path.velocity_diameter"),
)
def flocking(s: Setting) -> Iterator[Check | Figure]:
    """Constant influence; a flock below the threshold; two birds on both sides of it."""
    g, K, t = s.generator(), 0.8, 1.5
    mu = simplex(box(10, 4, g).atoms, g)
    constant = CuckerSmale(lambda r: torch.full_like(r, K))
    end = Flow(constant, t1=t, solver=RK4(steps=100)).push(mu).atoms
    (x, v), mean, decay = mu.atoms.chunk(2, -1), mu.mean()[2:], math.exp(-K * t)
    exact = [x + mean * t + (v - mean) * (1 - decay) / K, mean + (v - mean) * decay]
    yield holds(gap(end, torch.cat(exact, -1)), 1e-8, "constant influence:")

    falling = CuckerSmale(lambda r: 1 / (1 + r.square()))
    flow = Flow(falling, t1=20.0, solver=RK4(steps=s.pick(400, 200)))
    flock = flow.path(Measure(box(10, 2, g).atoms * torch.tensor([0.5, 0.2])), save=40)
    DX, DV = flock.diameter(), flock.velocity_diameter()
    below = DV[0] < math.pi / 2 * pull(0.0) - primitive(float(DX[0]))
    share = DV / (DV[0] * (-pull(float(DX.max())) * flock.times).exp())
    late = share[5:]  # at the beginning both sides are equal
    yield bounded(float(late.max()) if below else math.nan, len(late), "a flock of ten:")

    near, reserve, curves = 0.5, math.pi / 2 - math.atan(0.5), {}
    for name, fast in (("below", 0.5 * reserve), ("above", 1.5 * reserve)):
        pair = flow.path(Measure(torch.tensor([[0.0, 0.0], [near, fast]])), save=40)
        DX, DV = pair.diameter(), pair.velocity_diameter()
        left = torch.tensor([fast - primitive(float(r)) + primitive(near) for r in DX])
        yield holds(gap(DV, left), 1e-6, f"two birds {name} the threshold:")
        curves[name] = DV
    ends = {name: float(DV[-1]) for name, DV in curves.items()}
    said = f"speeds {ends['below']:.2g} apart below the threshold, {ends['above']:.2g} above"
    yield refuted(ends["below"] < 0.02 and ends["above"] >= 0.5 * reserve, said, ends["above"])
    yield Figure(
        "Two birds on both sides of the threshold",
        "time",
        "difference of velocities",
        tuple(series(f"{name} the threshold", pair.times, DV) for name, DV in curves.items()),
        log="y",
    )


def stiffness(frequency: float) -> float:
    r"""$\omega^2$."""
    return frequency**2


@statement(
    "A.second",
    "beside (13)",
    "Springs to the barycentre are a Vlasov equation of second order with a closed form.",
    r"\ddot x=-\omega^2(x-\bar x):\quad x(t)=\bar x_0+\bar v_0t+(x_0-\bar x_0)\cos\omega t"
    r"+\tfrac{v_0-\bar v_0}\omega\sin\omega t",
    defect=planted(__name__, "stiffness", lambda frequency: frequency),
    api=("fields.SecondOrder", "fields.Pairwise"),
)
def springs(s: Setting) -> Iterator[Check]:
    """The flow of weighted tokens against the closed form."""
    g, omega, t = s.generator(), 1.3, 1.1
    mu = simplex(box(9, 4, g).atoms, g)
    force = Pairwise(lambda z, y: stiffness(omega) * (y - z)[..., :2])
    end = Flow(SecondOrder(force), t1=t, solver=RK4(steps=s.pick(200, 100))).push(mu).atoms
    (x, v), (mx, mv) = mu.atoms.chunk(2, -1), mu.mean().chunk(2)
    turned = (x - mx) * math.cos(omega * t) + (v - mv) / omega * math.sin(omega * t)
    yield holds(gap(end[:, :2], mx + mv * t + turned), 1e-8)
