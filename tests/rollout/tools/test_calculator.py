"""calculator: arithmetic without eval, within bounds."""

from __future__ import annotations

import pytest

from burnish.errors import UserError
from burnish.rollout.tools.builtin.calculator import InvalidExpression, evaluate, show

from .conftest import use


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(17 - 4) / 2", "6.5"),
        ("0.1 + 0.2", "0.3"),
        ("7 // 2 + 7 % 4 - -1", "7"),
        ("2 ^ 10", "1024"),
        ("6 ÷ 3 × 5 − 1", "9"),
        ("sqrt(16) + round(2.567, 2) + abs(-1)", "7.57"),
        ("max(1, 2, 3) * factorial(5) + comb(5, 2)", "370"),
        ("2 * pi", "6.28318530718"),
        ("10 ** 30", "1" + "0" * 30),
        (" 1_000 ", "1000"),
        ("4 / 2", "2"),
    ],
)
def test_values(expression, value):
    assert show(evaluate(expression)) == value


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("1 / 0", "division by zero"),
        ("9 ** 9 ** 9", "too large"),  # would take hours
        ("comb(2000, 1000) ** 2000", "too large"),
        ("2 ** 4000" + " * 3 ** 2000" * 60, "too large"),
        ("10.0 ** 400", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("factorial(100000)", "whole numbers from 0 to 400"),
        ("sqrt(-1)", "math domain error"),
        ("1e999", "too large"),
        ("__import__('os').system('ls')", "is not allowed"),
        ("(1).__class__", "is not allowed"),
        ("[x for x in (1, 2)]", "is not allowed"),
        ("'a' * 1000000", "is not allowed"),
        ("True + 1", "is not allowed"),
        ("x = 1", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("(" * 400 + "1" + ")" * 400, "not an arithmetic expression"),
        ("-" * 900 + "1", "not|deep"),
        ("1 + " * 300 + "1", "longer than|deep"),
        ("\ud800", "not an arithmetic expression"),
        ("\x00", "not an arithmetic expression"),
    ],
)
def test_hostile_expressions(expression, problem):
    with pytest.raises(InvalidExpression, match=problem):
        evaluate(expression)


def test_the_tool_of_a_yaml_file(load):
    tools = load("tools: [{class_name: calculator}]")
    used = use(tools, ("calculator", {"expression": "6 * 7"}), ("calculator", {"expression": "6 *"}))
    assert used.texts == ["42", "Error: not an arithmetic expression: '6 *'"] and used.counts.failed == 1
    schema = "{name: calc, parameters: [{name: x, type: string}]}"
    renamed = load(f"tools: [{{class_name: calculator, tool_schema: {schema}}}]")
    assert use(renamed, ("calc", {"x": "1 + 1"})).texts == ["2"]
    with pytest.raises(UserError, match="one argument"):
        load("tools: [{class_name: calculator, tool_schema: {name: calc}}]")
