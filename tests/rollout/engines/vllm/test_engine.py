"""VllmEngine without vLLM: what it says then, and in which order it would use its core on a GPU."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import ENGINES, EngineOptions, Request, Sampling
from burnish.rollout.engines.vllm import library
from burnish.rollout.engines.vllm.engine import VllmEngine


class Recorded:
    """Keeps the calls that a core gets."""

    in_this_process = True

    def __init__(self, *arguments):
        self.calls = []

    def pause(self):
        self.calls.append("pause")
        return []

    def step(self):
        """A token for every request that was added."""
        names = [call.split()[1] for call in self.calls if call.startswith("add")]
        return [library.StepOutput(name, [7], [-1.5], [[]], 0, None, False) for name in names]

    def rpc(self, method, stream):
        self.calls.append(f"{method} {len(list(stream))}")

    def __getattr__(self, name):
        return lambda *arguments, **named: self.calls.append(" ".join(map(str, (name, *arguments))))


@pytest.fixture
def engine(tiny_folder, monkeypatch):
    """As on a GPU, on top of a core that only keeps its calls."""
    monkeypatch.setattr(VllmEngine, "check", lambda *arguments: None)
    monkeypatch.setattr("burnish.rollout.engines.vllm.engine.Core", Recorded)
    options = EngineOptions(ModelSource(tiny_folder), torch.float32, torch.device("cuda"), (2,), max_model_len=64)
    options.own_thread = False
    engine = VllmEngine(options)
    yield engine
    engine.close()


def test_waking_takes_weights_before_memory_for_the_cache(engine, their_model, tiny_folder):
    stream = list(their_model(tiny_folder).named_parameters())
    count = len(stream) + 1  # and the tied head
    engine.load_weights(stream, 1)
    engine.sleep(1)
    engine.load_weights(stream, 2)
    engine.wake()
    engine.wake()
    engine.sleep(2)
    engine.wake()
    assert engine.core.calls == [
        *("pause", f"burnish_load {count}", "set_version 1", "reset_prefix_cache", "resume"),
        *("sleep 1", "wake ['weights']", f"burnish_load {count}", "set_version 2", "wake ['kv_cache']"),
        *("sleep 2", "wake ['weights', 'kv_cache']"),
    ]
    assert engine.capabilities.sleep and engine.stats() == {"sleeps": 2}


def test_without_vllm_it_says_what_to_install(monkeypatch, tiny_folder):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else real(name))
    with pytest.raises(UserError) as caught:
        ENGINES["vllm"].load().check({}, torch.device("cpu"), "rollout")
    assert caught.value.key == "rollout.name" and 'pip install -e ".[vllm]"' in caught.value.text()


@pytest.mark.parametrize(("found", "fits"), [("0.25.1", False), ("0.26.0", True), ("0.32.4", True), ("0.33.0", False)])
def test_versions(monkeypatch, found, fits):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(library, "version", lambda: found)
    monkeypatch.setattr(library, "_prepare_environment", lambda: None)
    if fits:
        assert library.check_installed("rollout") is None
    else:
        with pytest.raises(UserError, match=rf"vLLM {found} is not supported.*0\.26 to 0\.32"):
            library.check_installed("rollout")


def test_a_step_submits_what_waits_and_appends_what_comes(engine):
    engine.end_session("never heard of")  # ignored: vLLM's prefix cache needs no sessions
    request = Request(ModelInput((3, 4)), Sampling(2), seed=5, session="a")
    (future,) = engine.generate([request])
    assert engine.step() and not future.done()
    assert engine.step() and future.result(0).ids == [7, 7] and future.result(0).finish_reason == "length"
    assert not engine.step() and engine.core.calls[-1] == "abort ['0']"


class StandInClient:
    """Stands in for vLLM's in-process client: 0.32 has a finalizer, 0.26 has none."""

    def __init__(self, has_finalizer):
        self.calls = []
        self.engine_core = self
        if has_finalizer:
            self._finalizer = SimpleNamespace(detach=lambda: self.calls.append("detach"))
        self.model_executor = SimpleNamespace(shutdown=lambda: self.calls.append("executor"))
        self.scheduler = SimpleNamespace(shutdown=lambda: self.calls.append("scheduler"))

    def shutdown(self):
        self.calls.append("core")


@pytest.mark.parametrize("has_finalizer", [False, True], ids=["0.26", "0.32"])
def test_closing_the_in_process_engine(has_finalizer):
    """The whole core, or, while others use the process groups, all of it but those; never twice."""
    detached = ["detach"] if has_finalizer else []
    for keep_groups, expected in ((False, ["core"]), (True, ["executor", "scheduler"])):
        client = StandInClient(has_finalizer)
        library.shut_down(client, keep_groups)
        assert client.calls == [*detached, *expected]


@pytest.mark.long
@pytest.mark.parametrize("has_finalizer", [False, True], ids=["0.26", "0.32"])
def test_the_last_core_of_a_process_takes_the_groups_down(has_finalizer, monkeypatch):
    monkeypatch.setattr(library.Core, "open_cores", 2)
    monkeypatch.setattr(library.Core, "groups_are_ours", False)
    cores = [object.__new__(library.Core) for _ in range(2)]
    clients = [StandInClient(has_finalizer) for _ in cores]
    for core, client in zip(cores, clients, strict=True):
        core.engine = SimpleNamespace(engine_core=client)
        core.close()
    assert "core" not in clients[0].calls and clients[1].calls[-1] == "core"
