"""A reward that was passed in Python is recognized when a run resumes, and another one is not."""

import functools

import pytest

from burnish.loop.function_hash import function_hash

BOUND = """
import functools

class Scorer:
    def __init__(self, weight):
        self.weight = weight
        self.other = object()

    def score(self, solution_str):
        return self.weight

    def __call__(self, solution_str):
        return self.weight

def make(weight, inner=len):
    def reward(solution_str):
        return weight * inner(solution_str)
    return reward

def base(solution_str, weight=1.0):
    return weight
"""


@pytest.fixture
def define(tmp_path):
    """define(text): the names that a file of this text defines; every call makes another file, as another process has
    other objects."""
    numbers = iter(range(9))

    def run(text):
        file = tmp_path / f"file{next(numbers)}.py"
        file.write_text(text)
        names: dict = {}
        exec(compile(text, str(file), "exec"), names)
        return names

    return run


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("make(0.5)", "make(0.7)"),
        ("make(1, inner=lambda text: 1)", "make(1, inner=lambda text: 2)"),
        ("functools.partial(base, weight=0.5)", "functools.partial(base, weight=0.7)"),
        ("Scorer(1)", "Scorer(2)"),
        ("Scorer(1).score", "Scorer(2).score"),
        ("lambda solution_str: 1.0", "lambda solution_str: 2.0"),
        ("lambda s: [c for c in s].count('1')", "lambda s: [c for c in s].count('2')"),
    ],
)
def test_the_values_that_a_function_is_made_with_count(define, one, other):
    hashes = [function_hash(define(f"{BOUND}\nreward = {text}")["reward"]) for text in (one, one, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_rest_of_the_line_of_a_lambda_does_not_count(define):
    lines = [f"reward = dict(steps={steps}, reward=lambda s: float(s == '1'))['reward']" for steps in (2, 4)]
    assert function_hash(define(lines[0])["reward"]) == function_hash(define(lines[1])["reward"])


def test_functions_without_a_source_are_compared_by_their_code():
    def made(text):
        names: dict = {}
        exec(text, names)
        return names["reward"]

    text = "def reward(s):\n    return [c for c in s].count({})\n"
    hashes = [function_hash(made(text.format(value))) for value in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]
    two = "reward, other = (lambda s: {}), (lambda s: 0)"
    hashes = [function_hash(made(two.format(value))) for value in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_wrapped_function_is_what_it_wraps():
    def reward(solution_str):
        return 1.0

    @functools.wraps(reward)
    def logged(solution_str):
        return reward(solution_str)

    assert function_hash(logged) == function_hash(reward)
