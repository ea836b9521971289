"""Sessions: KV kept between the turns of a conversation. It saves prefill and never changes a result."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling, TokenWatch
from burnish.rollout.engines.builtin.block_manager import BlockManager
from burnish.rollout.engines.builtin.kv_cache import CacheShape, KVCache
from burnish.rollout.engines.builtin.sequence import SequenceState
from burnish.rollout.prefill_count import PrefillCount

PATIENCE = 60.0
NINE = Sampling(9, ignore_eos=True)
LOOP = {"device_loop": True, "eager": False, "extra": {"block_size": 16, "sync_interval": 4}}
# Invariant mode keeps what is exact bit by bit; the others keep everything.
INVARIANT, STEP = {}, {"invariant": False}
ENGINES = {"invariant": INVARIANT, "step": STEP, "loop": LOOP}
ROOMY = {"max_model_len": 900}


@pytest.fixture(params=ENGINES)
def mode(request):
    return request.param


@pytest.fixture
def make(tiny_folder, make_engine):
    def build(mode, **options):
        return make_engine(tiny_folder, **{**ENGINES[mode], **ROOMY, **options})

    return build


class Conversation:
    """Turns of a conversation: the model's response and some new tokens are appended to the input."""

    def __init__(self, prompt, salt=0, session=None, sampling=NINE, first=300):
        self.prompt, self.salt, self.session, self.sampling = prompt, salt, session, sampling
        self.input = ModelInput(prompt(first, salt))
        self.completions = []

    def request(self):
        return Request(self.input, self.sampling, 10 * self.salt + len(self.completions), session=self.session)

    def reply(self, completion, num_new=11):
        self.completions.append(completion)
        new = self.prompt(num_new, 100 + 10 * self.salt + len(self.completions))
        self.input = self.input.extend((*completion.ids, *new))

    def turn(self, engine):
        self.reply(engine.generate([self.request()])[0].result(PATIENCE))


def assert_equal(mode, ours, theirs):
    assert [c.ids for c in ours] == [c.ids for c in theirs]
    if mode == "invariant":
        assert ours == theirs
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(torch.tensor(one.log_probs), torch.tensor(other.log_probs), atol=2e-5)


@pytest.fixture
def plain(make, prompt):
    """plain(mode, salt, turns): the conversation without a session."""

    def run(mode, salt=0, turns=4, **settings):
        talk, engine = Conversation(prompt, salt, **settings), make(mode)
        for _ in range(turns):
            talk.turn(engine)
        return talk.completions

    return run


def all_free(engine):
    """But for the block where inactive slots of the device loop write."""
    engine.score([(3, 4)])  # a barrier: `end_session` does not wait
    blocks = engine.scheduler.blocks
    return blocks.num_used == int(hasattr(engine.decoder, "graphs"))


def retire(blocks, prompt, name):
    """A session of two blocks that has ended its turn."""
    request = Request(ModelInput(prompt(20, ord(name))), NINE, 0, session=name)
    sequence = SequenceState(request, Future(), tokens=[1, 2, 3])
    prompt_state = blocks.allocate_prompt(request.input, name)
    blocks.fork([(prompt_state, sequence)])
    blocks.free(prompt_state)
    blocks.retire(sequence)


class TestConversation:
    def test_the_same_with_and_without(self, mode, make, prompt, plain):
        engine, talk = make(mode), Conversation(prompt, session="a")
        prefilled = []
        for _ in range(4):
            talk.turn(engine)
            prefilled.append(engine.stats()["prefill_tokens"])
        assert_equal(mode, talk.completions, plain(mode))
        # Each turn adds the last response (9) and 11 new tokens. Of the response, the last token is not in the cache.
        if mode == "invariant":  # a full block of 256 is kept, the rest of the prompt is prefilled again
            assert prefilled == [300, 320 - 256, 340 - 256, 360 - 256]
        else:
            assert prefilled == [300, 12, 12, 12]
        assert not all_free(engine)
        engine.end_session("a")
        assert all_free(engine)

    def test_no_more_prefill_than_necessary(self, make, prompt):
        engine, needed = make("step"), PrefillCount()
        talks = [Conversation(prompt, 0, f"s{number}") for number in range(2)]
        for turn in range(3):
            requests = [replace(talk.request(), seed=10 * number + turn) for number, talk in enumerate(talks)]
            for request in requests:
                needed.sent(request)
            futures = engine.generate(requests)
            for talk, request, future in zip(talks, requests, futures, strict=True):
                needed.completed(request, future.result(PATIENCE))
                talk.reply(future.result(PATIENCE))
        # Both samples share the prompt; each later turn has the last sampled token and 11 new ones.
        assert engine.stats()["prefill_tokens"] == needed.minimum == 300 + 2 * 2 * 12

    def test_every_family(self, family_folder, make_engine, prompt):
        """Windows, soft caps and q/k norms; prefill that starts inside a block."""
        for mode, options in ENGINES.items():
            results = []
            for session in (None, "a"):
                talk = Conversation(prompt, session=session, first=30)
                engine = make_engine(family_folder, **options)
                for _ in range(3):
                    talk.turn(engine)
                results.append(talk.completions)
            assert_equal(mode, *results)
            expected = 30 + (50 + 70 if mode == "invariant" else 12 + 12)
            assert engine.stats()["prefill_tokens"] == expected

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(30, stop_token_ids=(5, 6)),
            Sampling(30, stop=("b",), ignore_eos=True),
            Sampling(20, repetition_penalty=1.3, top_k=12, logprobs=2),
        ],
        ids=["stop token", "stop string", "penalties"],
    )
    def test_ways_to_sample_and_to_end(self, sampling, mode, make, prompt):
        def decode(ids):
            return "".join("abcdefgh"[token % 8] for token in ids)

        results = []
        for session in (None, "a"):
            talk, engine = Conversation(prompt, session=session, sampling=sampling), make(mode, decode=decode)
            for _ in range(3):
                talk.turn(engine)
            results.append(talk.completions)
        assert_equal(mode, *results)
        new = sum(len(completion.ids) for completion in talk.completions[:-1]) + 2 * 11
        if mode != "invariant":
            cached = len([c for c in talk.completions[:-1] if c.ids])  # the last token of a response is not cached
            assert (
                engine.stats()["prefill_tokens"] == 300 + new - sum(len(c.ids) for c in talk.completions[:-1]) + cached
            )

    def test_samples_of_one_prompt_have_sessions_of_their_own(self, mode, make, prompt, plain):
        engine = make(mode)
        talks = [Conversation(prompt, session=f"s{number}") for number in range(4)]
        for turn in range(3):
            requests = [replace(talk.request(), seed=100 * number + turn) for number, talk in enumerate(talks)]
            futures = engine.generate(requests)
            for talk, future in zip(talks, futures, strict=True):
                talk.reply(future.result(PATIENCE))
            if turn == 0:
                assert engine.stats()["prefill_tokens"] == 300
        if mode != "invariant":
            assert engine.stats()["prefill_tokens"] == 2 * 4 * 12
        single = make(mode)
        for number, talk in enumerate(talks):
            alone = Conversation(prompt)
            for turn in range(3):
                request = replace(alone.request(), seed=100 * number + turn)
                alone.reply(single.generate([request])[0].result(PATIENCE))
            assert_equal(mode, talk.completions, alone.completions)
            engine.end_session(f"s{number}")
        assert all_free(engine)


class TestPrefixCheck:
    """The engine compares the input with what it has kept, and does not trust the session's name."""

    def test_another_input_under_the_same_session(self, mode, make, prompt, plain):
        engine = make(mode)
        first, talk = Conversation(prompt, 0, "a"), Conversation(prompt, 7, "a")
        common = first.input.common_prefix(talk.input)
        first.turn(engine)
        engine.stats()
        talk.turn(engine)
        assert common < 5 and engine.stats()["prefill_tokens"] == 300 - (0 if mode == "invariant" else common)
        assert_equal(mode, talk.completions, plain(mode, 7, turns=1))

    def test_a_shorter_common_prefix_is_used(self, mode, make, prompt):
        """History that was edited, and the same prompt again: everything up to the difference is reused."""
        engine, fresh = make(mode), make(mode)
        talk = Conversation(prompt, session="a")
        talk.turn(engine)
        for length, expected in ((303, 10), (290, 10), (300, 1)):
            ids = talk.input.ids[:length] + (prompt(10, 50) if length != 300 else ())
            request = Request(ModelInput(ids), NINE, 5, session="a")
            engine.stats()
            ours = engine.generate([request])[0].result(PATIENCE)
            assert_equal(mode, [ours], [fresh.generate([replace(request, session=None)])[0].result(PATIENCE)])
            if mode == "step":
                assert engine.stats()["prefill_tokens"] == expected
            talk = Conversation(prompt, session="a")
            talk.turn(engine)

    def test_shared_blocks_are_not_written_to(self, make, prompt):
        """A session that goes back into a block that other sequences hold must not continue in it."""
        engine, fresh = make("loop"), make("loop")
        long = Request(ModelInput(prompt(40)), Sampling(300, ignore_eos=True), 1)
        short = Request(ModelInput(prompt(40)), NINE, 2, session="a")
        (running, first) = engine.generate([long, short])
        first.result(PATIENCE)
        edited = Request(ModelInput(prompt(40)[:24] + prompt(20, 9)), NINE, 3, session="a")
        ours = engine.generate([edited])[0].result(PATIENCE)
        theirs = [future.result(PATIENCE) for future in fresh.generate([long, edited])]
        assert_equal("loop", [running.result(PATIENCE), ours], theirs)


class TestEviction:
    def test_under_pressure(self, mode, make, prompt, plain):
        """The smallest cache: every conversation evicts the others, and is prefilled again."""
        engine = make(mode, memory_share=0.0, max_model_len=500)
        talks = [Conversation(prompt, salt, f"s{salt}") for salt in range(3)]
        for turn in range(3):
            for future, talk in [(engine.generate([talk.request()])[0], talk) for talk in talks]:
                talk.reply(future.result(PATIENCE))
            for talk in talks:  # another order of eviction each time
                engine.expect_return(talk.session, 10.0 * ((talk.salt + turn) % 3))
        for salt, talk in enumerate(talks):
            assert_equal(mode, talk.completions, plain(mode, salt, turns=3))
        counts = engine.stats()
        assert counts["prefill_tokens"] > 3 * 340 and counts["evicted_sessions"] > 0

    def test_the_one_expected_back_last_goes_first(self, prompt):
        """And of those whose return is unknown or overdue, the one that has been away longest."""
        now = 0.0
        blocks = BlockManager(16, prefix_caching=False, exact_only=False, clock=lambda: now)
        blocks.open(KVCache(CacheShape(1, 1, 2, torch.float32, 16), 16, torch.device("cpu")))
        for name in "abcdefg":
            now += 1.0
            retire(blocks, prompt, name)
        assert blocks.pool.num_free == 2
        blocks.expect_return("a", 2.0)  # b is overdue by 5 s and d by 3 s
        blocks.expect_return("e", 40.0)
        blocks.expect_return("f", 20.0)
        blocks.enqueue("g")  # its request waits, and that of c behind it
        blocks.enqueue("c")
        order = []
        while blocks.sessions:
            before = set(blocks.sessions)
            assert blocks.make_room(blocks.pool.num_free + 1)
            order += before - set(blocks.sessions)
        assert order == ["e", "f", "b", "d", "a", "c", "g"] and blocks.num_evicted == 7

    def test_an_aborted_request_is_not_awaited(self, make, prompt):
        engine = make("step", own_thread=False)
        talk = Conversation(prompt, session="a")
        talk.turn(engine)
        engine.pause()
        (future,) = engine.generate([talk.request()])
        kept = engine.scheduler.blocks.sessions["a"]
        assert kept.queued is not None
        engine.abort([future])
        assert kept.queued is None

    def test_a_preempted_sequence_of_a_session(self, make, prompt, plain):
        engine = make("loop", memory_share=0.0, max_model_len=420)
        settings = {"sampling": Sampling(40, ignore_eos=True)}
        talks = [Conversation(prompt, salt, f"s{salt}", first=150, **settings) for salt in range(4)]
        for _ in range(2):
            futures = engine.generate([talk.request() for talk in talks])
            for talk, future in zip(talks, futures, strict=True):
                talk.reply(future.result(PATIENCE))
        assert engine.stats()["preemptions"] > 0
        for salt, talk in enumerate(talks):
            assert_equal("loop", talk.completions, plain("loop", salt, turns=2, first=150, **settings))


class TestInterruptions:
    def test_abort_keeps_what_there_is(self, mode, make, prompt):
        engine, fresh = make(mode, own_thread=False), make(mode)
        long = Sampling(400, ignore_eos=True)
        talk = Conversation(prompt, session="a", sampling=long)
        (future,) = engine.generate([talk.request()])
        for _ in range(6):
            engine.step()
        engine.abort([future])
        partial = future.result(0)
        assert partial.finish_reason == "abort" and 0 < len(partial.ids) < 400
        talk.reply(partial)
        engine.stats()
        request = replace(talk.request(), sampling=NINE)
        ours = engine.generate([request])[0].result(PATIENCE)
        assert_equal(mode, [ours], [fresh.generate([replace(request, session=None)])[0].result(PATIENCE)])
        if mode != "invariant":
            assert engine.stats()["prefill_tokens"] == 12

    def test_abort_of_a_waiting_request_leaves_the_session(self, make, prompt):
        engine = make("step", own_thread=False)
        talk = Conversation(prompt, session="a")
        talk.turn(engine)
        engine.pause()
        (future,) = engine.generate([talk.request()])
        engine.abort([future])
        engine.resume()
        engine.stats()
        talk.turn(engine)
        assert future.result(0).ids == [] and engine.stats()["prefill_tokens"] == 12

    def test_new_weights_drop_sessions(self, mode, make, prompt, their_model, tiny_folder):
        weights = {name: tensor.flip(0) for name, tensor in their_model(tiny_folder).named_parameters()}
        engine, fresh = make(mode), make(mode)
        talk = Conversation(prompt, session="a")
        talk.turn(engine)
        engine.load_weights(weights.items(), version=2)
        fresh.load_weights(weights.items(), version=2)
        assert all_free(engine)
        engine.stats()
        request = talk.request()
        ours = engine.generate([request])[0].result(PATIENCE)
        assert engine.stats()["prefill_tokens"] == 320
        assert_equal(mode, [ours], [fresh.generate([replace(request, session=None)])[0].result(PATIENCE)])

    def test_kv_of_older_weights_is_not_kept(self, mode, make, prompt, their_model, tiny_folder):
        """New weights in the middle of a response: its KV belongs to both versions."""
        weights = {name: tensor.flip(0) for name, tensor in their_model(tiny_folder).named_parameters()}
        engine = make(mode, own_thread=False)
        talk = Conversation(prompt, session="a", sampling=Sampling(20, ignore_eos=True))
        (future,) = engine.generate([talk.request()])
        engine.step()
        engine.load_weights(weights.items(), version=2)
        assert set(future.result(PATIENCE).versions) == {1, 2}
        assert not engine.scheduler.blocks.sessions and all_free(engine)

    def test_sleep_drops_sessions(self, mode, make, prompt, plain):
        engine, talk = make(mode), Conversation(prompt, session="a")
        for turn in range(3):
            talk.turn(engine)
            if turn == 1:
                engine.sleep()
                engine.wake()
                engine.stats()
        assert engine.stats()["prefill_tokens"] == 340
        assert_equal(mode, talk.completions, plain(mode, turns=3))

    def test_a_session_that_ends_in_flight_keeps_nothing(self, mode, make, prompt):
        engine = make(mode, own_thread=False)
        (future,) = engine.generate([Conversation(prompt, session="a").request()])
        engine.step()
        engine.end_session("a")
        assert len(future.result(PATIENCE).ids) == 9 and all_free(engine)
        engine.end_session("never heard of")

    def test_an_error_drops_sessions(self, mode, make, prompt):
        engine, talk = make(mode), Conversation(prompt, session="a")
        talk.turn(engine)
        (broken,) = engine.generate([Request(ModelInput((3, 999_999)), NINE, 0)])
        assert isinstance(broken.exception(PATIENCE), IndexError)
        engine.stats()  # after the step that failed
        assert not engine.scheduler.blocks.sessions
        talk.turn(engine)
        assert len(talk.completions[1].ids) == 9


def test_sessions_and_the_prefix_cache_together(mode, make, prompt, plain):
    engine, talk = make(mode, prefix_caching=True), Conversation(prompt, session="a")
    for _ in range(4):
        talk.turn(engine)
    assert_equal(mode, talk.completions, plain(mode))
    assert engine.stats()["prefill_tokens"] == (300 + 64 + 84 + 104 if mode == "invariant" else 300 + 3 * 12)
    engine.end_session("a")
    engine.load_weights(list(engine.runner.model.named_parameters()), version=2)
    assert all_free(engine)


def test_prompts_in_chunks(mode, make, prompt, plain):
    """A session's new tokens may need several passes."""
    engine, talk = make(mode, max_num_batched_tokens=16), Conversation(prompt, session="a")
    talk.turn(engine)
    talk.input = talk.input.extend(prompt(70, 5))
    engine.stats()
    talk.turn(engine)
    whole = make(mode)
    request = Request(ModelInput(talk.input.ids[: 320 + 70]), NINE, 1)
    assert_equal(mode, talk.completions[1:], [whole.generate([request])[0].result(PATIENCE)])
    assert engine.stats()["prefill_tokens"] == (390 - 256 if mode == "invariant" else 82)


def test_tokens_are_reported_while_they_are_sampled(mode, make, prompt):
    reports: list[list[int]] = []
    watch = TokenWatch(frozenset(range(0, 1000, 2)), reports.append)
    engine, request = make(mode), Request(ModelInput(prompt(40)), Sampling(24, ignore_eos=True), 3)
    plain, watched = (engine.generate([r])[0].result(PATIENCE) for r in (request, replace(request, watch=watch)))
    assert watched == plain and reports
    assert all(tokens == plain.ids[: len(tokens)] and len(tokens) < 24 for tokens in reports)
    if mode != "loop":  # which reads whole windows
        assert [len(tokens) for tokens in reports] == [n for n in range(1, 24) if plain.ids[n - 1] % 2 == 0]
