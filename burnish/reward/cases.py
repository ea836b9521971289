"""Test cases of a code reward: parse the ground truth into programs to run and checks of their output."""

from __future__ import annotations

import ast
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.errors import UserError
from burnish.reward.comparison import same_result, same_text
from burnish.reward.sandbox.languages import LANGUAGES
from burnish.reward.wrapper import call_program, canonical, check_program, evaluate_program

_FENCE = "```"


@dataclass(frozen=True)
class Case:
    """One run of the program: its stdin, and the check of its stdout."""

    wrap: Callable[[str], str]  # from the model's code to the program to run
    stdin: str
    is_correct: Callable[[str], bool]  # takes the stdout of a program that exited with status 0


def extract_code(response: str, language: str = "python") -> str | None:
    """The last code block in this language, else the last code block; None if there is none."""
    names = "|".join(re.escape(name) for name in LANGUAGES[language].metadata["fences"])
    marks = list(re.finditer(rf"```(?:{names})[ \t\r]*\n", response, re.IGNORECASE))
    if marks:
        return response[marks[-1].end() :].partition(_FENCE)[0]
    blocks = response.split(_FENCE)[1::2]
    return blocks[-1].partition("\n")[2] if blocks else None


def read_cases(ground_truth: Any, limit: int) -> tuple[str, list[Case]]:
    """The language and the first `limit` cases. UserError if the ground truth has none of the supported formats."""
    truth = _as_mapping(ground_truth)
    language = truth.get("language", "python")
    if language not in LANGUAGES.names():
        raise _malformed(f"language {language!r} is not supported (only {', '.join(LANGUAGES.names())})")
    for parse in (_assertions, _calls, _texts):
        cases = parse(truth, limit)
        if cases is not None:
            return language, cases
    raise _malformed("neither inputs and outputs nor assert_case")


def _as_mapping(ground_truth: Any) -> Mapping[str, Any]:
    if isinstance(ground_truth, str):
        try:
            ground_truth = json.loads(ground_truth)
        except (ValueError, RecursionError) as error:
            raise _malformed(f"not JSON ({error})") from error
    if not isinstance(ground_truth, Mapping):
        raise _malformed(f"a {type(ground_truth).__name__} instead of a JSON object")
    return ground_truth


def _texts(truth: Mapping[str, Any], limit: int) -> list[Case] | None:
    """Inputs and expected outputs of a program."""
    pairs = _pairs(truth, limit)
    if pairs is None:
        return None
    return [Case(_unchanged, _text(stdin), _prints(_text(expected))) for stdin, expected in pairs]


def _calls(truth: Mapping[str, Any], limit: int) -> list[Case] | None:
    """Arguments and expected results of a function."""
    name = truth.get("fn_name")
    pairs = None if name is None else _pairs(truth, limit)
    if pairs is None:
        return None
    if not isinstance(name, str) or not name.isidentifier():
        raise _malformed("fn_name is not the name of a function")
    cases = []
    for arguments, expected in pairs:
        request = json.dumps({"name": name, "arguments": _arguments(arguments)})
        cases.append(Case(call_program, request, _returns(_parsed(expected))))
    return cases


def _assertions(truth: Mapping[str, Any], limit: int) -> list[Case] | None:
    """Statements like `assert f(2) == 4`."""
    statements = truth.get("assert_case")
    if statements is None or (isinstance(statements, Sequence) and not statements):
        return None
    statements = [statements] if isinstance(statements, str) else statements
    if not isinstance(statements, Sequence) or not all(isinstance(statement, str) for statement in statements):
        raise _malformed("assert_case is not a list of statements")
    return [_assertion(statement) for statement in statements[:limit]]


def _assertion(statement: str) -> Case:
    """If the right side of == is a constant, only the left side runs, so that the program does not see the answer.

    Other statements run in a process that the program cannot look into.
    """
    try:
        parsed = ast.parse(statement.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _malformed(f"assert_case is not Python: {statement[:80]!r}") from error
    match parsed:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))] if _is_constant(right):
            request = json.dumps({"expression": ast.unparse(left)})
            return Case(evaluate_program, request, _last_line_is(canonical(ast.literal_eval(right))))
    token = secrets.token_hex(16)
    nodes = [node for part in parsed for node in ast.walk(part)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    request = {"statement": statement.strip(), "names": sorted(names), "token": token}
    return Case(check_program, json.dumps(request), _last_line_is(token))


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _pairs(truth: Mapping[str, Any], limit: int) -> list[tuple[Any, Any]] | None:
    if "inputs" not in truth and "outputs" not in truth:
        return None
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise _malformed("inputs and outputs are not two lists")
    if len(inputs) != len(outputs):
        raise _malformed(f"{len(inputs)} inputs but {len(outputs)} outputs")
    if not inputs:
        raise _malformed("there are no inputs")
    return list(zip(inputs, outputs, strict=True))[:limit]


def _unchanged(code: str) -> str:
    return code


def _text(value: Any) -> str:
    """A text, given as a string or a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(value: Any) -> list[Any]:
    """A list of arguments, or a text with one JSON value per line."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        return [value]
    return [_parsed(line) for line in value.splitlines() if line.strip()]


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _prints(expected: str) -> Callable[[str], bool]:
    return lambda stdout: same_text(stdout, expected)


def _returns(expected: Any) -> Callable[[str], bool]:
    return lambda stdout: same_result(stdout, expected)


def _last_line_is(expected: str) -> Callable[[str], bool]:
    return lambda stdout: stdout.rstrip().rpartition("\n")[2] == expected


def _malformed(problem: str) -> UserError:
    return UserError(
        f"invalid ground truth of a code reward: {problem}",
        key="ground_truth",
        allowed="JSON with inputs and outputs (and fn_name to call a function), or with assert_case",
    )
