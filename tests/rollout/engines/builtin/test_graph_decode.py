"""The device loop gives the same tokens as decoding token by token; here the device is the CPU."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
import torch

from burnish.models.kernels import sample
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin import graph_decode
from burnish.seeding import derive_seed

PATIENCE = 60.0
TEN = Sampling(10, ignore_eos=True)
LOOP = {"device_loop": True, "eager": False}


def assert_same(ours, theirs):
    """Tokens, finish reasons and versions are equal; log-probs up to rounding."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert replace(one, log_probs=[], top_log_probs=None) == replace(other, log_probs=[], top_log_probs=None)
        assert torch.allclose(torch.tensor(one.log_probs), torch.tensor(other.log_probs), atol=2e-5)
        assert (one.top_log_probs is None) == (other.top_log_probs is None)
        for ours_top, their_top in zip(one.top_log_probs or [], other.top_log_probs or [], strict=True):
            assert [token for token, _ in ours_top] == [token for token, _ in their_top]
            assert [value for _, value in ours_top] == pytest.approx([value for _, value in their_top], abs=2e-5)


def all_blocks_are_free(engine):
    """But for the one that inactive slots write to."""
    return engine.scheduler.blocks.pool.num_free == engine.scheduler.blocks.pool.num_blocks - 1 > 0


@pytest.fixture
def make_loop(make_engine):
    """make_loop(folder, sync_interval=..., **options): an engine with the device loop."""

    def make(folder, sync_interval=4, block_size=16, triton=False, **options):
        extra = {"block_size": block_size, "sync_interval": sync_interval, "triton": triton}
        return make_engine(folder, **{**LOOP, "extra": extra, **options})

    return make


SETTINGS = {
    "plain": Sampling(23),
    "hot": Sampling(23, temperature=2.0),
    "greedy": Sampling(23, temperature=0.0),
    "top_k": Sampling(23, top_k=3),
    "top_p": Sampling(23, top_p=0.7),
    "min_p": Sampling(23, min_p=0.2, temperature=1.5),
    "penalties": Sampling(23, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3, ignore_eos=True),
    "min_tokens": Sampling(23, min_tokens=9, stop_token_ids=(7,)),
    "bad_words": Sampling(23, bad_words=((9,), (5, 6), (4, 8, 11)), ignore_eos=True),
    "stop_token": Sampling(23, stop_token_ids=(5, 6)),
    "logprobs": Sampling(23, logprobs=4),
    "fire": Sampling(23, fire=True),
    "everything": Sampling(
        23, temperature=1.3, top_k=12, top_p=0.9, min_p=0.01, repetition_penalty=1.1, min_tokens=3, logprobs=2
    ),
}


class TestEquality:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_one_sampling_setting(self, name, tiny_folder, make_engine, make_loop, prompt, ask):
        prompts = [prompt(30)] * 3 + [prompt(5)] * 2 + [prompt(47)]
        theirs = ask(make_engine(tiny_folder), prompts, SETTINGS[name])
        assert_same(ask(make_loop(tiny_folder), prompts, SETTINGS[name]), theirs)
        if not SETTINGS[name].greedy:
            assert len({tuple(completion.ids) for completion in theirs[:3]}) == 3

    @pytest.mark.parametrize(("sync_interval", "at_once"), [(1, 8), (3, 8), (64, 8), (3, 2), (3, 3)])
    def test_all_sampling_settings_in_one_batch(
        self, sync_interval, at_once, tiny_folder, make_engine, make_loop, prompt, monkeypatch
    ):
        """Also where the logits buffer holds only a part of the batch."""
        monkeypatch.setattr(graph_decode, "max_chunk_rows", lambda *_: at_once)
        lengths = itertools.cycle((30, 17, 5))
        requests = [
            Request(ModelInput(prompt(length)), replace(sampling, max_tokens=11 + number), derive_seed(3, number))
            for number, (sampling, length) in enumerate(zip(SETTINGS.values(), lengths, strict=False))
        ]
        theirs = [future.result(PATIENCE) for future in make_engine(tiny_folder).generate(requests)]
        engine = make_loop(tiny_folder, sync_interval=sync_interval, max_num_seqs=8)
        assert_same([future.result(PATIENCE) for future in engine.generate(requests)], theirs)
        assert all_blocks_are_free(engine) and len(engine.decoder.memory.logits) == at_once

    def test_families(self, family_folder, make_engine, make_loop, prompt, ask):
        """Windows, soft caps, q/k norms. Greedy tokens of the other decoder are tested against transformers."""
        prompts = [prompt(21), prompt(40), prompt(21)]
        for sampling in (Sampling(20, ignore_eos=True), Sampling(20, temperature=0)):
            assert_same(
                ask(make_loop(family_folder), prompts, sampling), ask(make_engine(family_folder), prompts, sampling)
            )

    def test_a_cache_of_8_bits(self, family_folder, make_engine, prompt, ask):
        """Log-probs move a little, and the cache has a quarter of the bytes."""
        engines = []
        for name in ("auto", "fp8"):
            extra = {"block_size": 16, "sync_interval": 4, "kv_cache_dtype": name}
            engines.append(make_engine(family_folder, **{**LOOP, "extra": extra}))
        prompts, sampling = [prompt(21), prompt(33)], Sampling(9, ignore_eos=True, logprobs=53)
        exact, rounded = (
            torch.tensor(
                [[value for _, value in sorted(one.top_log_probs[0])] for one in ask(engine, prompts, sampling)]
            )
            for engine in engines
        )
        assert exact.shape == (2, 53)  # the whole vocabulary
        assert 1e-3 < float((exact - rounded).abs().max()) < 0.5
        sizes = [engine.decoder.runner.shape.block_bytes for engine in engines]
        assert sizes[0] == 4 * sizes[1]

    def test_in_triton(self, tiny_folder, make_engine, make_loop, prompt, ask, monkeypatch):
        """The same step with the Triton kernels, in Triton's interpreter."""
        monkeypatch.setattr(sample, "CHUNK", 16)
        monkeypatch.setattr(graph_decode, "max_chunk_rows", lambda *_: 2)  # logits in two parts
        prompts, sampling = [prompt(18), prompt(18), prompt(5)], Sampling(5, ignore_eos=True)
        engine = make_loop(tiny_folder, triton=True, max_num_seqs=3, max_model_len=64)
        assert_same(ask(engine, prompts, sampling), ask(make_engine(tiny_folder), prompts, sampling))

    @pytest.mark.parametrize("place", range(1, 10))
    def test_an_end_at_any_token_of_a_window(self, place, tiny_folder, make_engine, make_loop, prompt):
        (whole,) = (
            f.result(PATIENCE) for f in make_engine(tiny_folder).generate([Request(ModelInput(prompt(12)), TEN, 5)])
        )
        ending = Sampling(10, ignore_eos=True, stop_token_ids=(whole.ids[place],))
        first = whole.ids.index(whole.ids[place])
        (found,) = (
            f.result(PATIENCE) for f in make_loop(tiny_folder).generate([Request(ModelInput(prompt(12)), ending, 5)])
        )
        assert found.ids == whole.ids[: first + 1] and found.stop_reason == whole.ids[place]

    @pytest.mark.parametrize("stop", [("b",), ("c", "af"), ("dd", "he")])
    def test_stop_strings_cut_a_window(self, stop, tiny_folder, make_engine, make_loop, prompt, ask):
        def decode(ids):
            return "".join("abcdefgh"[token % 8] for token in ids)

        prompts, sampling = [prompt(9)] * 6, Sampling(40, stop=stop, ignore_eos=True, logprobs=1)
        theirs = ask(make_engine(tiny_folder, decode=decode), prompts, sampling)
        engine = make_loop(tiny_folder, sync_interval=16, decode=decode)
        assert_same(ask(engine, prompts, sampling), theirs)
        assert engine.stats()["tokens"] == sum(len(completion.ids) for completion in theirs)
        stopped = [completion for completion in theirs if completion.stop_reason in stop]
        assert len(stopped) > 1 and any(len(completion.ids) % 16 > 1 for completion in stopped)


class TestScheduling:
    def test_few_slots_and_a_small_token_budget(self, tiny_folder, make_engine, make_loop, prompt, ask):
        prompts = [prompt(length, salt) for salt in range(3) for length in (30, 9, 44)] * 2
        theirs = ask(make_engine(tiny_folder), prompts, Sampling(13))
        assert_same(
            ask(make_loop(tiny_folder, max_num_seqs=4, max_num_batched_tokens=50), prompts, Sampling(13)), theirs
        )

    def test_chunked_prefill(self, tiny_folder, make_engine, make_loop, prompt, ask):
        prompts = [prompt(100), prompt(70), prompt(100)]
        engine = make_loop(tiny_folder, max_num_batched_tokens=32)
        assert_same(ask(engine, prompts, TEN), ask(make_engine(tiny_folder), prompts, TEN))
        assert engine.stats()["prefill_tokens"] == 170

    def test_prefix_caching(self, tiny_folder, make_engine, make_loop, prompt, ask):
        common = prompt(40)
        prompts = [common + prompt(9, salt) for salt in range(4)]
        engine = make_loop(tiny_folder, prefix_caching=True)
        assert_same(ask(engine, prompts, TEN), ask(make_engine(tiny_folder), prompts, TEN))
        assert engine.stats()["prefix_hit_tokens"] == 3 * 32

    def test_preemption(self, tiny_folder, make_engine, make_loop, prompt, ask):
        """Blocks for one sequence of maximum length and a little more."""
        prompts = [prompt(length) for length in (50, 50, 52, 40, 54, 20, 50, 48)]
        sampling = Sampling(40, ignore_eos=True)
        poor = make_loop(tiny_folder, memory_share=0.0, max_model_len=100)
        assert_same(ask(poor, prompts, sampling), ask(make_engine(tiny_folder, max_model_len=100), prompts, sampling))
        assert poor.stats()["preemptions"] > 0 and all_blocks_are_free(poor)

    def test_preemption_with_penalties(self, tiny_folder, make_engine, make_loop, prompt, ask):
        prompts = [prompt(length) for length in (50, 50, 52, 40)]
        sampling = Sampling(40, repetition_penalty=1.3, top_k=20, ignore_eos=True)
        poor = make_loop(tiny_folder, memory_share=0.0, max_model_len=100)
        assert_same(ask(poor, prompts, sampling), ask(make_engine(tiny_folder, max_model_len=100), prompts, sampling))
        assert poor.stats()["preemptions"] > 0

    def test_requests_that_come_later(self, tiny_folder, make_engine, make_loop, prompt):
        """Some need wider tables, which move to other addresses: more stop tokens, longer bad words, top tokens."""
        long = Sampling(60, ignore_eos=True)
        late = Sampling(
            9, ignore_eos=True, stop_token_ids=tuple(range(30, 45)), bad_words=((3, 4, 5, 6, 7),), logprobs=3
        )
        requests = [
            Request(ModelInput(prompt(9)), long, 1),
            Request(ModelInput(prompt(12)), late, 2),
            Request(ModelInput(prompt(9)), TEN, 3),
        ]
        theirs = [future.result(PATIENCE) for future in make_engine(tiny_folder).generate(requests)]
        engine = make_loop(tiny_folder, own_thread=False)
        futures = engine.generate(requests[:1])
        for request in requests[1:]:
            engine.step()
            futures += engine.generate([request])
        assert_same([future.result(PATIENCE) for future in futures], theirs)


class TestDelayedReadback:
    """The host processes a window while the device generates the next one."""

    SHORT, LONG = Sampling(5, ignore_eos=True), Sampling(40, ignore_eos=True)

    @pytest.fixture
    def engine(self, tiny_folder, make_loop):
        """Stepped by the test, 4 tokens per step; the first token is sampled after prefill."""
        return make_loop(tiny_folder, own_thread=False)

    def start(self, engine, prompt, *asked, turns=1):
        futures = engine.generate(
            [Request(ModelInput(prompt(9)), sampling, seed) for seed, sampling in enumerate(asked)]
        )
        for _ in range(turns):
            engine.step()
        return futures

    def test_tokens_are_read_between_launch_and_sync(self, engine, prompt, monkeypatch):
        calls = []
        for owner, name in ((engine.decoder, "launch"), (engine.decoder, "sync"), (engine.decoder, "_append")):
            work = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *a, name=name, work=work: calls.append(name) or work(*a))
        (future,) = self.start(engine, prompt, Sampling(13, ignore_eos=True))
        assert len(future.result(PATIENCE).ids) == 13
        assert calls == ["launch", "sync", *["launch", "_append", "sync"] * 2, "_append"]

    def test_stop_strings_and_penalties_are_read_at_once(self, tiny_folder, make_loop, prompt, monkeypatch):
        for sampling in (
            Sampling(40, stop=("zz",), ignore_eos=True),
            Sampling(40, repetition_penalty=1.2, ignore_eos=True),
        ):
            engine = make_loop(tiny_folder, own_thread=False, decode=lambda ids: "a" * len(ids))
            self.start(engine, prompt, sampling)
            assert engine.decoder._unread is None and len(engine.running[0].tokens) == 5

    @pytest.mark.parametrize("work", ["pause", "abort", "load"])
    def test_unread_tokens_are_flushed_first(self, work, engine, prompt):
        short, long = self.start(engine, prompt, self.SHORT, self.LONG)
        assert not short.done() and [len(row.tokens) for row in engine.running] == [1]
        if work == "pause":
            engine.pause()
        elif work == "abort":
            engine.abort([long])
            assert len(long.result(0).ids) == 5
        else:
            engine.load_weights(list(engine.runner.model.named_parameters()), version=9)
            assert set(long.result(PATIENCE).versions[:5]) == {1} and set(long.result(0).versions[5:]) == {9}
        assert len(short.result(0).ids) == 5 and short.result(0).versions == [1] * 5

    def test_an_error_reaches_ended_but_unread_sequences(self, engine, prompt, monkeypatch):
        futures = self.start(engine, prompt, self.SHORT, self.LONG)
        monkeypatch.setattr(engine.decoder, "launch", lambda *given: 1 / 0)
        engine.step()
        assert [type(future.exception(0)) for future in futures] == [ZeroDivisionError] * 2


class TestInFlight:
    LONG = Sampling(900, ignore_eos=True)

    @pytest.fixture
    def engine(self, tiny_folder, make_loop):
        return make_loop(tiny_folder, max_model_len=1000, max_num_seqs=2)

    def test_abort_returns_the_partial(self, engine, prompt, wait_for_tokens):
        running, _, waiting = futures = engine.generate(
            [Request(ModelInput(prompt(9)), self.LONG, seed) for seed in (1, 2, 3)]
        )
        wait_for_tokens(engine, 20)
        engine.abort([running, waiting])
        partial = running.result(0)
        assert partial.finish_reason == waiting.result(0).finish_reason == "abort"
        assert 0 < len(partial.ids) == len(partial.log_probs) == len(partial.versions) < 900
        engine.abort(futures)
        assert all_blocks_are_free(engine)
        again = Request(ModelInput(prompt(9)), replace(self.LONG, max_tokens=len(partial.ids)), 1)
        assert engine.generate([again])[0].result(PATIENCE).ids == partial.ids

    def test_a_paused_engine_is_idle(self, engine, prompt, wait_for_tokens):
        request = Request(ModelInput(prompt(9)), Sampling(150, ignore_eos=True), 1)
        (future,) = engine.generate([request])
        wait_for_tokens(engine, 3)
        engine.pause()
        engine.stats()
        time.sleep(0.05)
        assert not future.done() and engine.stats().get("tokens", 0) == 0
        engine.resume()
        assert future.result(PATIENCE) == engine.generate([request])[0].result(PATIENCE)

    def test_versions_per_token(self, engine, their_model, tiny_folder, prompt, wait_for_tokens):
        weights = {name: tensor.flip(0) for name, tensor in their_model(tiny_folder).named_parameters()}
        old, _ = futures = engine.generate([Request(ModelInput(prompt(9)), self.LONG, seed) for seed in (1, 2)])
        wait_for_tokens(engine, 20)
        engine.load_weights(weights.items(), version=7)
        wait_for_tokens(engine, 20)
        engine.abort(futures)
        versions = old.result(0).versions
        assert versions == sorted(versions) and set(versions) == {1, 7}
        switch = versions.index(7)
        request = Request(ModelInput(prompt(9)), replace(self.LONG, max_tokens=switch), 1)
        engine.load_weights(their_model(tiny_folder).named_parameters(), version=8)
        assert engine.generate([request])[0].result(PATIENCE).ids == old.result(0).ids[:switch]


class TestSleep:
    def test_memory_is_restored_at_the_same_addresses(self, tiny_folder, make_loop, prompt, ask):
        engine = make_loop(tiny_folder)
        before = ask(engine, [prompt(30)] * 3, TEN)
        bodies, address_of_keys = dict(engine.decoder.graphs.steps), engine.scheduler.blocks.cache.keys[0].data_ptr()
        engine.sleep()
        assert engine.scheduler.blocks.cache is None
        engine.wake()
        assert ask(engine, [prompt(30)] * 3, TEN) == before
        assert engine.scheduler.blocks.cache.keys[0].data_ptr() == address_of_keys
        assert engine.decoder.graphs.steps == bodies and len(bodies) > 0

    def test_new_weights_keep_the_graphs(self, tiny_folder, make_loop, their_model, prompt, ask):
        engine = make_loop(tiny_folder)
        before = ask(engine, [prompt(30)], TEN)
        bodies = dict(engine.decoder.graphs.steps)
        weights = {name: tensor.flip(0) for name, tensor in their_model(tiny_folder).named_parameters()}
        engine.load_weights(weights.items(), version=2)
        assert ask(engine, [prompt(30)], TEN)[0].ids != before[0].ids
        assert engine.decoder.graphs.steps == bodies

    def test_deep_sleep_drops_the_graphs(self, tiny_folder, make_loop, prompt, ask):
        engine = make_loop(tiny_folder)
        before = ask(engine, [prompt(30)], TEN)
        weights = [(name, tensor.clone()) for name, tensor in engine.runner.model.named_parameters()]
        engine.sleep(level=2)
        assert engine.decoder.graphs.steps == {}
        engine.load_weights(weights, version=1)
        engine.wake()
        assert ask(engine, [prompt(30)], TEN) == before

    def test_weights_after_a_deep_sleep_are_all_new(self, tiny_folder, make_loop, prompt, ask):
        """Also in fused products."""
        woken, fresh = make_loop(tiny_folder), make_loop(tiny_folder)
        weights = {name: tensor.flip(0).clone() for name, tensor in woken.runner.model.named_parameters()}
        woken.sleep(level=2)
        woken.load_weights([(name, torch.zeros_like(tensor)) for name, tensor in weights.items()], version=1)
        woken.wake()
        for engine in (woken, fresh):
            engine.load_weights(weights.items(), version=2)
        assert ask(woken, [prompt(30)], TEN)[0].ids == ask(fresh, [prompt(30)], TEN)[0].ids
        assert len(woken.runner.fused) == len(fresh.runner.fused) == 4

    def test_an_exception_in_a_step_reaches_the_futures(self, tiny_folder, make_loop, prompt, ask):
        engine = make_loop(tiny_folder)
        futures = engine.generate(
            [Request(ModelInput(prompt(5)), TEN, 0), Request(ModelInput((3, 999_999)), TEN, 0)]
        )  # no such token
        for future in futures:
            assert isinstance(future.exception(PATIENCE), IndexError)
        assert len(ask(engine, [prompt(5)], TEN)[0].ids) == 10  # the engine goes on
        assert all_blocks_are_free(engine)

    def test_scores_equal_the_other_decoder(self, tiny_folder, make_engine, make_loop, prompt):
        texts = [prompt(20), prompt(3)]
        ours, theirs = make_loop(tiny_folder).score(texts, 0.7), make_engine(tiny_folder).score(texts, 0.7)
        for one, other in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
