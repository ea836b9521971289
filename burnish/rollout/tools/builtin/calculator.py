"""calculator: arithmetic expressions, evaluated over their syntax tree, with bounded numbers."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import Tool, ToolLimits, ToolResult

MAX_LENGTH = 1000  # characters of an expression
MAX_BITS = 4096  # of an integer, about 1,200 digits
MAX_DEPTH = 300

Number = int | float

SCHEMA = normalize_schema(
    {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "For example: (17 + 4) * 3 / 2, 2 ** 10, sqrt(2), log(10), round(7 / 3, 2)",
                }
            },
            "required": ["expression"],
        },
    },
    "calculator",
)


class InvalidExpression(ValueError):
    """What is wrong with the expression, for the model."""


class Calculator(Tool):
    """A tool with one argument, the first of its schema."""

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        expression = next(iter(arguments.values()), "")
        try:
            return ToolResult(show(evaluate(str(expression))))
        except InvalidExpression as error:
            return ToolResult(f"Error: {error}", failed=True)


def build(entry: ToolEntry) -> list[Tool]:
    entry.check_options()
    schema = entry.schema or SCHEMA
    if len(schema["function"]["parameters"].get("properties", {})) != 1:
        raise entry.error("the calculator has one argument, the expression", "tool_schema.function.parameters")
    return [Calculator(schema, entry.read_limits(timeout=ToolLimits().timeout))]


def evaluate(expression: str) -> Number:
    """The value of an expression; InvalidExpression says what is wrong with it."""
    if len(expression) > MAX_LENGTH:
        raise InvalidExpression(f"the expression is longer than {MAX_LENGTH} characters")
    text = expression.strip().translate(_SYMBOLS).replace("^", "**")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise InvalidExpression(f"not an arithmetic expression: {expression[:100]!r}") from error
    try:
        return _value(tree.body, 0)
    except ZeroDivisionError as error:
        raise InvalidExpression("division by zero") from error
    except OverflowError as error:
        raise InvalidExpression("the result is too large") from error
    except (ValueError, TypeError) as error:
        raise InvalidExpression(str(error)) from error


def show(value: Number) -> str:
    """Integers exactly, other numbers with 12 digits."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.expr, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise InvalidExpression("the expression is nested too deeply")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand, depth + 1))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        return _bounded(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        if node.keywords or len(node.args) > 10:
            raise InvalidExpression(f"wrong arguments of {node.func.id}")
        return _bounded(_FUNCTIONS[node.func.id](*(_value(argument, depth + 1) for argument in node.args)))
    names = ", ".join([*_FUNCTIONS, *_CONSTANTS])
    raise InvalidExpression(f"{ast.unparse(node)[:50]!r} is not allowed; use numbers, + - * / // % **, and {names}")


def _bounded(value: Any) -> Number:
    if isinstance(value, complex):
        raise InvalidExpression("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise InvalidExpression("the result is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidExpression("the result is too large" if math.isinf(value) else "the result is not a number")
    return value


def _power(base: Number, exponent: Number) -> Any:
    """Refuses large integer powers before they are computed."""
    whole = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if whole and abs(exponent) * int(base).bit_length() > 2 * MAX_BITS:
        raise InvalidExpression("the result is too large")
    return base**exponent


def _small(function: Callable[..., int], limit: int) -> Callable[..., int]:
    """An integer function whose result grows fast, of small arguments only."""

    def checked(*arguments: Number) -> int:
        if any(not isinstance(argument, int) or not 0 <= argument <= limit for argument in arguments):
            raise InvalidExpression(f"{function.__name__} takes whole numbers from 0 to {limit}")
        return function(*arguments)

    return checked


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 100:
        raise InvalidExpression("round takes a small whole number of digits")
    return round(value, digits) if digits else round(value)


_SYMBOLS = str.maketrans({"×": "*", "÷": "/", "−": "-", "·": "*"})
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}
_UNARY: dict[type, Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_BINARY: dict[type, Callable[[Number, Number], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan")},
    **{name: getattr(math, name) for name in ("asin", "acos", "atan", "floor", "ceil", "gcd", "lcm", "radians")},
    "abs": abs,
    "min": min,
    "max": max,
    "round": _round,
    "factorial": _small(math.factorial, 400),
    "comb": _small(math.comb, 2000),
    "perm": _small(math.perm, 400),
}
