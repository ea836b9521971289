"""Log-probs of several ranks against those of one process and of the built-in engine, in bfloat16 on a CPU.

    python bench/residual.py             # about two minutes
    python bench/residual.py --smoke

A random model of 24 layers, whose weights are numbers of bfloat16. The engine samples; one process and two ranks in
several layouts compute the log-probs of its tokens with float32 weights under autocast. For comparison, one process
computes them with weights in bfloat16, which rounds the residual stream twice per layer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import tables
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from transformers import Gemma3TextConfig, PretrainedConfig, PreTrainedModel, Qwen2Config

from burnish.batch import Batch, Ragged
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.training.backend import MicroBatch, create_backend
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh
from burnish.training.stages import StageOptions

CPU, BF16 = torch.device("cpu"), torch.bfloat16
VOCABULARY, PROMPT, TIMEOUT = 512, 20, 300.0
LAYOUTS: dict[str, dict[str, Any]] = {
    "FSDP": {},
    "Ulysses": {"sequence_size": 2},
    "pipeline stages": {"stages": StageOptions(2)},
    "tensor": {"tensor_size": 2},
}
COLUMNS = {
    "model": "{model}",
    "computed by": "{layout}",
    "to one process: mean, max": "{one_mean:.2g}, {one_max:.2g}",
    "to the engine: mean, max": "{engine_mean:.2g}, {engine_max:.2g}",
}


def configs(layers: int, hidden: int) -> dict[str, PretrainedConfig]:
    sizes: dict[str, Any] = {
        **{"vocab_size": VOCABULARY, "hidden_size": hidden, "intermediate_size": 3 * hidden, "pad_token_id": 0},
        **{"num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": hidden // 4},
    }
    return {f"Qwen2, {layers} layers": Qwen2Config(**sizes), f"Gemma 3, {layers} layers": Gemma3TextConfig(**sizes)}


def model_of(folder: str, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights at every call, on every rank."""
    model = load_causal_lm(ModelSource(folder), PACKED, dtype, empty=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                values = torch.randn(parameter.shape, generator=generator) * 0.6 * parameter.shape[1] ** -0.5
                parameter.copy_(values.to(BF16))
    return model


def sample(folder: str, rows: int, length: int) -> tuple[Batch, Tensor]:
    """Responses of the engine, and the log-probs of their tokens."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, VOCABULARY, (PROMPT,), generator=generator).tolist() for _ in range(rows)]
    options = EngineOptions(ModelSource(folder), BF16, CPU, eos_ids=(2,), max_model_len=PROMPT + length)
    engine = BuiltinEngine(options)
    try:
        engine.load_weights(model_of(folder, torch.float32).named_parameters(), 1)
        sampling = Sampling(length, ignore_eos=True)
        requests = [Request(ModelInput(tuple(ids)), sampling, seed) for seed, ids in enumerate(prompts)]
        found = [future.result(TIMEOUT) for future in engine.generate(requests)]
    finally:
        engine.close()
    responses = Ragged.of([list(answer.ids) for answer in found], torch.int64)
    log_probs = torch.tensor([value for answer in found for value in answer.log_probs])
    return Batch(prompt_ids=Ragged.of(prompts, torch.int64), responses=responses), log_probs


def compute(
    folder: str, batch: Batch, parallel: ParallelContext = SINGLE_PROCESS, weights: torch.dtype = torch.float32
) -> Tensor | None:
    """Log-probs of all responses; None on a rank that is not the last stage."""
    backend = create_backend(model_of(folder, weights), CPU, BF16, parallel=parallel)
    batches = [MicroBatch.select(batch, list(range(len(batch))))]
    return next(iter(backend.forward(batches, lambda output: output.log_probs(1.0, False)[0])), None)


def in_a_rank(rank: int, work: str, folder: str, batch: Batch) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work}/meeting", rank=rank, world_size=2)
    with torch.backends.mkldnn.flags(enabled=False):
        found = {name: compute(folder, batch, build_mesh(CPU, **sizes)) for name, sizes in LAYOUTS.items()}
    if rank == 1:
        torch.save(found, f"{work}/found")
    dist.destroy_process_group()


def compare(name: str, config: PretrainedConfig, rows: int, length: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, torch.backends.mkldnn.flags(enabled=False):
        config.save_pretrained(folder)
        batch, sampled = sample(folder, rows, length)
        one, rounded = compute(folder, batch), compute(folder, batch, weights=BF16)
        assert one is not None
        mp.spawn(in_a_rank, (folder, folder, batch), nprocs=2)
        ranks = torch.load(Path(folder, "found"), weights_only=True)
    layouts = {"one process": one, **{f"2 ranks: {layout}": found for layout, found in ranks.items()}}
    layouts["residual stream in bfloat16"] = rounded
    return [{"model": name, "layout": layout, **gaps(found, one, sampled)} for layout, found in layouts.items()]


def gaps(found: Tensor, one: Tensor, sampled: Tensor) -> dict[str, float]:
    pairs = {"one": (found - one).abs(), "engine": (found - sampled).abs()}
    return {f"{name}_{how}": float(getattr(gap, how)()) for name, gap in pairs.items() for how in ("mean", "max")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small model and few tokens, for tests")
    tables.add_option(parser)
    args = parser.parse_args()
    models = configs(8, 32) if args.smoke else configs(24, 128)
    size = {"rows": 2, "length": 16} if args.smoke else {"rows": 16, "length": 64}
    rows = [row for name, config in models.items() for row in compare(name, config, **size)]
    sys.stdout.write(f"{tables.table(COLUMNS, rows)}\n")
    tables.save(args, "residual", COLUMNS, rows, full=not args.smoke)
    return 0


if __name__ == "__main__":
    sys.exit(main())
