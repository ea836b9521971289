"""Every engine that can be loaded here passes the same suite, by what its capabilities promise."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from burnish.errors import UserError
from burnish.models.model_input import Media, ModelInput
from burnish.rollout.engine import ENGINES, Request, Sampling
from burnish.seeding import derive_seed

PATIENCE = 60.0
PROMPTS = [(5,), (5, 6, 7), tuple(range(3, 20)), (8, 8, 8, 8), tuple([4, 9, 13] * 20)]


def loadable():
    """Rows that need no library of their own. The suite runs on vLLM in tests/vllm, which has its own environment."""
    return [name for name in ENGINES.names() if "library" not in ENGINES[name].metadata]


def engine_id(name):
    """A stand-in answers for SGLang's server (tests/standins), and the ids of its tests say so."""
    return f"{name}-standin-server" if name == "sglang" else name


@pytest.fixture(params=loadable(), ids=engine_id)
def engine(request, make_engine, tiny_folder):
    return make_engine(tiny_folder, request.param)


def requests(sampling, salt=0, prompts=PROMPTS):
    return [Request(ModelInput(ids), sampling, derive_seed(salt, number)) for number, ids in enumerate(prompts)]


def respond(engine, wanted):
    return [future.result(PATIENCE) for future in engine.generate(wanted)]


def refused(engine, sampling):
    """Why the engine's class refuses to sample so; nothing if it does not."""
    return list(engine.refusals(sampling, "rollout")) if hasattr(engine, "refusals") else []


def possible(engine, kinds):
    """Those of these settings that the engine does not refuse."""
    return [kind for kind in kinds if not refused(engine, Sampling(12, **kind))]


def other_weights(their_model, folder):
    return [(name, tensor.flip(0)) for name, tensor in their_model(folder).named_parameters()]


def test_the_thin_engines_are_here():
    assert {"builtin", "hf"} <= set(loadable())


def test_generate(engine):
    completions = respond(engine, requests(Sampling(12)) + requests(Sampling(5), salt=1))
    assert len(completions) == 10
    for completion, limit in zip(completions, [12] * 5 + [5] * 5, strict=True):
        assert 1 <= len(completion.ids) <= limit
        assert len(completion.ids) == len(completion.log_probs) == len(completion.versions)
        assert set(completion.versions) == {1}
        assert all(0 <= token < 21 for token in completion.ids)


def test_no_requests(engine):
    assert engine.generate([]) == []


def test_finish_reasons(engine):
    completions = respond(engine, requests(Sampling(30), prompts=PROMPTS * 12))
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        assert 2 not in completion.ids[:-1]
        if completion.finish_reason == "stop":
            assert completion.ids[-1] == 2
        else:
            assert len(completion.ids) == 30 and completion.ids[-1] != 2


def test_ignore_eos(engine):
    completions = respond(engine, requests(Sampling(30, ignore_eos=True), prompts=PROMPTS * 12))
    assert all(len(c.ids) == 30 and c.finish_reason == "length" for c in completions)
    assert any(2 in completion.ids for completion in completions)


LETTERS = "".join(chr(97 + token) for token in range(26))


@pytest.fixture(params=loadable(), ids=engine_id)
def reader(request, make_engine, tiny_folder):
    """An engine that can read its tokens: one letter each, EOS none."""
    return make_engine(
        tiny_folder, request.param, decode=lambda ids: "".join(LETTERS[token] for token in ids if token != 2)
    )


def sampled(engine, count=60, **settings):
    return respond(engine, requests(Sampling(20, **settings), prompts=PROMPTS * (count // 5)))


def test_stop_token_ids(engine):
    plain = sampled(engine, ignore_eos=True)
    for before, after in zip(plain, sampled(engine, ignore_eos=True, stop_token_ids=(6, 9)), strict=True):
        place = next((place for place, token in enumerate(before.ids) if token in (6, 9)), None)
        if place is None:
            assert (after.ids, after.finish_reason) == (before.ids, before.finish_reason)
        else:
            assert (after.ids, after.finish_reason) == (before.ids[: place + 1], "stop")
            assert after.stop_reason == before.ids[place]
        assert after.log_probs == pytest.approx(before.log_probs[: len(after.ids)], abs=1e-5)
    assert {c.stop_reason for c in sampled(engine)} == {None}


def test_stop_strings(reader):
    """Tokens are kept as they were sampled, up to the one that completes the string."""
    (long,) = respond(reader, [Request(ModelInput(PROMPTS[0]), Sampling(20, ignore_eos=True), 3)])
    text = "".join(LETTERS[token] for token in long.ids if token != 2)
    stop = text[5:7]
    (cut,) = respond(reader, [Request(ModelInput(PROMPTS[0]), Sampling(20, ignore_eos=True, stop=("zzz", stop)), 3)])
    assert cut.finish_reason == "stop" and cut.stop_reason == stop
    assert cut.ids == long.ids[: len(cut.ids)] and 2 <= len(cut.ids) < 20
    said = "".join(LETTERS[token] for token in cut.ids if token != 2)
    assert said.endswith(stop) and text.find(stop) == len(said) - 2


def test_min_tokens(engine):
    short = [c for c in sampled(engine) if len(c.ids) <= 6]
    late = sampled(engine, min_tokens=6)
    assert short and all(len(c.ids) > 6 for c in late)
    assert any(c.finish_reason == "stop" for c in late)


def pairs(completions):
    return {pair for c in completions for pair in zip(c.ids, c.ids[1:], strict=False)}


def test_bad_words(engine):
    plain = sampled(engine)
    word = min(pair for pair in pairs(plain) if 5 not in pair)
    assert any(5 in c.ids for c in plain)
    assert not any(5 in c.ids for c in sampled(engine, bad_words=((5,),)))
    if refused(engine, Sampling(20, bad_words=(word,))):
        with pytest.raises(UserError, match="bad_words"):
            sampled(engine, bad_words=(word,))
        return
    clean = sampled(engine, bad_words=((5,), word))
    assert not any(5 in c.ids for c in clean)
    assert word not in pairs(clean) and any(word[0] in c.ids[:-1] for c in clean)


def test_penalties(engine):
    """The strongest there is keeps a token from coming again; beyond all measure, until every other has come."""
    (plain,) = respond(engine, [Request(ModelInput((4,)), Sampling(15, ignore_eos=True), 7)])
    assert len(set(plain.ids)) < 15
    for penalty in ("presence_penalty", "frequency_penalty"):
        for strength, least in possible_penalties(engine, penalty):
            (bent,) = respond(
                engine, [Request(ModelInput((4,)), Sampling(15, ignore_eos=True, **{penalty: strength}), 7)]
            )
            assert len(set(bent.ids)) >= (least or len(set(plain.ids)) + 1)


def possible_penalties(engine, name):
    """(strength, fewest different tokens of 15) that the engine takes."""
    return [(value, least) for value, least in ((1000.0, 15), (2.0, None)) if possible(engine, [{name: value}])]


def test_repetition_penalty_counts_the_prompt(engine):
    """Every token of the vocabulary but two is in the prompt, and made a thousand times less likely."""
    prompt = tuple(token for token in range(21) if token not in (6, 9)) * 3
    if refused(engine, Sampling(1, repetition_penalty=1.5)):
        with pytest.raises(UserError, match="repetition_penalty"):
            sampled(engine, repetition_penalty=1.5)
        return
    (bent,) = respond(engine, [Request(ModelInput(prompt), Sampling(1, repetition_penalty=1e6, do_sample=False), 7)])
    logits = engine.score([[*prompt, token] for token in range(21)])
    best = max((6, 9), key=lambda token: logits[token][-1])
    assert bent.ids == [best]


def test_fire(engine):
    if refused(engine, Sampling(20, fire=True)):
        with pytest.raises(UserError, match="use_fire_sampling"):
            sampled(engine, fire=True)
        return
    plain, fired = sampled(engine), sampled(engine, fire=True)
    first = {c.ids[0] for c in plain[::5]}
    assert len({c.ids[0] for c in fired[::5]}) > len(first)
    greedy = Sampling(5, do_sample=False)
    assert respond(engine, requests(greedy)) == respond(engine, requests(Sampling(5, do_sample=False, fire=True)))


def test_likeliest_tokens(engine):
    if not engine.capabilities.log_probs:
        return
    for completion in sampled(engine, count=5, logprobs=3, temperature=0.7):
        assert len(completion.top_log_probs) == len(completion.ids)
        for token, log_prob, top in zip(completion.ids, completion.log_probs, completion.top_log_probs, strict=True):
            values = [value for _, value in top]
            assert len(top) == 3 and values == sorted(values, reverse=True) and log_prob <= values[0]
            assert dict(top).get(token, log_prob) == log_prob
    assert all(c.top_log_probs is None for c in sampled(engine, count=5))


def test_options_of_others_change_nothing(reader):
    """All options in one batch: a plain request gives what it gives alone."""
    kinds = [{}, {"min_p": 0.5}, {"frequency_penalty": 2.0}, {"stop": ("a",)}, {"fire": True}, {"logprobs": 2}, {}]
    alone = respond(reader, requests(Sampling(12)))
    mixed = respond(reader, [r for kind in possible(reader, kinds) for r in requests(Sampling(12, **kind))])
    assert [c.ids for c in mixed[:5]] == [c.ids for c in mixed[-5:]]
    if reader.capabilities.invariant:
        assert mixed[:5] == alone


def test_log_probs(engine):
    kinds = [{}, {"temperature": 0.6, "top_k": 4}, {"do_sample": False}, {"min_p": 0.3}, {"presence_penalty": 1.0}]
    for sampling in [Sampling(20, **kind) for kind in kinds]:
        for completion in respond(engine, requests(sampling)):
            assert all(math.isfinite(value) and value <= 0 for value in completion.log_probs)


def test_greedy_ignores_the_seed(engine):
    greedy = Sampling(12, do_sample=False)
    first, second = (respond(engine, requests(greedy, salt)) for salt in (1, 2))
    assert [c.ids for c in first] == [c.ids for c in second]


def test_the_same_request_gives_the_same_response(engine):
    if engine.capabilities.addressed == "none":
        return
    first = respond(engine, requests(Sampling(20)))
    again = respond(engine, requests(Sampling(20)))
    assert [c.ids for c in again] == [c.ids for c in first]
    other = respond(engine, requests(Sampling(20), salt=1))
    assert [c.ids for c in other] != [c.ids for c in first]


def test_company_changes_nothing_where_that_is_promised(engine):
    together = respond(engine, requests(Sampling(20)))
    alone = [respond(engine, [request])[0] for request in requests(Sampling(20))]
    if engine.capabilities.invariant:
        assert alone == together
    assert [len(c.ids) for c in alone if c.finish_reason == "length"] == [20] * sum(
        c.finish_reason == "length" for c in alone
    )


def test_arrival_while_others_run(engine):
    """From another thread too; each answer is the one its own request asked for."""
    long = engine.generate(requests(Sampling(150, ignore_eos=True)))
    arrived = {}

    def arrive(number):
        arrived[number] = respond(engine, requests(Sampling(3 + number, ignore_eos=True), salt=number))

    threads = [threading.Thread(target=arrive, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert {number: {len(c.ids) for c in answers} for number, answers in arrived.items()} == {0: {3}, 1: {4}, 2: {5}}
    assert [len(future.result(PATIENCE).ids) for future in long] == [150] * 5


def test_too_long_is_refused(engine):
    with pytest.raises(UserError, match="do not fit"):
        engine.generate([Request(ModelInput((5,) * 300), Sampling(21), 0)])


def test_a_bad_request_fails_alone(engine):
    (future,) = engine.generate([Request(ModelInput((999_999,)), Sampling(3), 0)])
    assert future.exception(PATIENCE) is not None
    assert all(completion.ids for completion in respond(engine, requests(Sampling(3))))


def test_score(engine, their_model, tiny_folder):
    if not engine.capabilities.score:
        return
    rows = [list(ids) for ids in PROMPTS]
    for temperature in (1.0, 0.7) if engine.capabilities.score_at is None else (engine.capabilities.score_at,):
        scores = engine.score(rows, temperature)
        assert [len(score) for score in scores] == [len(row) for row in rows]
        for row, score in zip(rows, scores, strict=True):
            ids = torch.tensor(row)
            log_p = torch.log_softmax(their_model(tiny_folder)(ids[None]).logits[0] / temperature, -1)
            expected = [0.0, *log_p[:-1].gather(-1, ids[1:, None]).flatten().tolist()]
            assert score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("bent", [{}, {"top_k": 4, "min_p": 0.1}, {"repetition_penalty": 1.5}, {"fire": True}])
def test_score_agrees_with_generate(engine, bent):
    """Log-probs are over all tokens at the temperature, whatever bends the draw."""
    temperature = engine.capabilities.score_at or 0.7
    at = {"temperature": temperature, **bent}
    if not (engine.capabilities.score and engine.capabilities.log_probs and possible(engine, [at])):
        return
    completions = respond(engine, requests(Sampling(20, **at)))
    scores = engine.score([[*ids, *c.ids] for ids, c in zip(PROMPTS, completions, strict=True)], temperature)
    for completion, score in zip(completions, scores, strict=True):
        assert completion.log_probs == pytest.approx(score[-len(completion.ids) :], abs=1e-4)


def test_new_weights_change_the_output(engine, their_model, tiny_folder):
    greedy = requests(Sampling(12, do_sample=False))
    before = respond(engine, greedy)
    engine.load_weights(other_weights(their_model, tiny_folder), version=2)
    after = respond(engine, greedy)
    assert [c.ids for c in after] != [c.ids for c in before]
    assert {version for c in after for version in c.versions} == {2}
    engine.load_weights(their_model(tiny_folder).named_parameters(), version=3)
    assert [c.ids for c in respond(engine, greedy)] == [c.ids for c in before]


def test_a_stream_with_a_gap_is_refused(engine, their_model, tiny_folder):
    with pytest.raises(ValueError, match="left out"):
        engine.load_weights(other_weights(their_model, tiny_folder)[1:], version=2)


def test_weights_may_change_while_paused(engine, their_model, tiny_folder):
    engine.pause()
    futures = engine.generate(requests(Sampling(5)))
    engine.load_weights(other_weights(their_model, tiny_folder), version=2)
    assert not any(future.done() for future in futures)
    engine.resume()
    assert {version for future in futures for version in future.result(PATIENCE).versions} == {2}


def test_pause_twice(engine):
    engine.pause()
    engine.pause()
    engine.resume()
    assert len(respond(engine, requests(Sampling(3)))) == 5


def test_abort(engine):
    futures = engine.generate(requests(Sampling(250, ignore_eos=True)))
    if not engine.capabilities.abort:
        with pytest.raises(NotImplementedError):
            engine.abort(futures)
        return
    engine.abort(futures)
    for future in futures:
        assert future.result(0).finish_reason in ("abort", "length")


def test_sleep_and_wake(engine):
    before = respond(engine, requests(Sampling(12, do_sample=False)))
    engine.sleep(1)
    engine.wake()
    after = respond(engine, requests(Sampling(12, do_sample=False)))
    assert [c.ids for c in after] == [c.ids for c in before]


def test_sessions_change_no_result(engine):
    """Engines that keep no KV for a session accept it all the same. Its requests may extend each other or not."""
    greedy = Sampling(8, do_sample=False, ignore_eos=True)
    prompt = ModelInput(PROMPTS[2])
    (first,) = respond(engine, [Request(prompt, greedy, 1, session="a")])
    extended = prompt.extend((*first.ids, 7, 8))
    for following in (extended, ModelInput(PROMPTS[4])):
        results = [respond(engine, [Request(following, greedy, 2, session=session)]) for session in ("a", None)]
        assert results[0][0].ids == results[1][0].ids
    engine.end_session("a")
    engine.end_session("never heard of")
    if engine.capabilities.sessions:
        engine.stats()
        respond(engine, [Request(prompt, greedy, 1, session="a"), Request(extended, greedy, 1, session="a")])
        assert engine.stats()["prefill_tokens"] <= len(prompt) + len(extended)


def test_media_are_refused(engine):
    image = Media("image", b"digest", 0, num_tokens=2)
    with pytest.raises(UserError, match="has images, which this model does not take"):
        engine.generate([Request(ModelInput((5, 6, 7), (image,)), Sampling(3), 1)])


def test_stats_count_since_the_last_call(engine):
    engine.stats()
    completions = respond(engine, requests(Sampling(6)))
    stats = engine.stats()
    assert stats["tokens"] == sum(len(c.ids) for c in completions)
    assert stats.get("decode_steps", 1) >= 1  # a server does not say
    assert engine.stats().get("tokens", 0) == 0


def test_close_twice(engine):
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(requests(Sampling(3)))
