"""The engine against the stand-in server."""

import signal

import pytest
import torch

from burnish.errors import UserErrors
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineDied, Request, Sampling

from .kit import PATIENCE, asks


def test_tokens_and_log_probs_are_those_of_transformers(make_engine, their_model, tiny_folder):
    engine, model = make_engine(tiny_folder, "sglang"), their_model(tiny_folder)
    prompts = [(5, 6), (9, 4, 11)]
    wanted = [Request(ModelInput(ids), Sampling(10, do_sample=False, ignore_eos=True), 0) for ids in prompts]
    for ids, future in zip(prompts, engine.generate(wanted), strict=True):
        made = future.result(PATIENCE)
        theirs = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=10, min_new_tokens=10, eos_token_id=None
        )
        assert made.ids == theirs[0, len(ids) :].tolist()
        log_p = torch.log_softmax(model(theirs).logits[0], -1)[len(ids) - 1 : -1]
        assert made.log_probs == pytest.approx(log_p[range(10), made.ids].tolist(), abs=1e-4)


@pytest.mark.parametrize("settings", [{"presence_penalty": 2.0}, {"min_tokens": 9}, {"bad_words": ((5,), (7,))}])
def test_restricted_sampling_has_log_probs_of_the_full_vocabulary(settings, make_engine, their_model, tiny_folder):
    """The server's are of the bent logits; ours are over all tokens as they are."""
    engine, model = make_engine(tiny_folder, "sglang"), their_model(tiny_folder)
    wanted = [Request(ModelInput((3 + n, 5)), Sampling(12, logprobs=2, **settings), n) for n in range(6)]
    for request, future in zip(wanted, engine.generate(wanted), strict=True):
        made = future.result(PATIENCE)
        row = torch.tensor([[*request.ids, *made.ids]])
        log_p = torch.log_softmax(model(row).logits[0], -1)[1:-1]
        assert made.log_probs == pytest.approx(log_p[range(len(made.ids)), made.ids].tolist(), abs=1e-4)
        best = log_p.topk(2, -1)
        assert [[token for token, _ in place] for place in made.top_log_probs] == best.indices.tolist()


def test_a_pause_changes_nothing(make_engine, sglang_server, tiny_folder):
    """Broken off and asked for the rest: the noise goes by seed and place, so the response is the same."""
    engine = make_engine(tiny_folder, "sglang")
    calm = [future.result(PATIENCE) for future in engine.generate(asks(6, 120))]
    futures = engine.generate(asks(6, 120))
    for _ in range(3):
        sglang_server.slow_down()
        sglang_server.wait_for_steps(3)
        engine.pause()
        assert not engine._calls
        engine.resume()
    stirred = [future.result(PATIENCE) for future in futures]
    assert [made.ids for made in stirred] == [made.ids for made in calm]
    for one, other in zip(stirred, calm, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def test_weights_that_change_on_the_way(make_engine, sglang_server, their_model, tiny_folder):
    """Each token has the version of the weights that sampled it, and the log-prob that those give it."""
    engine, model = make_engine(tiny_folder, "sglang"), their_model(tiny_folder)
    other = {name: tensor.flip(0) for name, tensor in model.named_parameters()}
    sglang_server.slow_down()
    futures = engine.generate(asks(4, 150))
    sglang_server.wait_for_steps(8)
    engine.load_weights(other.items(), version=2)
    made = [future.result(PATIENCE) for future in futures]
    assert {version for one in made for version in one.versions} == {1, 2}
    for request, one in zip(asks(4, 150), made, strict=True):
        assert one.versions == sorted(one.versions) and len(one.ids) == 150
        row = torch.tensor([[*request.ids, *one.ids]])
        now = torch.log_softmax(torch.func.functional_call(model, other, (row,)).logits[0], -1)
        before = torch.log_softmax(model(row).logits[0], -1)
        expected = [
            float((before if version == 1 else now)[1 + place, token])
            for place, (version, token) in enumerate(zip(one.versions, one.ids, strict=True))
        ]
        assert one.log_probs == pytest.approx(expected, abs=1e-3)


def test_a_penalised_response_starts_again_after_a_pause(make_engine, sglang_server, tiny_folder):
    engine = make_engine(tiny_folder, "sglang")
    wanted = asks(3, 120, frequency_penalty=0.5)
    calm = [future.result(PATIENCE).ids for future in engine.generate(wanted)]
    sglang_server.slow_down()
    futures = engine.generate(wanted)
    sglang_server.wait_for_steps(5)
    engine.pause()
    engine.resume()
    assert [future.result(PATIENCE).ids for future in futures] == calm


def test_abort_gives_what_is_there(make_engine, sglang_server, tiny_folder):
    engine = make_engine(tiny_folder, "sglang", max_num_seqs=4)
    calm = [future.result(PATIENCE).ids for future in engine.generate(asks(40, 150))]
    sglang_server.slow_down()
    futures = engine.generate(asks(40, 150))
    sglang_server.wait_for_steps(8)
    engine.abort(futures)
    made = [future.result(0) for future in futures]
    assert {one.finish_reason for one in made} <= {"abort", "length"} and made[-1].ids == []  # it waited for a place
    assert all(one.ids == whole[: len(one.ids)] for one, whole in zip(made, calm, strict=True))


def test_sleep_gives_memory_back_and_weights_come_first(make_engine, their_model, tiny_folder):
    engine = make_engine(tiny_folder, "sglang")
    assert engine.capabilities.sleep
    before = engine.generate(asks(1))[0].result(PATIENCE).ids
    for level in (1, 2):
        engine.sleep(level)
        (waiting,) = engine.generate(asks(1))
        with pytest.raises(RuntimeError, match="in flight"):
            engine.sleep(level)
        engine.load_weights(their_model(tiny_folder).named_parameters(), version=1 + level)
        assert not waiting.done()
        engine.wake()
        made = waiting.result(PATIENCE)
        assert made.ids == before and set(made.versions) == {1 + level}


def test_requests_are_checked_before_anything_is_sent(make_engine, tiny_folder):
    engine = make_engine(tiny_folder, "sglang")
    engine.stats()
    with pytest.raises(UserErrors, match="use_fire_sampling"):
        engine.generate([Request(ModelInput((5,)), Sampling(3, fire=True, repetition_penalty=1.5), 0)])
    assert not engine._requests


def test_a_server_that_hangs_is_dead(make_engine, sglang_server, monkeypatch, tiny_folder):
    engine = make_engine(tiny_folder, "sglang")
    for name, seconds in (("HEALTH_INTERVAL", 0.1), ("CALL_TIMEOUT", 0.2)):
        monkeypatch.setattr(f"burnish.rollout.engines.sglang.engine.{name}", seconds)
    futures = engine.generate(asks(3, 250))
    sglang_server.process.send_signal(signal.SIGSTOP)
    try:
        for future in futures:
            assert isinstance(future.exception(PATIENCE), EngineDied)
        with pytest.raises(EngineDied):
            engine.generate(asks(1))[0].result(PATIENCE)
    finally:
        sglang_server.process.send_signal(signal.SIGCONT)
