"""Run the demo: create data and model, warm up, train with GRPO, and report the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.demo.accuracy import GreedyEvaluator
from burnish.demo.task import CHARACTERS, DATA_SOURCE, Problems, make_problems
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.demo.warmup import Warmup
from burnish.log.file import read_metrics
from burnish.loop.api import train
from burnish.loop.fit import Result

HIDDEN, LAYERS = 64, 2
WARMUP, TRAIN, HELD_OUT = 4000, 4000, 512
WARMUP_ACCURACY = 0.29  # accuracy at which the warm-up stops
STEPS = 240
ACCURACY = f"val-core/{DATA_SOURCE}/reward/mean@1"


@dataclass(frozen=True)
class DemoResult:
    """Greedy accuracy on held-out problems before and after GRPO, and the run folder."""

    seed: int
    before: float
    after: float
    seconds: float
    folder: Path
    questions: int  # held out
    curve: list[float]  # mean reward of each step
    samples: list[tuple[str, str, str, str]]  # question, answer before, answer after, correct answer

    def line(self) -> str:
        """The result as one line of JSON."""
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
    """Run the demo in `folder`. `reward` replaces the built-in rule; `overrides` are config overrides for training."""
    started = time.perf_counter()
    problems = make_problems(seed, warmup=WARMUP, train=TRAIN, held_out=HELD_OUT)
    model = folder / "model"
    say(f"creating a tiny Qwen2 model and {WARMUP + TRAIN + HELD_OUT} sorting problems (seed {seed})")
    warm_up(model, problems, seed)
    say("warm-up (SFT) done; now training with GRPO on prompts and rewards only")
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
    """Create a random model and train it with SFT until it solves some unseen problems."""
    tokenizer = make_tokenizer(CHARACTERS)
    make_model(model, tokenizer, hidden=HIDDEN, layers=LAYERS, seed=seed)
    evaluator = GreedyEvaluator(model, tokenizer)
    try:
        # Measured on problems of the GRPO stage, so that the held-out set influences no decision.
        unseen = problems.train[:HELD_OUT]
        return Warmup(model, tokenizer, seed).run(
            problems.warmup, lambda backend: evaluator.accuracy(backend, unseen), target=WARMUP_ACCURACY, every=1
        )
    finally:
        evaluator.close()


def reinforce(
    folder: Path,
    model: Path,
    problems: Problems,
    seed: int,
    steps: int,
    overrides: tuple[str, ...],
    reward: Callable[..., Any] | None,
) -> Result:
    """Train with GRPO, through the public API."""
    config = [
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=32",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.temperature=0.6",  # at 1 the warmed-up model is rarely correct
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
    return train(
        [*config, *overrides],
        reward=reward,
        dataset=[problem.row() for problem in problems.train],
        val_dataset=[problem.row() for problem in problems.held_out],
    )


def _samples(folder: Path, steps: int, count: int = 6) -> list[tuple[str, str, str, str]]:
    """Questions with the answers before and after, changed answers first."""
    before, after = (_answers(folder / f"{step}.jsonl") for step in (0, steps))
    rows = [(question, before[question][1], answer, truth) for question, (truth, answer) in after.items()]
    return sorted(rows, key=lambda row: row[1] == row[2])[:count]


def _answers(file: Path) -> dict[str, tuple[str, str]]:
    """question -> (correct answer, model's answer), from the validation dump."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return {"".join(filter(str.isdigit, r["input"])): (r["gts"], r["output"]) for r in records}
