"""Every built-in reward passes the same suite."""

import math
import time

import pytest

from burnish.reward.call import ARGUMENTS, read_result
from burnish.reward.rules import REWARDS
from burnish.reward.source import FromRules

HOSTILE = {
    "empty": "",
    "white space": " \n\t" * 1000,
    "huge": "The answer is 7. " * 60_000,
    "open braces": "\\boxed{" * 100_000,
    "closed braces": "}" * 500_000,
    "nested": "\\boxed{" * 50_000 + "1" + "}" * 50_000,
    "hashes": "#### " * 100_000,
    "digits": "#### " + "9" * 500_000,
    "boxed digits": "\\boxed{" + "9" * 5_000 + "}",
    "boxed power": "\\boxed{9**9**9**9}",
    "zero division": "\\boxed{\\frac{1}{0}}",
    "unicode": "Ответ: ４２ 答案是四十二 \u202e٤٢ 🙂 #### ٤٢ \\boxed{٤٢}",
    "lone surrogate": "\ud800 #### \udfff",
    "null": "\x00#### \x00\\boxed{\x00}",
    "code": "#### __import__('os')._exit(1) \\boxed{__import__('os')._exit(1)}",
}


def score(name, response, truth):
    arguments = dict(zip(ARGUMENTS, (name, response, truth, {}), strict=True))
    outcome = read_result(FromRules().callers({})(name)(arguments), name)
    assert outcome.kind is None, outcome.text
    return outcome.value


@pytest.mark.parametrize("name", REWARDS.names())
def test_a_right_answer_scores_higher_than_a_wrong_one(name):
    example = REWARDS[name].metadata["example"]
    right, wrong = (score(name, response, example.ground_truth) for response in (example.right, example.wrong))
    assert -1 <= wrong < right <= 1


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("name", REWARDS.names())
def test_any_text_gets_the_score_of_a_wrong_answer_quickly(name, text):
    example = REWARDS[name].metadata["example"]
    wrong = score(name, example.wrong, example.ground_truth)  # and a library that it needs is imported
    started = time.perf_counter()
    value = score(name, text, example.ground_truth)
    assert time.perf_counter() - started < 1
    assert math.isfinite(value)
    assert value == wrong


@pytest.mark.parametrize("name", REWARDS.names())
def test_the_same_response_always_gets_the_same_score(name):
    example = REWARDS[name].metadata["example"]
    assert len({score(name, example.right, example.ground_truth) for _ in range(3)}) == 1
