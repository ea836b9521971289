"""Scheduling: shared prompts, limits, preemption, and what interrupts a run."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE

PATIENCE = 60.0
TEN = Sampling(10, ignore_eos=True)


def all_blocks_are_free(engine):
    return engine.scheduler.blocks.pool.num_free == engine.scheduler.blocks.pool.num_blocks > 0


class TestSharing:
    def test_samples_of_a_prompt_prefill_once(self, tiny_folder, make_engine, prompt, ask):
        engine = make_engine(tiny_folder)
        ask(engine, [prompt(30)] * 8 + [prompt(50)] * 4, TEN)
        stats = engine.stats()
        assert stats["prefill_tokens"] == 80
        assert stats["tokens"] == 120 and stats["finished"] == 12 and stats["decode_steps"] == 9
        assert all_blocks_are_free(engine)

    def test_a_waiting_sample_keeps_its_prompt(self, tiny_folder, make_engine, prompt, ask):
        engine = make_engine(tiny_folder, max_num_seqs=3)
        ask(engine, [prompt(30)] * 8, TEN)
        assert engine.stats()["prefill_tokens"] == 30

    @pytest.mark.parametrize("length", [300, BLOCK_SIZE, BLOCK_SIZE - 3])
    def test_shared_blocks_give_the_same_tokens(self, tiny_folder, make_engine, prompt, ask, length):
        sampling = Sampling(16, ignore_eos=True)
        together = ask(make_engine(tiny_folder), [prompt(length)] * 6, sampling)
        assert together == ask(make_engine(tiny_folder, max_num_seqs=1), [prompt(length)] * 6, sampling)
        assert len({tuple(completion.ids) for completion in together}) == 6

    def test_full_blocks_are_held_once(self, tiny_folder, make_engine, prompt, wait_for_tokens):
        engine = make_engine(tiny_folder, max_model_len=1000)
        futures = engine.generate(
            [Request(ModelInput(prompt(300)), Sampling(600, ignore_eos=True), seed) for seed in range(4)]
        )
        wait_for_tokens(engine, 8)
        engine.pause()
        used = engine.scheduler.blocks.pool.num_blocks - engine.scheduler.blocks.pool.num_free
        assert used == 1 + 4  # the common full block, and a partial one for each
        engine.abort(futures)
        assert all_blocks_are_free(engine)


class TestFewBlocks:
    """memory_share=0 gives the smallest cache: the blocks of one sequence of max_model_len, and one more."""

    @pytest.fixture
    def crowd(self, prompt):
        """Sequences that need a second block at different times, some with a common prompt."""
        return [prompt(length) for length in (250, 250, 252, 240, 254, 20, 250, 256, 257, 20)]

    def test_preemption_gives_the_same_tokens(self, tiny_folder, make_engine, crowd, ask):
        sampling = Sampling(20, ignore_eos=True)
        poor = make_engine(tiny_folder, memory_share=0.0)
        poorly = ask(poor, crowd, sampling)
        assert poor.scheduler.blocks.pool.num_blocks == 3
        assert poor.stats()["preemptions"] > 0
        assert all_blocks_are_free(poor)
        rich = make_engine(tiny_folder)
        assert ask(rich, crowd, sampling) == poorly
        assert "preemptions" not in rich.stats()

    def test_prompts_never_take_the_last_block_from_the_first_sequence(self, tiny_folder, make_engine, prompt, ask):
        """More different prompts than blocks, each needed again later: one sequence can always start."""
        engine = make_engine(tiny_folder, memory_share=0.0, max_model_len=200, max_num_seqs=16)
        prompts = [prompt(20, salt) for salt in range(8)] * 3
        completions = ask(engine, prompts, TEN)
        assert engine.scheduler.blocks.pool.num_blocks == 2
        assert completions == ask(make_engine(tiny_folder), prompts, TEN)
        assert all_blocks_are_free(engine)

    def test_one_sequence_of_maximum_length(self, tiny_folder, make_engine, prompt, ask):
        engine = make_engine(tiny_folder, memory_share=0.0, max_model_len=2 * BLOCK_SIZE)
        (completion,) = ask(engine, [prompt(300)], Sampling(212, ignore_eos=True))
        assert len(completion.ids) == 212 and "preemptions" not in engine.stats()


class TestLimits:
    def test_max_num_seqs(self, tiny_folder, make_engine, prompt, ask):
        prompts = [prompt(20, salt) for salt in range(4)]
        for places, steps in ((1, 36), (2, 18), (4, 9)):
            engine = make_engine(tiny_folder, max_num_seqs=places)
            ask(engine, prompts, TEN)
            assert engine.stats()["decode_steps"] == steps

    def test_max_num_batched_tokens(self, tiny_folder, make_engine, prompt, ask):
        """A prompt per pass: the last of four starts three steps after the first."""
        prompts = [prompt(50, salt) for salt in range(4)]
        results = []
        for budget, steps in ((60, 12), (100, 10), (200, 9), (10, 12)):
            engine = make_engine(tiny_folder, max_num_batched_tokens=budget)
            results.append(ask(engine, prompts, TEN))
            assert engine.stats()["decode_steps"] == steps, budget
        assert all(result == results[0] for result in results)

    def test_priority_goes_first(self, tiny_folder, make_engine, prompt):
        engine = make_engine(tiny_folder, max_num_seqs=1)
        engine.pause()
        order, futures = [], []
        for name, priority in (("late", 5), ("first come", 0), ("second come", 0), ("urgent", -1)):
            futures += engine.generate([Request(ModelInput(prompt(9)), TEN, seed=0, priority=priority)])
            futures[-1].add_done_callback(lambda _, name=name: order.append(name))
        engine.resume()
        for future in futures:
            future.result(PATIENCE)
        assert order == ["urgent", "first come", "second come", "late"]

    def test_too_long_is_refused_before_anything_starts(self, tiny_folder, make_engine, prompt):
        engine = make_engine(tiny_folder, max_model_len=50)
        with pytest.raises(UserError, match="41 tokens and 10 new ones do not fit"):
            engine.generate([Request(ModelInput(prompt(20)), TEN, 0), Request(ModelInput(prompt(41)), TEN, 0)])
        assert not engine.waiting


class TestInFlight:
    LONG = Sampling(900, ignore_eos=True)

    @pytest.fixture
    def engine(self, tiny_folder, make_engine):
        return make_engine(tiny_folder, max_model_len=1000, max_num_seqs=2)

    def test_abort_returns_the_partial(self, engine, prompt, wait_for_tokens):
        running, _, waiting = futures = engine.generate(
            [Request(ModelInput(prompt(9)), self.LONG, seed) for seed in (1, 2, 3)]
        )
        wait_for_tokens(engine, 20)
        engine.abort([running, waiting])
        assert not futures[1].done()
        partial = running.result(0)
        assert partial.finish_reason == waiting.result(0).finish_reason == "abort"
        assert waiting.result(0).ids == []
        assert 0 < len(partial.ids) < 900
        assert len(partial.ids) == len(partial.log_probs) == len(partial.versions)
        engine.abort(futures)  # those that have ended are left alone
        assert running.result(0) is partial and all_blocks_are_free(engine)
        again = Request(ModelInput(prompt(9)), replace(self.LONG, max_tokens=len(partial.ids)), 1)
        assert engine.generate([again])[0].result(PATIENCE).ids == partial.ids

    def test_a_paused_engine_is_idle(self, engine, prompt):
        engine.pause()
        (future,) = engine.generate([Request(ModelInput(prompt(9)), TEN, 1)])
        time.sleep(0.05)
        assert not future.done() and engine.stats().get("tokens", 0) == 0
        engine.resume()
        assert len(future.result(PATIENCE).ids) == 10

    def test_pause_in_the_middle_changes_nothing(self, engine, prompt, wait_for_tokens):
        request = Request(ModelInput(prompt(9)), Sampling(150, ignore_eos=True), 1)
        (future,) = engine.generate([request])
        wait_for_tokens(engine, 3)
        engine.pause()
        engine.resume()
        assert future.result(PATIENCE) == engine.generate([request])[0].result(PATIENCE)

    def test_versions_per_token(self, engine, their_model, tiny_folder, prompt, wait_for_tokens):
        weights = {name: tensor.flip(0) for name, tensor in their_model(tiny_folder).named_parameters()}
        old, _ = futures = engine.generate([Request(ModelInput(prompt(9)), self.LONG, seed) for seed in (1, 2)])
        wait_for_tokens(engine, 20)
        engine.pause()
        engine.load_weights(weights.items(), version=7)
        engine.resume()
        wait_for_tokens(engine, 20)
        engine.abort(futures)
        versions = old.result(0).versions
        assert versions == sorted(versions) and set(versions) == {1, 7}
        switch = versions.index(7)
        request = Request(ModelInput(prompt(9)), replace(self.LONG, max_tokens=switch), 1)
        engine.load_weights(their_model(tiny_folder).named_parameters(), version=8)
        assert engine.generate([request])[0].result(PATIENCE).ids == old.result(0).ids[:switch]

    def test_a_future_cannot_be_canceled(self, engine, prompt, ask):
        """asyncio cancels futures on a timeout; the engine's thread must survive it."""
        engine.pause()
        (future,) = engine.generate([Request(ModelInput(prompt(9)), TEN, 1)])
        assert not future.cancel()
        engine.resume()
        assert len(future.result(PATIENCE).ids) == 10


class TestWeightsAndSleep:
    def test_missing_tensor(self, tiny_folder, make_engine, their_model):
        weights = dict(their_model(tiny_folder).named_parameters())
        del weights["model.norm.weight"]
        engine = make_engine(tiny_folder)
        with pytest.raises(ValueError, match="left out"):
            engine.load_weights(weights.items(), version=2)
        assert engine.version == 1

    def test_new_weights_drop_the_prompts(self, tiny_folder, make_engine, their_model, prompt, wait_for_tokens):
        engine = make_engine(tiny_folder, max_model_len=1000, max_num_seqs=1)
        long, later = engine.generate(
            [Request(ModelInput(prompt(9)), Sampling(900, ignore_eos=True), 1), Request(ModelInput(prompt(9)), TEN, 2)]
        )
        wait_for_tokens(engine, 5)
        weights = {name: tensor.flip(0) for name, tensor in their_model(tiny_folder).named_parameters()}
        engine.load_weights(weights.items(), version=2)
        engine.abort([long])
        fresh = make_engine(tiny_folder)
        fresh.load_weights(weights.items(), version=2)
        assert later.result(PATIENCE) == fresh.generate([Request(ModelInput(prompt(9)), TEN, 2)])[0].result(PATIENCE)

    def test_sleep_frees_the_cache(self, tiny_folder, make_engine, prompt, ask):
        engine = make_engine(tiny_folder)
        before = ask(engine, [prompt(30)] * 3, TEN)
        assert engine.scheduler.blocks.cache is not None
        engine.sleep()
        assert engine.scheduler.blocks.cache is None and engine.stats()["sleeps"] == 1
        (future,) = engine.generate([Request(ModelInput(prompt(30)), TEN, 0)])
        time.sleep(0.05)
        assert not future.done()
        engine.wake()
        future.result(PATIENCE)
        assert ask(engine, [prompt(30)] * 3, TEN) == before

    def test_deep_sleep_frees_the_weights_until_new_ones_come(self, tiny_folder, make_engine, prompt, ask):
        engine = make_engine(tiny_folder)
        before = ask(engine, [prompt(30)], TEN)
        weights = [(name, tensor.clone()) for name, tensor in engine.runner.model.named_parameters()]
        engine.sleep(level=2)
        assert sum(parameter.numel() for parameter in engine.runner.model.parameters()) == 0
        engine.load_weights(weights, version=1)
        engine.wake()
        assert ask(engine, [prompt(30)], TEN) == before

    def test_no_sleep_with_requests_in_flight(self, tiny_folder, make_engine, prompt):
        engine = make_engine(tiny_folder)
        engine.pause()
        (future,) = engine.generate([Request(ModelInput(prompt(30)), TEN, 0)])
        with pytest.raises(RuntimeError, match="requests are in flight"):
            engine.sleep()
        engine.resume()
        assert len(future.result(PATIENCE).ids) == 10


class TestCallerThread:
    def test_steps_give_the_same_tokens_as_a_thread(self, tiny_folder, make_engine, prompt, ask):
        threaded, driven = make_engine(tiny_folder), make_engine(tiny_folder, own_thread=False)
        prompts = [prompt(30), prompt(7)]
        assert ask(driven, prompts, TEN) == ask(threaded, prompts, TEN)
        futures = driven.generate([Request(ModelInput(ids), TEN, 0) for ids in prompts])
        assert threaded.step() is False
        turns = 0
        while driven.step():
            turns += 1
        assert turns == 9 and all(future.done() for future in futures)  # the first turn makes two tokens

    def test_waiting_for_a_result_drives_it(self, tiny_folder, make_engine, prompt):
        engine = make_engine(tiny_folder, own_thread=False)
        (future,) = engine.generate([Request(ModelInput(prompt(9)), TEN, 0)])
        assert not future.done() and len(future.result(PATIENCE).ids) == 10
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            engine.stats()


class TestTrouble:
    def test_an_exception_in_a_step_reaches_the_futures(self, tiny_folder, make_engine, prompt, ask):
        engine = make_engine(tiny_folder)
        futures = engine.generate(
            [Request(ModelInput(prompt(5)), TEN, 0), Request(ModelInput((3, 999_999)), TEN, 0)]
        )  # no such token
        for future in futures:
            assert isinstance(future.exception(PATIENCE), IndexError)
        assert len(ask(engine, [prompt(5)], TEN)[0].ids) == 10  # the engine goes on
        assert all_blocks_are_free(engine)

    def test_an_exception_in_a_call_reaches_the_caller(self, tiny_folder, make_engine):
        with pytest.raises(IndexError):
            make_engine(tiny_folder).score([[3, 999_999]])

    def test_close_fails_what_is_in_flight(self, tiny_folder, make_engine, prompt):
        engine = make_engine(tiny_folder)
        engine.pause()
        (future,) = engine.generate([Request(ModelInput(prompt(5)), TEN, 0)])
        engine.close()
        assert isinstance(future.exception(PATIENCE), RuntimeError)
        for late in (engine.stats, lambda: engine.generate([Request(ModelInput(prompt(5)), TEN, 0)])):
            with pytest.raises(RuntimeError, match="closed"):
                late()
