"""The same numbers from this library and from POT, GeomLoss, OTT and SciPy.

Every line of the table holds two expressions, ours and theirs, and both are evaluated. Packages
that are not installed are left out, and a line that disagrees is an error. The table of the page
`docs/howto/from_other_libraries.md` is written by

    pip install geomloss ott-jax
    python benchmarks/translation.py --write
"""

import argparse
import importlib.util
import math
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

import pushforward as pf

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "from_other_libraries.md"
BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"
PACKAGES = {"POT": "ot", "GeomLoss": "geomloss", "OTT": "ott", "SciPy": "scipy"}
DISTRIBUTIONS = {"POT": "POT", "GeomLoss": "geomloss", "OTT": "ott-jax", "SciPy": "scipy"}


@dataclass(frozen=True)
class Line:
    """One quantity, as we write it and as another package does."""

    package: str
    theirs: str
    ours: str
    tol: float = 1e-7
    """The relative difference that the stopping rules of both leave."""


@dataclass(frozen=True)
class Section:
    title: str
    lines: list[Line]


SECTIONS = [
    Section(
        "Exact transport. We return the distance, the others its power.",
        [
            Line(
                "POT",
                "ot.emd2(a, b, ot.dist(x, y, metric='euclidean'))",
                "pf.wasserstein(mu, nu)",
            ),
            Line("POT", "ot.emd2(a, b, ot.dist(x, y)) ** (1 / 2)", "pf.wasserstein(mu, nu, p=2)"),
            Line(
                "POT",
                "ot.wasserstein_1d(x[:, 0], y[:, 0], a, b, p=2) ** (1 / 2)",
                "pf.wasserstein(line_mu, line_nu, p=2)",
            ),
            Line(
                "SciPy",
                "stats.wasserstein_distance(x[:, 0], y[:, 0], a, b)",
                "pf.wasserstein(line_mu, line_nu)",
            ),
            Line(
                "POT",
                "ot.sliced_wasserstein_distance(x, y, a, b, projections=lines, p=2)",
                "pf.sliced_wasserstein(mu, nu, projections=64, generator=seeded())",
            ),
        ],
    ),
    Section(
        "The entropic coupling, its cost and its value. The value contains `eps` times KL.",
        [
            Line("POT", "ot.solve(C, a, b, reg=eps, **fine).value", "pi.value()"),
            Line("OTT", "out.reg_ot_cost", "pi.value()"),
            Line(
                "GeomLoss",
                "2 * SamplesLoss(blur=blur, debias=False, **slow)(a, x, b, y)",
                "pi.value()",
                1e-5,
            ),
            Line("POT", "ot.solve(C, a, b, reg=eps, **fine).value_linear", "pi.cost()"),
            Line("POT", "ot.sinkhorn2(a, b, C, eps, stopThr=1e-10)", "pi.cost()"),
            Line("OTT", "(out.matrix * out.geom.cost_matrix).sum()", "pi.cost()"),
            Line("POT", "ot.sinkhorn(a, b, C, eps, stopThr=1e-10)[3, 5]", "pi.matrix()[3, 5]"),
            Line("OTT", "out.matrix[3, 5]", "pi.matrix()[3, 5]"),
        ],
    ),
    Section(
        "Potentials, up to a constant. POT and OTT add log weights, OTT and GeomLoss count costs.",
        [
            Line(
                "POT",
                "gap(ot.solve(C, a, b, reg=eps, **fine).potentials[0])",
                "gap(f + a.log())",
            ),
            Line("OTT", "gap(out.f)", "eps * gap(f + a.log())"),
            Line(
                "GeomLoss",
                "2 * gap(half(a, x, b, y)[0].flatten())",
                "eps * gap(f)",
                1e-4,
            ),
        ],
    ),
    Section(
        "The debiased divergence. POT's differs: it subtracts costs without the KL term.",
        [
            Line(
                "GeomLoss",
                "2 * SamplesLoss(blur=blur, **slow)(a, x, b, y)",
                "pf.sinkhorn_divergence(mu, nu, eps=eps, normaliser=tight)",
                1e-5,
            ),
            Line(
                "OTT",
                "sinkdiv(x, y, a, b, epsilon=eps)",
                "pf.sinkhorn_divergence(mu, nu, eps=eps, normaliser=tight)",
            ),
            Line(
                "POT",
                "ot.bregman.empirical_sinkhorn_divergence(x, y, eps, a=a, b=b, stopThr=1e-10)",
                "coupled(mu, nu).cost() - (coupled(mu, mu).cost() + coupled(nu, nu).cost()) / 2",
            ),
        ],
    ),
    Section(
        "Energy distance and MMD. We return the root of twice what GeomLoss returns.",
        [
            Line(
                "GeomLoss",
                "(2 * SamplesLoss('energy')(a, x, b, y)) ** 0.5",
                "pf.energy_distance(mu, nu)",
                1e-5,  # GeomLoss smooths the distance
            ),
            Line(
                "SciPy",
                "stats.energy_distance(x[:, 0], y[:, 0], a, b)",
                "pf.energy_distance(line_mu, line_nu)",
            ),
            Line(
                "GeomLoss",
                "(2 * SamplesLoss('gaussian', blur=0.7)(a, x, b, y)) ** 0.5",
                "pf.mmd(mu, nu, bandwidth=0.7)",
            ),
        ],
    ),
    Section(
        "Unequal masses: `nu` weighs 1.5 times as much as `mu` (`heavy`, weights `c`).",
        [
            Line(
                "POT",
                "ot.sinkhorn_unbalanced(a, c, C, eps, rho, reg_type='kl', **many).sum()",
                "loose.mass()",
            ),
            Line(
                "POT",
                "ot.sinkhorn_unbalanced(a, c, C, eps, rho, reg_type='kl', **many).max()",
                "loose.matrix().max()",
            ),
            Line("OTT", "unbalanced.matrix.sum()", "counted.mass()"),
            Line(
                "POT",
                "ot.sinkhorn_unbalanced(a, c, C, eps, rho, reg_type='entropy', **many).sum()",
                "counted.mass()",
            ),
            Line(
                "GeomLoss",
                "2 * SamplesLoss(blur=blur, reach=reach, **slow)(a, x, c, y)",
                "pf.sinkhorn_divergence(mu, heavy, eps=eps, normaliser=slack)",
                1e-4,
            ),
        ],
    ),
]


def installed() -> list[str]:
    """The packages that can be imported here."""
    return [name for name, module in PACKAGES.items() if importlib.util.find_spec(module)]


def common() -> dict[str, object]:
    """Two weighted clouds in the plane, their couplings, and what the expressions name."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, dtype=torch.float64, generator=g)
    y = torch.randn(40, 2, dtype=torch.float64, generator=g) * 0.5 + 1
    a, b = (torch.rand(len(z), dtype=torch.float64, generator=g) + 0.1 for z in (x, y))
    a, b, eps, rho = a / a.sum(), b / b.sum(), 0.5, 2.0
    mu, nu = pf.Measure(x, a), pf.Measure(y, b)
    heavy, tight = pf.Measure(y, 1.5 * b), pf.Sinkhorn(tol=1e-12)
    near, slack = pf.SquaredDistance(eps), pf.Sinkhorn(tol=1e-11, slack=rho)
    coupled = lambda mu, nu: pf.relate(mu, nu, affinity=near, normaliser=tight)
    pi = coupled(mu, nu)
    seeded = lambda: torch.Generator().manual_seed(7)
    C = torch.cdist(x, y).square()
    entropy = pf.Matrix(-(C / eps + a.log()[:, None] + (1.5 * b).log()))
    gap = lambda u: u[3] - u[0]  # potentials are given up to a constant
    lines = torch.randn(64, 2, generator=seeded(), dtype=torch.float64)
    return {
        "pf": pf, "x": x, "y": y, "a": a, "b": b, "c": 1.5 * b, "eps": eps, "rho": rho,
        "mu": mu, "nu": nu, "heavy": heavy, "tight": tight, "slack": slack,
        "line_mu": pf.Measure(x[:, :1], a), "line_nu": pf.Measure(y[:, :1], b),
        "coupled": coupled, "pi": pi, "f": pi.potentials[0], "seeded": seeded,
        "lines": (lines / lines.norm(dim=-1, keepdim=True)).T,
        "gap": gap, "loose": pf.relate(mu, heavy, affinity=near, normaliser=slack),
        "C": C,
        "counted": pf.relate(
            mu, heavy, affinity=entropy, normaliser=pf.Sinkhorn(tol=1e-11, slack=rho / eps)
        ),
    }  # fmt: skip


def names_of(package: str, ours: dict[str, object]) -> dict[str, object]:
    """The same data as arrays of another package, and what its expressions name."""
    arrays = {k: ours[k].numpy() for k in ("x", "y", "a", "b", "c", "C", "lines")}
    arrays["gap"] = ours["gap"]
    eps, rho = ours["eps"], ours["rho"]
    if package == "POT":
        import ot

        fine = {"tol": 1e-12, "max_iter": 100_000}
        many = {"numItermax": 100_000, "stopThr": 1e-13}
        return {**arrays, "ot": ot, "fine": fine, "many": many, "eps": eps, "rho": rho}
    if package == "SciPy":
        from scipy import stats

        return {**arrays, "stats": stats}
    if package == "GeomLoss":
        from geomloss import SamplesLoss

        slow = {"scaling": 0.999, "backend": "tensorized"}
        blur, reach = (eps / 2) ** 0.5, (rho / 2) ** 0.5
        half = SamplesLoss(blur=blur, debias=False, potentials=True, **slow)
        more = {"slow": slow, "half": half, "blur": blur, "reach": reach}
        return {**ours, "SamplesLoss": SamplesLoss, **more}
    return {**arrays, "eps": eps, **ott_results(arrays, eps, rho)}


def ott_results(arrays: dict[str, object], eps: float, rho: float) -> dict[str, object]:
    """OTT's couplings, balanced and not, and its divergence."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from ott.geometry import pointcloud
    from ott.solvers import linear
    from ott.tools import sinkhorn_divergence

    geometry = pointcloud.PointCloud(arrays["x"], arrays["y"], epsilon=eps)
    fine = {"threshold": 1e-12, "max_iterations": 100_000}
    tau = rho / (rho + eps)

    def sinkdiv(x, y, a, b, epsilon):
        found = sinkhorn_divergence.sinkdiv(x, y, a=a, b=b, epsilon=epsilon, solve_kwargs=fine)
        return found[0] if isinstance(found, tuple) else found.divergence

    return {
        "out": linear.solve(geometry, arrays["a"], arrays["b"], **fine),
        "unbalanced": linear.solve(
            geometry, arrays["a"], arrays["c"], tau_a=tau, tau_b=tau, **fine
        ),
        "sinkdiv": sinkdiv,
    }


def compute(packages: list[str]) -> list[tuple[Section, list[tuple[Line, float, float]]]]:
    """Both values of every line of the packages."""
    ours = common()
    theirs = {package: names_of(package, ours) for package in packages}
    table = []
    for section in SECTIONS:
        found = []
        for line in section.lines:
            if line.package in packages:
                # The expressions are those above, written by us.
                value = float(eval(line.ours, dict(ours)))
                other = float(eval(line.theirs, theirs[line.package]))
                found.append((line, other, value))
        table.append((section, found))
    return table


def agree(line: Line, theirs: float, ours: float) -> bool:
    return math.isclose(theirs, ours, rel_tol=line.tol, abs_tol=1e-12)


def text(table, packages: list[str]) -> str:
    """The table in Markdown: a block for every quantity, with both expressions and values."""
    versions = [f"{name} {version(DISTRIBUTIONS[name])}" for name in packages]
    out = [f"Computed with {', '.join(versions)} and torch {torch.__version__}, in float64.", ""]
    for section, found in table:
        if not found:
            continue
        out += [f"**{section.title}**", "", "```text"]
        for k, (line, theirs, ours) in enumerate(found):
            out += [""] if k else []
            out += [f"{line.package:9} {theirs:<12.7f} {line.theirs}"]
            out += [f"{'here':9} {ours:<12.7f} {line.ours}"]
        out += ["```", ""]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    packages = installed()
    table = compute(packages)
    new = text(table, packages)
    print(new)
    wrong = [line for _, found in table for line, *both in found if not agree(line, *both)]
    for line in wrong:
        print(f"DIFFERENT: {line}")
    if parser.parse_args().write:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{new}\n{END}{rest.split(END)[1]}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
