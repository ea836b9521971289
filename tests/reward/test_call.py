import enum
import math

import numpy as np
import pytest
import torch

from burnish.errors import UserError
from burnish.reward.call import ARGUMENTS, Caller, describe_exception, parse_result, plain, trimmed

VALUES = dict(zip(ARGUMENTS, ("src", "response", "truth", {"index": 3}), strict=True))


def call(function, **kwargs):
    return Caller(function, kwargs, label="f.py:f", key="reward")(VALUES)


def test_only_accepted_arguments_are_passed():
    assert call(lambda solution_str: solution_str) == "response"
    assert call(lambda ground_truth, data_source: (ground_truth, data_source)) == ("truth", "src")
    assert call(lambda **everything: everything) == VALUES
    assert call(lambda solution_str, bonus=2: bonus) == 2
    assert call(lambda *positional, extra_info: extra_info) == {"index": 3}


def test_reward_kwargs_override_arguments():
    assert call(lambda solution_str, bonus=2: bonus, bonus=5) == 5
    assert call(lambda solution_str, **more: more["bonus"], bonus=5) == 5
    assert call(lambda solution_str, ground_truth: ground_truth, ground_truth="mine") == "mine"


def test_an_invalid_function_is_refused_at_construction():
    with pytest.raises(
        UserError, match=r"f.py:f\(completion, ground_truth\) requires 'completion', which is not available"
    ):
        call(lambda completion, ground_truth: 0)
    with pytest.raises(UserError, match=r"requires 'response', 'answer', which are not available.*Type: another name"):
        call(lambda response, answer: 0)
    with pytest.raises(UserError, match=r"reward_kwargs.bonsu=1: f.py:f does not accept 'bonsu'. Did you mean 'bonus'"):
        call(lambda solution_str, bonus=2: 0, bonsu=1)
    with pytest.raises(UserError, match="is a float, not a function"):
        call(3.0)


def test_async_is_detected_in_objects_and_partials():
    import functools

    async def judge(solution_str, bonus=1):
        return 1.0

    class Judge:
        async def __call__(self, solution_str):
            return 1.0

    for function in (judge, Judge(), functools.partial(judge, bonus=2)):
        assert Caller(function, {}, label="", key="").is_async
    assert not Caller(lambda solution_str: 1.0, {}, label="", key="").is_async


@pytest.mark.parametrize(
    "result", [1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True), np.array(1.0), torch.tensor(1.0)]
)
def test_accepted_numbers(result):
    outcome = parse_result(result, "f.py:f")
    assert (outcome.value, type(outcome.value), outcome.kind) == (1.0, float, None)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (math.nan, "returned nan instead of a finite number in f.py:f"),
        (np.float64("inf"), "returned inf instead of a finite number"),
        (10**400, "returned inf instead of a finite number"),
        (None, "returned NoneType instead of a number"),
        ("1.0", "returned str instead of a number"),
        ([1.0], "returned list instead of a number"),
        (1j, "returned complex instead of a number"),
        (np.array([1.0, 2.0]), "returned ndarray instead of a number"),
        (np.array([]), "returned ndarray instead of a number"),
        ({"acc": 1}, "returned a dict without 'score' (keys: 'acc')"),
        ({}, "returned a dict without 'score' (keys: none)"),
        ({"score": None}, "returned NoneType instead of a number"),
    ],
)
def test_invalid_results(result, text):
    outcome = parse_result(result, "f.py:f")
    assert outcome.kind == "invalid result"
    assert text in outcome.text


def test_extras_are_converted_to_json_types():
    class Colour(enum.Enum):
        RED = 1

    extras = {
        "acc": np.bool_(True),
        "pred": "7",
        "grid": np.eye(2),
        "parts": (np.int32(1), {2: None}),
        "colour": Colour.RED,
    }
    outcome = parse_result({"score": 0.5, **extras}, "f.py:f")
    assert outcome.value == 0.5
    assert outcome.extras == {
        "acc": True,
        "pred": "7",
        "grid": [[1.0, 0.0], [0.0, 1.0]],
        "parts": [1, {"2": None}],
        "colour": "Colour.RED",
    }
    assert type(plain(np.int32(1))) is int
    assert plain(np.array([1j, None], dtype=object)) == ["1j", None]
    assert plain(10**5000).startswith("0x")


def test_an_exception_is_reported_with_its_location():
    def parse(text):
        raise ValueError("no number in " + text)

    try:
        call(lambda solution_str: parse(solution_str))
    except ValueError as error:
        outcome = describe_exception(error, "f.py:f", memory_mb=1, withheld=[])
    assert outcome.text.startswith("raised ValueError: no number in response in f.py:f\n")
    assert "in parse" in outcome.text
    assert "call.py" not in outcome.text.replace("test_call.py", "")


def test_a_withheld_secret_is_explained():
    outcome = describe_exception(KeyError("MY_TOKEN"), "f.py:f", memory_mb=1, withheld=["MY_TOKEN"])
    assert "MY_TOKEN looks like a secret and is withheld from reward workers" in outcome.text


def test_long_texts_are_trimmed_at_the_start():
    assert trimmed("x" * 5000 + "end").endswith("end")
    assert len(trimmed("x" * 5000)) < 2100
