"""Does every algorithm learn? A tiny model, one easy task, one row and one curve for each.

usage: bench/zoo.py [NAME ...] [--steps 24] [--picture docs/algorithms.png]

The task: answer a number with as many sevens as possible (the share of 7 in the response is the score). An untrained
model says 7 a tenth of the time. A row holds if the mean score of the last steps is far above that; the control, whose
rewards are noise, holds if it stays where it was.
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

import burnish
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.log.curves import sparkline

STEPS = 24
LEARNED = 0.5  # mean score of the last quarter of the run; chance is 0.1
STILL = 0.1  # most that a run on noise may move


@dataclass(frozen=True)
class Animal:
    """An algorithm: how it is asked for, where it comes from, and whether it should learn."""

    name: str
    what: str
    overrides: tuple[str, ...]
    learns: bool = True
    embedding: float = 1.0  # the model's embedding (and head) is multiplied by this: adapters cannot make it larger


def grpo(*more: str) -> tuple[str, ...]:
    return ("algorithm.adv_estimator=grpo", *more)


def ppo(*more: str) -> tuple[str, ...]:
    return ("algorithm.adv_estimator=gae", "algorithm.lam=0.95", "critic.optim.lr=1e-3", *more)


def loss(mode: str, *more: str) -> tuple[str, ...]:
    return grpo(f"actor_rollout_ref.actor.policy_loss.loss_mode={mode}", *more)


def estimator(name: str, *more: str) -> tuple[str, ...]:
    return (f"algorithm.adv_estimator={name}", *more)


TWICE = "actor_rollout_ref.actor.ppo_epochs=2"
CORRECTION = "algorithm.rollout_correction"

ZOO = (
    Animal("ppo", "PPO: clipped ratio, GAE, a critic", ppo()),
    Animal(
        "ppo-kl",
        "PPO with an adaptive KL in the reward",
        ppo("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"),
    ),
    Animal("pf-ppo", "PPO on responses drawn again by their score", ppo("algorithm.use_pf_ppo=true")),
    Animal("grpo", "GRPO: score against the group's mean and std", grpo()),
    Animal("grpo-kl", "GRPO with k3 to the reference in the loss", grpo("actor_rollout_ref.actor.use_kl_loss=true")),
    Animal(
        "grpo-exact-kl",
        "GRPO with the exact KL over the vocabulary in the loss",
        grpo("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_type=full"),
    ),
    Animal(
        "dr-grpo",
        "no std, no length bias",
        estimator("dr_grpo", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"),
    ),
    Animal("grpo-passk", "only the best of a group, by its lead", estimator("grpo_passk")),
    Animal("rloo", "leave one out", estimator("rloo")),
    Animal("reinforce++", "returns whitened over the batch", estimator("reinforce_plus_plus")),
    Animal(
        "reinforce++-baseline", "group mean, then whitened over the batch", estimator("reinforce_plus_plus_baseline")
    ),
    Animal("remax", "score against a greedy response", estimator("remax")),
    Animal("opo", "length-weighted baseline", estimator("opo")),
    Animal(
        "gpg",
        "plain policy gradient, group baseline",
        estimator("gpg", "actor_rollout_ref.actor.policy_loss.loss_mode=gpg"),
    ),
    Animal("reward", "the score itself (no baseline)", estimator("reward")),
    Animal(
        "dapo",
        "clip-higher, token mean, groups without a lesson drawn again, overlong penalty",
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
    Animal(
        "gspo",
        "one ratio per sequence",
        loss(
            "gspo", "actor_rollout_ref.actor.clip_ratio_low=3e-3", "actor_rollout_ref.actor.clip_ratio_high=4e-3", TWICE
        ),
    ),
    Animal("cispo", "clipped, detached ratio times log-prob", loss("cispo", TWICE)),
    Animal("sapo", "a soft gate instead of clipping", loss("sapo", TWICE)),
    Animal("gmpo", "geometric mean of the ratios", loss("geo_mean", TWICE)),
    Animal("clip-cov", "tokens of high covariance left out", loss("clip_cov", TWICE)),
    Animal("kl-cov", "KL penalty on tokens of high covariance", loss("kl_cov", TWICE)),
    Animal("tis", "truncated importance sampling per token", grpo(f"{CORRECTION}.rollout_is=token")),
    Animal(
        "icepop",
        "importance weights outside [0.5, 2] set to 0",
        grpo(f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold='0.5_2.0'"),
    ),
    Animal(
        "lora",
        "GRPO on adapters of rank 8",
        grpo(
            "actor_rollout_ref.model.lora_rank=8",
            "actor_rollout_ref.model.lora_alpha=32",
            "actor_rollout_ref.actor.optim.lr=1e-2",
        ),
        embedding=10.0,
    ),
    Animal("noise", "control: GRPO on rewards that know nothing of the response", grpo(), learns=False),
)


def share_of_sevens(solution_str: str) -> float:
    return solution_str.count("7") / max(1, len(solution_str))


def rewards_of(animal: Animal) -> Callable[[str], float]:
    if animal.learns:
        return share_of_sevens
    noise = random.Random(0)
    return lambda solution_str: noise.random()


def raise_animal(animal: Animal, steps: int = STEPS, seed: int = 1) -> list[float]:
    """Train it; the mean share of sevens of every step."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(place)
        model = make_model(folder / "model", make_tokenizer("0123456789"), hidden=32, layers=2, seed=seed)
        if animal.embedding != 1.0:
            model.get_input_embeddings().weight.data *= animal.embedding
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
        burnish.train([*settings, *animal.overrides], reward=rewards_of(animal), dataset=rows)
        return [_mean_share(folder / "run" / "rollouts" / f"{step}.jsonl") for step in range(1, steps + 1)]


def _mean_share(path: Path) -> float:
    return mean(share_of_sevens(json.loads(line)["output"]) for line in path.read_text().splitlines())


def ends(curve: list[float]) -> tuple[float, float]:
    """Mean of the first and of the last quarter (at least two steps)."""
    part = max(2, len(curve) // 4)
    return mean(curve[:2]), mean(curve[-part:])


def holds(animal: Animal, curve: list[float]) -> bool:
    before, after = ends(curve)
    return after >= LEARNED if animal.learns else abs(after - before) <= STILL


def line(animal: Animal, curve: list[float]) -> str:
    before, after = ends(curve)
    settings = " ".join(f"`{text}`" for text in animal.overrides)
    verdict = "yes" if holds(animal, curve) else "NO"
    cells = [
        animal.name,
        animal.what,
        f"{before:.2f}",
        f"{after:.2f}",
        f"`{sparkline(curve, 0, 1)}`",
        verdict,
        settings,
    ]
    return f"| {' | '.join(cells)} |"


def draw(curves: dict[str, list[float]], out: Path) -> None:
    """Small multiples: the score of each over its steps."""
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


HEADER = "| name | what | first | last | curve | holds | asked for by |\n|---|---|---|---|---|---|---|"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which; all by default")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--picture", type=Path, help="draw the curves into this PNG")
    args = parser.parse_args()
    unknown = set(args.names) - {animal.name for animal in ZOO}
    if unknown:
        parser.error(f"no such algorithm: {', '.join(sorted(unknown))}")
    chosen = [animal for animal in ZOO if not args.names or animal.name in args.names]
    print(HEADER, flush=True)
    curves = {}
    for animal in chosen:
        curves[animal.name] = raise_animal(animal, args.steps)
        print(line(animal, curves[animal.name]), flush=True)
    if args.picture is not None:
        draw(curves, args.picture)
    good = sum(holds(animal, curves[animal.name]) for animal in chosen)
    print(f"\n{good} of {len(chosen)} hold")
    return 0 if good == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
