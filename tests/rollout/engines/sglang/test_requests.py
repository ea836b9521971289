"""What /generate is request, and what is made of its answers."""

import pytest

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.sglang.requests import RunningRequest, find_end, refusals, sampling_params, score_of
from burnish.rollout.stop import Finish


def test_sampling_in_their_words():
    sampling = Sampling(9, 0.7, top_k=5, top_p=0.9, min_p=0.1, stop=("a",), stop_token_ids=(7,), logprobs=2)
    body = RunningRequest(Request(ModelInput((4, 5)), sampling, 2**62), None).body([2, 3], seeded=True)
    assert body["input_ids"] == [4, 5] and body["return_logprob"] and body["top_logprobs_num"] == 2
    assert body["sampling_params"] == {
        "max_new_tokens": 9,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_new_tokens": 0,
        "ignore_eos": False,
        "stop": ["a"],
        "stop_token_ids": [2, 3, 7],
        "sampling_seed": 2**62,
    }


def test_what_there_is_no_word_for():
    greedy = sampling_params(
        Request(ModelInput((4,)), Sampling(3, 0.7, do_sample=False, ignore_eos=True, min_tokens=2), 1), [2], False
    )
    assert greedy["temperature"] == 0 and greedy["min_new_tokens"] == 0
    assert not {"stop_token_ids", "sampling_seed", "logit_bias", "stop"} & greedy.keys()
    banned = sampling_params(Request(ModelInput((4,)), Sampling(3, bad_words=((6,), (8,))), 1), [2], False)
    assert banned["logit_bias"] == {"6": -1e9, "8": -1e9}


def test_an_interrupted_response_continues_after_its_tokens():
    request = RunningRequest(Request(ModelInput((4, 5)), Sampling(9), 1), None)
    first = request.body([2], seeded=True)
    reply = {"output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]], "finish_reason": {"type": "abort"}}
    assert request.take({"meta_info": reply}, version=3) is None
    second = request.body([2], seeded=True)
    assert second["input_ids"] == [4, 5, 7, 8] and second["sampling_params"]["max_new_tokens"] == 7
    assert second["rid"] != first["rid"] and len(second["rid"]) == len(first["rid"])
    more = {"output_token_logprobs": [[-1.0, 2, None]], "finish_reason": {"type": "stop", "matched": 2}}
    assert request.take({"meta_info": more}, version=4) == Finish("stop", 2)
    made = request.completion(Finish("stop"))
    assert (made.ids, made.log_probs, made.versions) == ([7, 8, 2], [-0.5, -0.25, -1.0], [3, 3, 4])


def test_nothing_came_before_it_was_broken_off():
    request = RunningRequest(Request(ModelInput((4,)), Sampling(9, logprobs=1), 1), None)
    assert (
        request.take({"meta_info": {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}}, 1)
        is None
    )
    assert request.completion(Finish("abort")).top_log_probs == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"fire": True}, "use_fire_sampling"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"bad_words": ((3, 4),)}, "bad_words"),
        ({"min_tokens": 2, "stop": ("a",)}, "min_tokens"),
        ({"min_tokens": 2, "ignore_eos": True, "stop_token_ids": (5,)}, "min_tokens"),
        ({"presence_penalty": 1.0, "temperature": 0.5}, "temperature"),
        ({"min_tokens": 2, "temperature": 0.5}, "temperature"),
    ],
)
def test_refusals_name_the_key(settings, key):
    (error,) = refusals(Sampling(9, **settings), "rollout")
    assert error.key == f"rollout.{key}"


def test_what_is_not_refused():
    fine = [{}, {"presence_penalty": 2.0}, {"min_tokens": 3}, {"bad_words": ((3,),)}, {"temperature": 0.5, "top_k": 3}]
    fine.append({"min_tokens": 3, "temperature": 0.5, "do_sample": False})
    assert [list(refusals(Sampling(9, **one), "rollout")) for one in fine] == [[]] * len(fine)


def test_where_a_response_ends():
    def end(ids, *arguments, **settings):
        return find_end(
            ids, 0, Sampling(*arguments, **settings), {2}, lambda ids: "".join(chr(97 + token) for token in ids)
        )

    assert end([5, 6, 2, 7], 9) == (3, Finish("stop"))
    assert end([5, 6, 2, 7], 4, ignore_eos=True) == (4, Finish("length"))
    assert end([5, 6, 2, 7], 9, ignore_eos=True, stop_token_ids=(6,)) == (2, Finish("stop", 6))
    assert end([5, 6, 7], 9, stop=("gh",)) == (3, Finish("stop", "gh"))
    assert end([5, 6, 7], 9) is None
    assert end([5, 2], 2) == (2, Finish("stop"))  # the server calls this its length


def test_a_score_with_a_gap_is_refused():
    reply = {
        "meta_info": {"finish_reason": {"type": "length"}, "input_token_logprobs": [[None, 3, None], [-1.0, 4, None]]}
    }
    assert score_of(reply, 1).log_probs == [-1.0]
    with pytest.raises(RuntimeError, match="log-probs of"):
        score_of(reply, 2)
