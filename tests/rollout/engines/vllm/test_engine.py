"""VllmEngine without vLLM: what it says then, and in which order it would use its core on a GPU."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from burnish.errors import UserError
from burnish.models.load import ModelSource
from burnish.rollout.engine import ENGINES, EngineOptions
from burnish.rollout.engines.vllm import library
from burnish.rollout.engines.vllm.engine import VllmEngine


class Recorded:
    """Keeps the calls that a core gets."""

    in_this_process = True

    def __init__(self, *arguments):
        self.calls = []

    def hold(self):
        self.calls.append("hold")
        return []

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


def test_asleep_it_takes_weights_before_it_takes_room_for_the_cache(engine, their_model, tiny_folder):
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
        *("hold", f"burnish_load {count}", "label 1", "forget_prefixes", "go_on"),
        *("sleep 1", "wake ['weights']", f"burnish_load {count}", "label 2", "wake ['kv_cache']"),
        *("sleep 2", "wake ['weights', 'kv_cache']"),
    ]
    assert engine.capabilities.sleep and engine.stats() == {"sleeps": 2}


def test_without_vllm_it_says_what_to_install(monkeypatch, tiny_folder):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else real(name))
    with pytest.raises(UserError) as caught:
        ENGINES["vllm"].load().check({}, torch.device("cpu"), "rollout")
    assert caught.value.key == "rollout.name" and "pip install burnish[vllm]" in caught.value.text()


@pytest.mark.parametrize(("found", "fits"), [("0.25.1", False), ("0.26.0", True), ("0.32.4", True), ("0.33.0", False)])
def test_versions(monkeypatch, found, fits):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(library, "version", lambda: found)
    monkeypatch.setattr(library, "_prepare_environment", lambda: None)
    if fits:
        assert library.check_installed("rollout") is None
    else:
        with pytest.raises(UserError, match=rf"vLLM {found} is installed.*0\.26 to 0\.32"):
            library.check_installed("rollout")
