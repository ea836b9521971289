"""How much of the GPU one update uses: forward, backward, clipping and optimizer step over packed rows.

    python bench/train_step.py            # on a machine with a CUDA device: the 0.5B, the 1.5B, and the 7B with LoRA
    python bench/train_step.py --smoke    # the same code on a CPU, a tiny model

First a gradient is compared with a naive one (transformers' own logits, row by row). Then each shape with random
weights is taught 131,072 response tokens in micro-batches of 16,384. Utilisation is against 989 TFLOP/s: 6 operations
per weight in a product (the head once, the embedding's lookup never) and token; with LoRA 4, and 6 per adapter weight;
attention over half of all pairs; nothing is counted twice. Host waits are those that CUDA reports. Ends with status 1
if the gradient is wrong or a shape is below its bar.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, replace

import torch
from shapes import make, update_flops
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

PEAK = 989e12
GIB = 1 << 30
MODEL, ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"


@dataclass(frozen=True)
class Plan:
    """One measurement. `recomputed` layers are computed again in the backward pass; None is all of them."""

    shape: str
    bar: float
    lora: int = 0
    kernel: str = "triton"
    compiled: bool = False
    compiled_layers: bool = True
    recomputed: int | None = 0
    tokens: int = 131_072
    micro: int = 16_384
    length: int = 1024  # of a row; one token of it is the prompt
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
    """Rows of one length, all but the first token taught."""
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
    """Of a small model's update, relative to the naive gradient: transformers' logits, one row at a time."""
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
    found: list[Tensor] = []
    update = policy.optimizer.update
    policy.optimizer.update = lambda clip: found.extend(p.grad.clone() for p in parameters) or update(clip)
    policy.update(batch, 1)
    expected = [p.grad for p in naive.parameters()]
    gap = sum(float((a - b).norm()) ** 2 for a, b in zip(found, expected, strict=True))
    return (gap / sum(float(b.norm()) ** 2 for b in expected)) ** 0.5


def _naive_loss(model: torch.nn.Module, batch: Batch, row: int, device: str) -> Tensor:
    ids = torch.cat([batch["prompt_ids"][row], batch["responses"][row]]).to(device)
    log_p = model(input_ids=ids[None]).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
    ratio = (log_p - batch["old_log_probs"][row].to(device)).clamp(-20, 20).exp()
    advantages = batch["advantages"][row].to(device)
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    cap = -advantages * 3.0
    loss = torch.where((advantages < 0) & (loss > cap), cap, loss)
    return loss.sum() / len(batch["responses"].flat)


def measured(plan: Plan, repeats: int) -> dict[str, float]:
    policy = policy_of(plan)
    vocabulary = policy.backend.model.config.vocab_size
    on_gpu = plan.device == "cuda"
    times, waits = [], 0
    for number in range(repeats + 1):
        # The first compiles and warms up: one micro-batch will do.
        batch = batch_of(plan if number else replace(plan, tokens=plan.micro), vocabulary)
        if on_gpu and number == 1:
            torch.cuda.reset_peak_memory_stats()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("warn")
            started = time.perf_counter()
            policy.update(batch, number + 1)
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
            if number:
                times.append(time.perf_counter() - started)
        waits = sum("synchroniz" in str(line.message) for line in told)
    trained = sum(p.numel() for p in policy.optimizer.parameters)
    lengths = [plan.length] * (plan.tokens // plan.length)
    seconds = statistics.median(times)
    flops = update_flops(plan.shape, lengths, trained if plan.lora else None)
    peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0
    return {
        "seconds": seconds,
        "tokens": plan.tokens / seconds,
        "use": flops / seconds / PEAK,
        "peak": peak,
        "waits": waits,
    }


def told(plan: Plan) -> str:
    recomputed = "all" if plan.recomputed is None else str(plan.recomputed)
    lora = f", LoRA {plan.lora}" if plan.lora else ""
    lora += "" if plan.compiled_layers else ", layers not compiled"
    return f"{plan.shape}{lora} | {plan.kernel}{' compiled' if plan.compiled else ''} | {recomputed}"


def chosen(args: argparse.Namespace) -> list[Plan]:
    """The plans of these shapes, with every kernel that was asked for."""
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
    parser.add_argument("--recomputed", type=int, help="layers computed again, for all shapes; -1 is all")
    parser.add_argument("--compiled", action="store_true", help="the torch head by torch.compile")
    parser.add_argument("--plain-layers", action="store_true", help="no torch.compile of the decoder layers")
    parser.add_argument("--length", type=int, default=1024, help="of a row")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    plans = [SMOKE] if args.smoke else chosen(args)
    error = gradient_error(plans[0])
    print(f"gradient of a tiny model against the naive one: relative error {error:.1e}\n")
    print("| shape | head | layers recomputed | s per update | tokens/s | utilisation | bar | peak GiB | host waits |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    good = error < 2e-3
    for plan in plans:
        found = measured(plan, 1 if args.smoke else args.repeats)
        good &= found["use"] >= plan.bar
        print(
            f"| {told(plan)} | {found['seconds']:.3f} | {found['tokens']:.0f} | {100 * found['use']:.1f} % | "
            f"{100 * plan.bar:.0f} % | {found['peak']:.1f} | {found['waits']} |",
            flush=True,
        )
        if plan.device == "cuda":
            torch.cuda.empty_cache()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
