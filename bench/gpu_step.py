"""Full GRPO step on one GPU against TRL: 32 prompts x 8 samples x 256 new tokens, 0.5B shape, bfloat16.

    python bench/gpu_step.py                          # Burnish only: every phase of a step
    python bench/gpu_step.py --peers FOLDER           # and TRL with generate
    python bench/gpu_step.py --peers FOLDER --vllm    # and TRL with vLLM on the same GPU
    python bench/gpu_step.py --ppo                    # PPO instead: a critic, and KL to a reference; 1,024 responses
    python bench/gpu_step.py --smoke                  # tiny, on a CPU

FOLDER contains trl_grpo.py. Weights are random, so no response ends early. A step wakes the engine, generates, scores,
updates, syncs the weights and puts the engine to sleep. The first step compiles and is excluded. The engine may use 0.3
of the memory, as TRL's vLLM does. Response lengths and the agreement of engine and trainer are checked first. Runs with
--peers and --vllm write gpu_step.json and gpu_step_phases.json, those with --ppo gpu_step_ppo.json. Exits with status 1
if a target (3x TRL with vLLM, 6x with generate, a critic's update of 1.1x the actor's) is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tables
import torch
from shapes import make

import burnish
from burnish.demo.tiny import make_tokenizer
from burnish.log.file import read_metrics

MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))
PROMPTS, SAMPLES = 32, 8
TARGETS = {"TRL, generate": 6.0, "TRL, vLLM": 3.0}
COLUMNS = {
    "system": "{system}",
    "s per step": "{seconds:.2f}",
    "Burnish is faster by": "{ratio:.1f}x",
    "target": "{target:.0f}x",
}
CRITIC_TARGET = 1.1  # its update relative to the actor's
PPO_PROMPTS = 128
PHASE_COLUMNS = {"phase": "{phase}", "s": "{seconds:.3f}"}
MAX_DIFFERENCE = 0.02  # mean difference of sampled-token probabilities between engine and trainer


def reward(solution_str: str) -> float:
    """The share of digits, as in trl_grpo.py."""
    return sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))


def write_model(folder: Path, shape: str, device: str) -> None:
    tokenizer = make_tokenizer("0123456789+=abcdefghijklmnopqrstuvwxyz ?")
    model = make(shape, device, torch.bfloat16 if device == "cuda" else torch.float32)
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prompt_row(rng: random.Random) -> dict[str, Any]:
    question = f"{rng.randint(0, 99)}+{rng.randint(0, 99)}="
    prompt = [{"role": "user", "content": question}]
    return {"prompt": prompt, "data_source": "digits", "reward_model": {"ground_truth": ""}}


def overrides(model: Path, folder: Path, steps: int, new_tokens: int, device: str) -> list[str]:
    return [
        f"{MODEL}.path={model}",
        f"{MODEL}.enable_gradient_checkpointing=false",
        "algorithm.adv_estimator=grpo",
        f"data.train_batch_size={PROMPTS}",
        f"data.max_response_length={new_tokens}",
        "data.max_prompt_length=128",
        f"{ACTOR}.ppo_mini_batch_size={PROMPTS}",
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu=16384",
        f"{ACTOR}.optim.lr=1e-6",
        f"{ROLLOUT}.n={SAMPLES}",
        f"{ROLLOUT}.max_num_seqs={PROMPTS * SAMPLES}",
        f"{ROLLOUT}.gpu_memory_utilization=0.3",
        f"trainer.device={device}",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder}",
        "trainer.logger=[file]",
    ]


def ppo_overrides(prompts: int) -> list[str]:
    """What PPO changes, with the critic's update like the actor's."""
    return [
        "algorithm.adv_estimator=gae",
        f"data.train_batch_size={prompts}",
        f"{ACTOR}.use_kl_loss=true",
        f"{ACTOR}.ppo_mini_batch_size={prompts}",
        f"{ROLLOUT}.max_num_seqs={prompts * SAMPLES}",
        "critic.ppo_max_token_len_per_gpu=16384",
        "critic.model.enable_gradient_checkpointing=false",
        "critic.optim.lr=1e-6",
    ]


def run_burnish(model: Path, steps: int, new_tokens: int, device: str, ppo_prompts: int = 0) -> dict[str, float]:
    """Medians of every metric, without the first step. PPO on `ppo_prompts` prompts, or GRPO if that is 0."""
    rng = random.Random(0)
    rows = [prompt_row(rng) for _ in range((ppo_prompts or PROMPTS) * steps)]
    with tempfile.TemporaryDirectory() as folder:
        settings = overrides(model, Path(folder), steps, new_tokens, device)
        if ppo_prompts:
            settings += ppo_overrides(ppo_prompts)
        burnish.train(settings, reward=reward, dataset=rows)
        metrics = [
            numbers for step, numbers in sorted(read_metrics(Path(folder) / "metrics.jsonl").items()) if step > 1
        ]
    names = sorted(set.intersection(*(set(numbers) for numbers in metrics)))
    return {name: statistics.median(numbers[name] for numbers in metrics) for name in names}


def valid(metrics: dict[str, float], new_tokens: int) -> bool:
    """Whether responses have full length, and engine and trainer agree."""
    problems = []
    if metrics["response_length/mean"] < 0.95 * new_tokens:
        problems.append(f"responses of {metrics['response_length/mean']:.0f} tokens")
    difference = metrics.get("training/rollout_probs_diff_mean")
    if difference is not None and difference > MAX_DIFFERENCE:
        problems.append(f"engine and trainer differ by {difference:.3f}")
    print("\n".join(f"WRONG: {problem}" for problem in problems) or "checked: lengths, probabilities")
    return not problems


def run_trl(model: Path, script: Path, steps: int, new_tokens: int, vllm: bool) -> dict[str, float]:
    command = [sys.executable, str(script), str(model), "--max-new", str(new_tokens), "--steps", str(steps), "--bf16"]
    environment = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    finished = subprocess.run(
        [*command, *(["--vllm"] if vllm else [])], capture_output=True, text=True, env=environment
    )
    if finished.returncode:
        raise SystemExit(f"{script.name} failed:\n{finished.stderr[-3000:]}")
    return json.loads(finished.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--ppo", action="store_true", help="PPO with a critic and a reference instead of GRPO")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--peers", type=Path, help="folder with trl_grpo.py")
    parser.add_argument("--vllm", action="store_true", help="also TRL with vLLM")
    tables.add_option(parser)
    args = parser.parse_args()
    shape, device, new_tokens = ("tiny", "cpu", 16) if args.smoke else ("0.5B", "cuda", 256)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, shape, device)
        ppo_prompts = 0 if not args.ppo else PROMPTS if args.smoke else PPO_PROMPTS
        metrics = run_burnish(model, 2 if args.smoke else args.steps, new_tokens, device, ppo_prompts)
        phases = [
            {"phase": name.removeprefix("timing_s/"), "seconds": value}
            for name, value in metrics.items()
            if name.startswith("timing_s/")
        ]
        print(tables.table(PHASE_COLUMNS, phases))
        passed = valid(metrics, new_tokens)
        if args.ppo:
            ratio = metrics["timing_s/update_critic"] / metrics["timing_s/update_actor"]
            print(f"the critic's update takes {ratio:.2f}x the actor's; the target is {CRITIC_TARGET}x")
            tables.save(args, "gpu_step_ppo", PHASE_COLUMNS, phases, full=not args.smoke)
            return 0 if passed and (args.smoke or ratio <= CRITIC_TARGET) else 1
        step = metrics["timing_s/step"]
        rows = [{"system": "Burnish", "seconds": step}]
        print(f"\n{tables.table(COLUMNS, rows)}", end="", flush=True)
        peers = {"TRL, generate": False, **({"TRL, vLLM": True} if args.vllm else {})} if args.peers else {}
        for name, vllm in peers.items():
            seconds = run_trl(model, args.peers / "trl_grpo.py", args.steps, new_tokens, vllm)["s_per_step"]
            rows.append({"system": name, "seconds": seconds, "ratio": seconds / step, "target": TARGETS[name]})
            passed &= seconds / step >= TARGETS[name]
            print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
    full = bool(args.peers) and args.vllm
    tables.save(args, "gpu_step", COLUMNS, rows, full=full)
    tables.save(args, "gpu_step_phases", PHASE_COLUMNS, phases, full=full)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
