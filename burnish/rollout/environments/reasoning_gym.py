"""reasoning-gym: generated problems with their scorers. One answer per problem, or several tries.

environment=reasoning_gym environment_kwargs.dataset=chain_sum
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from burnish.errors import UserError, nearest
from burnish.rollout.environments.environment import KEY, StepResult, import_library, required

ANSWER = "Write the final answer between <answer> and </answer>."


@import_library
def reasoning_gym() -> Any:
    import reasoning_gym

    return reasoning_gym


class ReasoningGymEnvironment:
    """`config` are arguments of the dataset's generator."""

    def __init__(
        self,
        dataset: str,
        config: Mapping[str, Any] | None = None,
        instructions: str = ANSWER,
        tries: int = 1,
        **kwargs: Any,
    ) -> None:
        self.dataset = dataset
        self.config = {**(config or {}), **kwargs}
        self.instructions = instructions
        self.tries = tries

    @staticmethod
    def check(kwargs: Mapping[str, Any]) -> None:
        name = required(kwargs, "dataset", "chain_sum")
        known = reasoning_gym().factory.DATASETS
        if name not in known:
            closest = nearest(name, known)
            key = f"{KEY}_kwargs.dataset"
            problem = "no such dataset." + (f" Did you mean {closest!r}?" if closest else "")
            raise UserError(problem, key=key, value=name, allowed=sorted(known))
        try:
            ReasoningGymEnvironment(**kwargs)._problem(0)
        except Exception as error:
            raise UserError(f"reasoning-gym refuses it: {error}", key=f"{KEY}_kwargs", value=dict(kwargs)) from error

    def reset(self, seed: int, row: Mapping[str, Any]) -> str:
        self.data, self.entry = self._problem(seed)
        return f"{self.entry['question']}\n\n{self.instructions}".strip()

    def step(self, action: str) -> StepResult:
        from reasoning_gym.utils import extract_answer

        answer = extract_answer(action)
        score = float(self.data.score_answer(action.strip() if answer is None else answer, self.entry))
        self.tries -= 1
        done = self.tries <= 0 or score >= 1.0
        return StepResult("" if done else "That is not right. Try again.", score, done, {"acc": float(score >= 1.0)})

    def close(self) -> None:
        pass

    def answer(self) -> str:
        """The reference answer, for the rows of the data."""
        return str(self.entry["answer"])

    def _problem(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """The problem of a seed: it does not depend on how many others there are."""
        data = _dataset(self.dataset, json.dumps(self.config, sort_keys=True), seed)
        return data, data[0]


@lru_cache(1024)
def _dataset(name: str, config: str, seed: int) -> Any:
    return reasoning_gym().create_dataset(name, size=1, seed=seed, **json.loads(config))
