"""vLLM as a server: the engine's suite over HTTP, and one that runs already. rows.py has one that is killed."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import pytest
import torch

from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.http import HttpClient, Refused
from burnish.rollout.engines.private import KEY_VARIABLE
from burnish.rollout.engines.vllm.arguments import FIXED
from burnish.rollout.engines.vllm.remote import versions_of
from burnish.rollout.engines.vllm.server import VllmServer

from ..contracts import test_engines as contract
from ..security.peers import descendants, is_loopback, listening_hosts
from .compare import BENT, PROMPTS, assert_log_probs, expected, moved, respond

# Of the suite, what the way over HTTP could break.
SUITE = [
    *(contract.test_generate, contract.test_finish_reasons, contract.test_stop_token_ids, contract.test_min_tokens),
    *(contract.test_likeliest_tokens, contract.test_arrival_while_others_run, contract.test_pause_twice),
    *(contract.test_the_same_request_gives_the_same_response, contract.test_abort, contract.test_no_requests),
    *(contract.test_a_bad_request_fails_alone, contract.test_penalties),
]
WITH_WEIGHTS = [
    *(contract.test_score, contract.test_new_weights_change_the_output, contract.test_weights_may_change_while_paused),
    contract.test_a_stream_with_a_gap_is_refused,
]
PATIENCE = 120.0
pytestmark = pytest.mark.timeout(900)  # a server starts slowly where others compute too


def options(folder, **extra):
    settings = {"max_model_len": 320, "max_num_seqs": 64, "extra": extra}
    return EngineOptions(ModelSource(folder), torch.float32, torch.device("cpu"), (2,), **settings)


@pytest.fixture(scope="module")
def server(tiny_folder):
    """One for all tests of this file, with a worker that can be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        patch.setitem(FIXED, "worker_extension_cls", "slow_worker.SlowWorker")
        engine = VllmServer(options(tiny_folder))
    yield engine
    engine.close()


@pytest.fixture
def engine(server, their_model, tiny_folder):
    """Filled with the folder's weights as version 1."""
    server.resume()
    server.load_weights(their_model(tiny_folder).named_parameters(), version=1)
    server.options.decode = lambda ids: "".join(contract.LETTERS[token] for token in ids if token != 2)
    return server


@pytest.mark.parametrize("test", SUITE, ids=lambda test: test.__name__)
def test_the_suite(engine, test):
    test(engine)
    assert not engine.running


@pytest.mark.parametrize("test", WITH_WEIGHTS, ids=lambda test: test.__name__)
def test_the_suite_with_weights(engine, their_model, tiny_folder, test):
    test(engine, their_model, tiny_folder)
    assert not engine.running


def test_stop_strings(engine):
    contract.test_stop_strings(engine)
    assert not engine.running


@pytest.mark.parametrize("bent", BENT[:-1], ids=[", ".join(bent) or "plain" for bent in BENT[:-1]])
def test_log_probs_are_those_of_transformers(engine, their_model, tiny_folder, bent):
    assert_log_probs(their_model(tiny_folder), engine, Sampling(20, temperature=0.6, **bent), 0.6)


def test_bad_words_of_one_token(engine):
    plain = respond(engine, Sampling(20), PROMPTS * 4)
    clean = respond(engine, Sampling(20, bad_words=((5,),)), PROMPTS * 4)
    assert any(5 in one.ids for one in plain) and not any(5 in one.ids for one in clean)
    with pytest.raises(UserError, match="bad_words"):
        engine.generate([Request(ModelInput((5,)), Sampling(3, bad_words=((5, 6),)), 0)])


@pytest.mark.parametrize("late", [False, True], ids=["tokens-in-time", "tokens-late"])
def test_weights_overtake_a_response(late, engine, slowly, their_model, tiny_folder, monkeypatch):
    """Before them it is the old model's, after them the new one's, to the token: also of those that come after them."""
    old, new = their_model(tiny_folder), moved(their_model(tiny_folder), seed=5)

    def pause_without_listening():
        time.sleep(0.2)  # it goes on for a while
        engine.core._post("/pause?mode=keep")
        return []

    (future,) = engine.generate([Request(ModelInput((5, 6)), Sampling(250, ignore_eos=True), 1)])
    while not any(row.tokens for row in list(engine.running.values())):
        assert not future.done()
        time.sleep(0.01)
    with monkeypatch.context() as patch:
        if late:
            patch.setattr(engine.core, "pause", pause_without_listening)
        engine.load_weights(new.named_parameters(), version=2)
    slowly("0")
    completion = future.result(PATIENCE)
    cut = completion.versions.index(2)
    assert 0 < cut < 250 and completion.versions == [1] * cut + [2] * (250 - cut)
    log_probs = expected(old, (5, 6), completion.ids, 1.0)
    assert completion.log_probs[:cut] == pytest.approx(log_probs[:cut], abs=2e-5)
    after = slice(cut, cut + 2)  # of one token both models may happen to think the same
    assert completion.log_probs[after] != pytest.approx(log_probs[after], abs=1e-3)


@pytest.fixture
def slowly(engine):
    """The server takes its time for a token: on a busy machine its front hears of nothing while tokens come fast.
    slowly(seconds) is another time."""

    def take(seconds):
        engine.core.rpc("burnish_slowly", seconds)

    take("0.05")
    yield take
    take("0")


@pytest.mark.parametrize(
    ("spans", "versions"),
    [
        (None, None),
        ([], None),
        ([{"version": "default", "start": 0, "end": 3}], None),
        ([{"version": "1", "start": 0, "end": 2}, {"version": "12", "start": 2, "end": 3}], [1, 1, 12]),
    ],
)
def test_versions_of_a_response(spans, versions):
    assert versions_of(spans) == versions


def test_only_this_user_reaches_the_server(engine):
    """Every route needs the key, at a unix socket in a private folder; what listens beside it is on loopback."""
    process = engine.core.process
    for key in (None, "x" * 64):
        for path in ("/health", "/v1/models", "/collective_rpc", "/pause", "/update_weight_version", "/sleep"):
            with pytest.raises(Refused, match="401"):
                asyncio.run(HttpClient(process.url, key).post(path, {}, PATIENCE))
    assert asyncio.run(HttpClient(process.url, process.api_key).get("/health", PATIENCE)) == ""
    assert stat.S_IMODE(process.folder.stat().st_mode) == 0o700 and str(process.folder) in process.url
    family = [process.process.pid, *descendants(process.process.pid)]
    assert all(is_loopback(host) for pid in family for host in listening_hosts(pid))
    for pid in family:
        assert process.api_key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_server_that_runs_already(engine, their_model, tiny_folder, monkeypatch):
    """Two engines of one server, and what the second cannot be told."""
    url = engine.core.process.url
    monkeypatch.setenv(KEY_VARIABLE, engine.core.process.api_key)
    second = VllmServer(options(tiny_folder, base_url=url))
    other = moved(their_model(tiny_folder), seed=9)
    second.load_weights(other.named_parameters(), version=7)
    assert_log_probs(other, second, Sampling(8, temperature=0.8), 0.8)
    assert_log_probs(other, engine, Sampling(8, temperature=0.8), 0.8)
    second.close()
    assert engine.core.process.process.poll() is None
    with pytest.raises(UserError, match=r"engine_kwargs\.vllm\.block_size.*no effect on a running server"):
        VllmServer(options(tiny_folder, base_url=url, block_size=64))
