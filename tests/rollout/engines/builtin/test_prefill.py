"""Chunked prefill and shared prefixes: other passes, the same tokens."""

from __future__ import annotations

import pytest

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin import model_runner
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE
from burnish.rollout.engines.builtin.sequence import PromptState, split_chunks

EIGHT = Sampling(8, ignore_eos=True)
ROOMY = {"max_model_len": 1200}


@pytest.fixture
def long_prompts(prompt):
    """Prompts of one to four blocks; the last two share a prefix with the fourth."""
    prompts = [prompt(length, salt) for salt, length in enumerate((30, 255, 256, 700, 900, 513))]
    return [*prompts, prompts[3][:512] + prompt(40), prompts[3][:400] + prompt(200)]


@pytest.fixture
def whole(tiny_folder, make_engine, long_prompts, ask):
    """Completions of an engine that prefills every prompt alone in one pass."""
    return ask(make_engine(tiny_folder, max_num_seqs=1, **ROOMY), long_prompts, EIGHT)


@pytest.mark.parametrize("budget", [1, 256, 300, 512, 2000])
def test_chunks_change_nothing(tiny_folder, make_engine, long_prompts, ask, whole, budget):
    engine = make_engine(tiny_folder, max_num_batched_tokens=budget, **ROOMY)
    assert ask(engine, long_prompts, EIGHT) == whole
    assert engine.stats()["prefill_tokens"] == sum(map(len, long_prompts))


def test_every_family_in_chunks(family_folder, make_engine, prompt, ask):
    """Windows and soft caps use other attention code."""
    prompts = [prompt(300), prompt(80)]
    pieces = make_engine(family_folder, max_num_batched_tokens=256)
    assert ask(pieces, prompts, EIGHT) == ask(make_engine(family_folder), prompts, EIGHT)


def test_chunks_without_invariance(tiny_folder, make_engine, long_prompts, ask, whole):
    engine = make_engine(tiny_folder, max_num_batched_tokens=256, invariant=False, **ROOMY)
    for ours, theirs in zip(ask(engine, long_prompts, EIGHT), whole, strict=True):
        assert ours.ids == theirs.ids and ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)


def test_decoding_continues_during_chunked_prefill(tiny_folder, make_engine, prompt):
    engine = make_engine(tiny_folder, max_num_batched_tokens=256, own_thread=False, **ROOMY)
    short, long = engine.generate(
        [Request(ModelInput(prompt(20)), Sampling(3, ignore_eos=True), 1), Request(ModelInput(prompt(900)), EIGHT, 2)]
    )
    engine.step()
    assert not long.done() and engine.stats()["prefill_tokens"] == 20
    engine.step()
    assert short.done() and engine.stats()["prefill_tokens"] == 256
    assert len(long.result().ids) == 8


def test_chunked_prefill_survives_new_weights(tiny_folder, make_engine, their_model, prompt):
    engine = make_engine(tiny_folder, max_num_batched_tokens=256, own_thread=False, prefix_caching=True, **ROOMY)
    weights = {name: tensor.flip(0) for name, tensor in their_model(tiny_folder).named_parameters()}
    (future,) = engine.generate([Request(ModelInput(prompt(900)), EIGHT, 2)])
    engine.step()
    engine.load_weights(weights.items(), version=2)
    fresh = make_engine(tiny_folder, **ROOMY)
    fresh.load_weights(weights.items(), version=2)
    assert future.result() == fresh.generate([Request(ModelInput(prompt(900)), EIGHT, 2)])[0].result(60)


def test_without_chunks_a_prompt_must_fit(tiny_folder, make_engine, prompt, ask):
    engine = make_engine(tiny_folder, max_num_batched_tokens=300, chunked_prefill=False, **ROOMY)
    assert ask(engine, [prompt(300), prompt(20)], EIGHT) == ask(
        make_engine(tiny_folder), [prompt(300), prompt(20)], EIGHT
    )
    with pytest.raises(UserError, match="301 tokens does not fit into one engine step"):
        engine.generate([Request(ModelInput(prompt(301)), EIGHT, 0)])


@pytest.mark.parametrize("budget", [256, 8192])
def test_common_prefixes_are_shared(tiny_folder, make_engine, long_prompts, ask, whole, budget):
    engine = make_engine(tiny_folder, prefix_caching=True, max_num_batched_tokens=budget, **ROOMY)
    assert ask(engine, long_prompts, EIGHT) == whole
    stats = engine.stats()
    assert stats["prefix_hit_tokens"] == 512 + 256
    assert stats["prefill_tokens"] == sum(map(len, long_prompts)) - 768
    assert ask(engine, long_prompts, EIGHT) == whole  # now from blocks that have outlived their rows
    known = sum((len(ids) - 1) // BLOCK_SIZE * BLOCK_SIZE for ids in long_prompts)
    assert engine.stats()["prefix_hit_tokens"] == known


def test_new_weights_clear_the_prefix_cache(tiny_folder, make_engine, their_model, prompt, ask):
    engine = make_engine(tiny_folder, prefix_caching=True)
    ask(engine, [prompt(300)], EIGHT)
    engine.load_weights(their_model(tiny_folder).named_parameters(), version=2)
    assert engine.scheduler.blocks.pool.num_free == engine.scheduler.blocks.pool.num_blocks
    ask(engine, [prompt(300)], EIGHT)
    assert engine.stats()["prefix_hit_tokens"] == 0
    engine.sleep()
    engine.wake()
    ask(engine, [prompt(300)], EIGHT)
    assert engine.stats()["prefix_hit_tokens"] == 0


def test_cached_prefixes_are_evicted(tiny_folder, make_engine, prompt, ask):
    """The smallest cache: cached prefixes never block running sequences."""
    prompts = [prompt(280, salt) for salt in range(6)]
    engine = make_engine(tiny_folder, prefix_caching=True, memory_share=0.0)
    assert ask(engine, prompts * 2, EIGHT) == ask(make_engine(tiny_folder), prompts * 2, EIGHT)
    assert engine.scheduler.blocks.pool.num_blocks == 3


def test_split_chunks():
    pieces = [(PromptState(ModelInput(()), []), count) for count in (3, 4, 2, 12, 1, 1)]
    counts = [[count for _, count in batch] for batch in split_chunks(pieces, 8)]
    assert counts == [[3, 4], [2], [12], [1, 1]]
    assert list(split_chunks(pieces, None)) == [pieces] and list(split_chunks([], 8)) == []


def test_a_cpu_limits_the_tokens_of_a_pass(tiny_folder, make_engine, prompt, ask, monkeypatch):
    prompts, setting = [prompt(10, salt) for salt in range(6)], Sampling(3, do_sample=False, ignore_eos=True)
    whole = ask(make_engine(tiny_folder), prompts, setting)
    passes = []
    forward = model_runner.ModelRunner.forward

    def note(self, inputs, segments, cached):
        passes.append(sum(segment.length for segment in segments))
        return forward(self, inputs, segments, cached)

    monkeypatch.setattr(model_runner.ModelRunner, "forward", note)
    monkeypatch.setattr(model_runner, "CPU_TOKENS", 25)
    engine = make_engine(tiny_folder)
    assert ask(engine, prompts, setting) == whole
    assert passes == [20, 20, 20] and engine.stats()["prefill_tokens"] == 60
