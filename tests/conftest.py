"""What many packages' tests share: one thread, no network, tiny models of several families, engines that are closed."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its workers; it limits the width of what is printed
os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: kernels run on CPU tensors
# Clusters of Ray are announced there: tests of another process must not join ours.
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray")

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import omegaconf.base
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from burnish import redact
from burnish.config import job_status
from burnish.config.pending import MOE_OPTIONS, Pending
from burnish.demo.tiny import END, make_model, make_tokenizer
from burnish.log import console
from burnish.models.load import ModelSource
from burnish.models.parts import all_weights
from burnish.rollout.agents.agent_loops import REGISTRY_MODULE
from burnish.rollout.engine import ENGINES, Engine, EngineOptions

from .sglang_server import SglangServer

# Thousands of tests load a config. Its interpolations are the same each time, and the garbage collector would scan
# torch and transformers again and again.
omegaconf.base.parse = cache(omegaconf.base.parse)
gc.freeze()
atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)
atexit.register(gc.unfreeze)  # extension modules complain about objects that outlive the interpreter
gc.set_threshold(20_000, 20, 50)

console.SECONDS_UNTIL_SHOWN = 3600.0  # what a test prints must not depend on the machine's speed
collect_ignore = [] if find_spec("vllm") else ["vllm"]  # `make test-vllm` has an environment for those
CHARACTERS = "0123456789+-=?"
SIZES = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LAYERS = ["sliding_attention", "full_attention"]
WINDOWED = {"head_dim": 8, "sliding_window": 8, "layer_types": LAYERS, "query_pre_attn_scalar": 8}
# Caps far below their defaults, so that they bend the numbers.
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=8),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=8),
    "gemma2": lambda: Gemma2Config(**SIZES, **WINDOWED, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3": lambda: Gemma3TextConfig(**SIZES, **WINDOWED),
}


@pytest.fixture
def pending_key(monkeypatch) -> str:
    """A key of `burnish train` that is not supported yet, whichever really are."""
    key = "trainer.log_val_generations"
    rows = (*job_status.PENDING_OF["train"], Pending(key, MOE_OPTIONS))
    monkeypatch.setitem(job_status.PENDING_OF, "train", rows)
    return key


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests() -> Iterator[None]:
    """A secret in the config of one test is hidden from all that the process prints later."""
    yield
    redact.forget()


@pytest.fixture(autouse=True, scope="module")
def _no_agents_of_other_tests() -> Iterator[None]:
    """verl's @register is global to the process: without this, agents of one file are offered to runs of the next."""
    yield
    getattr(sys.modules.get(REGISTRY_MODULE), "_agent_loop_registry", {}).clear()


def sharpen(model: PreTrainedModel, seed: int) -> None:
    """Weights large enough that attention, windows and caps matter and tokens are far from equally likely."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25, generator=generator)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen2 of two layers and its character tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = make_tokenizer(CHARACTERS)
    model = make_model(folder, tokenizer, hidden=32, layers=2, seed=0)
    assert tokenizer.convert_tokens_to_ids(END) == model.config.eos_token_id == 2
    sharpen(model, seed=0)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session", params=list(FAMILIES))
def family_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model of each family, one after the other."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(FAMILIES[request.param]())
    sharpen(model, seed=1)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def their_model() -> Callable[[str], PreTrainedModel]:
    """The folder's model as transformers runs it, in float32."""
    loaded: dict[str, PreTrainedModel] = {}

    def load(folder: str) -> PreTrainedModel:
        if folder not in loaded:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            model.generation_config = GenerationConfig()  # `generate` does what its caller says, and nothing else
            loaded[folder] = model.eval().requires_grad_(False)
        return loaded[folder]

    return load


@pytest.fixture(scope="session")
def sglang_server(tiny_folder: str) -> Iterator[SglangServer]:
    """A server that runs already, with a model of the tiny one's shape; engines fill it."""
    server = SglangServer(tiny_folder, "--enable-deterministic-inference", "--enable-memory-saver").wait()
    yield server
    server.kill()


@pytest.fixture
def make_engine(
    their_model: Callable[[str], PreTrainedModel], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Engine]]:
    """make_engine(folder, name="builtin", **options): an engine with the folder's weights as version 1."""
    engines: list[Engine] = []
    # What an engine needs to be made here.
    needs = {"sglang": lambda: {"base_url": request.getfixturevalue("sglang_server").url}}

    def make(folder: str, name: str = "builtin", **options: object) -> Engine:
        extra = needs[name]() if name in needs and "extra" not in options else {}
        settings = {"eos_ids": (2,), "max_model_len": 320, "extra": extra, **options}
        source = ModelSource(str(Path(folder)))
        engine = ENGINES[name].load()(EngineOptions(source, torch.float32, torch.device("cpu"), **settings))
        engine.load_weights(all_weights(their_model(folder)), version=1)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
