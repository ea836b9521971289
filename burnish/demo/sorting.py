"""The task `sort`: sort five digits. Verifiable, not just copying, and learnable by a tiny model in a minute."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from burnish.batch import Batch, Ragged
from burnish.demo.accuracy import GreedyEvaluator
from burnish.demo.problems import Problem, Problems
from burnish.demo.tasks import Progress
from burnish.demo.tiny import make_model, make_tokenizer, prompt_ids
from burnish.demo.warmup import Warmup
from burnish.seeding import derive_seed

DIGITS = 5
CHARACTERS = "0123456789"
HIDDEN, LAYERS = 64, 2
WARMUP, TRAIN, HELD_OUT = 4000, 4000, 512
WARMUP_ACCURACY = 0.29  # accuracy at which the warm-up stops
LEARNING_RATE = 2e-3  # of the warm-up
MAX_UPDATES = 400
FIRST_EVAL = 24  # no seed reaches the target earlier
MAX_ANSWER = DIGITS + 3  # allows answers that are too long, and EOS


class SortTask:
    """Five digits in ascending order."""

    model = "Qwen2"
    goal = f"sort {DIGITS} digits"
    heading = "sort these digits"
    data_source = "burnish/sort"
    accuracy = f"val-core/{data_source}/reward/mean@1"
    steps = 240
    settings = (
        "data.train_batch_size=32",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.temperature=0.6",  # at 1 the warmed-up model is rarely correct
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.optim.lr=4e-4",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=10",
    )

    def make_problems(self, seed: int) -> Problems:
        """Distinct problems, determined by the seed."""
        total = WARMUP + TRAIN + HELD_OUT
        numbers = random.Random(derive_seed(seed, "sorting problems")).sample(range(10**DIGITS), total)
        questions = [f"{number:0{DIGITS}d}" for number in numbers]
        return Problems.split([Problem(digits, "".join(sorted(digits))) for digits in questions], WARMUP, TRAIN)

    def warm_up(self, model: Path, problems: Problems, seed: int, progress: Progress) -> str:
        """Create a random model and train it with SFT until it solves some unseen problems."""
        tokenizer = make_tokenizer(CHARACTERS)
        make_model(model, tokenizer, hidden=HIDDEN, layers=LAYERS, seed=seed)
        evaluator = GreedyEvaluator(model, tokenizer, MAX_ANSWER)
        try:
            accuracy = self._warm_up(Warmup(model, LEARNING_RATE), evaluator, problems, seed, progress)
        finally:
            evaluator.close()
        return f"{WARMUP} solved problems: accuracy {accuracy:.2f}"

    def _warm_up(
        self, warmup: Warmup, evaluator: GreedyEvaluator, problems: Problems, seed: int, progress: Progress
    ) -> float:
        # Measured on problems of the GRPO stage, so that the held-out set influences no decision.
        unseen = problems.train[:HELD_OUT]
        rng = random.Random(derive_seed(seed, "warm-up"))
        accuracy = 0.0
        for update in range(1, MAX_UPDATES + 1):
            warmup.update(solved(evaluator.tokenizer, rng.choices(problems.warmup, k=warmup.batch_size)))
            progress(f"update {update}, accuracy {accuracy:.2f} of {WARMUP_ACCURACY:.2f}")
            if update >= FIRST_EVAL:
                accuracy = evaluator.accuracy(warmup.backend, unseen)
                if accuracy >= WARMUP_ACCURACY:
                    break
        warmup.save()
        return accuracy

    def reward(self) -> Callable[..., Any] | None:
        return None

    def tools(self) -> Sequence[Any]:
        return ()

    def sample(self, record: Mapping[str, Any]) -> tuple[str, str]:
        return "".join(filter(str.isdigit, record["input"])), record["output"]


def solved(tokenizer: Any, problems: list[Problem]) -> Batch:
    """Prompts with their correct answers."""
    end = [tokenizer.eos_token_id]
    prompts = [prompt_ids(tokenizer, problem.question) for problem in problems]
    answers = [tokenizer.encode(problem.answer, add_special_tokens=False) + end for problem in problems]
    return Batch(prompt_ids=Ragged.of(prompts, torch.int64), responses=Ragged.of(answers, torch.int64))
