"""The program of an export, checked before PyTorch rebuilds it.

PyTorch looks operations up by name in all of `torch`, evaluates formulas of sizes with SymPy,
which uses `eval`, and writes the names in a program into Python code that it executes. So here
every text in a program must be one of few kinds: the name of a tensor, an operation of ATen, a
formula of a few functions of sizes, or a plain word. What a program holds besides, such as the
traces of its source and its guards, is taken out.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

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

FUNCTIONS = {
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Mod", "floor",
    "ceiling", "Eq", "Ne", "Equality", "Unequality", "Lt", "Le", "Gt", "Ge", "StrictLessThan",
    "LessThan", "StrictGreaterThan", "GreaterThan", "And", "Or", "Not", "FloorDiv", "CleanDiv",
    "CeilDiv", "ModularIndexing", "PythonMod", "CeilToInt", "FloorToInt", "TruncToInt",
    "TruncToFloat", "IntTrueDiv", "FloatTrueDiv", "ToFloat", "Identity", "Where",
}  # fmt: skip
"""Functions of sizes that formulas may use. Powers are allowed of symbols only."""

EMPTIED = {"metadata": {}, "guards_code": [], "treespec_namedtuple_fields": {}}
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


def _check_text(text: str, key: str, name: str) -> None:
    """Raise unless a text is what its place in a program calls for."""
    if key == "target":
        if not OPERATION.fullmatch(text) or text.split(".")[-2] in FORBIDDEN:
            raise ValueError(
                f"{name} uses the operation {text[:80]!r}, which is not allowed. {_PLAIN}"
            )
    elif key in ("as_operator", "class_fqn"):
        raise ValueError(f"{name} uses the object {text[:80]!r}, which is not allowed. {_PLAIN}")
    elif key == "expr_str":
        _check_formula(text, name)
    elif key in ("as_string", "as_strings", "torch_version"):
        if not WORD.fullmatch(text):
            raise _strange(name, text)
    elif key in ("as_float", "as_floats", "real", "imag"):
        if text not in ("Infinity", "-Infinity", "NaN"):
            raise _strange(name, text)
    elif text and not NAME.fullmatch(text):
        raise _strange(name, text)


# Formulas of sizes


def _check_formula(text: str, name: str) -> None:
    """Raise unless a formula is made of symbols, numbers and the known functions."""
    try:
        if len(text) > 2000:
            raise ValueError
        _check_term(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            f"{name} computes a size by {text[:80]!r}, which is not allowed. {_PLAIN}"
        ) from None


def _check_term(node: ast.expr) -> None:
    """Raise unless a part of a formula is allowed."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return
        case ast.Name(id=symbol) if re.fullmatch(r"[a-z]{1,3}\d+|oo|int_oo|true|false", symbol):
            return
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=inner):
            _check_term(inner)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Div()):
            _check_term(node.left)
            _check_term(node.right)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(symbol))]):
            if not re.fullmatch(r"[a-z]{1,3}\d+", symbol):
                raise ValueError
            if not all(isinstance(k.value, ast.Constant) for k in node.keywords):
                raise ValueError
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=keywords):
            if function not in FUNCTIONS or (function == "Pow" and not _small_power(arguments)):
                raise ValueError
            for part in arguments:
                # Float('0.5', precision=53) has a number in quotes
                quoted = isinstance(part, ast.Constant) and isinstance(part.value, str)
                if quoted and function == "Float" and re.fullmatch(r"[\d.e+-]{1,40}", part.value):
                    continue
                _check_term(part)
            for keyword in keywords:
                _check_term(keyword.value)
        case _:
            raise ValueError


def _small_power(arguments: list[ast.expr]) -> bool:
    """Whether a power is one of a symbol, with a small exponent: others can take for ever."""
    match arguments:
        case [ast.Call(func=ast.Name(id="Symbol")), ast.Call(args=[exponent])]:
            exponent = exponent.operand if isinstance(exponent, ast.UnaryOp) else exponent
            return isinstance(exponent, ast.Constant) and exponent.value in range(9)
    return False


# How it is called


def _call(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """The outermost call of a program: tensors by position, plain containers of outputs."""
    signature = _clean(
        {k: v for k, v in entry["signature"].items() if k not in ("in_spec", "out_spec")},
        "", name, 0,
    )  # fmt: skip
    for side in ("in_spec", "out_spec"):
        protocol, spec = json.loads(entry["signature"][side])
        _check_spec(spec, name, 0)
        if side == "in_spec" and spec["children_spec"][1]["children_spec"]:
            raise ValueError(
                f"{name} takes arguments by keyword. Export a model that takes them by position."
            )
        signature[side] = json.dumps([protocol, spec])
    return {"fqn": "", "signature": signature}


def _check_spec(spec: dict[str, Any], name: str, depth: int) -> None:
    """Raise unless a container is a tuple, a list or a dictionary with names as keys."""
    kind, context = spec["type"], spec["context"]
    plain = kind in (None, "builtins.tuple", "builtins.list") and context in (None, "null")
    keys = json.loads(context) if kind == "builtins.dict" else []
    if depth > 5 or not (plain or kind == "builtins.dict"):
        raise ValueError(
            f"{name} has inputs or outputs of the type {str(kind)[:80]!r}. Export a model that "
            "takes tensors, and returns tensors, tuples, lists or dictionaries."
        )
    if not all(isinstance(k, str) and NAME.fullmatch(k) for k in keys):
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
            f"{name} takes exactly {sizes[axis]['as_int']} tokens: its token axis is fixed. Export "
            "it with `torch.export.export(model, (x,), dynamic_shapes=({"
            f'{axis}: torch.export.Dim("n", max=4096)}},))`.'
        )
    symbol = re.search(r"[a-z]{1,3}\d+", str(sizes[axis].get("as_expr", {}).get("expr_str")))
    span = ranges.get(symbol[0], {}) if symbol else {}
    return Inputs(sizes[-1].get("as_int"), span.get("min_val"), span.get("max_val"))
