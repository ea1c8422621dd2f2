"""How one call travels through the chapters: a straight line, and never back and forth.

A step of a walk is a pair (caller, callee) of different chapters, where a function of the second
was called and the innermost library function around it belongs to the first. `_tools` and
`measures` are left out: every chapter uses them.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pushforward as pf

pytestmark = pytest.mark.unhooked

SOURCE = str(Path(pf.__file__).parent)
EVERYWHERE = {"_tools", "measures"}
MOST = 10


def walk(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The steps of a call, each once, in the order in which they are first made."""
    steps: dict[tuple[str, str], None] = {}
    around: list[str | None] = []

    def profile(frame, event, _):
        if event == "call":
            inside = around[-1] if around else None
            chapter = chapter_of(frame.f_code.co_filename)
            if chapter is not None and inside is not None and chapter != inside:
                steps[inside, chapter] = None
            around.append(chapter or inside)
        elif event == "return" and around:
            around.pop()

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(steps)


def chapter_of(file: str) -> str | None:
    """The chapter of a file of the library, if the walk counts it."""
    if not file.startswith(SOURCE):
        return None
    parts = Path(file).relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 and parts[0] not in EVERYWHERE else None


def straight(steps: list[tuple[str, str]]) -> None:
    """Chapters change at most ten times, and no pair of chapters is entered both ways."""
    story = ", ".join(f"{a} -> {b}" for a, b in steps)
    assert len(steps) <= MOST, story
    both = [(a, b) for a, b in steps if (b, a) in steps and a < b]
    assert not both, f"{both} are entered both ways in {story}"


def cloud(n=8):
    return pf.Measure(torch.randn(n, 2, dtype=torch.float64))


def law(n, generator):
    return pf.Measure(torch.randn(n, 2, dtype=torch.float64, generator=generator))


def push():
    return pf.Transformer(2, depth=1).double().push(cloud())


def relate():
    mu, nu = cloud(), cloud(9)
    near, to = pf.SquaredDistance(1.0), pf.Sinkhorn()
    pi = pf.relate(mu, nu, affinity=near, normaliser=to)
    return pi.apply(nu.atoms)


def flow():
    return pf.flow(pf.Attention(2).double(), cloud(), t1=0.1, solver=pf.RK4(steps=2))


def characterise():
    return pf.characterise(pf.Attention(2).double().push, law, size=4)


@pytest.mark.parametrize("call", [push, relate, flow, characterise], ids=lambda f: f.__name__)
def test_a_call_is_a_straight_line(call, record_property):
    steps = walk(call)
    record_property("walk", steps)
    straight(steps)


SECTIONS = ["symmetries", "size", "theorem", "sensitivity", "depth", "relations"]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_an_audit_is_a_straight_line(section, record_property):
    model = pf.Transformer(2, depth=1).double()
    steps = walk(lambda: pf.audit(model, law, sections=(section,), tokens=32))
    record_property("walk", steps)
    straight(steps)
