"""Train a tiny model with every algorithm on one easy task: one row and one curve for each.

    python bench/zoo.py [NAME ...] [--steps 24] [--picture docs/algorithms.png]

The task: answer a number with as many sevens as possible (the score is the share of 7 in the response). An untrained
model scores 0.1. An algorithm passes if the mean score of the last steps is far above that; the control, trained on
random rewards, passes if its score stays the same. Runs of all algorithms write zoo.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import tables

import burnish
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.log.curves import sparkline

STEPS = 24
COLUMNS = {
    "name": "{name}",
    "algorithm": "{description}",
    "first": "{first:.2f}",
    "last": "{last:.2f}",
    "curve": "`{sparkline}`",
    "pass": "{passed}",
    "settings": "{settings}",
}
LEARNED = 0.5  # mean score of the last quarter of the run; chance is 0.1
MAX_DRIFT = 0.1  # of the control's score


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: its overrides, and whether it should learn."""

    name: str
    description: str
    overrides: tuple[str, ...]
    learns: bool = True
    embedding_scale: float = 1.0  # of the tied embedding and head, which adapters cannot scale themselves


def grpo(*more: str) -> tuple[str, ...]:
    return ("algorithm.adv_estimator=grpo", *more)


def ppo(*more: str) -> tuple[str, ...]:
    return ("algorithm.adv_estimator=gae", "algorithm.lam=0.95", "critic.optim.lr=1e-3", *more)


def loss(mode: str, *more: str) -> tuple[str, ...]:
    return grpo(f"actor_rollout_ref.actor.policy_loss.loss_mode={mode}", *more)


def estimator(name: str, *more: str) -> tuple[str, ...]:
    return (f"algorithm.adv_estimator={name}", *more)


TWO_EPOCHS = "actor_rollout_ref.actor.ppo_epochs=2"
CORRECTION = "algorithm.rollout_correction"

ZOO = (
    Algorithm("ppo", "PPO: clipped ratio, GAE, a critic", ppo()),
    Algorithm(
        "ppo-kl",
        "PPO with an adaptive KL in the reward",
        ppo("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"),
    ),
    Algorithm("pf-ppo", "PPO on responses resampled by score", ppo("algorithm.use_pf_ppo=true")),
    Algorithm("grpo", "GRPO: score against the group's mean and std", grpo()),
    Algorithm("grpo-kl", "GRPO with k3 to the reference in the loss", grpo("actor_rollout_ref.actor.use_kl_loss=true")),
    Algorithm(
        "grpo-exact-kl",
        "GRPO with the exact KL over the vocabulary in the loss",
        grpo("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_type=full"),
    ),
    Algorithm(
        "dr-grpo",
        "no std, no length bias",
        estimator("dr_grpo", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"),
    ),
    Algorithm("grpo-passk", "only the best response of a group, by its margin", estimator("grpo_passk")),
    Algorithm("rloo", "leave one out", estimator("rloo")),
    Algorithm("reinforce++", "returns whitened over the batch", estimator("reinforce_plus_plus")),
    Algorithm(
        "reinforce++-baseline", "group mean, then whitened over the batch", estimator("reinforce_plus_plus_baseline")
    ),
    Algorithm("remax", "score against a greedy response", estimator("remax")),
    Algorithm("opo", "length-weighted baseline", estimator("opo")),
    Algorithm("otb", "optimal baseline per position", estimator("optimal_token_baseline")),
    Algorithm(
        "gpg",
        "plain policy gradient, group baseline",
        estimator("gpg", "actor_rollout_ref.actor.policy_loss.loss_mode=gpg"),
    ),
    Algorithm("reward", "the score itself (no baseline)", estimator("reward")),
    Algorithm(
        "dapo",
        "clip-higher, token mean, groups without signal resampled, overlong penalty",
        grpo(
            "actor_rollout_ref.actor.clip_ratio_low=0.2",
            "actor_rollout_ref.actor.clip_ratio_high=0.28",
            "algorithm.filter_groups.enable=true",
            "algorithm.filter_groups.metric=score",
            "reward_model.overlong_buffer.enable=true",
            "reward_model.overlong_buffer.len=2",
            "reward_model.overlong_buffer.penalty_factor=0.1",
        ),
    ),
    Algorithm(
        "gspo",
        "one ratio per sequence",
        loss(
            "gspo",
            "actor_rollout_ref.actor.clip_ratio_low=3e-3",
            "actor_rollout_ref.actor.clip_ratio_high=4e-3",
            TWO_EPOCHS,
        ),
    ),
    Algorithm("cispo", "clipped, detached ratio times log-prob", loss("cispo", TWO_EPOCHS)),
    Algorithm("sapo", "a soft gate instead of clipping", loss("sapo", TWO_EPOCHS)),
    Algorithm("gmpo", "geometric mean of the ratios", loss("geo_mean", TWO_EPOCHS)),
    Algorithm("dppo-tv", "trust region on each token's probability", loss("dppo_tv", TWO_EPOCHS)),
    Algorithm("dppo-kl", "trust region by binary KL", loss("dppo_kl", TWO_EPOCHS)),
    Algorithm("clip-cov", "tokens of high covariance excluded", loss("clip_cov", TWO_EPOCHS)),
    Algorithm("kl-cov", "KL penalty on tokens of high covariance", loss("kl_cov", TWO_EPOCHS)),
    Algorithm("tis", "truncated importance sampling per token", grpo(f"{CORRECTION}.rollout_is=token")),
    Algorithm(
        "icepop",
        "importance weights outside [0.5, 2] set to 0",
        grpo(f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold='0.5_2.0'"),
    ),
    Algorithm(
        "lora",
        "GRPO on adapters of rank 8",
        grpo(
            "actor_rollout_ref.model.lora_rank=8",
            "actor_rollout_ref.model.lora_alpha=32",
            "actor_rollout_ref.actor.optim.lr=1e-2",
        ),
        embedding_scale=10.0,
    ),
    Algorithm("noise", "control: GRPO on random rewards", grpo(), learns=False),
)


def share_of_sevens(solution_str: str) -> float:
    return solution_str.count("7") / max(1, len(solution_str))


def reward_function(algorithm: Algorithm) -> Callable[[str], float]:
    if algorithm.learns:
        return share_of_sevens
    noise = random.Random(0)
    return lambda solution_str: noise.random()


def train(algorithm: Algorithm, steps: int = STEPS, seed: int = 1) -> list[float]:
    """Mean share of sevens of every step."""
    with tempfile.TemporaryDirectory() as path, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(path)
        model = make_model(folder / "model", make_tokenizer("0123456789"), hidden=32, layers=2, seed=seed)
        if algorithm.embedding_scale != 1.0:
            model.get_input_embeddings().weight.data *= algorithm.embedding_scale
            model.save_pretrained(folder / "model")
        rows = [{"prompt": [{"role": "user", "content": str(n)}], "data_source": "digits"} for n in range(32)]
        settings = [
            f"actor_rollout_ref.model.path={folder / 'model'}",
            "data.train_batch_size=8",
            "data.max_prompt_length=16",
            "data.max_response_length=6",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "critic.model.enable_gradient_checkpointing=false",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=4e-3",
            "actor_rollout_ref.rollout.n=8",
            "reward.num_workers=0",
            "trainer.logger=[file]",
            f"trainer.seed={seed}",
            f"trainer.total_training_steps={steps}",
            f"trainer.default_local_dir={folder / 'run'}",
        ]
        burnish.train([*settings, *algorithm.overrides], reward=reward_function(algorithm), dataset=rows)
        return [_mean_share(folder / "run" / "rollouts" / f"{step}.jsonl") for step in range(1, steps + 1)]


def _mean_share(path: Path) -> float:
    return mean(share_of_sevens(json.loads(line)["output"]) for line in path.read_text().splitlines())


def ends(curve: list[float]) -> tuple[float, float]:
    """Mean of the first two steps, and of the last quarter (at least two steps)."""
    part = max(2, len(curve) // 4)
    return mean(curve[:2]), mean(curve[-part:])


def passes(algorithm: Algorithm, curve: list[float]) -> bool:
    before, after = ends(curve)
    return after >= LEARNED if algorithm.learns else abs(after - before) <= MAX_DRIFT


def row_of(algorithm: Algorithm, curve: list[float]) -> dict[str, Any]:
    before, after = ends(curve)
    return {
        "name": algorithm.name,
        "description": algorithm.description,
        "first": before,
        "last": after,
        "sparkline": sparkline(curve, 0, 1),
        "passed": "yes" if passes(algorithm, curve) else "NO",
        "settings": " ".join(f"`{text}`" for text in algorithm.overrides),
        "curve": curve,
    }


def draw(curves: dict[str, list[float]], out: Path) -> None:
    """One panel per algorithm: score over steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 6
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(2.0 * columns, 1.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for axis, (name, curve) in zip(axes, curves.items(), strict=False):
        axis.plot(range(1, len(curve) + 1), curve)
        axis.set_ylim(0, 1)
        axis.set_title(name, fontsize=8)
        axis.grid(alpha=0.3)
    for axis in axes[len(curves) :]:
        axis.set_visible(False)
    figure.savefig(out, format="png", dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms (default: all)")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--picture", type=Path, help="draw the curves into this PNG")
    tables.add_option(parser)
    args = parser.parse_args()
    unknown = set(args.names) - {algorithm.name for algorithm in ZOO}
    if unknown:
        parser.error(f"unknown algorithm: {', '.join(sorted(unknown))}; one of {', '.join(a.name for a in ZOO)}")
    print(tables.table(COLUMNS, []), end="", flush=True)
    rows = []
    for algorithm in ZOO:
        if not args.names or algorithm.name in args.names:
            rows.append(row_of(algorithm, train(algorithm, args.steps)))
            print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
    if args.picture is not None:
        draw({row["name"]: row["curve"] for row in rows}, args.picture)
    num_passed = sum(row["passed"] == "yes" for row in rows)
    print(f"\n{num_passed} of {len(rows)} pass")
    tables.save(args, "zoo", COLUMNS, rows, full=len(rows) == len(ZOO) and args.steps == STEPS)
    return 0 if num_passed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
