import json
import time

import pytest

from burnish.errors import UserError
from burnish.reward.cases import extract_code, read_cases


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```python\na\n```\nor better\n```py\nb\n```", "b\n"),
        ("```python\na\n```\nOutput:\n```\n3\n```", "a\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("stray ``` fence\n```python\na\n```", "a\n"),
        ("```Python3 \r\na\n", "a\n"),
        ("```python\nunclosed", "unclosed"),
        ("no code", None),
        ("", None),
    ],
)
def test_the_last_code_block_is_used(response, code):
    assert extract_code(response) == code


def test_blocks_of_the_language_take_precedence():
    response = "```cpp\na\n```\n```python\nb\n```"
    assert extract_code(response, "cpp") == "a\n"
    assert extract_code(response) == "b\n"


def test_many_fences_are_parsed_quickly():
    started = time.process_time()  # our own work: a busy machine must not fail this
    extract_code("```python\n" * 50_000)
    extract_code("`" * 500_000)
    assert time.process_time() - started < 10  # quadratic time would take minutes


def test_programs_get_only_the_input():
    _, cases = read_cases(json.dumps({"inputs": ["in"] * 12, "outputs": ["out"] * 12}), 10)
    assert len(cases) == 10
    assert (cases[0].wrap("code"), cases[0].stdin) == ("code", "in")
    assert cases[0].is_correct("out\n") and not cases[0].is_correct("in")


def test_lists_of_lines():
    _, cases = read_cases({"inputs": [["a", "b"]], "outputs": [["1", 2]]}, 10)
    assert cases[0].stdin == "a\nb" and cases[0].is_correct("1\n2\n")


def test_only_the_arguments_of_a_call_are_passed():
    truth = {"fn_name": "f", "inputs": [[1, [2]], "3\n[4]\n", 5], "outputs": [["secret"], '"secret"', "secret"]}
    _, cases = read_cases(truth, 10)
    assert [json.loads(case.stdin)["arguments"] for case in cases] == [[1, [2]], [3, [4]], [5]]
    assert all(case.is_correct('"secret"') for case in cases)
    assert not any("secret" in case.stdin + case.wrap("code") for case in cases)


def test_only_the_left_side_of_an_assertion_with_a_constant_is_passed():
    _, cases = read_cases({"assert_case": ["assert f(2) == {'secret': (1, 2)}", "assert f(2) > 3"]}, 10)
    assert "secret" not in cases[0].stdin + cases[0].wrap("code")
    assert json.loads(cases[0].stdin) == {"expression": "f(2)"}
    assert json.loads(cases[1].stdin)["statement"] == "assert f(2) > 3"


@pytest.mark.parametrize(
    ("truth", "what"),
    [
        ("nonsense", "not JSON"), ("[" * 100_000, "not JSON"), ("3", "a int"), (None, "NoneType"), ({}, "neither"),
        ({"inputs": [], "outputs": []}, "no inputs"), ({"inputs": ["1"], "outputs": []}, "1 inputs but 0 outputs"),
        ({"inputs": "1", "outputs": "1"}, "two lists"), ({"inputs": ["1"]}, "two lists"),
        ({"assert_case": 3}, "assert_case"),
        ({"assert_case": ["assert ("]}, "not Python"), ({"inputs": [1], "outputs": [1], "fn_name": "a b"}, "fn_name"),
        ({"inputs": [1], "outputs": [1], "fn_name": 3}, "fn_name"),
        ({"inputs": [1], "outputs": [1], "language": "cobol"}, "cobol"),
        ({"inputs": [1], "outputs": [1], "language": []}, "not supported"),
    ],
)  # fmt: skip
def test_a_malformed_ground_truth_is_named(truth, what):
    with pytest.raises(UserError, match="ground truth of a code reward") as error:
        read_cases(truth, 10)
    assert what in str(error.value)
