import functools

import numpy as np
import pytest
import torch

from burnish.errors import UserError
from burnish.reward.call import ARGUMENTS, Caller, Inputs
from burnish.reward.callers import BatchCaller, PositionalCaller, QueryCaller, caller_for
from burnish.reward.sample import SampleRow

VALUES = dict(zip(ARGUMENTS, ("src", "response", "truth", {"index": 3}), strict=True))
WHOLE = VALUES | {"prompt": "<s>p", "query": "<s>pr</s>"}
PLURAL = {f"{name}s": [value, value] for name, value in VALUES.items()}


def make(caller, function, **kwargs):
    return caller(function, kwargs, label="f.py:f", key="custom_reward_function.path")


def test_prime_passes_arguments_by_position():
    assert make(PositionalCaller, lambda task, text, truth, extra: (task, text, truth, extra["index"]))(VALUES) == (
        "src",
        "response",
        "truth",
        3,
    )
    assert make(PositionalCaller, lambda a, b: (a, b))(VALUES) == ("src", "response")
    assert make(PositionalCaller, lambda *all_of_them: len(all_of_them))(VALUES) == 4
    assert make(PositionalCaller, lambda a, b, c, d=None, e=5: e)(VALUES) == 5
    assert make(PositionalCaller, lambda a, b, c, d, bonus: bonus, bonus=2)(VALUES) == 2
    assert make(PositionalCaller, functools.partial(lambda a, b, c, d, bonus=1: bonus, bonus=7))(VALUES) == 7


def test_prime_refuses_incompatible_functions():
    with pytest.raises(UserError, match="requires 5 positional arguments"):
        make(PositionalCaller, lambda a, b, c, d, e: 0)
    with pytest.raises(UserError, match="does not accept 'bonus'"):
        make(PositionalCaller, lambda a, b: 0, bonus=1)
    with pytest.raises(UserError, match="not a function"):
        make(PositionalCaller, 3)


def test_batch_passes_plural_names():
    caller = make(BatchCaller, lambda solution_strs, ground_truths: [len(text) for text in solution_strs])
    assert caller(PLURAL) == [8, 8]
    assert make(BatchCaller, lambda **everything: sorted(everything))(PLURAL) == sorted(PLURAL)
    with pytest.raises(UserError, match=r"requires 'solution_str', which is not available.*solution_strs"):
        make(BatchCaller, lambda solution_str: 0)


@pytest.mark.parametrize(
    "result", [[1.0, {"score": 0.5, "acc": 1}], (1.0, {"score": 0.5, "acc": 1})], ids=["list", "tuple"]
)
def test_a_batch_has_one_outcome_per_sample(result):
    first, second = make(BatchCaller, lambda **_: 0).parse(result, 2).extras["outcomes"]
    assert first[0] == 1.0
    assert second[:2] == [0.5, {"acc": 1}]


def test_arrays_of_scores_are_lists():
    for result in (np.array([1.0, 0.0]), torch.tensor([1.0, 0.0])):
        outcome = make(BatchCaller, lambda **_: 0).parse(result, 2)
        assert [one[0] for one in outcome.extras["outcomes"]] == [1.0, 0.0]


def test_one_invalid_result_of_a_batch():
    good, bad = make(BatchCaller, lambda **_: 0).parse([1.0, None], 2).extras["outcomes"]
    assert good[2] is None
    assert bad[2] == "invalid result"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([1.0], "returned 1 scores for 2 responses in f.py:f"),
        ([], "returned 0 scores for 2 responses"),
        (1.0, "returned float instead of a list of 2 scores"),
        (None, "returned NoneType instead of a list of 2 scores"),
        ("ab", "returned str instead of a list of 2 scores"),
        ({"score": [1, 2]}, "returned dict instead of a list of 2 scores"),
    ],
)
def test_a_batch_of_the_wrong_shape(result, text):
    outcome = make(BatchCaller, lambda **_: 0).parse(result, 2)
    assert outcome.kind == "invalid result"
    assert text in outcome.text


def test_openrlhf_passes_lists_of_one():
    seen = make(QueryCaller, lambda queries, prompts, labels, **more: (queries, prompts, labels, more), bonus=1)(WHOLE)
    assert seen == (["<s>pr</s>"], ["<s>p"], ["truth"], {"bonus": 1})
    assert make(QueryCaller, lambda queries: queries)(WHOLE) == ["<s>pr</s>"]
    with pytest.raises(UserError, match="requires 'answers'"):
        make(QueryCaller, lambda queries, answers: 0)


CHAT = SampleRow([{"role": "user", "content": "q"}], {"answer": "a", "level": 2}, [5, 6])
TEXT = SampleRow("q", {"answer": "b"}, [7])
TRL = VALUES | {"row": CHAT}
TRL_BATCH = PLURAL | {"rows": [CHAT, TEXT]}


def styled(function, default=Caller, **kwargs):
    return make(caller_for(default, function, kwargs), function, **kwargs)


@pytest.mark.parametrize("default", [Caller, PositionalCaller, QueryCaller])
def test_a_trl_function_gets_lists_of_completions_and_columns(default):
    caller = styled(lambda completions, **kwargs: [completions, kwargs], default)
    completions, kwargs = caller(TRL)
    assert completions == [[{"role": "assistant", "content": "response"}]]
    assert kwargs == {
        "prompts": [CHAT.prompt],
        "completion_ids": [[5, 6]],
        "answer": ["a"],
        "level": [2],
        "ground_truth": ["truth"],
        "data_source": ["src"],
        "extra_info": [{"index": 3}],
    }
    assert caller.inputs == Inputs(row=True)
    assert styled(lambda completions: completions)(VALUES | {"row": TEXT}) == ["response"], "a plain prompt: a string"


def test_a_trl_function_names_the_columns_it_requires():
    caller = styled(lambda prompts, completions, answer, bonus, level=1, **kwargs: [answer, bonus, level], bonus=3)
    assert caller.inputs.columns == ("answer",)
    assert caller(TRL) == [["a"], 3, [2]]
    assert styled(lambda completions, level=1: [level])(VALUES | {"row": TEXT}) == [1], "a row without that column"
    with pytest.raises(UserError, match="does not accept 'bonus'"):
        styled(lambda completions: [1.0], bonus=3)


def test_a_trl_function_of_a_batch_gets_all_its_rows():
    caller = styled(lambda completions, answer, **_: [completions, answer], BatchCaller)
    completions, answer = caller(TRL_BATCH)
    assert completions == [[{"role": "assistant", "content": "response"}], "response"]
    assert answer == ["a", "b"]
    first, second = caller.parse([1.0, None], 2).extras["outcomes"]
    assert (first[0], second[0], second[2]) == (1.0, 0.0, None), "None does not apply: it counts as 0"
    assert caller.parse([1.0], 2).text == "returned 1 scores for 2 responses in f.py:f"


def test_results_of_a_trl_function():
    caller = styled(lambda completions: 0)
    assert caller.parse([0.5], 1).value == 0.5
    assert caller.parse([None], 1) == caller.parse([0.0], 1)
    assert caller.parse(torch.tensor([2.0]), 1).value == 2.0
    assert caller.parse(1.0, 1).text == "returned float instead of a list of 1 scores in f.py:f"
    assert caller.parse(["x"], 1).kind == "invalid result"


def test_an_openrlhf_function_is_recognized():
    caller = styled(lambda queries, prompts, labels: [queries, prompts, labels])
    assert caller(WHOLE) == [["<s>pr</s>"], ["<s>p"], ["truth"]]
    assert caller.inputs == Inputs(texts=True)
    assert type(styled(lambda solution_str, ground_truth: 0)) is Caller


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda response, answer: 0, r"f.py:f\(response, answer\) requires 'response', 'answer'.*TRL's completions"),
        (lambda *all_of_them: 0, r"f.py:f\(\*all_of_them\) accepts none"),
        (lambda text="": 0, r"f.py:f\(text=''\) accepts none"),
    ],
)
def test_a_wrong_signature_is_shown_with_what_is_expected(function, text):
    with pytest.raises(UserError, match=text):
        styled(function)
