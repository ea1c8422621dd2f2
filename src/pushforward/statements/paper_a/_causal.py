r"""Masked maps: contexts with times, where a query at time $t$ sees the tokens at times $s\le t$.

The masked universality theorem is quoted in paper A from its reference [13].
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...distances import wasserstein
from ...flows import RK4, flow
from ...flows.fields import SelfAttention
from ...maps import Attention, Block, Causal, InContextMap, Residual, Transformer
from ...measures import Measure
from ...pictures import Figure, series
from ...representation import decode, rewritings
from .._checks import Check, bounded, built, holds, max, min, quoted, rate, refuted
from .._laws import box, dyadic, simplex
from .._statement import Setting, planted, statement

MASK: Causal | None = Causal()
"""The mask of all layers here."""


def layers(count: int) -> list[InContextMap]:
    """Masked attention, and stacks of it."""
    made: list[InContextMap] = []
    for k in range(count):
        torch.manual_seed(k)
        one = Residual(Attention(2, heads=1 + k % 2, mask=MASK))
        made.append(Transformer(2, depth=2 + k % 2, block=Block(mask=MASK)) if k % 3 else one)
    return made


def timed(mu: Measure, times: Tensor) -> Measure:
    """The same measure with times."""
    return Measure(mu.atoms, log_weights=mu.log_weights, times=times)


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference."""
    return float((a - b).abs().max())


def asked(t: Tensor) -> Tensor:
    """The times at which queries are asked."""
    return t


@statement(
    "C.past",
    "the masked setting of [13]",
    "Outputs at times up to t do not depend on tokens after t.",
    r"\mu|_{[0,t]}=\nu|_{[0,t]}\ \Rightarrow\ \Lambda(\mu,x,s)=\Lambda(\nu,x,s),\quad s\le t",
    defect=planted(__name__, "asked", lambda t: t + 1),
    seconds=(0.2, 0.1),
    api=("Causal", "Attention"),
)
def past(s: Setting) -> Iterator[Check | Figure]:
    """Replace the tokens after the fourth; the Jacobian of all outputs."""
    g, errors, times = s.generator(), [], torch.arange(8)
    for gamma in layers(s.pick(12, 4)):
        mu = timed(simplex(box(8, 2, g).atoms, g), times)
        other = mu.moved(torch.where(times[:, None] > 3, box(8, 2, g).atoms, mu.atoms))
        a, b = (gamma(m, m.atoms[:4], asked(times[:4])) for m in (mu, other))
        errors.append(gap(a, b))
    yield holds(max(errors), 0.0, trials=len(errors))
    gamma, mu = layers(2)[1], timed(box(8, 2, g), times)
    with torch.enable_grad():
        outputs = lambda x: gamma.push(mu.moved(x)).atoms
        jacobian = torch.autograd.functional.jacobian(outputs, mu.atoms)
    token, output = (jacobian.abs().amax((1, 3)).mT > 0).nonzero(as_tuple=True)
    yield Figure(
        "Which token an output depends on", "token", "output",
        (series("not zero", token, output, "dots"),),
    )  # fmt: skip


def seen(times: Tensor, t: Tensor) -> Tensor:
    """The tokens that a query at a time sees."""
    return times <= t


def before(times: Tensor, t: Tensor) -> Tensor:
    """The same without ties, if there is an earlier token."""
    earlier = times < t
    return earlier if bool(earlier.any()) else times <= t


def prefix(mu: Measure, times: Tensor, t: Tensor) -> Measure:
    r"""$\mu_t=\mathbf 1_{[0,t]}\mu/\bar\mu([0,t])$."""
    return mu.restrict(seen(times, t)).strip().normalise()


def kept_at_zero(mu: Measure, times: Tensor, t: Tensor) -> Measure:
    """The future keeps its mass, at a point of value 0: it is not renormalised."""
    return mu.moved(torch.where(seen(times, t)[:, None], mu.atoms, 0))


def against_plain(mu: Measure, times: Tensor, seed: int) -> float:
    """Masked attention at every atom against plain attention on the prefix of that atom."""
    torch.manual_seed(seed)
    masked, plain = Attention(2, heads=2, mask=MASK), Attention(2, heads=2)
    plain.load_state_dict(masked.state_dict())
    each = [plain(prefix(mu, times, t), x[None]) for x, t in zip(mu.atoms, times, strict=True)]
    return gap(masked.push(timed(mu, times)).atoms, torch.cat(each))


@statement(
    "C.restrict",
    "the masked setting of [13]",
    "Masked attention is plain attention on the part of the context that is seen, normalised.",
    r"\Lambda(\mu,x,t)=\Lambda(\mu_t,x),\qquad\mu_t=\mathbf 1_{[0,t]}\,\mu\,/\,\bar\mu([0,t])",
    defect=planted(__name__, "prefix", kept_at_zero),
    api=("Causal", "Measure.restrict"),
)
def restricted(s: Setting) -> Iterator[Check]:
    """Weighted tokens at random times, with the same matrices in both layers."""
    g, trials = s.generator(), s.pick(10, 3)
    clouds = [(simplex(box(9, 2, g).atoms, g), torch.rand(9, generator=g)) for _ in range(trials)]
    errors = [against_plain(mu, times, k) for k, (mu, times) in enumerate(clouds)]
    yield holds(max(errors), 1e-14, trials=trials)


@statement(
    "C.ties",
    "the masked setting of [13]",
    "Tokens at equal times see each other. If all times are equal, nothing is masked.",
    r"s=t\ \Rightarrow\ s\ \text{is seen at}\ t",
    defect=planted(__name__, "seen", before),
    api=("Causal",),
)
def ties(s: Setting) -> Iterator[Check]:
    """Integer times with ties, and all times equal."""
    g, trials, some, all_equal = s.generator(), s.pick(10, 3), [], []
    for k in range(trials):
        mu = simplex(box(9, 2, g).atoms, g)
        some.append(against_plain(mu, torch.randint(3, (9,), generator=g), k))
        all_equal.append(against_plain(mu, torch.ones(9), k))
    yield holds(max(some), 1e-14, "three times of nine tokens", trials)
    yield holds(max(all_equal), 1e-14, "all times equal", trials)


def query(x: Tensor, t: Tensor) -> Tensor:
    """The point that is asked about at a time."""
    return x.expand(len(t), -1)


@statement(
    "C.ident",
    "identifiability in [13]",
    "The time of a query matters only through what it sees.",
    r"\mu_t=\mu_{t'}\ \Rightarrow\ \Lambda(\mu,x,t)=\Lambda(\mu,x,t')",
    defect=planted(__name__, "query", lambda x, t: x + t[:, None]),
    api=("Causal",),
)
def identifiable(s: Setting) -> Iterator[Check | Figure]:
    """Queries at times between the tokens at 2 and 3."""
    g, errors, times = s.generator(), [], torch.arange(6.0)
    between = torch.tensor([2.0, 2.5, 2.9999])
    for gamma in layers(s.pick(10, 3)):
        mu, x = timed(box(6, 2, g), times), box(1, 2, g).atoms
        out = gamma(mu, query(x, between), between)
        errors.append(gap(out, out[:1]))
    yield holds(max(errors), 1e-14, trials=len(errors))
    t = torch.linspace(0, 5.99, 150)
    out = gamma(mu, query(x, t), t)[:, 0]
    yield Figure(
        "The image of a point as time goes on", "t", "first coordinate", (series("image", t, out),)
    )


def given_times(times: Tensor) -> Tensor:
    """The times of the tokens, as they are given."""
    return times


@statement(
    "C.b1",
    "Def. 1 on pairs of token and time",
    "Masked layers preserve supports as maps of measures on pairs of token and time. The order of "
    "the list, splitting of tokens and repeating of the list do not matter.",
    r"f\Bigl(\sum_ia_i\delta_{(x_i,t_i)}\Bigr)=\sum_ia_i\delta_{(y_i,t_i)}",
    defect=planted(__name__, "given_times", lambda times: torch.arange(len(times))),
    seconds=(0.2, 0.1),
    api=("Causal", "representation.rewritings", "representation.decode"),
)
def supports(s: Setting) -> Iterator[Check]:
    """Masses of the images, and the same measure written in three other ways."""
    g, masses, written = s.generator(), [], []
    for gamma in layers(s.pick(6, 3)):
        times = torch.randint(4, (8,), generator=g)
        mu = timed(dyadic(box(8, 2, g).atoms), times)
        out = gamma.push(mu)
        masses.append(decode(mu.weights.numpy(), out.merge().weights.numpy(), 1e-9).residual)
        for other, index in rewritings(mu, g).values():
            again = gamma.push(timed(other, given_times(times[index])))
            written.append(gap(again.atoms, out.atoms[index]))
    yield holds(max(masses), 1e-12, "masses", len(masses))
    yield holds(max(written), 1e-12, "written in another way", len(written))


def hard(tokens: Tensor, times: Tensor) -> Tensor:
    r"""Masked attention $\int y\,\pi(dy|x)$ with score $xy$ on the line."""
    one = torch.eye(1)
    return SelfAttention(one, one, one, mask=MASK).push(Measure(tokens, times=times)).atoms


def soft(tokens: Tensor, times: Tensor) -> Tensor:
    """The same with a mask that fades over a tenth."""
    fading = ((times[:, None] - times) / 0.1).sigmoid()
    weights = fading * (tokens @ tokens.mT).exp()
    return weights @ tokens / weights.sum(-1, keepdim=True)


@statement(
    "C.jump",
    "the masked setting of [13]",
    "Masked attention is not continuous in the measure of token-time pairs: a token that passes "
    "the time of another changes the image of that one.",
    r"W_1(\mu_\delta,\mu_{-\delta})=\tfrac23\delta\to0,\qquad"
    r" W_1(f(\mu_\delta),f(\mu_{-\delta}))\not\to0",
    defect=planted(__name__, "hard", soft),
    api=("Causal", "wasserstein"),
    note="So Theorem 1 does not apply to masked attention.",
)
def jump(s: Setting) -> Iterator[Check | Figure]:
    """Three tokens, the third just before or just after the second."""
    tokens = torch.tensor([[0.0], [1.0], [-1.0]])
    clock = lambda delta: torch.tensor([0.0, 0.5, 0.5 + delta])

    def distances(delta: float) -> tuple[float, float]:
        inputs, outputs = [], []
        for times in (clock(delta), clock(-delta)):
            inputs.append(Measure(torch.cat([tokens, times[:, None]], -1)))
            outputs.append(Measure(torch.cat([hard(tokens, times), times[:, None]], -1)))
        return float(wasserstein(*inputs)), float(wasserstein(*outputs))

    (wide, far), (close, still) = distances(1e-2), distances(1e-6)
    yield holds(
        max(abs(wide / 1e-2 - 2 / 3), abs(close / 1e-6 - 2 / 3)),
        1e-9,
        "2/3 of the difference of times",
    )
    yield refuted(still > 0.9 * far, f"a jump of {still:.3g} at distance {close:.0e}", still)
    at = torch.linspace(0.3, 0.7, 81)
    images = torch.stack([hard(tokens, clock(float(t) - 0.5))[1:, 0] for t in at])
    yield Figure(
        "A token passes the time of another", "time of the third token", "image",
        (series("of the second", at, images[:, 0]), series("of the third", at, images[:, 1])),
    )  # fmt: skip


def curve(t: Tensor) -> Tensor:
    """Tokens that depend on time in a Lipschitz way."""
    return (5 * t).sin()


def rough(t: Tensor) -> Tensor:
    """The tokens -1 and 1 in turn."""
    return 2.0 * (torch.arange(len(t)) % 2) - 1


def jumps(tokens: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""How far $\Gamma(\mu_n,1,t)$ jumps as each token but the first enters."""
    one, n = torch.eye(1), len(tokens)
    mu = Measure(tokens[:, None], weights, times=torch.arange(n))
    out = SelfAttention(one, one, one, mask=MASK)(mu, torch.ones(n, 1), torch.arange(n))
    return out[:, 0].diff().abs()


@statement(
    "C.class",
    "hypotheses of the masked theorem of [13]",
    "If tokens depend on time in a Lipschitz way, or if the first has a fixed share of the mass, "
    "then images jump by O(1/n) as time goes on. Without both they need not.",
    r"\sup_t|\Gamma(\mu_n,x,t^+)-\Gamma(\mu_n,x,t^-)|=O(1/n)",
    defect=planted(__name__, "curve", lambda t: (5 * t[torch.randperm(len(t))]).sin()),
    seconds=(0.3, 0.1),
    api=("Causal",),
)
def jumps_of_a_class(s: Setting) -> Iterator[Check | Figure]:
    """A sine, tokens that alternate, and these after a first token of half the mass."""
    sizes = s.pick((50, 200, 800), (50, 200))
    smooth, alternating, anchored = [], [], []
    for n in sizes:
        t = torch.arange(1, n + 1) / n
        smooth.append(float(jumps(curve(t)).max()))
        alternating.append(float(jumps(rough(t)).max()))
        heavy = torch.cat([torch.ones(1), torch.full((n - 1,), 1 / (n - 1))])
        anchored.append(float(jumps(rough(t), heavy).max()))
    scaled = [n * jump for n, jump in zip(sizes, smooth, strict=True)]
    yield rate(scaled[0] / scaled[-1], 1.0, 0.05, "n times the jump, first over last")
    # scores differ by at most 2 and values too; the token that enters has at most 1/(n-1) beside 1
    bounds = [2 * math.e**2 / (n - 1) for n in sizes]
    worst = max(jump / b for jump, b in zip(anchored, bounds, strict=True))
    yield bounded(worst, sum(sizes), "after a heavy first token:")
    least = min(alternating)
    yield refuted(least > 0.1, f"jumps of {least:.2f} at every n for alternating tokens", least)
    yield Figure(
        "The largest jump as tokens enter", "tokens", "jump", (
            series("a sine", sizes, smooth), series("alternating", sizes, alternating),
            series("after a heavy first token", sizes, anchored),
        ), log="xy",
    )  # fmt: skip


@statement(
    "C.flow",
    "the masked setting of [13]",
    "Flows of masked fields do not look ahead.",
    r"\mu|_{[0,t]}=\nu|_{[0,t]}\ \Rightarrow\ \Phi_T(\mu,x,s)=\Phi_T(\nu,x,s),\quad s\le t",
    defect=planted(__name__, "MASK", None),
    seconds=(0.3, 0.1),
    api=("flow", "Causal"),
)
def flows(s: Setting) -> Iterator[Check]:
    """Replace later tokens, with the mask and without it."""
    g, times = s.generator(), torch.arange(8)
    masked: list[float] = []
    plain: list[float] = []
    for _ in range(s.pick(6, 2)):
        matrices = torch.randn(3, 2, 2, generator=g).unbind(0)
        mu = timed(simplex(box(8, 2, g).atoms, g), times)
        other = mu.moved(torch.where(times[:, None] > 3, box(8, 2, g).atoms, mu.atoms))
        for mask, errors in ((MASK, masked), (None, plain)):
            field = SelfAttention(*matrices, mask=mask)
            a, b = (flow(field, m, t1=1.0, solver=RK4(5))[-1].atoms for m in (mu, other))
            errors.append(gap(a[:4], b[:4]))
    yield holds(max(masked), 0.0, "the past", len(masked))
    least = min(plain)
    yield refuted(least > 1e-6, f"without the mask the past moves by {least:.2g} or more", least)


@statement(
    "C.mean",
    "the masked theorem of [13]",
    "The running mean is one masked head. (That masked transformers approximate every causal and "
    "identifiable map on the class of the theorem is quoted.)",
    r"x+\int y\,d\mu_t(y)=\Lambda(\mu,x,t)\quad\text{with } Q=0,\ V=\mathrm{Id}",
    defect=planted(__name__, "MASK", None),
    api=("Causal", "Residual"),
)
def running_mean(s: Setting) -> Iterator[Check]:
    """Weighted tokens against cumulative sums."""
    g, errors = s.generator(), []
    one = torch.eye(2)
    gamma = Residual(SelfAttention(0 * one, one, one, mask=MASK))
    for n in (1, 3, 30, s.pick(1000, 100)):
        mu = simplex(box(n, 2, g).atoms, g)
        sums = (mu.weights[:, None] * mu.atoms).cumsum(0) / mu.weights.cumsum(0)[:, None]
        errors.append(gap(gamma.push(timed(mu, torch.arange(n))).atoms, mu.atoms + sums))
    yield built(max(errors), 1e-13)
    yield quoted("the masked universality theorem")
