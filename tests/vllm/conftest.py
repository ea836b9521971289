"""The real vLLM, on a CPU: models whose heads are wide enough for its kernels, and engines that tests share.

Starting vLLM takes seconds, so an engine is started once for each way of asking for it. A test that closes its engine,
or breaks it, is given one of its own by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from burnish.demo.tiny import make_model, make_tokenizer
from burnish.models.load import ModelSource
from burnish.rollout.engine import ENGINES, Engine, EngineOptions

from ..conftest import CHARACTERS, sharpen

HIDDEN = 128  # four heads of 32: vLLM's attention on CPUs knows no narrower ones


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root's tiny model, wider. Its head is tied to its embeddings."""
    folder = tmp_path_factory.mktemp("wide")
    model = make_model(folder, make_tokenizer(CHARACTERS), hidden=HIDDEN, layers=2, seed=0)
    sharpen(model, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.5)  # four times as many terms in every sum
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def started() -> Iterator[dict[Any, Engine]]:
    """Engines by what they were asked for."""
    engines: dict[Any, Engine] = {}
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture
def make_engine(started: dict, their_model: Callable[[str], PreTrainedModel]) -> Callable[..., Engine]:
    """make_engine(folder, **options): a vLLM with the folder's weights as version 1."""

    def make(folder: str, name: str = "vllm", decode: Any = None, **options: Any) -> Engine:
        asked = (folder, name, repr(sorted(options.items())))
        engine = started.get(asked)
        if engine is None or engine.closed:
            settings = {"eos_ids": (2,), "max_model_len": 320, "max_num_seqs": 64, **options}
            built = EngineOptions(ModelSource(folder), torch.float32, torch.device("cpu"), **settings)
            engine = started[asked] = ENGINES[name].load()(built)
        engine.options.decode = decode
        engine.resume()
        engine.abort([row.future for row in [*engine.waiting, *engine.running.values()]])
        engine.load_weights(their_model(folder).named_parameters(), version=1)
        engine.stats()
        return engine

    return make
