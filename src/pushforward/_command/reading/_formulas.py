"""Formulas of sizes in a program, such as `Mul(Integer(4), Symbol('s0'))`.

PyTorch reads them with SymPy, which evaluates text as Python. So only numbers, symbols such as
`s0` and the functions of this file may occur, and no power that would take for ever.
"""

import ast
import re

SYMBOL = r"[a-z]{1,3}\d+"
CONSTANTS = rf"{SYMBOL}|oo|int_oo|true|false"

FUNCTIONS = {
    "Integer", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "floor", "ceiling", "Eq",
    "Ne", "Equality", "Unequality", "Lt", "Le", "Gt", "Ge", "StrictLessThan", "LessThan",
    "StrictGreaterThan", "GreaterThan", "And", "Or", "Not", "FloorDiv", "CleanDiv", "CeilDiv",
    "ModularIndexing", "PythonMod", "CeilToInt", "FloorToInt", "TruncToInt", "TruncToFloat",
    "IntTrueDiv", "FloatTrueDiv", "ToFloat", "Identity", "Where",
}  # fmt: skip

QUOTED = {"Symbol": SYMBOL, "Float": r"[\d.e+-]{1,40}"}
"""Functions whose argument is a text, and what it may be."""

LONGEST = 2000
OPERATORS = ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Div


def is_formula(text: str) -> bool:
    """Whether a text is a formula that is safe to evaluate.

    Args:
        text: the text.
    """
    try:
        return len(text) <= LONGEST and _allowed(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _allowed(node: ast.expr) -> bool:
    """Whether a part of a formula is allowed."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=name):
            return re.fullmatch(CONSTANTS, name) is not None
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=inner):
            return _allowed(inner)
        case ast.BinOp(op=operator, left=left, right=right):
            return isinstance(operator, OPERATORS) and _allowed(left) and _allowed(right)
        case ast.Call(func=ast.Name(id=function)):
            return _call_allowed(node, function)
    return False


def _call_allowed(node: ast.Call, function: str) -> bool:
    """Whether the call of a function is allowed."""
    if function in QUOTED:
        match node.args:
            case [ast.Constant(value=str(text))] if re.fullmatch(QUOTED[function], text):
                return all(isinstance(k.value, ast.Constant) for k in node.keywords)
        return False
    if function not in FUNCTIONS or node.keywords:
        return False
    if function == "Pow" and not _small_power(node.args):
        return False
    return all(map(_allowed, node.args))


def _small_power(arguments: list[ast.expr]) -> bool:
    """Whether a power is one of a symbol, with a small exponent."""
    match arguments:
        case [ast.Call(func=ast.Name(id="Symbol")), ast.Call(args=[exponent])]:
            exponent = exponent.operand if isinstance(exponent, ast.UnaryOp) else exponent
            return isinstance(exponent, ast.Constant) and exponent.value in range(9)
    return False
