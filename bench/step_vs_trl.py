"""One GRPO step side by side with TRL's GRPOTrainer on the same machine: 32 prompts x 8 samples x up to 256 new tokens.

usage: bench/step_vs_trl.py --trl-python VENV/bin/python --peers FOLDER [--rounds 2] [--steps 5]
FOLDER holds tiny_lm.py (makes the model) and trl_grpo.py (runs TRL). VENV has torch, trl, datasets and accelerate.
Same model, prompts, reward, number of samples, sampling (temperature 1, nothing restricted), loss (token mean of the
clipped ratio, advantages divided by the group's deviation, no KL) and learning rate. The two take turns, so that
whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPTS, SAMPLES, MAX_NEW = 32, 8, 256
BAR = 2.5


def reward(solution_str: str) -> float:
    """TRL's bench reward: the share of digits."""
    return sum(ch.isdigit() for ch in solution_str) / max(1, len(solution_str))


def ours(model: str, steps: int) -> dict:
    """Burnish through its public door, in this process."""
    import burnish
    from burnish.log.file import read_metrics

    rng = random.Random(0)
    questions = [f"{rng.randint(0, 99)}+{rng.randint(0, 99)}=" for _ in range(PROMPTS * steps)]
    rows = [
        {"prompt": [{"role": "user", "content": q}], "data_source": "digits", "reward_model": {"ground_truth": ""}}
        for q in questions
    ]
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"actor_rollout_ref.model.path={model}",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "algorithm.adv_estimator=grpo",
            f"data.train_batch_size={PROMPTS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
            f"actor_rollout_ref.rollout.n={SAMPLES}",
            f"data.max_response_length={MAX_NEW}",
            "data.max_prompt_length=128",
            "actor_rollout_ref.actor.optim.lr=1e-4",
            f"trainer.total_training_steps={steps}",
            f"trainer.default_local_dir={folder}",
            "trainer.logger=[file]",
        ]
        burnish.train(overrides, reward=reward, dataset=rows)
        metrics = read_metrics(Path(folder) / "metrics.jsonl")
    after_first = [numbers for step, numbers in sorted(metrics.items()) if step > 1]
    phases = {"step": "timing_s/step", "gen": "timing_s/gen", "update": "timing_s/update_actor"}
    found = {name: statistics.median(m[key] for m in after_first) for name, key in phases.items()}
    length = statistics.mean(m["response_length/mean"] for m in after_first)
    return {"framework": "burnish", "s_per_step": found["step"], "mean_len": length, **found}


def child(command: list[str]) -> dict:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[:2]} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="Python of an environment with TRL")
    parser.add_argument("--peers", type=Path, help="folder with tiny_lm.py and trl_grpo.py")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ours", metavar="MODEL", help="run only Burnish on this model, print JSON")
    args = parser.parse_args()
    if args.ours:
        print(json.dumps(ours(args.ours, args.steps)))
        return 0
    with tempfile.TemporaryDirectory() as model:
        subprocess.run([sys.executable, str(args.peers / "tiny_lm.py"), model], check=True, capture_output=True)
        trl = [args.trl_python, str(args.peers / "trl_grpo.py"), model, "--max-new", str(MAX_NEW)]
        pairs = []
        for number in range(args.rounds):
            mine = child([sys.executable, __file__, "--ours", model, "--steps", str(args.steps)])
            theirs = child([*trl, "--steps", str(args.steps)])
            pairs.append((mine, theirs))
            ratio = theirs["s_per_step"] / mine["s_per_step"]
            print(f"round {number + 1}: burnish {mine['s_per_step']:.2f} s (gen {mine['gen']:.2f}, update "
                  f"{mine['update']:.2f}; {mine['mean_len']:.0f} tokens a sample), TRL {theirs['s_per_step']:.2f} s "
                  f"({theirs['mean_len']:.0f} tokens a sample): {ratio:.2f}x", flush=True)  # fmt: skip
    ratio = statistics.median(theirs["s_per_step"] / mine["s_per_step"] for mine, theirs in pairs)
    print(f"burnish is {ratio:.2f}x as fast (median of {args.rounds} rounds)")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
