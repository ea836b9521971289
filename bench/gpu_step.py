"""A whole GRPO step on one GPU beside TRL's: 32 prompts x 8 samples x 256 new tokens, the 0.5B shape, bfloat16.

    python bench/gpu_step.py                                      # Burnish alone: every phase of a step
    python bench/gpu_step.py --peers FOLDER                       # TRL with generate beside it
    python bench/gpu_step.py --peers FOLDER --vllm                # and TRL with vLLM on the same GPU
    python bench/gpu_step.py --smoke                              # the same code on a CPU, tiny

FOLDER holds trl_grpo.py. Random weights: no response ends early. A step is waking the engine, generating, scoring,
the update and the new weights' way into the engine, which then sleeps. The first step of each compiles and is left out.
The engine may take 0.3 of the memory, as TRL's vLLM does. Checked before anything is compared: rewards are the
function's, responses have full length, log-probs of engine and trainer agree. Ends with status 1 if a bar (3x TRL with
vLLM, 6x with generate) is missed.
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

import torch
from shapes import make

import burnish
from burnish.demo.tiny import make_tokenizer
from burnish.log.file import read_metrics

MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))
PROMPTS, SAMPLES = 32, 8
BARS = {"TRL, generate": 6.0, "TRL, vLLM": 3.0}
GAP = 0.02  # mean difference of the probabilities that engine and trainer see


def reward(solution_str: str) -> float:
    """The share of digits, as the peer's."""
    return sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))


def write_model(folder: Path, shape: str, device: str) -> None:
    tokenizer = make_tokenizer("0123456789+=abcdefghijklmnopqrstuvwxyz ?")
    made = make(shape, device, torch.bfloat16 if device == "cuda" else torch.float32)
    made.config.eos_token_id, made.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    made.generation_config.eos_token_id = tokenizer.eos_token_id
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ours(model: Path, steps: int, new_tokens: int, device: str) -> dict[str, float]:
    """The median of every number of a step, the first left out."""
    rng = random.Random(0)
    questions = [f"{rng.randint(0, 99)}+{rng.randint(0, 99)}=" for _ in range(PROMPTS * steps)]
    rows = [
        {"prompt": [{"role": "user", "content": q}], "data_source": "digits", "reward_model": {"ground_truth": ""}}
        for q in questions
    ]
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
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
        burnish.train(overrides, reward=reward, dataset=rows)
        metrics = [
            numbers for step, numbers in sorted(read_metrics(Path(folder) / "metrics.jsonl").items()) if step > 1
        ]
    names = sorted(set.intersection(*(set(numbers) for numbers in metrics)))
    return {name: statistics.median(numbers[name] for numbers in metrics) for name in names}


def sane(found: dict[str, float], new_tokens: int) -> bool:
    """Is this the work that was asked for?"""
    problems = []
    if found["response_length/mean"] < 0.95 * new_tokens:
        problems.append(f"responses of {found['response_length/mean']:.0f} tokens")
    gap = found.get("training/rollout_probs_diff_mean")
    if gap is not None and gap > GAP:
        problems.append(f"engine and trainer differ by {gap:.3f}")
    print("\n".join(f"WRONG: {problem}" for problem in problems) or "checked: lengths, probabilities")
    return not problems


def theirs(model: Path, script: Path, steps: int, new_tokens: int, vllm: bool) -> dict[str, float]:
    command = [sys.executable, str(script), str(model), "--max-new", str(new_tokens), "--steps", str(steps), "--bf16"]
    environment = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    done = subprocess.run([*command, *(["--vllm"] if vllm else [])], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--peers", type=Path, help="folder with trl_grpo.py")
    parser.add_argument("--vllm", action="store_true", help="TRL with vLLM too")
    args = parser.parse_args()
    shape, device, new_tokens = ("tiny", "cpu", 16) if args.smoke else ("0.5B", "cuda", 256)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, shape, device)
        found = ours(model, 2 if args.smoke else args.steps, new_tokens, device)
        print("| phase | s |\n|---|---|")
        for name, value in found.items():
            if name.startswith("timing_s/"):
                print(f"| {name.removeprefix('timing_s/')} | {value:.3f} |")
        good = sane(found, new_tokens)
        step = found["timing_s/step"]
        print(f"\n| system | s per step | Burnish is faster |\n|---|---|---|\n| Burnish | {step:.3f} | |", flush=True)
        peers = {"TRL, generate": False, **({"TRL, vLLM": True} if args.vllm else {})} if args.peers else {}
        for name, vllm in peers.items():
            taken = theirs(model, args.peers / "trl_grpo.py", args.steps, new_tokens, vllm)["s_per_step"]
            good &= taken / step >= BARS[name]
            print(f"| {name} | {taken:.3f} | {taken / step:.2f}x |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
