"""The code reward as a plain function; tests/reward/test_sandbox_pool.py tests it in a scorer."""

import json

import pytest

from burnish.errors import UserError
from burnish.isolation.probe import isolation
from burnish.reward.code import code

SUMS = json.dumps({"inputs": ["1 2", "3 4", "5 6"], "outputs": ["3", "7", "12"]})


def scored(program, truth):
    """Where nothing can be isolated, the answer must be refused; the cases below then say nothing more."""
    if isolation().strong:
        return code(f"Here:\n```python\n{program}\n```", truth)
    with pytest.raises(UserError, match=r"sandbox\.allow_weak"):
        code(f"```python\n{program}\n```", truth)
    return None


def test_the_score_is_the_fraction_of_passed_cases():
    assert scored("print(sum(map(int, input().split())))", SUMS) in (
        {"score": 2 / 3, "acc": False, "cases": "PPW"},
        None,
    )


@pytest.mark.parametrize("program", ["raise ValueError", "import sys; sys.exit(1)", "print(", "1/0"])
def test_a_program_that_fails_passes_nothing(program):
    assert scored(program, SUMS) in ({"score": 0.0, "acc": False, "cases": "EEE"}, None)


def test_a_response_without_code_scores_zero():
    assert code("I do not know", SUMS) == {"score": 0.0, "acc": False, "cases": ""}


FUNCTIONS = [
    ("def f(a, b): return a + b", {"fn_name": "f", "inputs": [[1, 2], "3\n4"], "outputs": [[3], "7"]}),
    (
        "class Solution:\n    def f(self, a: List[int]): return a[::-1]",
        {"fn_name": "f", "inputs": [[[1, 2]]], "outputs": [[2, 1]]},
    ),
    (
        "def f(n):\n    print('noise')\n    return (n, n / 3)",
        {"fn_name": "f", "inputs": [[1]], "outputs": [[1, 0.333333333]]},
    ),
    ("def f(): return {3, 1, 2}", {"fn_name": "f", "inputs": [[]], "outputs": [[1, 2, 3]]}),
    (
        "def f(x): return (x, {1: 2.0})",
        {"assert_case": ["assert f(1) == (1, {1: 2})", "assert len(f(2)) == 2", "assert f(0)"]},
    ),
    ("def f(): return {'b', 'a'}", {"assert_case": "assert f() == {'a', 'b'}"}),
]


@pytest.mark.parametrize(("program", "truth"), FUNCTIONS)
def test_functions_are_called(program, truth):
    result = scored(program, truth)
    assert result is None or result["acc"], result


WRONG = [
    ("def g(a): return a", {"fn_name": "f", "inputs": [[1]], "outputs": [[1]]}, "E"),
    ("def f(a): return str(a)", {"fn_name": "f", "inputs": [[1]], "outputs": [1]}, "W"),
    ("def f(a): return lambda: a", {"fn_name": "f", "inputs": [[1]], "outputs": [1]}, "W"),
    ("def f(x): return [x]", {"assert_case": ["assert f(1) == (1,)", "assert f(1) is None"]}, "WE"),
    # Leaving before the assertion runs, with a good exit status, is no way to pass it.
    ("import os\nos._exit(0)", {"assert_case": ["assert f(1) == 1", "assert f(1)"]}, "WE"),
    ("print('3')\nraise SystemExit(0)", {"fn_name": "f", "inputs": [[1]], "outputs": [[4]]}, "W"),
    (
        "class Always:\n    def __eq__(self, other): return True\ndef f(x): return Always()",
        {"assert_case": ["assert f(1) == 5"]},
        "W",
    ),
]


@pytest.mark.parametrize(("program", "truth", "cases"), WRONG)
def test_wrong_functions_fail(program, truth, cases):
    result = scored(program, truth)
    assert result is None or result["cases"] == cases, result


SEARCH = """
import glob, os, sys
wanted = "SECRET" + "ANSWER"
def readable(path):
    try:
        return open(path, "rb").read(2**20)
    except OSError:
        return b""
patterns = ("/box/**", "/proc/[0-9]*/*", "/proc/[0-9]*/fd/*", "/dev/*")
places = [place for pattern in patterns for place in glob.glob(pattern, recursive=True)]
places = [place for place in places if "random" not in place and "zero" not in place and "full" not in place]
found = [place for place in places if wanted.encode() in readable(place)]
found += [name for name, value in os.environ.items() if wanted in value]
print("found" if found or wanted in str(sys.argv) else "nothing", found)
"""


def test_the_expected_output_is_not_visible_to_the_program():
    result = scored(SEARCH, {"inputs": ["", ""], "outputs": ["SECRET" + "ANSWER", "nothing []"]})
    assert result is None or result["cases"] == "WP"
