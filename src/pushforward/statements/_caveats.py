"""Where the papers, as we read them, need another word: what is said, why, and what helps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caveat:
    """A place where a paper, as we read it, needs another word.

    All texts may have formulas between dollars.

    Args:
        title: where it is, and what it is about.
        says: what the paper says, as we read it.
        why: why it needs another word.
        counterexample: an exact one.
        instead: what can be said.
        ids: of the statements whose experiments show it.
    """

    title: str
    says: str
    why: str
    counterexample: str
    instead: str
    ids: tuple[str, ...]


CAVEATS = (
    Caveat(
        "(16), convergence on all open sets",
        "A sequence of prompts tends to a measure if the masses of all open sets converge.",
        "If they converge for every open set, they converge for every Borel set. All tokens "
        "together are countably many points, and these keep the whole mass in the limit. So the "
        "limit has atoms only, and no sequence of prompts would tend to a continuous measure.",
        r"$\delta_{(-1)^n/n}\to\delta_0$, but the open set $U=(0,1]$ has the masses "
        r"$0,1,0,1,\dots$",
        r"Ask it for sets with $\mu(\partial U)=0$. Or ask that $\liminf_n\mu_n(U)\ge\mu(U)$ for "
        "all open sets.",
        ("A.A3.16",),
    ),
    Caveat(
        "The conclusion, what transformers approximate",
        "(B1) and (B2) characterise the maps that transformers approximate.",
        "They are sufficient, by Corollary 1. They are not necessary, because a uniform limit of "
        "maps with (B2) need not have (B2).",
        r"The map $f$ of Proposition 1 has no continuous in-context map. It is a uniform limit of "
        r"maps that have one, $G_k(\mu,x)=T_{\max(s(\mu),1/k)}(x)$: "
        r"$\sup_\mu W_1(f_{G_k}(\mu),f(\mu))\le\frac1k$.",
        "Theorem 1 characterises exact representation.",
        ("A.thm1.closure",),
    ),
    Caveat(
        "Lemma 4, and Lipschitz maps",
        "If atoms and masses converge, so does every image. A Lipschitz map that preserves "
        "supports has a continuous in-context map.",
        "Atoms of equal mass may exchange their images. The set of points must be connected in "
        "some way, and Lemma 4 needs generic masses.",
        r"On $\Omega=\{-1,1\}$ the fold "
        r"$a\,\delta_1+(1-a)\,\delta_{-1}\mapsto\max(a,1-a)\,\delta_1+\min(a,1-a)\,\delta_{-1}$ "
        r"has Lipschitz constant 1 and preserves supports, but $G(\mu,1)$ jumps between $1$ and "
        r"$-1$ at $a=\frac12$.",
        "Both hold on a convex set, and Lemma 4 for masses whose subset sums all differ. Theorem "
        "1 is not hurt, because the fold does not have (B2).",
        ("A.fact.lip", "A.lem4"),
    ),
    Caveat(
        "(6), the order of the limits",
        "The regular part of the derivative is a limit of small masses and of test functions "
        "that become flat.",
        "The mass must tend to zero first. If both limits are taken together, the result depends "
        "on how fast they are.",
        r"$G(\mu,x)=x+\int y\,d\mu$ at $\mu=\delta_0$ and $x=1$. The quotient tends to $1=G$ if "
        r"the mass is much smaller than the radius of flatness, and to $2$ if it is much larger.",
        "Let the mass tend to zero at a fixed test function, then vary the function.",
        ("A.def4.order",),
    ),
    Caveat(
        "(5), the norm of test functions",
        "The regular part is uniformly continuous in the test function.",
        "Test functions need a bound on their slope. Without it not even the regular part of the "
        "identity is uniformly continuous.",
        r"$f(\mu)=\mu$ and $\psi_k(y)=\sin(ky)$: at the points $0$ and $\frac{\pi}{2k}$ the "
        r"values differ by $1$.",
        r"Ask for $\|\psi\|_{C^1}\le R$. One $R>0$ is as good as any other, because the regular "
        r"part is linear in $\psi$.",
        ("A.def3.bound", "A.rem2"),
    ),
    Caveat(
        "(42), (44) and Lemma 3, positive measures",
        r"The limit of a small mass is $\psi(G(\mu,x))$.",
        "This depends on how the map is extended from probabilities to positive measures. Which "
        "extension is meant we could not read.",
        r"If $f(c\mu)=f(\mu)$, the limit is $\psi(G(\mu,x))-\int\psi\,df(\mu)$.",
        r"Extend by $f(c\mu)=c\,f(\mu)$. Then all three hold.",
        ("A.eq42.P",),
    ),
    Caveat(
        "(15), the gap of masses",
        "The gap is the least difference between the masses of two sets of atoms.",
        "The sets must be any two different ones. If only sets without a common atom were "
        "compared, a light atom could jump although the gap is large, and Lemma 4 would fail.",
        r"The masses $(0.99,\,0.01)$ would have the gap $0.98$, while the atom of mass $0.01$ may "
        "jump.",
        r"Take the minimum over all $I\ne J$, also if one contains the other. The gap is then "
        r"$0.01$.",
        ("A.eq15",),
    ),
    Caveat(
        "(4), maps of sequences",
        "A map of token sequences with condition (3) is a map of measures.",
        "It must also follow permutations, and not notice that all tokens are repeated.",
        r"Attention of temperature $1/\log n$ satisfies (3), but it depends on how a measure is "
        "written: with every token twice, the outputs are others.",
        r"Ask also for $F(X,X)=(F(X),F(X))$ and for equivariance.",
        ("A.eq4",),
    ),
    Caveat(
        "The abstract, the cardinality of supports",
        "Support-preserving maps preserve the number of atoms.",
        "Different atoms may go to one point.",
        r"$x\mapsto0$ is support preserving and sends any number of atoms to one.",
        "They do not increase the number of atoms, and they carry the masses along.",
        ("A.def1.collide",),
    ),
    Caveat(
        "Masked attention",
        "The theory covers masked attention, as a map of pairs of a token and a time.",
        r"It is not continuous in $W_1$: a token that passes the time of another one changes its "
        "image.",
        r"Of three tokens the third passes the second: at times $\frac12\pm\delta$ the "
        r"measures are $\frac23\delta$ apart, and the image jumps however small $\delta$ is.",
        "Theorem 1 does not apply to it. If tokens depend on time in a Lipschitz way, or the "
        r"first has a fixed share of the mass, jumps of $n$ tokens are of order $\frac1n$.",
        ("C.jump", "C.class"),
    ),
    Caveat(
        "(61), the depth limit",
        "A transformer of many layers tends to the flow of one field.",
        "There are two such limits, and two fields.",
        r"Blocks scaled by $\frac1L$ give $\mathcal A+H\circ(\mathrm{Id}+\mathcal A)$. Attention "
        r"and MLP scaled separately, as programs usually do, give $\mathcal A+H$.",
        "Say which of the two is scaled.",
        ("A.eq61.limits",),
    ),
    Caveat(
        "Proposition 2, contexts without a bound",
        "Solution maps of Vlasov equations are maps of measures, also for attention.",
        "The velocity of attention grows with the size of the context. Contexts need compact "
        "support, and their images lie in a larger ball.",
        r"On the line a Gaussian context of variance $S_0$ blows up at $t^*=\frac1{2vaS_0}$, for "
        r"scores $axy$ and values $vy$. Every finite cloud lives on, so that beyond $t^*$ there "
        "is no limit of many tokens.",
        r"Contexts in a ball of radius $R_0$ stay in one of radius $R_0e^{vt}$.",
        ("A.prop2.compact",),
    ),
    Caveat(
        "Arbitrary contextual relations",
        "Attention approximates arbitrary contextual relations.",
        "They must be weakly continuous, and live on the support of the context. The two "
        "theorems are about different classes: a system of couplings may be continuous while its "
        "conditionals are not, and a kernel that does not carry one measure to the other stays "
        "away from every coupling.",
        r"The nearest of two keys jumps, so that every continuous relation is off by half of the "
        r"jump. Optimal plans in the plane are $2$ apart for measures at distance "
        r"$2\times10^{-4}$.",
        "Weakly continuous relations on the support of the context are approximated, each class "
        "by its own normaliser.",
        ("B.cont.nearest", "B.cont.plans", "B.cont.support", "B.cont.quantile", "B.joint.iff"),
    ),
    Caveat(
        "The dimension of a head",
        "Attention approximates every relation if the dimension of its heads may grow.",
        "With a fixed dimension it does not, as the referee of the paper expected. The answer to "
        "the referee, which lets the dimension grow, holds as well.",
        r"For $n$ queries and $m$ keys the relations of one head of dimension $d$ form a set of "
        r"dimension $d(n+m-1-d)$ for softmax and $d(n+m-2-d)$ for Sinkhorn. For small $d$ all "
        "relations form a larger one, so that almost none of them is the relation of a head.",
        r"The dimensions $\min(n,m-1)$ and $\min(n,m)-1$ always suffice. So do many heads of "
        "dimension two.",
        ("B.rank.softmax", "B.rank.sinkhorn", "B.rank.count", "B.rank.gap", "B.heads.exact"),
    ),
)
"""The places, in the order of the page."""
