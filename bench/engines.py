"""Engines and requests for the rollout benchmarks: shapes of several families, long-tailed response lengths."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import random
from pathlib import Path
from typing import Any

import torch
from shapes import SHAPES, config_of
from transformers import Gemma3TextConfig, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.seeding import derive_seed

TOKEN_IDS = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}

# Shapes of other families that the engine is measured with; those of Qwen2.5 are in shapes.py.
FAMILIES: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "Qwen3-0.6B": (Qwen3Config, dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                                     num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151_936,
                                     tie_word_embeddings=True)),
    "Qwen3-4B": (Qwen3Config, dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                                   num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151_936,
                                   tie_word_embeddings=True)),
    "Llama-1B": (LlamaConfig, dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                                   num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128_256,
                                   tie_word_embeddings=True)),
    "Gemma3-1B": (Gemma3TextConfig, dict(hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
                                         num_attention_heads=4, num_key_value_heads=1, head_dim=256,
                                         vocab_size=262_144, query_pre_attn_scalar=256, sliding_window=512)),
}  # fmt: skip
ARCHITECTURES = {
    Qwen2Config: "Qwen2ForCausalLM",
    Qwen3Config: "Qwen3ForCausalLM",
    LlamaConfig: "LlamaForCausalLM",
    Gemma3TextConfig: "Gemma3ForCausalLM",
}
ENGINE_SHAPES = (*SHAPES, *FAMILIES)


def shape_config(shape: str) -> PretrainedConfig:
    if shape in SHAPES:
        config: PretrainedConfig = config_of(shape)
    else:
        kind, sizes = FAMILIES[shape]
        config = kind(**sizes, max_position_embeddings=32_768)
    config.update({**TOKEN_IDS, "architectures": [ARCHITECTURES[type(config)]]})
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
    few_rows: int = 0  # engine_kwargs.builtin.few_rows

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def engine(
        self, config: PretrainedConfig, dtype: torch.dtype, folder: Path, more_extra: Any = None, **more: Any
    ) -> BuiltinEngine:
        """An engine with freshly initialized weights; the caller closes it. `more_extra`: engine_kwargs.builtin."""
        config.save_pretrained(folder)
        extra: dict[str, Any] = {"sync_interval": self.sync_interval, "block_size": self.block}
        extra |= {"shared_prefix": self.shared_prefix, "few_rows": self.few_rows}
        if self.compiled is not None:
            extra["compiled"] = self.compiled
        extra |= more_extra or {}
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


@dataclasses.dataclass(frozen=True)
class Workload:
    """The requests that engines are compared on."""

    seqs: int = 1024  # responses
    n: int = 8  # per prompt
    prompt: tuple[int, ...] = (256,)  # tokens, or the fewest and the most
    max_new: int = 1024
    mean_log: float = 5.5  # of the logarithm of the lengths
    fixed: bool = False  # all responses of the maximum length

    @property
    def max_model_len(self) -> int:
        return max(self.prompt) + self.max_new

    def requests(self, vocabulary: int, salt: int = 0) -> list[Request]:
        prompt = self.prompt[0] if len(self.prompt) == 1 else (min(self.prompt), max(self.prompt))
        return make_requests(self.seqs, self.n, prompt, self.max_new, vocabulary, self.fixed, salt, self.mean_log)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seqs", type=int, default=Workload.seqs, help="responses")
        parser.add_argument("--n", type=int, default=Workload.n, help="responses per prompt")
        parser.add_argument("--prompt", type=int, nargs="+", default=[256], help="tokens, or the fewest and the most")
        parser.add_argument("--max-new", type=int, default=Workload.max_new)
        parser.add_argument("--mean-log", type=float, default=Workload.mean_log, help="of the logarithm of the lengths")
        parser.add_argument("--fixed", action="store_true", help="all responses of the maximum length")

    @staticmethod
    def of(args: argparse.Namespace) -> Workload:
        return Workload(args.seqs, args.n, tuple(args.prompt), args.max_new, args.mean_log, args.fixed)

    def options(self) -> list[str]:
        """The arguments that make it."""
        named = {"--seqs": self.seqs, "--n": self.n, "--max-new": self.max_new, "--mean-log": self.mean_log}
        words = [text for name, value in named.items() for text in (name, str(value))]
        return [*words, "--prompt", *map(str, self.prompt), *(["--fixed"] if self.fixed else [])]


def make_requests(
    seqs: int,
    n: int,
    prompt: int | tuple[int, int],  # tokens, or the shortest and the longest
    max_new: int,
    vocabulary: int,
    fixed: bool = False,
    salt: int = 0,
    mean_log: float = 5.5,  # of the log-normal lengths
) -> list[Request]:
    """The same prompts and lengths for every engine; `salt` changes the sampling seeds only."""
    rng = random.Random(0)
    low, high = (1000, 150_000) if vocabulary > 150_000 else (3, vocabulary)
    sizes = [prompt if isinstance(prompt, int) else rng.randint(*prompt) for _ in range(seqs // n)]
    prompts = [tuple(rng.randrange(low, high) for _ in range(size)) for size in sizes]
    repeated = [ids for ids in prompts for _ in range(n)]
    lengths = [max_new if fixed else max(16, min(max_new, int(rng.lognormvariate(mean_log, 0.7)))) for _ in repeated]
    return [
        Request(ModelInput(ids), Sampling(length, ignore_eos=True), derive_seed(salt, number))
        for number, (ids, length) in enumerate(zip(repeated, lengths, strict=True))
    ]
