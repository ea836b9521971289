"""Correctness of the built-in engine: greedy tokens against transformers, log-probs against the trainer."""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from engines import TOKEN_IDS, Bench, make_requests, shape_config
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from burnish.batch import Batch, Ragged
from burnish.models.attention import PACKED
from burnish.models.compiled import compile_layers
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.model_input import ModelInput
from burnish.models.parts import backbone
from burnish.rollout.engine import Completion, Request, Sampling
from burnish.training.backend import BackendOptions
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows

# One small model per family with its own kind of attention.
SIZES = {
    **{"vocab_size": 211, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False, **TOKEN_IDS},
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWED = {"head_dim": 16, "sliding_window": 24, "layer_types": LAYERS, "query_pre_attn_scalar": 16}
FAMILIES = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=32),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=24),
    "gemma2": lambda: Gemma2Config(**SIZES, **WINDOWED, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
    "gemma3": lambda: Gemma3TextConfig(**SIZES, **WINDOWED),
}
# Scale of random weights in float32: every matmul amplifies by this factor, so that the likeliest tokens stand apart.
# bfloat16 uses transformers' own initialization (0.02), because rounding errors grow with the weights.
GAIN = 1.5
# Allowed difference between the engine's and the trainer's log-probs of sampled tokens: (mean, max).
LIMITS = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (5e-3, 0.1)}


def sharpen(model: torch.nn.Module, gain: float = GAIN, seed: int = 0) -> None:
    """Random weights with which every matmul amplifies its input by `gain`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                values = torch.randn(parameter.shape, generator=generator) * gain * parameter.shape[1] ** -0.5
                parameter.copy_(values)


def check_greedy(bench: Bench, name: str, folder: Path) -> str:
    """Greedy tokens in float32 equal those of transformers' eager attention, which implements every soft cap."""
    model = AutoModelForCausalLM.from_config(FAMILIES[name](), attn_implementation="eager").float()
    sharpen(model)
    model = model.to(bench.device).eval()
    model.generation_config = GenerationConfig()
    lengths = (7, 40, 7, 33, *([2 * bench.block + 9] * 3 if bench.shared_prefix else []))
    prompts = [tuple(random.Random(length).choices(range(3, 211), k=length)) for length in lengths]
    engine = bench.engine(model.config, torch.float32, folder, max_model_len=max(lengths) + 88, max_num_seqs=8)
    try:
        engine.load_weights(model.named_parameters(), 1)
        sampling = Sampling(60, temperature=0.0, ignore_eos=True)
        futures = engine.generate([Request(ModelInput(ids), sampling, number) for number, ids in enumerate(prompts)])
        for ids, future in zip(prompts, futures, strict=True):
            prompt = torch.tensor([ids], device=bench.device)
            output = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=60, pad_token_id=0
            )
            expected = output[0, len(ids) :].tolist()
            same = [one == other for one, other in zip(future.result().ids, expected, strict=True)]
            assert all(same), f"prompt of {len(ids)} tokens: different token at {same.index(False)}"
        assert (engine.stats()["kv_tokens_saved"] > 0) == bench.shared_prefix, "no prefix was shared"
    finally:
        engine.close()
    return f"60 greedy tokens of {len(prompts)} prompts equal transformers' in float32"


def trainer_of(bench: Bench, config: PretrainedConfig, dtype: torch.dtype, folder: Path) -> SingleBackend:
    """The model as a run trains it: float32 weights, matmuls in `dtype`; on a GPU layers compiled and head fused."""
    config.save_pretrained(folder)
    torch.manual_seed(0)
    with bench.device:
        model = load_causal_lm(ModelSource(str(folder)), PACKED, torch.float32, empty=True).eval()
    model.init_weights()
    if dtype == torch.float32:
        sharpen(model)
    else:
        with torch.no_grad():  # published weights are representable in `dtype`
            for parameter in model.parameters():
                parameter.copy_(parameter.to(dtype))
    if bench.on_gpu and bench.compiled is not False:
        compile_layers(model, "model")
    options = BackendOptions(head=HEAD_KERNELS["triton" if bench.on_gpu else "torch"](False))
    return SingleBackend(model, bench.device, dtype, options=options)


def check_log_probs(bench: Bench, config: PretrainedConfig, dtype: torch.dtype, folder: Path) -> dict[str, float]:
    """Sampled log-probs agree with a training forward, and disagree after a rank-one change of one weight."""
    trainer = trainer_of(bench, config, dtype, folder)
    prompt = 2 * bench.block + 9 if bench.shared_prefix else 48
    requests = make_requests(32, 4, prompt, 96, config.vocab_size)
    engine = bench.engine(config, dtype, folder, max_model_len=prompt + 112, max_num_seqs=32)
    try:
        engine.load_weights(trainer.model.named_parameters(), 1)
        completions = [future.result() for future in engine.generate(requests)]
    finally:
        engine.close()
    mean, largest = differences(trainer, requests, completions)
    weight = backbone(trainer.model).layers[1].mlp.down_proj.weight
    with torch.no_grad():
        left, right = torch.ones(weight.shape[0], 1), torch.ones(1, weight.shape[1])
        weight += (left @ right / weight.shape[1] ** 0.5).to(weight)
    changed = differences(trainer, requests, completions)
    return {"mean": mean, "max": largest, "changed_mean": changed[0], "changed_max": changed[1]}


@torch.no_grad()
def differences(trainer: SingleBackend, requests: list[Request], completions: list[Completion]) -> tuple[float, float]:
    """Mean and maximum difference between the engine's log-probs and those of one packed forward."""
    rows = Batch(
        prompt_ids=Ragged.of([list(request.ids) for request in requests], torch.int64),
        responses=Ragged.of([completion.ids for completion in completions], torch.int64),
    )
    expected, _ = trainer.log_probs(PackedRows.of(rows, trainer.device), 1.0, with_entropy=False)
    sampled = torch.tensor([value for completion in completions for value in completion.log_probs])
    difference = (expected.float().cpu() - sampled).abs()
    return float(difference.mean()), float(difference.max())


def run_checks(
    bench: Bench, dtypes: list[torch.dtype], shapes: list[str], only: str = ""
) -> tuple[list[dict[str, Any]], bool]:
    """Check every family, and on a GPU the measured shapes in bfloat16; `only` those whose name contains this text.

    Returns a row of log-prob differences per model, and whether all checks passed.
    """
    models = {name: (make, dtypes) for name, make in FAMILIES.items()}
    if bench.on_gpu:
        models |= {shape: (partial(shape_config, shape), [torch.bfloat16]) for shape in shapes}
    rows, passed = [], True
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in FAMILIES if only in f"greedy {name}"):
            try:
                print(f"ok    greedy {name}: {check_greedy(bench, name, Path(folder))}", flush=True)
            except AssertionError as error:
                passed = False
                print(f"FAIL  greedy {name}: {error}", flush=True)
            bench.forget()
        for name, (make, formats) in models.items():
            row: dict[str, Any] = {"model": name}
            for dtype in formats:
                label = str(dtype).removeprefix("torch.")
                if only not in f"log-probs {name} {label}":
                    continue
                result = check_log_probs(bench, make(), dtype, Path(folder))
                passed &= _report(f"log-probs {name} {label}", result, LIMITS[dtype])
                row |= {f"{label}_{key}": value for key, value in result.items()}
                bench.forget()
            if len(row) > 1:
                rows.append(row)
    return rows, passed


def _report(name: str, result: dict[str, float], limits: tuple[float, float]) -> bool:
    agree = result["mean"] <= limits[0] and result["max"] <= limits[1]
    detects = result["changed_mean"] > limits[0] and result["changed_max"] > limits[1]
    text = (
        f"|engine - trainer| mean {result['mean']:.1e}, max {result['max']:.1e}, limits {limits}; "
        f"{result['changed_mean']:.1e}, {result['changed_max']:.1e} after one weight changed"
    )
    print(f"{'ok  ' if agree and detects else 'FAIL'}  {name}: {text}", flush=True)
    return agree and detects
