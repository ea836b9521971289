import numpy as np
import pytest
import torch

from burnish.reward.protocol import parse_response


@pytest.mark.parametrize(
    "answer",
    [
        {"rewards": [0.5]},
        {"rewards": 0.5},
        {"rewards": torch.tensor([0.5]), "scores": None, "extra_logs": None},
        {"rewards": np.array([[0.5]])},
        [0.5],
        torch.tensor([0.5]),
        torch.tensor(0.5),
        0.5,
    ],
)
def test_the_score_defaults_to_the_reward(answer):
    outcome = parse_response(answer, "f")
    assert (outcome.value, outcome.extras, outcome.kind) == (0.5, {"scores": 0.5}, None)


def test_a_score_of_zero_is_a_score():
    assert parse_response({"rewards": [0.5], "scores": torch.tensor([0.0])}, "f").extras == {"scores": 0.0}


def test_logs_are_extras():
    outcome = parse_response({"rewards": [1], "extra_logs": {"len": torch.tensor([3.0]), "note": "short"}}, "f")
    assert outcome.extras == {"scores": 1.0, "len": 3.0, "note": "short"}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "returned no 'rewards' (keys: 'rewards') in f"),
        ({}, "returned no 'rewards' (keys: none)"),
        ({"rewards": None, "scores": [1]}, "returned no 'rewards'"),
        ({"reward": [1]}, "returned no 'rewards' (keys: 'reward')"),
        ({"rewards": [1, 2]}, "returned list instead of a number"),
        ({"rewards": []}, "returned list instead of a number"),
        ({"rewards": ["1"]}, "returned str instead of a number"),
        ({"rewards": [float("nan")]}, "returned nan"),
        ({"rewards": [1], "scores": ["high"]}, "returned str instead of a number"),
        ({"rewards": [1], "extra_logs": [1]}, "returned list instead of a mapping as extra_logs"),
    ],
)
def test_invalid_responses(answer, text):
    outcome = parse_response(answer, "f")
    assert outcome.kind == "invalid result"
    assert text in outcome.text
