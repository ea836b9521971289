"""Is the built-in engine right? Greedy tokens against transformers, log-probs against a forward of the trainer."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import torch
from engines import ENDS, Bench, make_requests, shape_config
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

# Small models of every family whose attention differs.
SIZES = {
    **{"vocab_size": 211, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False, **ENDS},
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
# How much larger a product with random weights makes its numbers, so that the likeliest tokens stand apart. bfloat16 is
# checked with weights as transformers makes them (0.02): the larger they are, the larger becomes what it rounds.
GAIN = 1.5
# Of the log-probs of sampled tokens against a forward of training: (mean, max).
LIMITS = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (5e-3, 0.1)}


def sharpen(model: torch.nn.Module, gain: float = GAIN, seed: int = 0) -> None:
    """Weights under which a product makes numbers `gain` times as large."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                values = torch.randn(parameter.shape, generator=generator) * gain * parameter.shape[1] ** -0.5
                parameter.copy_(values)


def check_greedy(bench: Bench, name: str, folder: Path) -> str:
    """Greedy tokens in float32 are those of transformers, whose plain attention knows every family's caps."""
    model = AutoModelForCausalLM.from_config(FAMILIES[name](), attn_implementation="eager").float()
    sharpen(model)
    model = model.to(bench.device).eval()
    model.generation_config = GenerationConfig()
    prompts = [tuple(random.Random(length).choices(range(3, 211), k=length)) for length in (7, 40, 7, 33)]
    engine = bench.engine(model.config, torch.float32, folder, max_model_len=128, max_num_seqs=8)
    try:
        engine.load_weights(model.named_parameters(), 1)
        sampling = Sampling(60, temperature=0.0, ignore_eos=True)
        futures = engine.generate([Request(ModelInput(ids), sampling, number) for number, ids in enumerate(prompts)])
        for ids, future in zip(prompts, futures, strict=True):
            given = torch.tensor([ids], device=bench.device)
            theirs = model.generate(
                given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=60, pad_token_id=0
            )
            mine, wanted = future.result().ids, theirs[0, len(ids) :].tolist()
            same = [one == other for one, other in zip(mine, wanted, strict=True)]
            assert all(same), f"prompt of {len(ids)} tokens: other token at {same.index(False)}"
    finally:
        engine.close()
    return "60 greedy tokens of 4 prompts equal transformers' in float32"


def trainer_of(bench: Bench, config: PretrainedConfig, dtype: torch.dtype, folder: Path) -> SingleBackend:
    """The model as a run trains it: weights in float32, products in `dtype`; on a GPU layers compiled, head fused."""
    config.save_pretrained(folder)
    torch.manual_seed(0)
    with bench.device:
        model = load_causal_lm(ModelSource(str(folder)), PACKED, torch.float32, empty=True).eval()
    model.init_weights()
    if dtype == torch.float32:
        sharpen(model)
    else:
        with torch.no_grad():  # as published weights are
            for parameter in model.parameters():
                parameter.copy_(parameter.to(dtype))
    if bench.on_gpu and bench.compiled is not False:
        compile_layers(model, "model")
    options = BackendOptions(head=HEAD_KERNELS["triton" if bench.on_gpu else "torch"](False))
    return SingleBackend(model, bench.device, dtype, options=options)


def check_log_probs(bench: Bench, config: PretrainedConfig, dtype: torch.dtype, folder: Path) -> str:
    """Sampled log-probs are those of a training forward; and no longer once one weight has changed by a rank."""
    trainer = trainer_of(bench, config, dtype, folder)
    requests = make_requests(32, 4, 48, 96, config.vocab_size)
    engine = bench.engine(config, dtype, folder, max_model_len=160, max_num_seqs=32)
    try:
        engine.load_weights(trainer.model.named_parameters(), 1)
        completions = [future.result() for future in engine.generate(requests)]
    finally:
        engine.close()
    mean, most = gaps(trainer, requests, completions)
    limits = LIMITS[dtype]
    assert mean <= limits[0] and most <= limits[1], (mean, most, limits)
    weight = backbone(trainer.model).layers[1].mlp.down_proj.weight
    with torch.no_grad():
        left, right = torch.ones(weight.shape[0], 1), torch.ones(1, weight.shape[1])
        weight += (left @ right / weight.shape[1] ** 0.5).to(weight)
    changed = gaps(trainer, requests, completions)
    assert changed[0] > limits[0] and changed[1] > limits[1], ("a changed weight goes unseen", changed)
    return (
        f"|engine - training| mean {mean:.1e}, max {most:.1e}; {changed[0]:.1e}, {changed[1]:.1e} once a weight differs"
    )


@torch.no_grad()
def gaps(trainer: SingleBackend, requests: list[Request], completions: list[Completion]) -> tuple[float, float]:
    """Mean and largest difference between the engine's log-probs and those of one packed forward."""
    rows = Batch(
        prompt_ids=Ragged.of([list(request.ids) for request in requests], torch.int64),
        responses=Ragged.of([completion.ids for completion in completions], torch.int64),
    )
    found, _ = trainer.log_probs(PackedRows.of(rows, trainer.device), 1.0, with_entropy=False)
    told = torch.tensor([value for completion in completions for value in completion.log_probs])
    gap = (found.float().cpu() - told).abs()
    return float(gap.mean()), float(gap.max())


def run_checks(bench: Bench, dtypes: list[torch.dtype], shape: str, only: str = "") -> bool:
    """Every family, and the shape that is timed; `only` those whose name has this text."""
    good = True
    with tempfile.TemporaryDirectory() as folder:
        named = {f"greedy {name}": lambda name=name: check_greedy(bench, name, Path(folder)) for name in FAMILIES}
        for dtype in dtypes:
            for name in FAMILIES:
                label = f"log-probs {name} {str(dtype).removeprefix('torch.')}"
                named[label] = lambda name=name, dtype=dtype: check_log_probs(
                    bench, FAMILIES[name](), dtype, Path(folder)
                )
        if bench.on_gpu:
            named[f"log-probs {shape} bfloat16"] = lambda: check_log_probs(
                bench, shape_config(shape), torch.bfloat16, Path(folder)
            )
        for name, check in ((name, check) for name, check in named.items() if only in name):
            try:
                print(f"ok    {name}: {check()}", flush=True)
            except AssertionError as error:
                good = False
                print(f"FAIL  {name}: {error}", flush=True)
            bench.forget()
    return good
