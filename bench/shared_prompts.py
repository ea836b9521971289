"""Log-probs and an update with prompts that are computed once per group (use_prefix_grouper), beside once per response.

    python bench/shared_prompts.py                    # a model of 1 M weights in float32 on a CPU
    python bench/shared_prompts.py --device cuda      # the 0.5B in bfloat16
    python bench/shared_prompts.py --smoke            # tiny

Random weights; groups of responses of one length, behind prompts of one length. Both ways take turns; seconds are
medians of the rounds after the first, in which CUDA kernels are compiled. Exits with status 1 if a log-prob or the
gradient differs by more than rounding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any, NamedTuple

import tables
import torch
from shapes import make
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from burnish.batch import Batch, Ragged
from burnish.config import load
from burnish.models import attention
from burnish.models.compiled import compile_layers, use_cpu_kernels
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.logits import TORCH
from burnish.training.backend import BackendOptions, create_backend
from burnish.training.packing import MicroBatchSize
from burnish.training.policy import Policy

ACTOR = "actor_rollout_ref.actor"
MICRO_BATCH = 16_384
# As in bench/step_vs_trl.py.
SMALL = dict(hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
# Largest differences: of log-probs, and of a gradient in proportion to its norm.
LIMITS = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (0.1, 0.05)}
COLUMNS = {
    "prompt": "{prompt:,}",
    "response": "{response:,}",
    "responses per prompt": "{samples}",
    "tokens computed": "{tokens:,} -> {shared_tokens:,}",
    "log-probs s": "{log_probs:.3f} -> {shared_log_probs:.3f}",
    "update s": "{update:.3f} -> {shared_update:.3f}",
    "update faster by": "{ratio:.2f}x",
    "min..max": "{low:.2f}..{high:.2f}",
    "largest difference of log-probs": "{difference:.1e}",
    "relative difference of the gradient": "{gradient_difference:.1e}",
}


class Case(NamedTuple):
    prompt: int
    response: int
    samples: int
    prompts: int


CASES = {
    "cpu": (Case(32, 256, 8, 8), Case(256, 256, 8, 4), Case(512, 128, 8, 4), Case(1024, 128, 16, 2)),
    "cuda": (Case(256, 256, 8, 32), Case(1024, 1024, 8, 8), Case(1024, 256, 16, 8), Case(4096, 512, 16, 2)),
}
SMOKE = (Case(20, 6, 4, 2),)


def model_of(args: argparse.Namespace) -> PreTrainedModel:
    if args.device == "cuda":
        model = make("0.5B", "cuda", torch.float32)
        compile_layers(model, "actor_rollout_ref.model")
        return model
    attention.register()
    torch.manual_seed(0)
    config = Qwen2Config(**SMALL, vocab_size=320, max_position_embeddings=8192, tie_word_embeddings=True)
    model = Qwen2ForCausalLM._from_config(config, attn_implementation=attention.PACKED, dtype=torch.float32)
    use_cpu_kernels(model)
    return model


def policy_of(args: argparse.Namespace, case: Case, shared: bool) -> Policy:
    settings = [
        *("actor_rollout_ref.model.path=random", "algorithm.adv_estimator=grpo", f"{ACTOR}.use_dynamic_bsz=true"),
        f"{ACTOR}.ppo_max_token_len_per_gpu={MICRO_BATCH}",
        f"{ACTOR}.ppo_mini_batch_size={case.prompts}",
        f"{ACTOR}.use_prefix_grouper={str(shared).lower()}",
        f"{ACTOR}.optim.lr=0",
    ]
    actor = load(settings, check=False).cfg.actor_rollout_ref.actor
    head = HEAD_KERNELS["triton"](True) if args.device == "cuda" else TORCH
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    options = BackendOptions(head=head, share_prompts=shared)
    backend = create_backend(model_of(args), torch.device(args.device), dtype, options=options)
    backend.create_optimizer(actor.optim, 100, 1)
    return Policy(
        backend,
        actor,
        temperature=1.0,
        rows_per_prompt=case.samples,
        max_response_length=case.response,
        inference_micro_batch=MicroBatchSize(tokens=MICRO_BATCH, share_prompts=shared),
        seed=0,
    )


def batch_of(case: Case) -> Batch:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 320, (case.prompts, case.prompt), generator=generator).repeat_interleave(case.samples, 0)
    responses = Ragged.of(list(torch.randint(3, 320, (len(prompts), case.response), generator=generator)), torch.int64)
    total = len(responses.flat)
    return Batch(
        prompt_ids=Ragged.of(list(prompts), torch.int64),
        responses=responses,
        response_mask=Ragged.like(torch.ones(total), responses),
        advantages=Ragged.like(torch.randn(total, generator=generator), responses),
    )


class Measured(NamedTuple):
    log_probs: Tensor
    gradient: Tensor
    seconds: tuple[float, float]  # of the log-probs, of the update


def measure(policy: Policy, batch: Batch) -> Measured:
    """The update has a learning rate of 0, so that every round computes the same."""

    def clock() -> float:
        if policy.backend.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    gradients: list[Tensor] = []
    inner = policy.optimizer.inner
    hook = inner.register_step_pre_hook(lambda *_: gradients.append(gradient_of(policy)))
    started = clock()
    log_probs = policy.compute_log_probs(batch)["old_log_probs"].flat
    between = clock()
    policy.update(batch.add(old_log_probs=Ragged.like(log_probs, batch["responses"])), 1)
    seconds = clock() - between
    hook.remove()
    return Measured(log_probs, gradients[0], (between - started, seconds))


def gradient_of(policy: Policy) -> Tensor:
    parameters = policy.backend.model.parameters()
    return torch.cat(
        [parameter.grad.detach().flatten().cpu() for parameter in parameters if parameter.grad is not None]
    )


def compare(args: argparse.Namespace, case: Case) -> dict[str, Any]:
    batch = batch_of(case)
    plain, sharing = (policy_of(args, case, shared) for shared in (False, True))
    rounds = []
    for number in range(args.rounds + 1):
        order = (plain, sharing) if number % 2 else (sharing, plain)
        results = {policy: measure(policy, batch) for policy in order}
        rounds.append((results[plain], results[sharing]))
    one, other = rounds[0]
    difference = float((one.log_probs - other.log_probs).abs().max())
    of_gradient = float((one.gradient - other.gradient).norm() / one.gradient.norm())
    limits = LIMITS[plain.backend.compute_dtype]
    if difference > limits[0] or of_gradient > limits[1]:
        raise SystemExit(f"FAIL  {case}: log-probs differ by {difference:.1e}, gradients by {of_gradient:.1e}")
    seconds = [tuple(statistics.median(r[way].seconds[part] for r in rounds[1:]) for way in (0, 1)) for part in (0, 1)]
    ratios = [first.seconds[1] / second.seconds[1] for first, second in rounds[1:]]
    groups, each = case.prompts, case.samples * case.response
    return {
        **case._asdict(),
        "tokens": groups * (each + case.samples * case.prompt),
        "shared_tokens": groups * (each + case.prompt),
        **{"log_probs": seconds[0][0], "shared_log_probs": seconds[0][1]},
        **{"update": seconds[1][0], "shared_update": seconds[1][1]},
        **{"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
        **{"difference": difference, "gradient_difference": of_gradient},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=CASES, default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    tables.add_option(parser)
    args = parser.parse_args()
    rows = [compare(args, case) for case in (SMOKE if args.smoke else CASES[args.device])]
    print(tables.table(COLUMNS, rows), end="")
    name = "shared_prompts" if args.device == "cpu" else "shared_prompts_gpu"
    tables.save(args, name, COLUMNS, rows, full=not args.smoke and args.rounds >= 5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
