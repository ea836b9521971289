"""Speculative decoding: the same responses with and without drafts, right or wrong ones, and fewer decode steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from burnish.demo.tiny_vision import make_vision_model
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.model_input import ModelInput
from burnish.models.parts import all_weights
from burnish.rollout.engine import DraftOptions, EngineOptions, Request, Sampling, TokenWatch
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE
from burnish.rollout.engines.builtin.model_runner import ModelRunner
from burnish.rollout.engines.builtin.step_decode import verified_rows
from burnish.seeding import derive_seed

from ....conftest import SIZES, sharpen
from .drafting import Scripted, right_drafts, verify_all

PATIENCE = 60.0
DRAFTS = DraftOptions(num_tokens=6)
SETTINGS = [
    {},
    {"temperature": 0.3},
    {"do_sample": False},
    {"top_k": 3},
    {"top_p": 0.7, "logprobs": 2},
    {"min_p": 0.2},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"min_tokens": 9, "logprobs": 1},
    {"bad_words": ((5, 6), (7,))},
    {"stop_token_ids": (5, 9)},
    {"stop": ("11", "7")},
    {"use_fire": True},
]


def decode(ids):
    return "".join(chr(ord("0") + token % 10) for token in ids)


@pytest.fixture
def engines(make_engine):
    """engines(folder, script, **options): one that decodes token by token, and one that verifies all drafts."""

    def make(folder, script=None, **options):
        plain = make_engine(folder, decode=decode, **options)
        return plain, verify_all(make_engine(folder, decode=decode, drafts=DRAFTS, **options), script)

    return make


@pytest.fixture
def without_compiler(monkeypatch):
    monkeypatch.setattr(ModelRunner, "_compile", lambda runner, group: None)


def make_requests(prompt, choices=SETTINGS, samples=3, tokens=24):
    kinds = [{"fire" if name == "use_fire" else name: value for name, value in choice.items()} for choice in choices]
    return [
        Request(ModelInput(prompt(length)), Sampling(tokens - number % 5, **kind), derive_seed(length, number, name))
        for length in (7, 33)
        for name, kind in enumerate(kinds)
        for number in range(samples)
    ]


def respond(engine, requests):
    return [future.result(PATIENCE) for future in engine.generate(requests)]


class TestSameResponses:
    def test_every_setting(self, tiny_folder, engines, prompt):
        plain, drafting = engines(tiny_folder, max_num_seqs=16)
        requests = make_requests(prompt)
        expected = respond(plain, requests)
        assert {completion.finish_reason for completion in expected} == {"stop", "length"}
        assert {"11", "7"} & {completion.stop_reason for completion in expected}
        assert respond(drafting, requests) == expected  # tokens, log-probs, top tokens and versions, bit for bit
        stats = drafting.stats()
        assert stats["draft_tokens"] > stats["draft_accepted"] > 50
        assert stats["tokens"] == plain.stats()["tokens"] == sum(len(completion.ids) for completion in expected)

    def test_without_a_compiler(self, tiny_folder, engines, prompt, without_compiler):
        plain, drafting = engines(tiny_folder, max_num_seqs=16)
        requests = make_requests(prompt, samples=2, tokens=16)
        assert respond(drafting, requests) == respond(plain, requests)
        assert drafting.stats()["draft_accepted"] > 20

    def test_every_family(self, family_folder, engines, prompt):
        """Windows and soft caps; the second round drafts from the first, with other noise."""
        plain, drafting = engines(family_folder)
        for salt in range(2):
            requests = [
                Request(ModelInput(prompt(length)), Sampling(20, temperature=0.5), derive_seed(salt, length, number))
                for length in (5, 40)
                for number in range(4)
            ]
            assert respond(drafting, requests) == respond(plain, requests)
        assert drafting.stats()["draft_accepted"] > 5

    def test_where_rows_may_change_bits(self, tiny_folder, engines, prompt):
        """Not invariant: the same tokens, and log-probs up to rounding."""
        plain, drafting = engines(tiny_folder, invariant=False)
        requests = make_requests(prompt, SETTINGS[:6])
        for ours, theirs in zip(respond(drafting, requests), respond(plain, requests), strict=True):
            assert ours.ids == theirs.ids
            torch.testing.assert_close(torch.tensor(ours.log_probs), torch.tensor(theirs.log_probs))

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_drafts(self, random_drafts, data):
        drafting, requests, expected, script = random_drafts
        wrong = data.draw(st.sets(st.integers(1, 23)))
        lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=7))
        drafting.decoder.drafter.index = Scripted(
            lambda sequence: script(wrong)(sequence)[: lengths[len(sequence.tokens) % len(lengths)]]
        )
        assert respond(drafting, requests) == expected

    @pytest.fixture
    def random_drafts(self, tiny_folder, engines, prompt):
        plain, drafting = engines(tiny_folder)
        requests = make_requests(prompt, SETTINGS[:2] + SETTINGS[9:11], samples=1)
        expected = respond(plain, requests)
        seeds = [request.seed for request in requests]
        return drafting, requests, expected, lambda wrong: right_drafts(expected, seeds, wrong)

    def test_next_to_the_ends_of_blocks_and_of_the_context(self, tiny_folder, engines, prompt):
        """Drafts never take a block, and never reach beyond the model's length."""
        plain, drafting = engines(tiny_folder, max_model_len=BLOCK_SIZE + 30, memory_share=0.0)
        requests = [
            Request(ModelInput(prompt(BLOCK_SIZE - 10)), Sampling(40, ignore_eos=True), seed) for seed in range(2)
        ]
        expected = respond(plain, requests)
        verify_all(drafting, right_drafts(expected, range(2)))
        assert respond(drafting, requests) == expected
        assert drafting.stats().get("preemptions", 0) == plain.stats().get("preemptions", 0)

    def test_recorded_experts(self, tmp_path, make_engine, prompt):
        torch.manual_seed(2)
        sizes = {**SIZES, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes))
        sharpen(model, seed=2)
        model.save_pretrained(tmp_path)
        plain = make_engine(str(tmp_path), record_experts=True)
        requests = [Request(ModelInput(prompt(9)), Sampling(16, ignore_eos=True), seed) for seed in range(3)]
        expected = respond(plain, requests)
        drafting = make_engine(str(tmp_path), record_experts=True, drafts=DRAFTS)
        assert drafting.capabilities.drafts
        verify_all(drafting, right_drafts(expected, range(3), wrong_at={5, 6, 11}))
        for ours, theirs in zip(respond(drafting, requests), expected, strict=True):
            assert ours.ids == theirs.ids and torch.equal(ours.routed_experts, theirs.routed_experts)
        assert drafting.stats()["draft_accepted"] > 20

    def test_positions_behind_pictures(self, tmp_path):
        """Media may take fewer positions than tokens: SequenceState.offset."""
        model = make_vision_model(tmp_path, "qwen2_5_vl", seed=3)
        source = ModelSource(path=str(tmp_path))
        weights = dict(load_causal_lm(source, None, torch.float32).named_parameters())
        responses = []
        for drafts in (None, DRAFTS):
            options = {"max_model_len": 64, "drafts": drafts, "own_thread": False}
            engine = BuiltinEngine(EngineOptions(source, torch.float32, torch.device("cpu"), (), **options))
            engine.load_weights(weights.items(), version=1)
            engine.runner.positions = ShiftedPositions(engine.runner.positions)
            if drafts is not None:
                verify_all(engine, right_drafts(responses[0], range(4), wrong_at={5}))
            requests = [Request(ModelInput((5, 6, 7)), Sampling(12), seed) for seed in range(4)]
            responses.append(respond(engine, requests))
        assert model.config.model_type == "qwen2_5_vl"
        assert responses[0] == responses[1] and engine.stats()["draft_accepted"] >= 4 * 9


class ShiftedPositions:
    """As if a picture in the prompt had taken two positions less than tokens."""

    def __init__(self, positions):
        self.positions = positions

    def __getattr__(self, name):
        return getattr(self.positions, name)

    def offset(self, input):
        return -2


class TestSteps:
    """Decode steps, in counts."""

    @pytest.fixture
    def requests(self, prompt):
        return [Request(ModelInput(prompt(20)), Sampling(22, ignore_eos=True), seed) for seed in range(3)]

    def test_right_drafts_save_steps(self, tiny_folder, engines, requests):
        plain, drafting = engines(tiny_folder)
        expected = respond(plain, requests)
        verify_all(drafting, right_drafts(expected, range(3)))
        assert respond(drafting, requests) == expected
        stats = drafting.stats()
        assert plain.stats()["decode_steps"] == 21
        assert stats["decode_steps"] == 3  # 21 tokens, 1 + 6 at a time
        assert stats["draft_tokens"] == stats["draft_accepted"] == 3 * 18
        assert stats["tokens"] == 3 * 22 and stats["decode_tokens"] == 3 * 3  # a slot's tokens of a step count once

    def test_wrong_drafts_save_none(self, tiny_folder, engines, requests):
        plain, drafting = engines(tiny_folder)
        expected = respond(plain, requests)
        verify_all(drafting, right_drafts(expected, range(3), wrong_at=range(22)))
        assert respond(drafting, requests) == expected
        stats = drafting.stats()
        assert stats["decode_steps"] == 21 and stats["draft_accepted"] == 0
        assert stats["draft_tokens"] == 3 * (6 * 15 + 5 + 4 + 3 + 2 + 1)  # never beyond max_tokens

    def test_tokens_behind_the_end_are_dropped(self, tiny_folder, engines, prompt):
        """A stop string ends a response in the middle of right drafts."""
        plain, drafting = engines(tiny_folder)
        free = [Request(ModelInput(prompt(20)), Sampling(22, ignore_eos=True), seed) for seed in range(3)]
        longer = respond(plain, free)
        stop = tuple(decode(completion.ids[8:10]) for completion in longer)
        requests = [Request(r.input, Sampling(22, ignore_eos=True, stop=stop), r.seed) for r in free]
        expected = respond(plain, requests)
        verify_all(drafting, right_drafts(longer, range(3)))
        assert respond(drafting, requests) == expected
        assert {completion.finish_reason for completion in expected} == {"stop"}
        assert drafting.stats()["tokens"] == sum(len(completion.ids) for completion in expected)

    def test_no_drafts_with_penalties(self, tiny_folder, engines, prompt):
        _, drafting = engines(tiny_folder, lambda sequence: [5] * 6)
        respond(drafting, make_requests(prompt, SETTINGS[6:9]))
        assert "draft_tokens" not in drafting.stats()

    def test_only_the_tail(self, tiny_folder, make_engine, prompt):
        """No drafts while more than max_num_seqs run."""
        engine = make_engine(tiny_folder, drafts=DraftOptions(max_num_seqs=2), own_thread=False)
        verify_all(engine, lambda sequence: [5] * 6)
        requests = [Request(ModelInput(prompt(9)), Sampling(n, ignore_eos=True), n) for n in (4, 6, 12)]
        engine.generate(requests)
        drafted = []
        while engine.step():
            drafted.append((len(engine.running), engine.scheduler.counts.get("draft_tokens", 0) > 0))
        assert all(running < 3 for running, has_drafted in drafted if has_drafted)
        assert drafted[-1][1]


class TestEvents:
    """What happens to responses while drafts are verified."""

    def test_sessions(self, tiny_folder, engines, prompt):
        conversations = []
        for engine in engines(tiny_folder, max_model_len=900):
            input, completions = ModelInput(prompt(300)), []
            for turn in range(4):
                requests = [Request(input, Sampling(9, ignore_eos=True, temperature=0.3), turn, session="s")]
                completions += respond(engine, requests)
                input = input.extend((*completions[-1].ids, *prompt(11, turn)))
            conversations.append((completions, engine.stats()["prefill_tokens"]))
        assert conversations[0] == conversations[1]

    def test_watched_tokens_in_order(self, tiny_folder, engines, prompt):
        reports = []
        for engine in engines(tiny_folder):
            seen = []
            watch = TokenWatch(frozenset(range(3, 53, 2)), lambda tokens, seen=seen: seen.append(list(tokens)))
            requests = [Request(ModelInput(prompt(9)), Sampling(20, ignore_eos=True), 3, watch=watch)]
            for _ in range(2):
                respond(engine, requests)
            reports.append(seen)
        assert reports[0] == reports[1] and len(reports[0]) > 4

    def test_abort_and_new_weights(self, tiny_folder, make_engine, their_model, prompt):
        """Both act between two steps; what was drafted before does not matter."""
        results = []
        weights = {name: weight * 0.9 for name, weight in all_weights(their_model(tiny_folder))}
        requests = [
            Request(ModelInput(prompt(20)), Sampling(24, ignore_eos=True, temperature=0.4), s) for s in range(3)
        ]
        for drafts in (None, DRAFTS):
            engine = make_engine(tiny_folder, drafts=drafts, own_thread=False)
            if drafts is not None:
                expected = results[0]
                known = right_drafts(expected, range(3), wrong_at={4, 10})
                # Up to the ninth token, so that both engines are interrupted at the same place.
                verify_all(engine, lambda s, known=known: known(s)[: max(0, 8 - len(s.tokens))])
            futures = engine.generate(requests)
            while len(engine.running) < 3 or min(len(s.tokens) for s in engine.running) < 9:
                engine.step()
            engine.load_weights(weights.items(), version=2)
            if drafts is not None:
                verify_all(engine, right_drafts(expected, range(3), wrong_at={13}))
            engine.abort(futures[1:2])
            results.append([future.result() for future in futures])
        assert results[0] == results[1]
        assert results[0][1].finish_reason == "abort" and len(results[0][1].ids) == 9
        assert results[0][0].versions == [1] * 9 + [2] * 15
        assert engine.stats()["draft_accepted"] > 20

    def test_preempted_responses_start_again(self, tiny_folder, engines, prompt):
        options = {"memory_share": 0.0, "max_model_len": 2 * BLOCK_SIZE, "max_num_seqs": 4}
        plain, drafting = engines(tiny_folder, **options)
        requests = [
            Request(ModelInput(prompt(200 + n)), Sampling(80, ignore_eos=True, temperature=0.3), n) for n in range(3)
        ]
        expected = respond(plain, requests)
        assert respond(drafting, requests) == expected
        stats = drafting.stats()
        assert stats["draft_accepted"] > 20


def test_who_verifies_drafts(tiny_folder, make_engine):
    assert make_engine(tiny_folder, drafts=DraftOptions()).capabilities.drafts
    assert not make_engine(tiny_folder).capabilities.drafts
    assert make_engine(tiny_folder, drafts=DraftOptions(), device_loop=True).capabilities.drafts
    assert not make_engine(tiny_folder, device_loop=True).capabilities.drafts


def test_verified_rows():
    """Sampled tokens of each row, against the drafts whose rows come next."""
    assert verified_rows([4, 5, 6], [[], [], []]) == [[0], [1], [2]]
    assert verified_rows([4, 5, 6, 9], [[4, 5, 6]]) == [[0, 1, 2, 3]]
    assert verified_rows([4, 5, 6, 9, 8, 7], [[4, 6, 6], [3]]) == [[0, 1], [4]]
