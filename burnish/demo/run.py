"""Run the demo: create data and model, warm up, train with GRPO, and report the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.demo.problems import Problems
from burnish.demo.tasks import DEFAULT, TASKS, DemoTask
from burnish.errors import UserError
from burnish.log.console import activity
from burnish.log.console import say as console_say
from burnish.log.file import read_metrics
from burnish.loop.api import train
from burnish.loop.finish import Result
from burnish.models.device import limit_cpu_threads


@dataclass(frozen=True)
class DemoResult:
    """Greedy accuracy on held-out problems before and after GRPO, and the run folder."""

    seed: int
    heading: str  # of the questions
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
    task: str = DEFAULT,
    steps: int | None = None,
    overrides: tuple[str, ...] = (),
    shown: bool = False,
    tools: Sequence[Any] | None = None,
) -> DemoResult:
    """Run a task of the demo in `folder`. `overrides` are config overrides for training; `shown` prints what happens.

    `steps` are those of GRPO, by default as many as the task needs. `tools` replace those of the task.
    """
    started = time.perf_counter()
    say = console_say if shown else _ignore
    limit_cpu_threads()  # the run reports it
    demo: DemoTask = TASKS[task].load()()
    steps = demo.steps if steps is None else steps
    problems = demo.make_problems(seed)
    model = folder / "model"
    say(f"A tiny {demo.model} model learns to {demo.goal} (seed {seed}).")
    with activity("warm-up (SFT)", shown=shown) as update:
        done = demo.warm_up(model, problems, seed, lambda text: update(f"warm-up (SFT): {text}"))
    say(f"1. warm-up (SFT) on {done}")
    say("2. GRPO on prompts and rewards only")
    result = reinforce(demo, folder, model, problems, seed, steps, overrides, tools=tools)
    if result.step < steps:
        raise UserError(f"the demo was stopped at step {result.step} of {steps}", hint="the same command again")
    metrics = read_metrics(result.folder / "metrics.jsonl")
    return DemoResult(
        seed=seed,
        heading=demo.heading,
        before=result.validation[0][demo.accuracy],
        after=result.validation[steps][demo.accuracy],
        seconds=time.perf_counter() - started,
        folder=result.folder,
        questions=len(problems.held_out),
        curve=[numbers["critic/score/mean"] for step, numbers in sorted(metrics.items()) if step > 0],
        samples=_samples(demo, folder / "answers", steps),
    )


def _ignore(text: str) -> None:
    """Print nothing."""


def reinforce(
    task: DemoTask,
    folder: Path,
    model: Path,
    problems: Problems,
    seed: int,
    steps: int,
    overrides: tuple[str, ...] = (),
    *,
    reward: Callable[..., Any] | None = None,
    tools: Sequence[Any] | None = None,
) -> Result:
    """Train with GRPO, through the public API. `reward` and `tools` replace those of the task."""
    config = [
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "algorithm.adv_estimator=grpo",
        *task.settings,
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
        reward=task.reward() if reward is None else reward,
        tools=task.tools() if tools is None else tools,
        dataset=[problem.row(task.data_source) for problem in problems.train],
        val_dataset=[problem.row(task.data_source) for problem in problems.held_out],
    )


def _samples(task: DemoTask, folder: Path, steps: int, count: int = 6) -> list[tuple[str, str, str, str]]:
    """Questions with the answers before and after, changed answers first."""
    before, after = (_answers(task, folder / f"{step}.jsonl") for step in (0, steps))
    rows = [(question, before[question][1], answer, truth) for question, (truth, answer) in after.items()]
    return sorted(rows, key=lambda row: row[1] == row[2])[:count]


def _answers(task: DemoTask, file: Path) -> dict[str, tuple[str, str]]:
    """question -> (correct answer, model's answer), from the validation dump."""
    answers = {}
    for line in file.read_text().splitlines():
        record = json.loads(line)
        question, answer = task.sample(record)
        answers[question] = record["gts"], answer
    return answers
