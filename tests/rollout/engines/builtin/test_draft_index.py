"""Drafts from other responses: what is indexed, what is kept, and that a draft is the quantile at the token's noise."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin import draft_index
from burnish.rollout.engines.builtin.draft_index import (
    CONTEXT_MASK,
    LONG,
    Acceptance,
    DraftIndex,
    PromptIndex,
    context_of,
)
from burnish.rollout.engines.builtin.sampling import uniform
from burnish.rollout.engines.builtin.sequence import SequenceState

PROMPT = (50, 51, 52)


def running(tokens, seed=0, prompt=PROMPT, **sampling):
    request = Request(ModelInput(prompt), Sampling(1000, **sampling), seed)
    return SequenceState(request, Future(), tokens=list(tokens))


def draft(index, sequence, count=4):
    """Once all tokens are indexed."""
    sequences = [sequence] if index._sequences is None else index._sequences
    for _ in range(20):
        index.update(sequences)
    return index.draft(sequence, count).tokens


@pytest.fixture
def index():
    return DraftIndex()


def test_the_response_goes_on_as_an_earlier_one(index):
    index.record(running([1, 2, 3, 4, 5, 6, 7, 8]))
    assert draft(index, running([1, 2, 3])) == [4, 5, 6, 7]
    assert draft(DraftIndex(), running([1, 2, 3])) == []


def test_the_prompt_counts(index):
    prompt = (9, 8, 7, 6, 5, 4)
    assert draft(index, running([1, 9, 8], prompt=prompt)) == [7, 6, 5, 4]


def test_other_prompts_do_not_count(index):
    index.record(running([1, 2, 3, 4, 5], prompt=(60, 61)))
    assert draft(index, running([1, 2, 3])) == []


def test_running_responses_of_the_group(index):
    group = [running([4, 5, 6, 7, 8]), running([4, 5])]
    index.update(group)
    assert draft(index, group[1], count=3) == [6, 7, 8]
    group[0].tokens += [9, 10]
    group[1].tokens += [6]
    assert draft(index, group[1], count=4) == [7, 8, 9, 10]


def test_a_restarted_response_is_followed_again(index):
    sequence = running([4, 5, 6])
    index.update([sequence])
    sequence.restart()
    sequence.tokens += [20, 21, 22, 20, 21]
    index.update([running([1]), sequence])
    assert draft(index, sequence, count=1) == [22]


def test_a_long_context_decides_where_it_is_reliable():
    """1 2 3 4 is always followed by 5, and 4 alone mostly by something else."""
    prompts = PromptIndex((), [[1, 2, 3, 4, 5] * 4 + [4, 9] * 20])
    prompts.read_others(1000)
    acceptance = Acceptance()
    assert prompts.draft([1, 2, 3, 4], [0.99], acceptance).tokens == [5]
    evidence = prompts.draft([1, 2, 3, 4], [0.99], acceptance).evidence[0]
    for _ in range(50):
        acceptance.add(evidence, False)
    assert prompts.draft([1, 2, 3, 4], [0.99], acceptance).tokens == [9]


def test_a_draft_is_the_quantile_at_the_noise_of_its_token(index):
    """After 1 come 10, 20, 30 and 40 equally often: the keyed noise chooses, as it will in sampling."""
    responses = [running([1, token] * 3) for token in (30, 10, 40, 20)]
    for response in responses:
        index.record(response)
    assert draft(index, running([7, 7, 7, 1], do_sample=False), count=1) == [30]  # no noise: the median
    for seed in range(20):
        sequence = running([7, 7, 7, 1], seed=seed)
        index.update([sequence])
        point = uniform(torch.tensor([seed]), torch.tensor([4])).item()
        assert index.draft(sequence, 1).tokens[0] == (10, 20, 30, 40)[int(4 * point)]


def test_the_noise_is_that_of_sampling(index):
    sequence = running([1] * 5, seed=3)
    places = torch.arange(1000)
    expected = uniform(torch.full_like(places, 3), places).tolist()
    for length in (5, 6, 250, 255, 256, 262, 900):
        sequence.tokens = [1] * length
        assert index._next_noise(sequence, 7) == expected[length : length + 7]


def test_chances_fall_along_a_chain_and_follow_what_was_right(index):
    index.record(running(range(1, 30)))
    sequence = running([1, 2, 3])
    assert draft(index, sequence) == [4, 5, 6, 7]
    drafts = index.draft(sequence, 16)
    assert drafts.chances == sorted(drafts.chances, reverse=True)
    assert 2 < len(drafts.tokens) < 16  # it ends where a draft is hopeless
    assert index.draft(sequence, 16, least=drafts.chances[2]).tokens == drafts.tokens[:3]
    for _ in range(200):
        index.acceptance.add(drafts.evidence[0], True)
    better = index.draft(sequence, 16)
    assert better.chances[0] > 0.9 and len(better.tokens) == 16


def test_the_work_between_two_steps_is_bounded(index, monkeypatch):
    monkeypatch.setattr(draft_index, "TOKENS_PER_STEP", 10)
    sequence = running(range(24))
    assert [index.update([sequence]) for _ in range(3)] == [False, False, True]
    (prompt,) = index.prompts.values()
    assert prompt.num_tokens == 24 + 3  # and the prompt


def test_a_new_start_begins_with_the_newest_tokens(index):
    sequence = running(range(100))
    index.update([sequence])
    index.restart()
    sequence.tokens += range(100, 200)
    index.update([sequence])
    (prompt,) = index.prompts.values()
    assert prompt.num_tokens == draft_index.WINDOW + len(PROMPT)


def test_memory_is_bounded(index, monkeypatch):
    monkeypatch.setattr(draft_index, "HISTORY_TOKENS", 100)
    monkeypatch.setattr(draft_index, "INDEXED_TOKENS", 30)
    for number in range(40):
        index.record(running([number] * 10, prompt=(number // 20,)))
        kept = [len(response) for responses in index.history.values() for response in responses]
        assert sum(kept) == index._num_kept <= 100
    assert list(index.history) == [ModelInput((1,)).key]
    sequence = running(range(60))
    for _ in range(5):
        index.update([sequence])
    assert sum(prompt.num_tokens for prompt in index.prompts.values()) == 30
    index.update([running([1], prompt=(1,))])
    assert list(index.prompts) == [ModelInput((1,)).key]  # of running prompts only


def test_contexts():
    """Equal where the last tokens are, and the beginning of a response is a context of its own."""
    assert context_of([1, 2, 3, 4, 5]) == context_of([9, 2, 3, 4, 5]) != context_of([2, 3, 4, 6])
    assert context_of([]) == CONTEXT_MASK and context_of([0]) != context_of([0, 0])
    assert LONG == 4
