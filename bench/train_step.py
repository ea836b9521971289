"""MFU of one update: forward, backward, clipping and optimizer step on packed sequences.

    python bench/train_step.py            # on a machine with a CUDA device: the 0.5B, the 1.5B, and the 7B with LoRA
    python bench/train_step.py --smoke    # tiny, on a CPU

First compares a gradient with a naive one (transformers' logits, one sequence at a time). Then each shape, with random
weights, is updated on 131,072 response tokens in micro-batches of 16,384. MFU is relative to 989 TFLOP/s: 6 FLOPs per
matmul weight and token (the LM head once, no embedding lookup), with LoRA 4 plus 6 per adapter weight, causal attention
over half of all pairs, no recomputation. Host syncs are those that CUDA reports. Exits with status 1 if the gradient is
wrong or a shape is below its target.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import tables
import torch
from shapes import config_of, make, update_flops
from torch import Tensor

from burnish.batch import Batch, Ragged
from burnish.config import load
from burnish.config.adapters import adapter_of
from burnish.models.compiled import compile_layers
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.lora import add_adapters
from burnish.models.recompute import enable_recompute
from burnish.training.backend import BackendOptions, create_backend
from burnish.training.packing import MicroBatchSize
from burnish.training.policy import Policy

PEAK_FLOPS = 989e12
GIB = 1 << 30
COLUMNS = {
    "shape": "{shape}",
    "head": "{head}",
    "layers recomputed": "{recomputed}",
    "s per update": "{seconds:.3f}",
    "min..max": "{min_seconds:.3f}..{max_seconds:.3f}",
    "tokens/s": "{tokens_per_second:,.0f}",
    "MFU": "{mfu:.1%}",
    "target": "{target:.0%}",
    "peak GiB": "{peak_gib:.1f}",
    "first update s": "{first_update_seconds:.0f}",
    "host syncs": "{host_syncs}",
}
MODEL, ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"


@dataclass(frozen=True)
class Plan:
    """One measurement. `recomputed` is the number of checkpointed layers; None means all."""

    shape: str
    target: float  # MFU
    lora: int = 0
    kernel: str = "triton"
    compiled: bool = False
    compiled_layers: bool = True
    recomputed: int | None = 0
    tokens: int = 131_072
    micro: int = 16_384
    length: int = 1024  # of a sequence, with a prompt of one token
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16


PLANS = (
    Plan("0.5B", 0.35),
    Plan("1.5B", 0.45),
    Plan("7B", 0.40, lora=32),
)
SMALL = {"tokens": 256, "micro": 128, "length": 32, "device": "cpu", "dtype": torch.float32}
SMOKE = Plan("tiny", 0.0, kernel="torch", compiled_layers=False, **SMALL)


def policy_of(plan: Plan) -> Policy:
    settings = [
        f"{MODEL}.path=random",
        "algorithm.adv_estimator=grpo",
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu={plan.micro}",
        f"{ACTOR}.ppo_mini_batch_size={plan.tokens // plan.length}",
        f"{ACTOR}.optim.lr=1e-6",
        f"{MODEL}.lora_rank={plan.lora}",
        f"{MODEL}.target_modules=all-linear",
    ]
    cfg = load(settings, check=False).cfg
    actor = cfg.actor_rollout_ref.actor
    model = make(plan.shape, plan.device, plan.dtype if plan.lora else torch.float32)
    settings_of_adapter = adapter_of(cfg.actor_rollout_ref.model, MODEL)
    adapters = None
    if settings_of_adapter is not None:
        adapters = add_adapters(model, settings_of_adapter, dtype=torch.float32, heads=(), seed=0)
    if plan.compiled_layers:
        compile_layers(model, MODEL)
    if plan.recomputed != 0:
        method = None if plan.recomputed is None else "block"
        enable_recompute(model, method, plan.recomputed, MODEL)
    options = BackendOptions(head=HEAD_KERNELS[plan.kernel](plan.compiled))
    backend = create_backend(model, torch.device(plan.device), plan.dtype, adapters=adapters, options=options)
    backend.create_optimizer(actor.optim, 100, 1)
    return Policy(
        backend,
        actor,
        temperature=1.0,
        rows_per_prompt=1,
        max_response_length=plan.length,
        inference_micro_batch=MicroBatchSize(tokens=plan.micro),
        seed=0,
    )


def batch_of(plan: Plan, vocabulary: int) -> Batch:
    """Sequences of one length; all but the first token are responses."""
    rows = plan.tokens // plan.length
    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> Ragged:
        flat = torch.randint(3, vocabulary, (rows * length,), generator=generator)
        return Ragged(flat, torch.full((rows,), length))

    responses = ids(plan.length - 1)
    total = len(responses.flat)
    return Batch(
        prompt_ids=ids(1),
        responses=responses,
        response_mask=Ragged.like(torch.ones(total), responses),
        old_log_probs=Ragged.like(torch.full((total,), -math.log(vocabulary)), responses),
        advantages=Ragged.like(torch.randn(total, generator=generator), responses),
    )


def gradient_error(plan: Plan) -> float:
    """Relative error of a small model's gradient against a naive one: transformers' logits, one sequence at a time."""
    tiny = {"shape": "tiny", "tokens": 128, "micro": 64, "length": 32, "dtype": torch.float32}
    small = replace(plan, **tiny, lora=0, recomputed=1, compiled_layers=False)
    policy = policy_of(small)
    batch = batch_of(small, 320)
    parameters = list(policy.backend.model.parameters())
    naive = make("tiny", plan.device, torch.float32)
    naive.set_attn_implementation("sdpa")
    naive.load_state_dict(policy.backend.model.state_dict())
    loss = sum(_naive_loss(naive, batch, row, plan.device) for row in range(len(batch)))
    loss.backward()
    actual: list[Tensor] = []
    update = policy.optimizer.update
    policy.optimizer.update = lambda clip: actual.extend(p.grad.clone() for p in parameters) or update(clip)
    policy.update(batch, 1)
    expected = [p.grad for p in naive.parameters()]
    difference = sum(float((a - b).norm()) ** 2 for a, b in zip(actual, expected, strict=True))
    return (difference / sum(float(b.norm()) ** 2 for b in expected)) ** 0.5


def _naive_loss(model: torch.nn.Module, batch: Batch, row: int, device: str) -> Tensor:
    ids = torch.cat([batch["prompt_ids"][row], batch["responses"][row]]).to(device)
    log_p = model(input_ids=ids[None]).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
    ratio = (log_p - batch["old_log_probs"][row].to(device)).clamp(-20, 20).exp()
    advantages = batch["advantages"][row].to(device)
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    cap = -advantages * 3.0
    loss = torch.where((advantages < 0) & (loss > cap), cap, loss)
    return loss.sum() / len(batch["responses"].flat)


def measure(plan: Plan, repeats: int) -> dict[str, Any]:
    policy = policy_of(plan)
    vocabulary = policy.backend.model.config.vocab_size
    on_gpu = plan.device == "cuda"
    times, host_syncs = [], 0
    for number in range(repeats + 1):
        # The first update compiles; one micro-batch is enough for that.
        batch = batch_of(plan if number else replace(plan, tokens=plan.micro), vocabulary)
        if on_gpu and number == 1:
            torch.cuda.reset_peak_memory_stats()
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("warn")
            started = time.perf_counter()
            policy.update(batch, number + 1)
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        host_syncs = sum("synchroniz" in str(warning.message) for warning in messages)
    trained = sum(p.numel() for p in policy.optimizer.parameters)
    lengths = [plan.length] * (plan.tokens // plan.length)
    seconds = statistics.median(times[1:])
    flops = update_flops(config_of(plan.shape), lengths, trained if plan.lora else None)
    peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0
    return {
        "shape": shape_name(plan),
        "head": f"{plan.kernel}{' compiled' if plan.compiled else ''}",
        "recomputed": "all" if plan.recomputed is None else plan.recomputed,
        "seconds": seconds,
        "min_seconds": min(times[1:]),
        "max_seconds": max(times[1:]),
        "tokens_per_second": plan.tokens / seconds,
        "mfu": tables.check_share(flops / seconds / PEAK_FLOPS, shape_name(plan)),
        "target": plan.target,
        "peak_gib": peak,
        "first_update_seconds": times[0],
        "host_syncs": host_syncs,
    }


def shape_name(plan: Plan) -> str:
    lora = f", LoRA {plan.lora}" if plan.lora else ""
    return f"{plan.shape}{lora}{'' if plan.compiled_layers else ', layers not compiled'}"


def selected_plans(args: argparse.Namespace) -> list[Plan]:
    """One plan per selected shape and head kernel."""
    changes = {"length": args.length, "compiled": args.compiled, "compiled_layers": not args.plain_layers}
    if args.recomputed is not None:
        changes["recomputed"] = None if args.recomputed < 0 else args.recomputed
    shapes = [plan for plan in PLANS if plan.shape in args.shapes]
    return [replace(plan, kernel=kernel, **changes) for plan in shapes for kernel in args.kernels]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--shapes", nargs="+", default=["0.5B", "1.5B", "7B"])
    parser.add_argument("--kernels", nargs="+", default=["triton"], choices=list(HEAD_KERNELS))
    parser.add_argument("--recomputed", type=int, help="number of checkpointed layers, for all shapes; -1 is all")
    parser.add_argument("--compiled", action="store_true", help="compile the torch head")
    parser.add_argument("--plain-layers", action="store_true", help="do not compile the decoder layers")
    parser.add_argument("--length", type=int, default=1024, help="of a sequence")
    parser.add_argument("--repeats", type=int, default=3)
    tables.add_option(parser)
    args = parser.parse_args()
    plans = [SMOKE] if args.smoke else selected_plans(args)
    error = gradient_error(plans[0])
    print(f"gradient of a tiny model against a naive one: relative error {error:.1e}\n")
    print(tables.table(COLUMNS, []), end="", flush=True)
    rows, passed = [], error < 2e-3
    for plan in plans:
        rows.append(measure(plan, 1 if args.smoke else args.repeats))
        passed &= rows[-1]["mfu"] >= plan.target
        print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
        if plan.device == "cuda":
            torch.cuda.empty_cache()
    tables.save(args, "train_step", COLUMNS, rows, full=plans == list(PLANS))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
