"""Penalties and bans, against a plain computation token by token."""

from __future__ import annotations

import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin.penalties import PenaltyState, apply_penalties

PROMPT = (3, 4, 4, 7)
RESPONSE = [5, 4, 5, 9, 5]
LOGITS = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 0.0, -0.5, 1.5, 2.5])


def state_of(sampling, response=RESPONSE, eos_ids=(2,)):
    state = PenaltyState.of(Request(ModelInput(PROMPT), sampling, seed=0), eos_ids)
    for token in response:
        state.add(token)
    return state


def penalized_logits(sampling, **given):
    return apply_penalties(LOGITS[None], [state_of(sampling, **given)])[0]


def expected_logits(sampling, response=RESPONSE):
    """The formulas of vLLM, one token at a time, in double precision."""
    expected = LOGITS.double().tolist()
    for token in range(len(expected)):
        if token in PROMPT or token in response:
            factor = sampling.repetition_penalty
            expected[token] = expected[token] / factor if expected[token] > 0 else expected[token] * factor
        expected[token] -= sampling.frequency_penalty * response.count(token)
        expected[token] -= sampling.presence_penalty * (token in response)
    return expected


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 0.6},
        {"frequency_penalty": 0.4},
        {"repetition_penalty": 1.3, "presence_penalty": -0.6, "frequency_penalty": 0.4},
    ],
)
def test_penalties(settings):
    sampling = Sampling(9, **settings)
    assert penalized_logits(sampling).tolist() == pytest.approx(expected_logits(sampling), abs=1e-6)
    assert penalized_logits(sampling, response=[]).tolist() == pytest.approx(
        expected_logits(sampling, response=[]), abs=1e-6
    )


def test_only_the_repetition_penalty_counts_the_prompt():
    touched = {
        name: (penalized_logits(Sampling(9, **{name: 1.5}), response=[5]) != LOGITS).nonzero().flatten().tolist()
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
    }
    assert touched == {"repetition_penalty": [3, 4, 5, 7], "presence_penalty": [5], "frequency_penalty": [5]}


def test_sequences_have_their_own_penalties():
    strong, weak = Sampling(9, frequency_penalty=2.0), Sampling(9, min_tokens=1)
    together = apply_penalties(LOGITS.expand(3, -1), [state_of(strong), state_of(weak), state_of(strong, [1, 1])])
    assert torch.equal(together[0], penalized_logits(strong))
    assert torch.equal(together[1], LOGITS)
    assert torch.equal(together[2], penalized_logits(strong, response=[1, 1]))


def banned(sampling, **given):
    return torch.isinf(penalized_logits(sampling, **given)).nonzero().flatten().tolist()


def test_no_end_before_min_tokens():
    sampling = Sampling(9, min_tokens=3, stop_token_ids=(8,))
    assert banned(sampling, response=[5, 5]) == [2, 8]
    assert banned(sampling, response=[5, 5, 5]) == []
    going_on = Sampling(9, min_tokens=3, stop_token_ids=(8,), ignore_eos=True)
    assert banned(going_on, response=[5, 5]) == [8]


def test_a_bad_word_is_never_completed():
    sampling = Sampling(9, bad_words=((6,), (5, 9), (4, 5, 1)))
    assert banned(sampling, response=[]) == [6]
    assert banned(sampling, response=[5]) == [6, 9]
    assert banned(sampling, response=[4, 5]) == [1, 6, 9]
    assert banned(sampling, response=[4, 5, 0]) == [6]
    assert (
        banned(Sampling(9, bad_words=((7, 1),)), response=[]) == []
    )  # the prompt ends with 7: that is not the response


def test_penalties_do_not_lift_a_ban():
    assert banned(Sampling(9, bad_words=((5,),), repetition_penalty=0.5, presence_penalty=-2.0)) == [5]


def test_no_state_without_penalties():
    assert PenaltyState.of(Request(ModelInput(PROMPT), Sampling(9, top_k=3, stop=("x",)), seed=0), (2,)) is None


def test_clear():
    sampling = Sampling(9, repetition_penalty=1.3, frequency_penalty=0.4)
    state = state_of(sampling)
    state.clear()
    assert torch.equal(apply_penalties(LOGITS[None], [state])[0], penalized_logits(sampling, response=[]))
