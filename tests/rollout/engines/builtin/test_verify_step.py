"""Drafts in the device loop: the same responses with and without them, right or wrong ones, and fewer decode steps.

Here the device is the CPU. Without drafts, the loop is compared with decoding token by token in test_graph_decode.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.models.kernels import sample
from burnish.models.model_input import ModelInput
from burnish.models.parts import all_weights
from burnish.rollout.engine import DraftOptions, Request, Sampling, TokenWatch
from burnish.rollout.engines.builtin import graph_decode
from burnish.rollout.engines.builtin.verify_step import draft_depths
from burnish.seeding import derive_seed

from .drafting import right_drafts, verify_all
from .test_drafts import SETTINGS, decode, make_requests, respond
from .test_graph_decode import all_blocks_are_free, assert_same

SYNC_INTERVAL = 4


@pytest.fixture
def engines(make_engine):
    """engines(folder, script, **options): the device loop without drafts, and one that verifies all drafts."""

    def make(folder, script=None, triton=False, num_tokens=7, **options):
        extra = {"block_size": 16, "sync_interval": SYNC_INTERVAL, "triton": triton, **options.pop("extra", {})}
        loop = {"device_loop": True, "eager": False, "extra": extra, "decode": decode, **options}
        drafts = DraftOptions(num_tokens=num_tokens)
        return make_engine(folder, **loop), verify_all(make_engine(folder, **loop, drafts=drafts), script)

    return make


def free_requests(prompt, count=3, tokens=22, **sampling):
    return [
        Request(ModelInput(prompt(20)), Sampling(tokens, ignore_eos=True, **sampling), seed) for seed in range(count)
    ]


class TestSameResponses:
    @pytest.mark.parametrize("num_tokens", [2, 7])
    def test_every_setting(self, num_tokens, tiny_folder, engines, prompt, monkeypatch):
        """Also where the logits buffer holds a part of the rows."""
        if num_tokens == 2:
            monkeypatch.setattr(graph_decode, "max_chunk_rows", lambda *_: 5)
        plain, drafting = engines(tiny_folder, max_num_seqs=16, num_tokens=num_tokens)
        requests = make_requests(prompt, samples=2)
        expected = respond(plain, requests)
        assert {completion.finish_reason for completion in expected} == {"stop", "length"}
        assert {"11", "7"} & {completion.stop_reason for completion in expected}
        seeds = [request.seed for request in requests]
        for wrong_at in (range(3, 24, 5), range(1, 24, 2)):
            verify_all(drafting, right_drafts(expected, seeds, wrong_at))
            assert_same(respond(drafting, requests), expected)
        stats = drafting.stats()
        assert stats["draft_tokens"] > stats["draft_accepted"] > 50
        assert stats["tokens"] == 2 * plain.stats()["tokens"] == 2 * sum(len(completion.ids) for completion in expected)
        assert all_blocks_are_free(drafting)

    def test_every_family(self, family_folder, engines, prompt):
        """Windows and soft caps, with drafts of the engine's own index; the second round drafts from the first."""
        plain, drafting = engines(family_folder)
        for salt in range(2):
            requests = [
                Request(ModelInput(prompt(length)), Sampling(20, **kind), derive_seed(salt, length, number))
                for length in (5, 40)
                for number, kind in enumerate(({"temperature": 0.5}, {"temperature": 0.0}, {"temperature": 0.5}))
            ]
            assert_same(respond(drafting, requests), respond(plain, requests))
        assert drafting.stats()["draft_accepted"] > 5

    def test_in_triton(self, tiny_folder, engines, prompt, monkeypatch):
        """The same step with the Triton kernels, in Triton's interpreter."""
        monkeypatch.setattr(sample, "CHUNK", 16)
        options = {"max_num_seqs": 2, "max_model_len": 64, "num_tokens": 3}
        plain, _ = engines(tiny_folder, **options)
        _, drafting = engines(tiny_folder, triton=True, **options)
        requests = free_requests(prompt, count=2, tokens=6)
        expected = respond(plain, requests)
        verify_all(drafting, right_drafts(expected, range(2), wrong_at={3}))
        assert_same(respond(drafting, requests), expected)
        stats = drafting.stats()
        assert stats["draft_accepted"] == 2 * 3 and stats["decode_steps"] == 2

    def test_shared_prefixes(self, tiny_folder, engines, prompt):
        """Windows read them once; rows of drafts read them each."""
        plain, drafting = engines(tiny_folder, extra={"shared_prefix": True}, max_model_len=160)
        requests = [Request(ModelInput(prompt(100)), Sampling(20, ignore_eos=True), seed) for seed in range(3)]
        expected = respond(plain, requests)
        known = right_drafts(expected, range(3), wrong_at={7, 12})
        verify_all(drafting, lambda sequence: known(sequence) if len(sequence.tokens) % 3 else [])
        assert_same(respond(drafting, requests), expected)
        assert plain.stats()["kv_tokens_saved"] > 0 and drafting.stats()["draft_accepted"] > 10

    def test_explicit_layers(self, tiny_folder, engines, prompt):
        """Windows of few rows run them; steps that verify drafts run the model's own layers."""
        plain, _ = engines(tiny_folder)
        _, drafting = engines(tiny_folder, extra={"few_rows": 8})
        expected = respond(plain, free_requests(prompt))
        known = right_drafts(expected, range(3), wrong_at={7, 12})
        verify_all(drafting, lambda sequence: known(sequence) if len(sequence.tokens) % 3 else [])
        assert_same(respond(drafting, free_requests(prompt)), expected)
        assert drafting.decoder.layers is not None and drafting.stats()["draft_accepted"] > 10


class TestSteps:
    """Decode steps, in counts."""

    def test_right_drafts_save_steps(self, tiny_folder, engines, prompt):
        plain, drafting = engines(tiny_folder)
        expected = respond(plain, free_requests(prompt))
        verify_all(drafting, right_drafts(expected, range(3)))
        assert_same(respond(drafting, free_requests(prompt)), expected)
        stats = drafting.stats()
        assert plain.stats()["decode_steps"] == 21
        assert stats["decode_steps"] == 3  # 21 tokens, 1 + 7 at a time
        assert stats["draft_tokens"] == stats["draft_accepted"] == 3 * 18
        assert stats["tokens"] == 3 * 22 and stats["decode_tokens"] == 3 * 3  # a slot's tokens of a step count once
        assert stats["host_syncs"] == 4  # and the first tokens

    def test_wrong_drafts_save_none(self, tiny_folder, engines, prompt):
        plain, drafting = engines(tiny_folder, num_tokens=3)
        expected = respond(plain, free_requests(prompt))
        verify_all(drafting, right_drafts(expected, range(3), wrong_at=range(22)))
        assert_same(respond(drafting, free_requests(prompt)), expected)
        stats = drafting.stats()
        assert stats["decode_steps"] == 21 and stats["draft_accepted"] == 0
        assert stats["draft_tokens"] == 3 * (3 * 18 + 2 + 1)  # never beyond max_tokens

    def test_windows_where_there_are_no_drafts(self, tiny_folder, engines, prompt):
        plain, drafting = engines(tiny_folder, lambda sequence: [])
        requests = free_requests(prompt)
        assert_same(respond(drafting, requests), respond(plain, requests))
        ours, theirs = drafting.stats(), plain.stats()
        assert ours["host_syncs"] == theirs["host_syncs"] == 7  # 21 tokens in windows of 4, and the first tokens
        assert ours["decode_steps"] == theirs["decode_steps"] and "draft_tokens" not in ours

    def test_tokens_behind_the_end_are_dropped(self, tiny_folder, engines, prompt):
        """A stop string ends a response in the middle of right drafts, and a stop token does on the device."""
        plain, drafting = engines(tiny_folder)
        longer = respond(plain, free_requests(prompt))
        texts, ids = ([decode(c.ids[8:10]) for c in longer], [c.ids[9] for c in longer])
        for ends in ({"stop": tuple(texts)}, {"stop_token_ids": tuple(ids)}):
            requests = free_requests(prompt, **ends)
            expected = respond(plain, requests)
            verify_all(drafting, right_drafts(longer, range(3)))
            drafting.stats()
            assert_same(respond(drafting, requests), expected)
            assert {completion.finish_reason for completion in expected} == {"stop"}
            stats = drafting.stats()
            assert stats["tokens"] == sum(len(completion.ids) for completion in expected)
            assert stats["draft_accepted"] > 0

    def test_no_drafts_with_penalties_or_while_many_run(self, tiny_folder, engines, prompt):
        _, drafting = engines(tiny_folder, lambda sequence: [5] * 6)
        respond(drafting, make_requests(prompt, SETTINGS[6:9]))
        assert "draft_tokens" not in drafting.stats()
        drafting.decoder.drafter.options = DraftOptions(num_tokens=7, max_num_seqs=2)
        respond(drafting, free_requests(prompt))
        assert "draft_tokens" not in drafting.stats()

    def test_the_policy_returns_to_windows(self, tiny_folder, make_engine, prompt):
        """With the engine's own policy, whatever it measures: the same tokens."""
        loop = {"device_loop": True, "eager": False, "extra": {"block_size": 16, "sync_interval": 4, "triton": False}}
        plain = make_engine(tiny_folder, **loop, max_model_len=300)
        drafting = make_engine(tiny_folder, **loop, max_model_len=300, drafts=DraftOptions())
        for salt in range(2):
            requests = [
                Request(ModelInput(prompt(9)), Sampling(120, ignore_eos=True, temperature=0.3), derive_seed(salt, n))
                for n in range(4)
            ]
            assert_same(respond(drafting, requests), respond(plain, requests))
        assert drafting.decoder.drafter.policy.times.num_steps > 8


class TestEvents:
    """What happens to responses while drafts are verified."""

    def test_sessions_and_watched_tokens(self, tiny_folder, engines, prompt):
        conversations, reports = [], []
        for engine in engines(tiny_folder, max_model_len=900):
            input, completions, seen = ModelInput(prompt(60)), [], []
            for turn in range(4):
                watch = TokenWatch(frozenset(range(3, 53, 2)), lambda tokens, seen=seen: seen.append(list(tokens)))
                sampling = Sampling(9, ignore_eos=True, temperature=0.3)
                requests = [Request(input, sampling, turn, session="s", watch=watch)]
                completions += respond(engine, requests)
                input = input.extend((*completions[-1].ids, *prompt(11, turn)))
            conversations.append((completions, engine.stats()["prefill_tokens"]))
            reports.append({token for tokens in seen for token in tokens})
        (ours, our_prefill), (theirs, their_prefill) = conversations
        assert_same(theirs, ours)
        assert our_prefill == their_prefill and reports[0] == reports[1]

    def test_abort_and_new_weights(self, tiny_folder, make_engine, their_model, prompt):
        """Both act between two steps; what was drafted before does not matter."""
        results = []
        weights = {name: weight * 0.9 for name, weight in all_weights(their_model(tiny_folder))}
        requests = free_requests(prompt, tokens=24, temperature=0.4)
        extra = {"block_size": 16, "sync_interval": SYNC_INTERVAL, "triton": False}
        for drafts in (None, DraftOptions(num_tokens=7)):
            engine = make_engine(
                tiny_folder, drafts=drafts, own_thread=False, device_loop=True, eager=False, extra=extra
            )
            if drafts is not None:
                expected = results[0]
                known = right_drafts(expected, range(3), wrong_at={4, 10})
                # Up to the ninth token, so that both engines are interrupted at the same place.
                verify_all(engine, lambda s, known=known: known(s)[: max(0, 8 - len(s.tokens))])
            futures = engine.generate(requests)
            while engine.scheduler.counts["tokens"] < 3 * 9:
                engine.step()
            engine.load_weights(weights.items(), version=2)
            if drafts is not None:
                verify_all(engine, right_drafts(expected, range(3), wrong_at={13}))
            engine.abort(futures[1:2])
            results.append([future.result() for future in futures])
        assert_same(results[1], results[0])
        assert results[0][1].finish_reason == "abort" and len(results[0][1].ids) == 9
        assert results[0][0].versions == [1] * 9 + [2] * 15
        assert engine.stats()["draft_accepted"] > 20
        engine.sleep()
        engine.wake()
        engine.load_weights(all_weights(their_model(tiny_folder)), version=1)
        plain = make_engine(tiny_folder, own_thread=False, device_loop=True, eager=False, extra=extra)
        theirs = respond(plain, requests)
        verify_all(engine, right_drafts(theirs, range(3), wrong_at={13}))
        ours = [replace(completion, queued=0.0) for completion in respond(engine, requests)]
        assert_same(ours, [replace(completion, queued=0.0) for completion in theirs])

    def test_preempted_responses_start_again(self, tiny_folder, engines, prompt):
        """Drafts take free blocks only."""
        options = {"memory_share": 0.0, "max_model_len": 64, "max_num_seqs": 4}
        plain, drafting = engines(tiny_folder, **options)
        requests = [
            Request(ModelInput(prompt(20 + n)), Sampling(34, ignore_eos=True, temperature=0.3), n) for n in range(3)
        ]
        expected = respond(plain, requests)
        verify_all(drafting, right_drafts(expected, range(3), wrong_at={5, 20}))
        assert_same(respond(drafting, requests), expected)
        stats = drafting.stats()
        assert stats["draft_accepted"] > 20 and stats["preemptions"] > 0 and all_blocks_are_free(drafting)


def test_depths():
    assert draft_depths(16) == (3, 7) and draft_depths(5) == (3, 5) and draft_depths(1) == (1,)
