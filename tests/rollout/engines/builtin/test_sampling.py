"""Addressed noise, the sets that limits leave, and what bends the draw without bending the log-probs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin.penalties import PenaltyState
from burnish.rollout.engines.builtin.sampling import SamplingBatch, restrict, sample, top_tokens, uniform
from burnish.seeding import derive_seed

CPU = torch.device("cpu")
LOGITS = torch.tensor([1.0, 3.0, 0.0, 2.0, -1.0, 2.5, 0.5])


def draw(logits, sampling, seeds, index=0):
    """One draw per seed from the same logits."""
    rows = SamplingBatch.of([sampling] * len(seeds), seeds, CPU)
    return sample(logits.expand(len(seeds), -1), rows, torch.full((len(seeds),), index))


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_is_a_function_of_its_address():
    seeds, index = torch.tensor([5, 5, 6, 5]), torch.tensor([0, 1, 0, 0])
    numbers = uniform(seeds, index).tolist()
    assert numbers[0] == numbers[3]
    assert len(set(numbers)) == 3
    assert uniform(seeds[1:2], index[1:2]).item() == numbers[1]  # whoever else is in the batch


@pytest.mark.parametrize("vary", ["seed", "index"])
def test_uniform_is_uniform(vary):
    """Neighbouring seeds and neighbouring places must look unrelated: 64 bins, and pairs in 8 x 8."""
    count = torch.arange(40_000)
    fixed = torch.full_like(count, 12345)
    numbers = uniform(count, fixed) if vary == "seed" else uniform(fixed, count)
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    bins = torch.bincount((numbers * 64).long(), minlength=64)
    assert chi_square(bins, torch.full((64,), 1 / 64)) < 114  # 63 degrees of freedom: p = 1e-4
    pairs = torch.bincount((numbers[:-1] * 8).long() * 8 + (numbers[1:] * 8).long(), minlength=64)
    assert chi_square(pairs, torch.full((64,), 1 / 64)) < 114


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, -1, 1.0), (0.6, -1, 1.0), (1.0, 3, 1.0), (1.0, -1, 0.8)]
)
def test_draws_follow_the_softmax(temperature, top_k, top_p):
    sampling = Sampling(1, temperature=temperature, top_k=top_k, top_p=top_p)
    tokens, _ = draw(LOGITS, sampling, [derive_seed("draw", i) for i in range(20_000)], index=3)
    probabilities = (LOGITS / temperature).softmax(-1)
    if sampling.restricted:
        kept = restrict(probabilities.log()[None], torch.tensor([top_k]), torch.tensor([top_p]))[0]
        probabilities = kept.softmax(-1)
    counts = torch.bincount(tokens, minlength=len(LOGITS)).float()
    assert (counts[probabilities == 0] == 0).all()
    possible = probabilities > 0
    assert chi_square(counts[possible], probabilities[possible]) < 28  # at most 6 degrees of freedom: p = 1e-4


def kept_set(probabilities, top_k=-1, top_p=1.0):
    kept = restrict(torch.tensor([probabilities]).log(), torch.tensor([top_k]), torch.tensor([top_p]))[0]
    return torch.isfinite(kept).nonzero().flatten().tolist()


def test_top_k_keeps_exactly_k():
    probabilities = [0.1, 0.4, 0.2, 0.2, 0.1]
    assert kept_set(probabilities, top_k=1) == [1]
    assert kept_set(probabilities, top_k=2) == [1, 2]  # of equals the first
    assert kept_set(probabilities, top_k=4) == [0, 1, 2, 3]
    assert kept_set(probabilities, top_k=9) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_smallest_set_that_holds_it():
    probabilities = [0.125, 0.5, 0.25, 0.125]
    assert kept_set(probabilities, top_p=0.01) == [1]
    assert kept_set(probabilities, top_p=0.5) == [1]
    assert kept_set(probabilities, top_p=0.51) == [1, 2]
    assert kept_set(probabilities, top_p=0.76) == [0, 1, 2]
    assert kept_set(probabilities, top_p=0.0) == [1]  # never nothing


def test_top_p_counts_what_top_k_left():
    # of 0.5 and 0.25 the first holds two thirds
    assert kept_set([0.125, 0.5, 0.25, 0.125], top_k=2, top_p=0.6) == [1]
    assert kept_set([0.125, 0.5, 0.25, 0.125], top_k=2, top_p=0.7) == [1, 2]


def test_restricted_neighbours_change_nothing():
    """A row without limits draws the same alone and beside a row with limits, far tail included."""
    peaked = torch.cat([torch.tensor([30.0]), torch.linspace(5, 14, 400)]).expand(300, -1)
    seeds = [derive_seed("tail", i) for i in range(300)]
    free, limited = Sampling(1, temperature=3.0), Sampling(1, top_k=2, top_p=0.9)
    alone, alone_log_probs = sample(
        peaked, SamplingBatch.of([free] * 300, seeds, CPU), torch.zeros(300, dtype=torch.int64)
    )
    settings = [free, limited] * 150
    mixed, mixed_log_probs = sample(peaked, SamplingBatch.of(settings, seeds, CPU), torch.zeros(300, dtype=torch.int64))
    assert torch.equal(alone[::2], mixed[::2]) and torch.equal(alone_log_probs[::2], mixed_log_probs[::2])
    kept = restrict(torch.log_softmax(peaked[:1], -1), torch.tensor([-1]), torch.tensor([1.0]))
    assert torch.isfinite(kept).all()  # the sum before the last tokens rounds to 1; they stay all the same


@pytest.mark.parametrize("sampling", [Sampling(1, do_sample=False), Sampling(1, temperature=0.0)])
def test_greedy_takes_the_best(sampling):
    tokens, log_probs = draw(LOGITS, sampling, list(range(50)))
    assert (tokens == 1).all()
    assert torch.equal(log_probs, torch.log_softmax(LOGITS, -1)[1].expand(50))


def test_log_probs_are_over_the_full_vocabulary_at_temperature():
    tokens, log_probs = draw(LOGITS, Sampling(1, temperature=0.5, top_k=2, top_p=0.9), list(range(200)))
    assert set(tokens.tolist()) == {1, 5}
    assert torch.equal(log_probs, torch.log_softmax(LOGITS / 0.5, -1)[tokens])


def test_an_impossible_token_is_never_drawn():
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")])
    tokens, log_probs = draw(logits, Sampling(1), list(range(5000)))
    assert set(tokens.tolist()) == {1, 3}
    torch.testing.assert_close(log_probs, torch.full((5000,), -0.6931472))


def test_settings_are_per_row():
    settings = [
        Sampling(1, do_sample=False),
        Sampling(1, temperature=0.1),
        Sampling(1, top_k=1),
        Sampling(1, temperature=9.0),
    ]
    rows = SamplingBatch.of(settings, [1, 2, 3, 4], CPU)
    assert rows.any_greedy and rows.any_restricted
    tokens, log_probs = sample(LOGITS.expand(4, -1), rows, torch.zeros(4, dtype=torch.int64))
    assert tokens[0] == tokens[2] == 1
    temperatures = torch.tensor([1.0, 0.1, 1.0, 9.0])[:, None]
    expected = torch.log_softmax(LOGITS / temperatures, -1).gather(-1, tokens[:, None]).squeeze(-1)
    torch.testing.assert_close(log_probs, expected)


def reference(logits, sampling, past=()):
    """The distribution to draw from, by hand and in double precision: penalties, temperature, min_p, top_k, top_p."""
    scores = logits.double().clone()
    for token in set(past):
        scores[token] -= sampling.frequency_penalty * past.count(token) + sampling.presence_penalty
    if sampling.min_tokens > len(past):
        scores[list(sampling.stop_token_ids)] = float("-inf")
    probabilities = (scores / sampling.temperature).softmax(-1)
    probabilities[probabilities < sampling.min_p * probabilities.max()] = 0
    order = probabilities.argsort(descending=True)
    if sampling.top_k > 0:
        probabilities[order[sampling.top_k :]] = 0
        probabilities /= probabilities.sum()
    total, kept = 0.0, []
    for token in order.tolist():
        if total < sampling.top_p:
            kept.append(token)
        total += float(probabilities[token])
    held = torch.zeros_like(probabilities)
    held[kept] = probabilities[kept]
    return held / held.sum()


@pytest.mark.parametrize(
    "settings",
    [
        {"min_p": 0.2},
        {"min_p": 0.1, "temperature": 2.0},
        {"min_p": 0.05, "top_k": 4, "top_p": 0.85},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"frequency_penalty": 1.5, "temperature": 0.5, "top_p": 0.9},
        {"min_tokens": 9, "stop_token_ids": (1, 5), "top_k": 3},
    ],
)
def test_draws_follow_the_reference(settings):
    sampling, past = Sampling(20, **settings), [1, 5, 1]
    rows = SamplingBatch.of(
        [sampling] * 20_000, [derive_seed("ref", i) for i in range(20_000)], CPU, [a_past(sampling, past)]
    )
    rows = replace(rows, penalties=[(row, rows.penalties[0][1]) for row in range(20_000)] if rows.penalties else [])
    tokens, log_probs = sample(LOGITS.expand(20_000, -1), rows, torch.full((20_000,), 3))
    probabilities = reference(LOGITS, sampling, past)
    counts = torch.bincount(tokens, minlength=len(LOGITS)).double()
    assert (counts[probabilities == 0] == 0).all() and (probabilities > 0).any()
    possible = probabilities > 0
    assert chi_square(counts[possible], probabilities[possible]) < 28  # at most 6 degrees of freedom: p = 1e-4
    expected = torch.log_softmax(LOGITS / sampling.temperature, -1)[tokens]
    assert torch.equal(log_probs, expected)  # whatever bends the draw: over all tokens, at temperature


def a_past(sampling, tokens):
    past = PenaltyState.of(Request(ModelInput((3,)), sampling, 0), eos_ids=())
    for token in tokens if past is not None else ():
        past.add(token)
    return past


def test_min_p_keeps_what_is_near_the_best():
    def kept(min_p, top_k=-1):
        log_probs = torch.tensor([[0.1, 0.4, 0.2, 0.25, 0.05]]).log()
        left = restrict(log_probs, torch.tensor([top_k]), torch.tensor([1.0]), torch.tensor([min_p]))[0]
        return torch.isfinite(left).nonzero().flatten().tolist()

    assert kept(0.0) == [0, 1, 2, 3, 4]
    assert kept(0.2) == [0, 1, 2, 3]
    assert kept(0.6) == [1, 3]
    assert kept(1.0) == [1]
    assert kept(0.2, top_k=2) == [1, 3]


def test_fire_draws_the_first_token_among_the_top_tokens():
    logits = torch.linspace(0, 9, 40)
    seeds = [derive_seed("fire", i) for i in range(20_000)]

    def drawn(first, **settings):
        sampling = Sampling(9, fire=True, **settings)
        rows = SamplingBatch.of([sampling] * len(seeds), seeds, CPU, first=first)
        return sample(logits.expand(len(seeds), -1), rows, torch.zeros(len(seeds), dtype=torch.int64))

    tokens, log_probs = drawn(first=True)
    counts = torch.bincount(tokens, minlength=40)[-16:].float()
    assert counts.sum() == len(seeds)
    assert chi_square(counts, (logits[-16:] / 30).softmax(-1)) < 43  # 15 degrees of freedom: p = 1e-4
    assert torch.equal(log_probs, torch.log_softmax(logits, -1)[tokens])
    assert set(drawn(first=True, top_k=3, top_p=0.5)[0].tolist()) == {37, 38, 39}
    assert (drawn(first=True, do_sample=False)[0] == 39).all()
    assert torch.equal(drawn(first=False)[0], sample_plainly(logits, seeds))


def sample_plainly(logits, seeds):
    return draw(logits, Sampling(9), seeds)[0]


def test_likeliest_tokens_are_reported_beside_the_sampled_one():
    settings = [Sampling(1, logprobs=2, temperature=0.5), Sampling(1), Sampling(1, logprobs=99, top_k=1)]
    rows = SamplingBatch.of(settings, [1, 2, 3], CPU)
    two, none, every = top_tokens(LOGITS.expand(3, -1), rows)
    assert [token for token, _ in two] == [1, 5] and none == []
    assert [value for _, value in two] == pytest.approx(torch.log_softmax(LOGITS / 0.5, -1)[[1, 5]].tolist())
    assert [token for token, _ in every] == LOGITS.argsort(descending=True).tolist()
    assert top_tokens(LOGITS[None], SamplingBatch.of([Sampling(1)], [1], CPU)) is None


def test_no_option_of_a_row_is_felt_by_another():
    """Every row draws what it draws alone, bit for bit."""
    settings = [
        Sampling(9),
        Sampling(9, min_p=0.3),
        Sampling(9, repetition_penalty=1.4),
        Sampling(9, fire=True),
        Sampling(9, logprobs=3),
        Sampling(9, bad_words=((1,),), do_sample=False),
        Sampling(9, temperature=0.7, top_p=0.9),
    ]
    logits = torch.randn(len(settings), 300, generator=torch.Generator().manual_seed(0))
    penalties = [a_past(sampling, [1, 2]) for sampling in settings]
    seeds = [derive_seed("alone", row) for row in range(len(settings))]
    together = sample(
        logits, SamplingBatch.of(settings, seeds, CPU, penalties, first=True), torch.zeros(7, dtype=torch.int64)
    )
    for row, sampling in enumerate(settings):
        rows = SamplingBatch.of([sampling], [seeds[row]], CPU, [penalties[row]], first=True)
        token, log_prob = sample(logits[row : row + 1], rows, torch.zeros(1, dtype=torch.int64))
        assert token == together[0][row] and log_prob == together[1][row]


def test_nothing_is_computed_that_nobody_asked_for():
    rows = SamplingBatch.of(
        [Sampling(9), Sampling(9, do_sample=False, stop=("x",))], [1, 2], CPU, [None, None], first=True
    )
    assert rows.penalties == [] and rows.sample_temperature is None and rows.min_p is None and rows.num_top is None
    assert not rows.any_restricted
