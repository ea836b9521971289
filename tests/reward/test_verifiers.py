"""MindSpeed RL's truth table for the label 34, and edge cases."""

import pytest

from burnish.errors import UserError
from burnish.reward.verifiers import VERIFIERS, weighted

FULL = "<think>First, add. Next, check.</think> <answer>It is \\boxed{%s}</answer>"
TEXTS = {
    "full, right": FULL % 34,
    "full, wrong": FULL % 35,
    "boxed only": r"\boxed{34}",
    "answer line": "Answer: 34",
    "empty": "",
}
TABLE = {
    "acc": (1, -0.5, 1, -1, -1),
    "strict_format": (1, 1, -0.5, -0.5, -0.5),
    "format": (1, 1, 0, 0, 0),
    "step": (2 / 3, 2 / 3, 0, 0, 0),
    "base_acc": (1, 0, 0, 0, 0),
    "math_17k_acc": (1, 0, 1, 0, 0),
    "acc_for_ppo": (1, 0, 1, 0, 0),
    "acc_for_dapo": (-1, -1, -1, 1, -1),
    "math_verify_reward": (1, 0, 0, 0, 0),
    "retool_reward": (1, -0.7, 1, -0.7, -0.7),  # after three tool calls
}


@pytest.mark.parametrize("name", TABLE)
def test_the_truth_table(name):
    verify = weighted([name], [1.0])
    scores = [verify(text, "34", {"num_tool_calls": 3})["score"] for text in TEXTS.values()]
    assert scores == pytest.approx(TABLE[name])


def test_the_table_is_complete():
    assert set(VERIFIERS.names()) == set(TABLE)


def test_the_score_is_the_weighted_sum_and_each_is_an_extra():
    verify = weighted(["acc", "format", "step"], [1.0, 0.5, 3.0])
    assert verify(FULL % 34, "34", {}) == {"score": pytest.approx(3.5), "acc": 1.0, "format": 1.0, "step": 2 / 3}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"\boxed{34}<|im_end|>\boxed{35}", 1.0),  # what follows a stop word is not the response
        (r"\boxed{unfinished, but the answer is 34.", 1.0),
        (r"\boxed{unfinished 33 34", 1.0),
        (r"\boxed{nothing", -1.0),
        ("34", -1.0),
        (r"\boxed{68/2}", 1.0),
    ],
)
def test_acc_finds_an_answer(text, score):
    assert weighted(["acc"], [1.0])(text, "34", {})["score"] == score


@pytest.mark.parametrize(
    "text",
    [
        "before " + FULL % 34,
        FULL % 34 + " after",
        FULL % 34 + FULL % 34,
        (FULL % 34).replace("boxed", "box"),
        "<answer>\\boxed{34}</answer><think>late</think></answer>",
    ],
)
def test_strict_format_rejects_other_formats(text):
    assert weighted(["strict_format"], [1.0])(text, "34", {})["score"] == -0.5


def test_steps_are_counted_up_to_three():
    step = weighted(["step"], [1.0])
    assert step("1. add\n- check", "", {})["score"] == pytest.approx(2 / 3)
    assert step("Step 1: a\nStep 2: b\nStep 3: c\nStep 4: d", "", {})["score"] == 1.0


@pytest.mark.parametrize(
    ("extra_info", "text", "score"),
    [
        ({"num_turns": 8}, "", -0.7),
        ({}, "<tool_call>a</tool_call>" * 2, -0.8),
        ({"num_tool_calls": 20}, "", 0.0),
        ({}, "", -1.0),
    ],
)
def test_tool_calls_reduce_the_penalty(extra_info, text, score):
    assert weighted(["retool_reward"], [1.0])(text, "34", extra_info)["score"] == pytest.approx(score)


def test_retool_uses_the_last_hundred_characters():
    assert weighted(["retool_reward"], [1.0])(r"\boxed{34}" + " " * 95, "34", {})["score"] == -1.0


def test_an_unknown_name_is_refused():
    with pytest.raises(UserError, match=r"reward.verifiers='base_ac'.*Did you mean 'base_acc'"):
        weighted(["base_ac"], [1.0])


def test_verifiers_score_in_workers_for_any_data_source(scorer, sample):
    one = scorer(verifiers=("acc", "format"), verifier_weights=(1.0, 0.5))
    one.check_sources(["any/thing"])
    score = one.score([sample(FULL % 34, "34", source="any/thing")])[0]
    assert score.value == 1.5
    assert score.extras == {"acc": 1.0, "format": 1.0}
    assert score.problem is None


@pytest.mark.parametrize("settings", [{"path": "f.py"}, {"remote_url": ("http://localhost:1/",)}])
def test_verifiers_with_another_reward_are_refused(scorer, settings):
    with pytest.raises(UserError, match=r"reward.verifiers.*only one can score"):
        scorer(verifiers=("acc",), **settings)
    with pytest.raises(UserError, match=r"a reward function and reward.verifiers"):
        scorer(lambda solution_str: 1.0, verifiers=("acc",))
