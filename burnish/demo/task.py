"""The demo's task: sort five digits. Verifiable, more than copying, and learnable by a tiny model in a minute."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from burnish.seeding import derive_seed

DIGITS = 5
CHARACTERS = "0123456789"
DATA_SOURCE = "burnish/sort"


@dataclass(frozen=True)
class Problem:
    """`question` holds the digits, `answer` the same digits in order."""

    question: str
    answer: str

    def row(self) -> dict[str, Any]:
        """As verl writes a row."""
        return {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": self.question}],
            "reward_model": {"style": "rule", "ground_truth": self.answer},
            "extra_info": {},
        }


@dataclass(frozen=True)
class Problems:
    """Three sets with no question in common: for the warm-up, for reinforcement, and held out."""

    warmup: list[Problem]
    train: list[Problem]
    held_out: list[Problem]


def make_problems(seed: int, *, warmup: int, train: int, held_out: int) -> Problems:
    """Distinct questions, drawn by the seed alone."""
    total = warmup + train + held_out
    numbers = random.Random(derive_seed(seed, "sorting problems")).sample(range(10**DIGITS), total)
    questions = [f"{number:0{DIGITS}d}" for number in numbers]
    problems = [Problem(question, "".join(sorted(question))) for question in questions]
    return Problems(problems[:warmup], problems[warmup : warmup + train], problems[warmup + train :])
