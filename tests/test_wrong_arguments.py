"""Wrong arguments: every public callable refuses them with an error of this library.

The tables `public_calls` hold a valid call of everything public. Each argument is replaced by
values of a wrong kind. The call must raise a `ValueError` or a `TypeError` in this library, whose
message names the argument and says what was given. What is accepted instead is listed in
`wrong_values`.
"""

import inspect
import math
import warnings
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest
import torch
from public_calls import MAPS, MEASURES, RELATIONS
from public_calls_fitting import LEARNING, REGRESSION
from public_calls_theory import FLOWS, THEORY
from test_house import is_abstract, public_objects
from wrong_values import ACCEPTED, KNOWN, UNREAD, wrong_values

import pushforward as pf
from pushforward.representation import BlackBoxError

pytestmark = pytest.mark.unhooked

SOURCE = str(Path(pf.__file__).parent)
CALLS = {**MEASURES, **MAPS, **RELATIONS, **FLOWS, **THEORY, **REGRESSION, **LEARNING}

AUTHORS = {
    "evaluate", "condition", "queries", "keys", "values", "combine_heads",  # in-context maps
    "scores", "factor", "origin", "features", "between",  # affinities
    "relate", "integrate", "layers", "wrap",  # normalisers, relations, blocks
    "grid", "solve", "step", "through",  # solvers
    "tangent", "retract", "embed", "check", "at_time",  # manifolds, fields
    "find", "quotient", "affinity",  # probes, extensions, approximations
}  # fmt: skip
"""Methods that an author writes and the library calls, at every step: their callers check."""

EXCEPTIONS = {
    **dict.fromkeys(
        ["Realisation", "Heads", "Study", "GaussianPath", "Audit", "Section", "Finding",
         "NotTried", "Comparison", "Derivative",
         "Characterisation", "LipschitzBounds", "Continuity", "Specimen", "Witness", "FlowError",
         "Path", "ProbedImage", "Arrays", "Flat", "Nested", "Conditional",
         "Coupling", "Masses", "Signed", "Statement", "Result", "Check", "Figure", "Series",
         "Supremum", "WorstCase", "Report", "Fit", "Score", "ScoreTable", "RuleScore",
         "Obstruction", "Obstructions"],
        "a result, which users do not make",
    ),
    **dict.fromkeys(["Scores", "PointScores", "TileScores", "BlackBox", "MapBox", "TokenBox",
         "QueryBox", "Dynamics"],
        "its methods are an interface that the library calls, unchecked",
    ),
    "Verdict": "an enumeration",
    "Kind": "an enumeration",
    "Setting.pick": "it gives back one of its arguments, whatever they are",
    "Normaliser.__call__": "the library calls it, with arguments that it has checked",
    "MeasureMap": "a type",
    "MeasureRegressor.set_params": "it keeps what it is given, and `fit` checks it",
    "Measure.unchecked": "unchecked by its name",
    "Formats.unchecked": "abstract",
    "Formats.cuda": "it needs a GPU",
    "Formats.to": "its arguments are those of `torch.Tensor.to`, which checks them",
    **dict.fromkeys(["Approximation.bound", "Law.draw", "Task.batch", "Task.losses"], "abstract"),
    **dict.fromkeys(["by_rows", "halves", "is_second_order", "manifold_of", "summands"],
        "a tool of the chapter `flows`, not documented",
    ),
}  # fmt: skip
"""What needs no call in the tables."""


def public_names() -> Iterator[str]:
    """Everything public that takes arguments, by the qualified names of their definitions."""
    for thing in public_objects().values():
        members = [getattr(thing, n) for n in thing.__all__] if is_module(thing) else [thing]
        for member in members:
            if inspect.isclass(member) or inspect.isroutine(member):
                yield from names_of(member)


def is_module(thing: object) -> bool:
    return isinstance(thing, ModuleType)


def names_of(thing: object) -> Iterator[str]:
    """A function or class itself, and the methods of a class."""
    if not inspect.isclass(thing):
        yield thing.__qualname__
        return
    if issubclass(thing, Enum | Exception):  # members are given; an error takes its message
        return
    if thing.__name__ in EXCEPTIONS and is_interface(thing):
        return
    abstract = is_abstract(thing) or inspect.isabstract(thing)
    if not abstract and takes_arguments(thing):
        yield thing.__qualname__
    for cls in thing.__mro__:
        if cls.__module__.startswith("pushforward."):
            for name, member in vars(cls).items():
                function = inspect.unwrap(getattr(member, "__func__", member))
                public = not name.startswith("_") or name in ("__call__", "__getitem__")
                if inspect.isfunction(function) and public and name not in AUTHORS:
                    if takes_arguments(getattr(thing, name), function is not member):
                        yield function.__qualname__


def is_interface(cls: type) -> bool:
    return "interface" in EXCEPTIONS[cls.__name__]


def takes_arguments(call: object, bound: bool = True) -> bool:
    parameters = list(inspect.signature(call).parameters)
    return bool([p for p in parameters if p != "self"] if bound is False else parameters)


def test_every_public_callable_has_a_valid_call():
    """A new function is tested from its first day."""
    known = {name.partition(",")[0] for name in CALLS}
    missing = sorted(set(public_names()) - known - set(EXCEPTIONS))
    assert not missing, "give these a valid call in the tables: " + ", ".join(missing)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused(name):
    call, given = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(**given)
        found = {
            (argument, kind): problem
            for argument in given
            for kind, value in wrong_values(call, given, argument)
            if (problem := what_is_wrong(call, given | {argument: value}, argument, kind))
        }
    listed = {(a, k): TAKEN for a, kinds in ACCEPTED.get(name, {}).items() for k in kinds}
    listed |= {(a, "NaN tensor"): SILENT for a in UNREAD.get(name, [])}
    known = {(a, k) for a, kinds in KNOWN.get(name, {}).items() for k in kinds}
    fine = {key for key, problem in found.items() if listed.get(key) == problem} | known
    wrong = [f"{a}={k}: {p}" for (a, k), p in found.items() if (a, k) not in fine]
    missing = [key for key in listed if key not in found]
    wrong += [f"{a}={k}: listed as {listed[a, k]}, and refused" for a, k in missing]
    wrong += [f"{a}={k}: known as wrong, and right" for a, k in sorted(known - set(found))]
    assert not wrong, f"{name}\n" + "\n".join(wrong)


TAKEN, SILENT = "accepted", "returns NaN"


def what_is_wrong(call, arguments, argument, kind) -> str | None:
    """What is wrong with the answer to a wrong argument; None for an error as it should be."""
    try:
        out = call(**arguments)
    except (ValueError, TypeError, IndexError) as error:
        return poor(error, argument)
    except (BlackBoxError, KeyError):  # it was called and misbehaved; there is no such section
        return TAKEN
    except Exception as error:
        return f"raises {type(error).__name__}: {first_line(error)}"
    return SILENT if has_nan(out) else TAKEN


def poor(error: Exception, argument: str) -> str | None:
    """Why an error is no help: it comes from elsewhere, or does not name the argument."""
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    where = frame.tb_frame.f_code.co_filename
    if not where.startswith(SOURCE):
        return f"raised in {Path(where).name}: {first_line(error)}"
    if f"`{argument}`" not in str(error) and f"`{argument}[" not in str(error):
        return f"does not name it: {first_line(error)}"
    return None if " got " in str(error) else f"does not say what came: {first_line(error)}"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:150]


def has_nan(out: object) -> bool:
    """Whether a result is or contains NaN."""
    if isinstance(out, pf.Measure):
        return has_nan(out.atoms) or has_nan(out.log_weights)
    if isinstance(out, torch.Tensor):
        return not out.is_meta and bool(out.isnan().any())
    if isinstance(out, tuple | list):
        return any(map(has_nan, out))
    return isinstance(out, float) and math.isnan(out)
