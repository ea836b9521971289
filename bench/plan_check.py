"""Measured phases of training steps on one GPU, against the planner's step-time model.

    python bench/plan_check.py --results FOLDER         # measure on a CUDA device: at most --budget seconds
    python bench/plan_check.py --smoke                  # two tiny setups, on a CPU; nothing is compared

Each setup trains a few steps with random weights, so that responses have full length. The first step compiles and is
excluded; a row holds the medians of timing_s/* of the others. Setups that would start after the budget are left out
and named. The model's coefficients are fitted on the rows marked `fit` and checked on the rest (bench/plan_fit.py).
Exits with status 1 if a setup failed or its responses are too short.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tables
import torch
from gpu_step import ACTOR, MODEL, ROLLOUT, reward, write_model

import burnish
from burnish.log.file import read_metrics

REF = "actor_rollout_ref.ref"
TIMING = "timing_s/"
COLUMNS = {
    "setup": "{name}",
    "fit": "{fit}",
    "step s": "{step:.2f}",
    "gen s": "{gen:.2f}",
    "old log-probs s": "{old_log_prob:.2f}",
    "reference s": "{ref:.2f}",
    "values s": "{values:.2f}",
    "critic update s": "{update_critic:.2f}",
    "actor update s": "{update_actor:.2f}",
    "weight sync s": "{update_weights:.3f}",
    "start s": "{start_seconds:.0f}",
}


@dataclass(frozen=True)
class Setup:
    """One training configuration to measure."""

    name: str
    fit: bool  # whether the coefficients are fitted on it
    shape: str
    prompts: int
    samples: int
    response: int
    prompt: int = 32  # characters of a question, which are about as many tokens
    ppo: bool = False
    kl: bool = False  # a reference
    mini_batch: int | None = None  # prompts per update; None: all
    tokens: int = 16_384  # of a micro-batch
    recompute: bool = False
    steps: int = 3  # with the first, which is not counted


# A run that ends early has all setups to fit on, and as many to check as possible.
SETUPS = (
    Setup("0.5B GRPO 256x256", True, "0.5B", 32, 8, 256),
    Setup("1.5B GRPO 128x512, recomputed", True, "1.5B", 16, 8, 512, recompute=True, tokens=8192),
    Setup("0.5B PPO 256x512", True, "0.5B", 32, 8, 512, ppo=True, kl=True),
    Setup("1.5B GRPO 256x256, prompts of 256, 2 updates", True, "1.5B", 32, 8, 256, prompt=256, mini_batch=16),
    Setup("0.5B GRPO 128x1024", False, "0.5B", 16, 8, 1024, tokens=8192),
    Setup("1.5B PPO 128x256, prompts of 128", False, "1.5B", 16, 8, 256, prompt=128, ppo=True, kl=True),
    Setup("0.5B GRPO 1024x256, 2 updates", False, "0.5B", 128, 8, 256, mini_batch=64),
    Setup("1.5B GRPO 128x1024, recomputed", False, "1.5B", 8, 16, 1024, recompute=True),
    Setup("0.5B PPO 512x256, recomputed", False, "0.5B", 64, 8, 256, ppo=True, kl=True, recompute=True),
    Setup("1.5B GRPO 256x384, KL", False, "1.5B", 32, 8, 384, kl=True, tokens=8192),
)
SMOKE = (
    Setup("tiny GRPO", True, "tiny", 4, 2, 12, steps=2, mini_batch=2, tokens=256),
    Setup("tiny PPO", False, "tiny", 4, 2, 12, steps=2, ppo=True, kl=True, tokens=256),
)


def overrides(setup: Setup) -> list[str]:
    """What the planner reads of a setup; paths, devices and the length of the run are apart."""
    recompute = str(setup.recompute).lower()
    settings = [
        f"algorithm.adv_estimator={'gae' if setup.ppo else 'grpo'}",
        f"data.train_batch_size={setup.prompts}",
        f"data.max_prompt_length={2 * setup.prompt + 32}",
        f"data.max_response_length={setup.response}",
        f"{MODEL}.enable_gradient_checkpointing={recompute}",
        f"{ACTOR}.ppo_mini_batch_size={setup.mini_batch or setup.prompts}",
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu={setup.tokens}",
        f"{ACTOR}.use_kl_loss={str(setup.kl).lower()}",
        f"{ACTOR}.optim.lr=1e-6",
        f"{ROLLOUT}.n={setup.samples}",
        f"{ROLLOUT}.max_num_seqs={setup.prompts * setup.samples}",
        f"{ROLLOUT}.gpu_memory_utilization=0.3",
    ]
    if setup.ppo:
        settings += [
            f"critic.ppo_max_token_len_per_gpu={setup.tokens}",
            f"critic.model.enable_gradient_checkpointing={recompute}",
            "critic.optim.lr=1e-6",
        ]
    return settings


def prompt_row(rng: random.Random, setup: Setup) -> dict[str, Any]:
    question = "".join(rng.choice("0123456789+=") for _ in range(setup.prompt))
    prompt = [{"role": "user", "content": question}]
    return {"prompt": prompt, "data_source": "digits", "reward_model": {"ground_truth": ""}}


def measure(setup: Setup, model: Path, device: str) -> dict[str, Any]:
    """The medians of a setup's timings, without its first step."""
    rng = random.Random(0)
    rows = [prompt_row(rng, setup) for _ in range(setup.prompts * setup.steps)]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            *overrides(setup),
            f"{MODEL}.path={model}",
            f"trainer.device={device}",
            f"trainer.total_training_steps={setup.steps}",
            f"trainer.default_local_dir={folder}",
            "trainer.save_final=false",
            "trainer.logger=[file]",
        ]
        burnish.train(settings, reward=reward, dataset=rows)
        steps = read_metrics(Path(folder) / "metrics.jsonl")
    wall = time.perf_counter() - started
    kept = [numbers for step, numbers in sorted(steps.items()) if step > 1]
    names = sorted(set.intersection(*(set(numbers) for numbers in kept)))
    found = {name: statistics.median(numbers[name] for numbers in kept) for name in names}
    return {
        **asdict(setup),
        **{name.removeprefix(TIMING): value for name, value in found.items() if name.startswith(TIMING)},
        "step_min": min(numbers[f"{TIMING}step"] for numbers in kept),
        "step_max": max(numbers[f"{TIMING}step"] for numbers in kept),
        "prompt_tokens": found["prompt_length/mean"],
        "response_tokens": found["response_length/mean"],
        "peak_gb": found.get("perf/max_memory_allocated_gb"),
        "start_seconds": wall - sum(numbers.get(f"{TIMING}step", 0.0) for numbers in kept),
        "overrides": overrides(setup),
    }


def measure_all(setups: tuple[Setup, ...], device: str, budget: float) -> tuple[list[dict[str, Any]], list[str]]:
    """A row per setup, and what went wrong."""
    rows, problems = [], []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for setup in setups:
            if time.perf_counter() - started > budget:
                problems.append(f"{setup.name}: not measured, the budget of {budget:.0f} s is spent")
                continue
            if setup.shape not in models:
                models[setup.shape] = Path(folder) / setup.shape
                write_model(models[setup.shape], setup.shape, device)
            try:
                rows.append(measure(setup, models[setup.shape], device))
            except (RuntimeError, burnish.errors.UserError) as error:
                problems.append(f"{setup.name}: {str(error).splitlines()[0][:300]}")
            else:
                print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
                if (
                    device == "cuda" and rows[-1]["response_tokens"] < 0.95 * setup.response
                ):  # a tiny vocabulary ends early
                    problems.append(f"{setup.name}: responses of {rows[-1]['response_tokens']:.0f} tokens")
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    return rows, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--budget", type=float, default=260.0, help="seconds after which no setup starts")
    tables.add_option(parser)
    args = parser.parse_args()
    setups, device = (SMOKE, "cpu") if args.smoke else (SETUPS, "cuda")
    print(tables.table(COLUMNS, []), end="", flush=True)
    rows, problems = measure_all(setups, device, args.budget)
    print("\n".join(f"WRONG: {problem}" for problem in problems) or "checked: all setups, lengths")
    tables.save(args, "plan_check", COLUMNS, rows, full=not args.smoke and bool(rows))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
