"""GRPO step on a CPU against TRL's GRPOTrainer: 32 prompts x 8 samples x up to 256 new tokens.

    python bench/step_vs_trl.py --trl-python VENV/bin/python --peers FOLDER [--rounds 2] [--steps 5]

FOLDER contains tiny_lm.py (creates the model) and trl_grpo.py (runs TRL); VENV has torch, trl, datasets and accelerate.
Both use the same model, prompts, reward, number of samples, sampling (temperature 1, no top-k or top-p), loss (token
mean of the clipped ratio, advantages divided by the group's standard deviation, no KL) and learning rate. They
alternate, so that other load affects both. Exits with status 1 if the median ratio is below 2.5.
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

import tables

PROMPTS, SAMPLES, MAX_NEW = 32, 8, 256
TARGET = 2.5
COLUMNS = {
    "round": "{round}",
    "Burnish s": "{seconds:.2f}",
    "of which generation": "{gen_seconds:.2f}",
    "of which update": "{update_seconds:.2f}",
    "TRL s": "{trl_seconds:.2f}",
    "ratio": "{ratio:.2f}x",
    "tokens per sample, Burnish and TRL": "{mean_length:.0f}, {trl_mean_length:.0f}",
}


def reward(solution_str: str) -> float:
    """The share of digits, as in trl_grpo.py."""
    return sum(ch.isdigit() for ch in solution_str) / max(1, len(solution_str))


def run_burnish(model: str, steps: int) -> dict:
    """Train with the Python API in this process; medians of the steps after the first."""
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
    medians = {name: statistics.median(m[key] for m in after_first) for name, key in phases.items()}
    length = statistics.mean(m["response_length/mean"] for m in after_first)
    return {"framework": "burnish", "s_per_step": medians["step"], "mean_len": length, **medians}


def run_command(command: list[str]) -> dict:
    """The JSON on the last line of its output."""
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{command[:2]} failed:\n{finished.stderr[-2000:]}")
    return json.loads(finished.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="Python of an environment with TRL")
    parser.add_argument("--peers", type=Path, help="folder with tiny_lm.py and trl_grpo.py")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--burnish", metavar="MODEL", help="internal: run Burnish on this model and print JSON")
    tables.add_option(parser)
    args = parser.parse_args()
    if args.burnish:
        print(json.dumps(run_burnish(args.burnish, args.steps)))
        return 0
    with tempfile.TemporaryDirectory() as model:
        subprocess.run([sys.executable, str(args.peers / "tiny_lm.py"), model], check=True, capture_output=True)
        trl = [args.trl_python, str(args.peers / "trl_grpo.py"), model, "--max-new", str(MAX_NEW)]
        rows = []
        print(tables.table(COLUMNS, rows), end="", flush=True)
        for number in range(args.rounds):
            ours = run_command([sys.executable, __file__, "--burnish", model, "--steps", str(args.steps)])
            theirs = run_command([*trl, "--steps", str(args.steps)])
            row = {
                "round": number + 1,
                "seconds": ours["s_per_step"],
                "gen_seconds": ours["gen"],
                "update_seconds": ours["update"],
                "trl_seconds": theirs["s_per_step"],
                "ratio": theirs["s_per_step"] / ours["s_per_step"],
                "mean_length": ours["mean_len"],
                "trl_mean_length": theirs["mean_len"],
            }
            rows.append(row)
            print(tables.table(COLUMNS, [row]).splitlines()[-1], flush=True)
    tables.save(args, "step_vs_trl", COLUMNS, rows, peer_python=args.trl_python)
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"Burnish is {ratio:.2f}x as fast (median of {args.rounds} rounds)")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
