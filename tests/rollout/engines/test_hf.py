"""The hf engine draws what the built-in one draws: the noise is addressed the same way."""

from __future__ import annotations

import pytest

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.seeding import derive_seed

PATIENCE = 60.0


def respond(engine, requests):
    return [future.result(PATIENCE) for future in engine.generate(requests)]


@pytest.fixture
def requests(prompt):
    """make(n, **sampling): n requests over prompts of different lengths, each with a length of its own."""

    def make(count, **sampling):
        return [
            Request(ModelInput(prompt(1 + 7 * i % 50)), Sampling(3 + i % 20, **sampling), derive_seed("hf", i))
            for i in range(count)
        ]

    return make


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"temperature": 0.0}])
def test_greedy_equals_builtin(family_folder, make_engine, requests, sampling):
    builtin, hf = (respond(make_engine(family_folder, name), requests(20, **sampling)) for name in ("builtin", "hf"))
    assert [c.ids for c in hf] == [c.ids for c in builtin]
    assert [c.finish_reason for c in hf] == [c.finish_reason for c in builtin]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"top_k": 5, "top_p": 0.9}, {"ignore_eos": True}])
def test_samples_equal_builtin(tiny_folder, make_engine, requests, sampling):
    builtin, hf = (respond(make_engine(tiny_folder, name), requests(100, **sampling)) for name in ("builtin", "hf"))
    equal = [a.ids == b.ids and a.finish_reason == b.finish_reason for a, b in zip(builtin, hf, strict=True)]
    assert sum(equal) >= 95  # a draw on the edge between two tokens may fall to either side by the last bit
    for a, b, same in zip(builtin, hf, equal, strict=True):
        if same:
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)


def test_ignore_eos_beside_rows_that_stop(tiny_folder, make_engine, requests):
    """In one batch some rows go on after EOS and others end there."""
    engine = make_engine(tiny_folder, "hf")
    going, ending = requests(60, ignore_eos=True), requests(60)
    completions = respond(engine, [*going, *ending])
    for request, through, ended in zip(going, completions[:60], completions[60:], strict=True):
        assert len(through.ids) == len(through.log_probs) == request.sampling.max_tokens
        assert through.finish_reason == "length"
        assert through.ids[: len(ended.ids)] == ended.ids
        assert (ended.ids[-1] == 2) == (ended.finish_reason == "stop")
    assert any(2 in through.ids[:-1] for through in completions[:60])


def test_max_num_seqs_is_honoured(tiny_folder, make_engine, prompt):
    engine = make_engine(tiny_folder, "hf", max_num_seqs=2)
    engine.pause()
    futures = engine.generate([Request(ModelInput(prompt(5)), Sampling(4, ignore_eos=True), seed) for seed in range(6)])
    engine.resume()
    assert all(len(future.result(PATIENCE).ids) == 4 for future in futures)
    assert engine.stats()["decode_steps"] >= 3 * 4


def test_close_while_paused(tiny_folder, make_engine, prompt):
    engine = make_engine(tiny_folder, "hf")
    engine.pause()
    (future,) = engine.generate([Request(ModelInput(prompt(5)), Sampling(4), 0)])
    engine.close()
    assert isinstance(future.exception(PATIENCE), RuntimeError)
