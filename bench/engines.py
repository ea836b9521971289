"""Engines and requests for the rollout benchmarks: Qwen2.5 shapes, long-tailed response lengths."""

from __future__ import annotations

import dataclasses
import gc
import random
from pathlib import Path
from typing import Any

import torch
from shapes import config_of
from transformers import PretrainedConfig, Qwen2Config

from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.seeding import derive_seed

TOKEN_IDS = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}


def shape_config(shape: str) -> Qwen2Config:
    config = config_of(shape)
    config.update({**TOKEN_IDS, "architectures": ["Qwen2ForCausalLM"]})
    return config


@dataclasses.dataclass(frozen=True)
class Bench:
    """Device and options of the engine under test."""

    device: torch.device
    eager: bool = False
    sync_interval: int = 16  # decode steps between two host syncs
    block: int = 64  # tokens per KV block
    compiled: bool | None = None
    memory_share: float = 0.8
    shared_prefix: bool = False  # engine_kwargs.builtin.shared_prefix

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def engine(self, config: PretrainedConfig, dtype: torch.dtype, folder: Path, **more: Any) -> BuiltinEngine:
        """An engine with freshly initialized weights; the caller closes it."""
        config.save_pretrained(folder)
        extra = {"sync_interval": self.sync_interval, "block_size": self.block, "shared_prefix": self.shared_prefix}
        if self.compiled is not None:
            extra["compiled"] = self.compiled
        options = EngineOptions(
            ModelSource(str(folder)),
            dtype,
            self.device,
            eos_ids=(2,),
            eager=self.eager,
            device_loop=True,
            memory_share=self.memory_share if self.on_gpu else 0.2,
            extra=extra,
            **more,
        )
        with self.device:  # initialize weights on the device
            return BuiltinEngine(options)

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def forget(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()


def make_requests(seqs: int, n: int, prompt: int, max_new: int, vocabulary: int, fixed: bool = False, salt: int = 0):
    """The same prompts and lengths for every engine; `salt` changes the sampling seeds only."""
    rng = random.Random(0)
    low, high = (1000, 150_000) if vocabulary > 150_000 else (3, vocabulary)
    prompts = [tuple(rng.randrange(low, high) for _ in range(prompt)) for _ in range(seqs // n)]
    repeated = [ids for ids in prompts for _ in range(n)]
    lengths = [max_new if fixed else max(16, min(max_new, int(rng.lognormvariate(5.5, 0.7)))) for _ in repeated]
    return [
        Request(ModelInput(ids), Sampling(length, ignore_eos=True), derive_seed(salt, number))
        for number, (ids, length) in enumerate(zip(repeated, lengths, strict=True))
    ]
