"""Costs of the device loop in counts: host syncs, graph replays, blocks."""

from __future__ import annotations

import pytest

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling

LOOP = {"device_loop": True, "eager": False}
WINDOW = 16


@pytest.fixture
def count(tiny_folder, make_engine, prompt):
    """count(samples, tokens, **options): statistics of `samples` responses to each of two prompts."""

    def run(samples, tokens, **options):
        engine = make_engine(tiny_folder, **{**LOOP, "extra": {"block_size": 16, "sync_interval": WINDOW}, **options})
        engine.pause()
        requests = [
            Request(ModelInput(prompt(length)), Sampling(tokens, ignore_eos=True), seed)
            for length in (40, 33)
            for seed in range(samples)
        ]
        futures = engine.generate(requests)
        engine.resume()
        made = [len(future.result(60).ids) for future in futures]
        assert made == [tokens] * len(requests)
        return engine.stats()

    return run


def test_one_host_sync_per_window(count):
    """The first tokens, then 96 more in six windows, whatever the batch size."""
    few, many = count(1, 97), count(12, 97)
    assert few["host_syncs"] == many["host_syncs"] == 1 + 6
    assert many["tokens"] == 24 * 97
    assert 100 * many["host_syncs"] / 97 < 8  # per 100 tokens of a row


def test_one_replay_per_token(count):
    stats = count(8, 50)
    assert stats["graph_replays"] == stats["decode_steps"] == 49


def test_no_replays_in_eager_mode(count):
    stats = count(4, 20, eager=True)
    assert stats["graph_replays"] == 0 and stats["decode_steps"] == 19


def test_a_batch_above_all_sizes_runs_without_a_graph(count):
    stats = count(4, 20, capture_sizes=[1, 4])
    assert stats["graph_replays"] == 0 and stats["decode_steps"] == 19


def test_samples_prefill_once(count):
    assert count(8, 5)["prefill_tokens"] == 40 + 33


def test_full_blocks_of_a_prompt_are_held_once(count):
    """40 and 33 tokens: two full blocks and a partial one. Each sequence then fills its partial block and one more."""
    assert count(6, 20)["blocks_in_use"] == 1 + 2 * 2 + 12 * 2


def test_a_window_ends_with_its_longest_sequence(tiny_folder, make_engine, prompt):
    engine = make_engine(tiny_folder, own_thread=False, **LOOP, extra={"sync_interval": WINDOW})
    futures = engine.generate([Request(ModelInput(prompt(9)), Sampling(n, ignore_eos=True), n) for n in (3, 5, 8)])
    while engine.step():
        pass
    assert [len(future.result(0).ids) for future in futures] == [3, 5, 8]
    assert engine.stats()["decode_steps"] == 7


def test_waiting_prompts_shorten_the_window(tiny_folder, make_engine, prompt):
    """Three passes of a prompt each: one token between two of them, and whole windows after the last."""
    engine = make_engine(
        tiny_folder,
        own_thread=False,
        **LOOP,
        max_num_batched_tokens=32,
        extra={"sync_interval": WINDOW, "block_size": 16},
    )
    engine.generate([Request(ModelInput(prompt(30, salt)), Sampling(40, ignore_eos=True), salt) for salt in range(3)])
    steps = []
    while engine.step():
        steps.append(engine.stats()["decode_steps"])
    assert steps[:3] == [1, 1, WINDOW]


def test_a_full_cache_does_not_shorten_the_window(tiny_folder, make_engine, prompt):
    engine = make_engine(
        tiny_folder,
        own_thread=False,
        **LOOP,
        memory_share=0.0,
        max_model_len=80,
        extra={"sync_interval": WINDOW, "block_size": 16},
    )
    engine.generate([Request(ModelInput(prompt(30, salt)), Sampling(40, ignore_eos=True), salt) for salt in range(4)])
    engine.step()
    assert len(engine.waiting) > 0 and engine.stats()["decode_steps"] == WINDOW


def test_busy_slots(tiny_folder, make_engine, prompt):
    """Six responses of four tokens on four slots: a full batch, then two of four slots."""
    engine = make_engine(tiny_folder, own_thread=False, max_num_seqs=4)
    engine.generate([Request(ModelInput(prompt(30, 1)), Sampling(4, ignore_eos=True), seed) for seed in range(6)])
    while engine.step():
        pass
    counts = engine.stats()
    assert (counts["decode_tokens"], counts["decode_slots"]) == (6 * 3, 6 * 4)
    assert (counts["loaded_tokens"], counts["loaded_slots"]) == (4 * 3, 3 * 4)
