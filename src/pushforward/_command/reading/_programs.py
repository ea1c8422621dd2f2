"""The program of an export, checked before PyTorch rebuilds it.

PyTorch looks operations up by name in all of `torch`, evaluates formulas of sizes with SymPy,
which uses `eval`, and writes the names in a program into Python code that it executes. So here
every text in a program must be one of few kinds: the name of a tensor, an operation of ATen, a
formula of a few functions of sizes, or a plain word. What a program holds besides, such as the
traces of its source and its guards, is taken out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ._formulas import SYMBOL, is_formula

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,400}")
"""Names of tensors, inputs and weights."""

WORD = re.compile(r"[\w ,.:>+*<=-]{0,400}")
"""Arguments of operations, such as the formula of an einsum."""

OPERATION = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+"
    r"|torch\.ops\.higher_order\.(cond|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|torch\._C\._set_grad_enabled"
    r"|torch\.(sym_(int|float|max|min|not|ite|sum)|_sym_sqrt)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|"
    r"not_|getitem)"
    r"|math\.(floor|ceil|trunc|sqrt)"
)
"""Operations of tensors and of their sizes."""

FORBIDDEN = {"from_file", "_print", "set_", "resize_", "resize_as_", "_resize_output_", "set_data"}
"""Operations of ATen that read files, print, or change the memory under a tensor."""

NUMBER = re.compile(r"-?Infinity|NaN")
TEXTS = {
    **dict.fromkeys(("as_string", "as_strings", "torch_version"), WORD),
    **dict.fromkeys(("as_float", "as_floats", "real", "imag"), NUMBER),
}
"""What texts may be in places where they are no names."""

EMPTIED: dict[str, Any] = {"metadata": {}, "guards_code": [], "treespec_namedtuple_fields": {}}
"""Parts of a program that PyTorch would evaluate or import, and that a model does not need."""

TOKENS = -2
"""The axis of tokens, before that of features."""

KINDS = {6: "float16", 7: "float32", 8: "float64", 13: "bfloat16"}
"""The floating-point types, by the numbers that programs use."""

DEEPEST = 60
"""How deep the parts of a program may be nested."""


def checked_program(program: dict[str, Any], name: str) -> dict[str, Any]:
    """The same program without what PyTorch would evaluate; an error for what is not allowed.

    Args:
        program: the program, read from JSON.
        name: the file, in messages.
    """
    try:
        calls = program["graph_module"]["module_call_graph"][:1]
        cleaned = _clean({k: v for k, v in program.items()}, "", name, 0)
        cleaned["graph_module"]["module_call_graph"] = [_call(entry, name) for entry in calls]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise _damaged(name, f"{type(error).__name__} {error}") from None
    return cleaned


def _damaged(name: str, reason: str) -> ValueError:
    return ValueError(
        f"{name} holds a damaged program ({reason}). Export the model again with torch.export."
    )


def _clean(data: Any, key: str, name: str, depth: int) -> Any:
    """A part of a program, with every text checked."""
    if depth > DEEPEST:
        raise _damaged(name, "its parts are nested too deeply")
    if key in EMPTIED:
        return EMPTIED[key]
    if key == "module_call_graph":
        return []
    if isinstance(data, dict):
        if key == "custom_obj_values" and data:
            raise ValueError(f"{name} uses a pickled object, {min(data)[:80]!r}. {_PLAIN}")
        for inner in data:
            if not NAME.fullmatch(inner):
                raise _strange(name, inner)
        return {k: _clean(v, k, name, depth + 1) for k, v in data.items()}
    if isinstance(data, list):
        return [_clean(part, key, name, depth + 1) for part in data]
    if isinstance(data, str):
        _check_text(data, key, name)
    return data


_PLAIN = "Export a model that uses tensors and operations of PyTorch alone."


def _strange(name: str, text: str) -> ValueError:
    return ValueError(f"{name} holds the text {text[:80]!r}, which no export of a model needs.")


def _foreign(name: str, kind: str, text: str) -> ValueError:
    return ValueError(f"{name} uses the {kind} {text[:80]!r}, which is not allowed. {_PLAIN}")


def _check_text(text: str, key: str, name: str) -> None:
    """Raise unless a text is what its place in a program calls for."""
    match key:
        case "target":
            known = OPERATION.fullmatch(text) is not None
            if not known or text.split(".")[-2] in FORBIDDEN:
                raise _foreign(name, "operation", text)
        case "as_operator" | "class_fqn":
            raise _foreign(name, "object", text)
        case "expr_str":
            if not is_formula(text):
                raise _foreign(name, "formula", text)
        case _:
            if text and not TEXTS.get(key, NAME).fullmatch(text):
                raise _strange(name, text)


# How it is called


def _call(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """The outermost call of a program: tensors by position, plain containers of outputs."""
    signature = _clean(
        {k: v for k, v in entry["signature"].items() if k not in ("in_spec", "out_spec")},
        "", name, 0,
    )  # fmt: skip
    for side in ("in_spec", "out_spec"):
        protocol, spec = _container(entry["signature"][side], name)
        if side == "in_spec" and spec["children_spec"][1]["children_spec"]:
            raise ValueError(
                f"{name} takes arguments by keyword. Export a model that takes them by position."
            )
        signature[side] = json.dumps([protocol, spec])
    return {"fqn": "", "signature": signature}


def _container(text: str, name: str) -> tuple[int, dict[str, Any]]:
    """The containers of inputs or outputs, and the protocol they are written in."""
    try:
        protocol, spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"its inputs and outputs are no JSON: {error}") from None
    if type(protocol) is not int:
        raise _damaged(name, "its inputs and outputs have no protocol")
    _check_spec(spec, name, 0)
    return protocol, spec


def _check_spec(spec: dict[str, Any], name: str, depth: int) -> None:
    """Raise unless a container is a tuple, a list or a dictionary with names as keys."""
    kind, context = spec["type"], spec["context"]
    plain = kind in (None, "builtins.tuple", "builtins.list") and context in (None, "null")
    try:
        keys = json.loads(context) if kind == "builtins.dict" else []
    except (ValueError, RecursionError):
        raise _strange(name, str(context)) from None
    if depth > 5 or not (plain or kind == "builtins.dict"):
        raise ValueError(
            f"{name} has inputs or outputs of the type {str(kind)[:80]!r}. Export a model that "
            "takes tensors, and returns tensors, tuples, lists or dictionaries."
        )
    if not isinstance(keys, list) or not all(
        isinstance(k, str) and NAME.fullmatch(k) for k in keys
    ):
        raise _strange(name, str(keys))
    for child in spec["children_spec"]:
        _check_spec(child, name, depth + 1)


@dataclass(frozen=True)
class Inputs:
    """What a program takes.

    Args:
        dim: the dimension of tokens, None if any is accepted.
        least: the fewest tokens.
        most: the most tokens, None for no limit.
    """

    dim: int | None
    least: int | None
    most: int | None


def checked_inputs(program: dict[str, Any], name: str) -> Inputs:
    """What a program takes; an error unless it takes any number of tokens.

    Args:
        program: a program from `checked_program`.
        name: the file, in messages.
    """
    try:
        module = program["graph_module"]
        specs = [s["user_input"]["arg"] for s in module["signature"]["input_specs"]
                 if "user_input" in s]  # fmt: skip
        values = module["graph"]["tensor_values"]
        tensors = [values[arg["as_tensor"]["name"]] for arg in specs]
        ranges = program["range_constraints"]
    except (KeyError, TypeError) as error:
        raise _damaged(name, f"its inputs are not described: {error}") from None
    if not 1 <= len(tensors) <= 2:
        raise ValueError(
            f"{name} takes {len(tensors)} inputs. Export a model of tokens, or of a context and "
            "queries."
        )
    first = tensors[0]
    sizes = first["sizes"]
    if first["dtype"] not in KINDS:
        raise ValueError(
            f"{name} takes whole numbers, such as token ids. Export the part of the model after "
            "its embedding, which takes points."
        )
    if not 2 <= len(sizes) <= 3:
        raise ValueError(
            f"{name} takes an input of {len(sizes)} axes. Tokens are (n, d), or (1, n, d)."
        )
    axis = len(sizes) + TOKENS
    if "as_int" in sizes[axis]:
        raise ValueError(
            f"{name} takes exactly {sizes[axis]['as_int']} tokens: its token axis is fixed. "
            "Export it with `torch.export.export(model, (x,), dynamic_shapes=({"
            f'{axis}: torch.export.Dim("n", max=4096)}},))`.'
        )
    symbol = re.search(SYMBOL, str(sizes[axis].get("as_expr", {}).get("expr_str")))
    span = ranges.get(symbol[0], {}) if symbol else {}
    return Inputs(sizes[-1].get("as_int"), span.get("min_val"), span.get("max_val"))
