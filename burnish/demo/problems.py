"""Problems of the demo's tasks: a question with an answer that can be checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """`question` is the prompt, `answer` the only correct answer; `extra_info` is for the reward."""

    question: str
    answer: str
    extra_info: dict[str, Any] = field(default_factory=dict, compare=False)

    def row(self, data_source: str) -> dict[str, Any]:
        """A row in verl's format."""
        return {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": self.question}],
            "reward_model": {"style": "rule", "ground_truth": self.answer},
            "extra_info": self.extra_info,
        }


@dataclass(frozen=True)
class Problems:
    """Three disjoint sets: for the warm-up, for GRPO, and held out."""

    warmup: list[Problem]
    train: list[Problem]
    held_out: list[Problem]

    @staticmethod
    def split(problems: list[Problem], warmup: int, train: int) -> Problems:
        return Problems(problems[:warmup], problems[warmup : warmup + train], problems[warmup + train :])
