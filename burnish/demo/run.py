"""The demo itself: make everything, warm up, reinforce, and tell what changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.demo.accuracy import Examiner
from burnish.demo.task import CHARACTERS, DATA_SOURCE, Problems, make_problems
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.demo.warmup import Warmup
from burnish.log.file import read_metrics
from burnish.loop.api import train
from burnish.loop.fit import Result

HIDDEN, LAYERS = 64, 2
WARMUP, TRAIN, HELD_OUT = 4000, 4000, 512
WARM_ENOUGH = 0.29  # accuracy at which the warm-up ends; reinforcement does the rest
STEPS = 240
ACCURACY = f"val-core/{DATA_SOURCE}/reward/mean@1"


@dataclass(frozen=True)
class DemoResult:
    """Greedy accuracy on held-out questions before and after reinforcement, and where to look."""

    seed: int
    before: float
    after: float
    seconds: float
    folder: Path
    questions: int  # held out
    curve: list[float]  # mean reward of each step
    samples: list[tuple[str, str, str, str]]  # question, answer before, answer after, right answer

    def line(self) -> str:
        """One line of JSON for programs."""
        numbers = {"before": round(self.before, 4), "after": round(self.after, 4), "seconds": round(self.seconds, 1)}
        return json.dumps({"seed": self.seed, **numbers})


def run_demo(
    folder: Path,
    seed: int,
    *,
    steps: int = STEPS,
    overrides: tuple[str, ...] = (),
    reward: Callable[..., Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> DemoResult:
    """All of it, in `folder`. `reward` replaces the rule (a test shuffles it); `overrides` go to burnish.training."""
    started = time.perf_counter()
    problems = make_problems(seed, warmup=WARMUP, train=TRAIN, held_out=HELD_OUT)
    model = folder / "model"
    say(f"making a tiny Qwen2 model and {WARMUP + TRAIN + HELD_OUT} sorting problems (seed {seed})")
    warm_up(model, problems, seed)
    say("warmed up by example; now reinforcement: prompts and rewards only")
    result = reinforce(folder, model, problems, seed, steps, overrides, reward)
    metrics = read_metrics(result.folder / "metrics.jsonl")
    return DemoResult(
        seed=seed,
        before=result.validation[0][ACCURACY],
        after=result.validation[steps][ACCURACY],
        seconds=time.perf_counter() - started,
        folder=result.folder,
        questions=len(problems.held_out),
        curve=[numbers["critic/score/mean"] for step, numbers in sorted(metrics.items()) if step > 0],
        samples=_samples(folder / "answers", steps),
    )


def warm_up(model: Path, problems: Problems, seed: int) -> float:
    """A random model, taught by example until it sorts some questions right that it was not shown."""
    tokenizer = make_tokenizer(CHARACTERS)
    make_model(model, tokenizer, hidden=HIDDEN, layers=LAYERS, seed=seed)
    examiner = Examiner(model, tokenizer)
    try:
        # Measured on the questions of reinforcement: the held-out ones stay unseen by every decision.
        unseen = problems.train[:HELD_OUT]
        return Warmup(model, tokenizer, seed).run(
            problems.warmup, lambda backend: examiner.accuracy(backend, unseen), enough=WARM_ENOUGH, every=1
        )
    finally:
        examiner.close()


def reinforce(
    folder: Path,
    model: Path,
    problems: Problems,
    seed: int,
    steps: int,
    overrides: tuple[str, ...],
    reward: Callable[..., Any] | None,
) -> Result:
    """GRPO through the same door as every other run."""
    config = [
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=32",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.temperature=0.6",  # at 1 the half-taught model is hardly ever right
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.optim.lr=4e-4",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=10",
        "actor_rollout_ref.actor.optim.weight_decay=0",
        f"trainer.total_training_steps={steps}",
        f"trainer.test_freq={steps}",
        f"trainer.seed={seed}",
        "trainer.project_name=burnish",
        "trainer.experiment_name=demo",
        f"trainer.default_local_dir={folder / 'run'}",
        f"trainer.validation_data_dir={folder / 'answers'}",
        "trainer.resume_mode=disable",
    ]
    rows = {"dataset": [p.row() for p in problems.train], "val_dataset": [p.row() for p in problems.held_out]}
    return train([*config, *overrides], reward=reward, **rows)


def _samples(folder: Path, steps: int, count: int = 6) -> list[tuple[str, str, str, str]]:
    """Questions with the answers before and after; those that changed come first."""
    before, after = (_answers(folder / f"{step}.jsonl") for step in (0, steps))
    rows = [(question, before[question][1], said, right) for question, (right, said) in after.items()]
    return sorted(rows, key=lambda row: row[1] == row[2])[:count]


def _answers(file: Path) -> dict[str, tuple[str, str]]:
    """question -> (right answer, what the model said), as validation wrote it down."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return {"".join(filter(str.isdigit, r["input"])): (r["gts"], r["output"]) for r in records}
