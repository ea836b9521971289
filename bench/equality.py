"""Do two commits compute the same? Short CPU runs of both, compared bit by bit: metrics, trajectories and weights.

    python bench/equality.py c0db06a            # that commit against the working tree
    python bench/equality.py c0db06a --only grpo lora

Timing metrics are left out. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMES = (
    *("timing_s/", "timing_per_token_ms/", "perf/", "engine/seconds"),
    *("rollout/draft_", "rollout/decode_", "engine/draft_", "engine/decode_", "engine/loaded_"),  # see draft_policy.py
)
LORA = (
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.model.lora_alpha=8",
    "actor_rollout_ref.actor.use_kl_loss=true",
)
SCENARIOS = {
    "grpo": ("algorithm.adv_estimator=grpo", "data.val_files={data}", "trainer.test_freq=2"),
    "ppo_critic": (
        "algorithm.adv_estimator=gae",
        "critic.model.path={model}",
        "critic.optim.lr=1e-3",
        "critic.ppo_mini_batch_size=4",
        "algorithm.use_kl_in_reward=true",
        "actor_rollout_ref.actor.ppo_epochs=2",
    ),
    "lora": ("algorithm.adv_estimator=grpo", *LORA),
    "dapo_filter": (
        "algorithm.adv_estimator=grpo",
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=score",
        "data.gen_batch_size=6",
        "reward_model.overlong_buffer.enable=true",
        "reward_model.overlong_buffer.len=2",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
    ),
    "remax": ("algorithm.adv_estimator=remax",),
    "one_step_off": ("algorithm.adv_estimator=rloo", "async_training.mode=one_step_off"),
    "two_ranks": ("algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=2", "trainer.launcher=processes"),
}
SETUP = """
import json, pathlib, sys
from burnish.demo.tiny import make_model, make_tokenizer
folder = pathlib.Path(sys.argv[1])
make_model(folder / "model", make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
rows = [{"prompt": [{"role": "user", "content": f"{n}+{n}"}], "data_source": "digits",
         "reward_model": {"ground_truth": str(2 * n)}, "extra_info": {"number": n}} for n in range(24)]
(folder / "data.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in rows))
(folder / "reward.py").write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\\n"
    "    return solution_str.count('7') / max(1, len(solution_str)) + (solution_str == ground_truth)\\n")
"""


def run(tree: Path, folder: Path, name: str) -> dict[str, object]:
    """Train one scenario with the code of a checkout; returns what it computed."""
    out = folder / "runs" / tree.name / name
    overrides = [text.format(model=folder / "model", data=folder / "data.jsonl") for text in SCENARIOS[name]]
    command = [
        *(sys.executable, "-m", "burnish", "train", f"actor_rollout_ref.model.path={folder / 'model'}"),
        *(f"data.train_files={folder / 'data.jsonl'}", "data.train_batch_size=4", "data.max_prompt_length=16"),
        *("data.max_response_length=6", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        *("actor_rollout_ref.actor.optim.lr=1e-3", "actor_rollout_ref.rollout.n=4", "trainer.device=cpu"),
        *(f"custom_reward_function.path={folder / 'reward.py'}", "reward.num_workers=1", "trainer.save_freq=4"),
        *("trainer.total_training_steps=4", "trainer.logger=[console,file]", f"trainer.default_local_dir={out}"),
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        *overrides,
    ]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed with the code of {tree}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    metrics = [
        {"step": line["step"]} | {key: value for key, value in line["data"].items() if not key.startswith(TIMES)}
        for line in lines
    ]
    weights = {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("global_step_4/**/*.safetensors"))
    }
    rollouts = {path.name: path.read_text() for path in sorted((out / "rollouts").iterdir())}
    return {"metrics": metrics, "weights": weights, "rollouts": rollouts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="to compare the working tree with")
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, default=list(SCENARIOS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, before = Path(temporary), Path(temporary) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), arguments.commit], check=True)
        try:
            environment = os.environ | {"PYTHONPATH": str(before)}
            subprocess.run([sys.executable, "-c", SETUP, str(folder)], check=True, env=environment, cwd=before)
            differing = [
                name for name in arguments.only if not compare(name, *(run(t, folder, name) for t in (before, ROOT)))
            ]
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    return 1 if differing else 0


def compare(name: str, before: dict, after: dict) -> bool:
    """Print a line for the scenario and one for each difference."""
    problems = []
    for part in ("weights", "rollouts"):
        if before[part] != after[part]:
            names = [n for n in before[part].keys() | after[part].keys() if before[part].get(n) != after[part].get(n)]
            problems.append(f"{part} differ: {sorted(names)}")
    for old, new in zip(before["metrics"], after["metrics"], strict=True):
        changed = {key: (old.get(key), new.get(key)) for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        problems += [f"step {old['step']}: {key} {pair[0]} -> {pair[1]}" for key, pair in sorted(changed.items())]
    num_metrics = sum(len(line) for line in before["metrics"])
    verdict = "differs" if problems else "identical"
    counts = f"{num_metrics} metrics, {len(before['weights'])} weight files, {len(before['rollouts'])} steps"
    print(f"{name}: {verdict} ({counts})")
    for problem in problems[:20]:
        print(f"    {problem}")
    return not problems


if __name__ == "__main__":
    raise SystemExit(main())
