"""What the protocol's own types say."""

from __future__ import annotations

import pytest
import torch

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import ENGINES, EngineOptions, Request, Sampling, check_requests

OPTIONS = EngineOptions(None, torch.float32, torch.device("cpu"), eos_ids=(2,), max_model_len=10)


def test_greedy_and_restricted():
    assert Sampling(1, do_sample=False).greedy and Sampling(1, temperature=0.0).greedy
    assert not Sampling(1).greedy and not Sampling(1).restricted
    assert Sampling(1, top_k=5).restricted and Sampling(1, top_p=0.9).restricted
    assert not Sampling(1, top_k=5, do_sample=False).restricted


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"min_p": 0.1, "top_p": 0.9}, ["top_p", "min_p"]),
        ({"repetition_penalty": 1.1}, ["repetition_penalty"]),
        ({"presence_penalty": 0.1, "frequency_penalty": -0.1}, ["presence_penalty", "frequency_penalty"]),
        ({"min_tokens": 3, "bad_words": ((1,),)}, ["min_tokens", "bad_words"]),
        ({"fire": True}, ["use_fire_sampling"]),
        ({"stop": ("x",), "stop_token_ids": (3,), "logprobs": 5, "ignore_eos": True, "seed": 3}, []),
    ],
)
def test_settings_that_bias_sampling_are_named(settings, named):
    assert Sampling(9, **settings).biases == named
    assert Sampling(9, **settings).restricted == bool(named)


def test_what_fits_is_accepted():
    assert check_requests([Request(ModelInput((1, 2, 3)), Sampling(7), seed=0)], OPTIONS) is None


def test_too_long_says_what_to_type():
    with pytest.raises(UserError, match="3 tokens and 8 new ones do not fit") as caught:
        check_requests(
            [Request(ModelInput((1, 2, 3)), Sampling(7), 0), Request(ModelInput((1, 2, 3)), Sampling(8), 0)], OPTIONS
        )
    assert caught.value.hint == "actor_rollout_ref.rollout.max_model_len=11"


def test_empty_prompt_and_no_new_token():
    with pytest.raises(UserError, match="at least one prompt token"):
        check_requests([Request(ModelInput(()), Sampling(1), 0)], OPTIONS)
    with pytest.raises(UserError, match="at least one new token"):
        check_requests([Request(ModelInput((1,)), Sampling(0), 0)], OPTIONS)


def test_more_least_tokens_than_most():
    with pytest.raises(UserError, match="exceeds the maximum response length of 3 tokens"):
        check_requests([Request(ModelInput((1,)), Sampling(3, min_tokens=4), 0)], OPTIONS)


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(ValueError, match=r"EngineOptions\.decode"):
        check_requests([Request(ModelInput((1,)), Sampling(3, stop=("x",)), 0)], OPTIONS)


def test_unknown_engine_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'builtin'"):
        ENGINES["bultin"]
