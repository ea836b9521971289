"""Every engine that can be loaded here passes the same suite, by what its capabilities promise."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from burnish.address import address
from burnish.errors import UserError
from burnish.rollout.engine import ENGINES, Request, Sampling

PATIENCE = 60.0
PROMPTS = [(5,), (5, 6, 7), tuple(range(3, 20)), (8, 8, 8, 8), tuple([4, 9, 13] * 20)]


def loadable():
    """Rows whose library is installed; the others say what to install."""
    names = []
    for name in ENGINES.names():
        try:
            ENGINES[name].load()
        except (UserError, ImportError):
            continue
        names.append(name)
    return names


@pytest.fixture(params=loadable())
def engine(request, make_engine, tiny_folder):
    return make_engine(tiny_folder, request.param)


def requests(sampling, salt=0, prompts=PROMPTS):
    return [Request(ids, sampling, address(salt, number)) for number, ids in enumerate(prompts)]


def respond(engine, wanted):
    return [future.result(PATIENCE) for future in engine.generate(wanted)]


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


def test_log_probs(engine):
    for sampling in (Sampling(20), Sampling(20, temperature=0.6, top_k=4), Sampling(20, do_sample=False)):
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
        engine.generate([Request((5,) * 300, Sampling(21), 0)])


def test_a_bad_request_reaches_its_future_and_the_engine_goes_on(engine):
    (future,) = engine.generate([Request((999_999,), Sampling(3), 0)])
    assert future.exception(PATIENCE) is not None
    assert all(completion.ids for completion in respond(engine, requests(Sampling(3))))


def test_score(engine, their_model, tiny_folder):
    if not engine.capabilities.score:
        return
    rows = [list(ids) for ids in PROMPTS]
    for temperature in (1.0, 0.7):
        scores = engine.score(rows, temperature)
        assert [len(score) for score in scores] == [len(row) for row in rows]
        for row, score in zip(rows, scores, strict=True):
            ids = torch.tensor(row)
            log_p = torch.log_softmax(their_model(tiny_folder)(ids[None]).logits[0] / temperature, -1)
            expected = [0.0, *log_p[:-1].gather(-1, ids[1:, None]).flatten().tolist()]
            assert score == pytest.approx(expected, abs=1e-4)


def test_score_agrees_with_generate(engine):
    if not (engine.capabilities.score and engine.capabilities.log_probs):
        return
    completions = respond(engine, requests(Sampling(20, temperature=0.7)))
    scores = engine.score([[*ids, *c.ids] for ids, c in zip(PROMPTS, completions, strict=True)], temperature=0.7)
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


def test_stats_count_since_the_last_call(engine):
    engine.stats()
    completions = respond(engine, requests(Sampling(6)))
    stats = engine.stats()
    assert stats["tokens"] == sum(len(c.ids) for c in completions)
    assert stats["decode_steps"] >= 1
    assert engine.stats().get("tokens", 0) == 0


def test_close_twice(engine):
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(requests(Sampling(3)))
