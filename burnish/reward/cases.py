"""Test cases of a code answer: from the ground truth to what is run and when its result is right."""

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
from burnish.reward.wrapper import calling, canonical, checking

_FENCE = "```"


@dataclass(frozen=True)
class Case:
    """One run: what the program reads, and whether what it printed is right. All cases of an answer share `around`."""

    around: Callable[[str], str]  # makes the program of the model's code
    stdin: str
    is_right: Callable[[str], bool]  # of what a program printed that ended well


def extract_code(response: str, language: str = "python") -> str | None:
    """The last block in that language, or the last block of any kind; None if there is none."""
    names = "|".join(re.escape(name) for name in LANGUAGES[language].metadata["fences"])
    marks = list(re.finditer(rf"```(?:{names})[ \t\r]*\n", response, re.IGNORECASE))
    if marks:
        return response[marks[-1].end() :].partition(_FENCE)[0]
    blocks = response.split(_FENCE)[1::2]
    return blocks[-1].partition("\n")[2] if blocks else None


def read_cases(ground_truth: Any, most: int) -> tuple[str, list[Case]]:
    """The language, and the first `most` cases. UserError if the ground truth is not of a form that code sets have."""
    truth = _as_mapping(ground_truth)
    language = truth.get("language", "python")
    if language not in LANGUAGES.names():
        raise _malformed(f"programs in {language!r} cannot be run, only in {' and '.join(LANGUAGES.names())}")
    for form in (_assertions, _calls, _texts):
        cases = form(truth, most)
        if cases is not None:
            return language, cases
    raise _malformed("it has neither inputs and outputs nor assert_case")


def _as_mapping(ground_truth: Any) -> Mapping[str, Any]:
    if isinstance(ground_truth, str):
        try:
            ground_truth = json.loads(ground_truth)
        except (ValueError, RecursionError) as error:
            raise _malformed(f"it is not JSON ({error})") from error
    if not isinstance(ground_truth, Mapping):
        raise _malformed(f"it is a {type(ground_truth).__name__}")
    return ground_truth


def _texts(truth: Mapping[str, Any], most: int) -> list[Case] | None:
    """What a program reads and prints."""
    pairs = _pairs(truth, most)
    if pairs is None:
        return None
    return [Case(_itself, _text(given), _prints(_text(expected))) for given, expected in pairs]


def _calls(truth: Mapping[str, Any], most: int) -> list[Case] | None:
    """Arguments of a function, and what it returns."""
    name = truth.get("fn_name")
    pairs = None if name is None else _pairs(truth, most)
    if pairs is None:
        return None
    if not isinstance(name, str) or not name.isidentifier():
        raise _malformed("fn_name is not the name of a function")
    cases = []
    for given, expected in pairs:
        asked = json.dumps({"name": name, "arguments": _arguments(given)})
        cases.append(Case(calling, asked, _returns(_parsed(expected))))
    return cases


def _assertions(truth: Mapping[str, Any], most: int) -> list[Case] | None:
    """Statements like `assert f(2) == 4`."""
    statements = truth.get("assert_case")
    if statements is None or (isinstance(statements, Sequence) and not statements):
        return None
    statements = [statements] if isinstance(statements, str) else statements
    if not isinstance(statements, Sequence) or not all(isinstance(one, str) for one in statements):
        raise _malformed("assert_case is not a list of statements")
    return [_assertion(statement) for statement in statements[:most]]


def _assertion(statement: str) -> Case:
    """With a constant on the right of ==, only the left side is run, so that the program does not see the answer.

    Any other statement runs as a whole, where a program that looks for it could find it.
    """
    try:
        parsed = ast.parse(statement.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _malformed(f"assert_case is not Python: {statement[:80]!r}") from error
    match parsed:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))] if _is_constant(right):
            asked = json.dumps({"expression": ast.unparse(left)})
            return Case(checking, asked, _says(canonical(ast.literal_eval(right))))
    word = secrets.token_hex(16)
    return Case(checking, json.dumps({"statement": statement, "word": word}), _says(word))


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _pairs(truth: Mapping[str, Any], most: int) -> list[tuple[Any, Any]] | None:
    if "inputs" not in truth and "outputs" not in truth:
        return None
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise _malformed("inputs and outputs are not two lists")
    if len(inputs) != len(outputs):
        raise _malformed(f"{len(inputs)} inputs but {len(outputs)} outputs")
    if not inputs:
        raise _malformed("there are no inputs")
    return list(zip(inputs, outputs, strict=True))[:most]


def _itself(code: str) -> str:
    return code


def _text(value: Any) -> str:
    """A text, or the lines of one."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(given: Any) -> list[Any]:
    """A list of arguments, or a text with one JSON value per line."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        return [given]
    return [_parsed(line) for line in given.splitlines() if line.strip()]


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _prints(expected: str) -> Callable[[str], bool]:
    return lambda stdout: same_text(stdout, expected)


def _returns(expected: Any) -> Callable[[str], bool]:
    return lambda stdout: same_result(stdout, expected)


def _says(expected: str) -> Callable[[str], bool]:
    return lambda stdout: stdout.rstrip().rpartition("\n")[2] == expected


def _malformed(what: str) -> UserError:
    return UserError(
        f"this ground truth of a code answer cannot be used: {what}",
        key="ground_truth",
        allowed="JSON with inputs and outputs (and fn_name, if a function is asked for), or with assert_case",
    )
