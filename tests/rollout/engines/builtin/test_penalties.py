"""What a row's past does to its logits, against a plain computation token by token."""

from __future__ import annotations

import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin.penalties import PenaltyState, apply_penalties

PROMPT = (3, 4, 4, 7)
RESPONSE = [5, 4, 5, 9, 5]
LOGITS = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 0.0, -0.5, 1.5, 2.5])


def past_of(sampling, response=RESPONSE, eos_ids=(2,)):
    past = PenaltyState.of(Request(ModelInput(PROMPT), sampling, seed=0), eos_ids)
    for token in response:
        past.add(token)
    return past


def bent(sampling, **given):
    return apply_penalties(LOGITS[None], [past_of(sampling, **given)])[0]


def penalised(sampling, response=RESPONSE):
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
    assert bent(sampling).tolist() == pytest.approx(penalised(sampling), abs=1e-6)
    assert bent(sampling, response=[]).tolist() == pytest.approx(penalised(sampling, response=[]), abs=1e-6)


def test_only_the_repetition_penalty_counts_the_prompt():
    touched = {
        name: (bent(Sampling(9, **{name: 1.5}), response=[5]) != LOGITS).nonzero().flatten().tolist()
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
    }
    assert touched == {"repetition_penalty": [3, 4, 5, 7], "presence_penalty": [5], "frequency_penalty": [5]}


def test_rows_are_penalised_by_their_own_past():
    strong, weak = Sampling(9, frequency_penalty=2.0), Sampling(9, min_tokens=1)
    together = apply_penalties(LOGITS.expand(3, -1), [past_of(strong), past_of(weak), past_of(strong, [1, 1])])
    assert torch.equal(together[0], bent(strong))
    assert torch.equal(together[1], LOGITS)
    assert torch.equal(together[2], bent(strong, response=[1, 1]))


def banned(sampling, **given):
    return torch.isinf(bent(sampling, **given)).nonzero().flatten().tolist()


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


def test_a_ban_stands_whatever_the_penalties():
    assert banned(Sampling(9, bad_words=((5,),), repetition_penalty=0.5, presence_penalty=-2.0)) == [5]


def test_most_rows_have_no_past():
    assert PenaltyState.of(Request(ModelInput(PROMPT), Sampling(9, top_k=3, stop=("x",)), seed=0), (2,)) is None


def test_starting_again():
    sampling = Sampling(9, repetition_penalty=1.3, frequency_penalty=0.4)
    past = past_of(sampling)
    past.clear()
    assert torch.equal(apply_penalties(LOGITS[None], [past])[0], bent(sampling, response=[]))
