"""Room 3, second half: a reward model reads what was gathered; its score and the function's become one."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from burnish.batch import Batch, Ragged
from burnish.errors import UserError
from burnish.reward.reward_model import CustomRewardModel, RewardModel
from burnish.reward.sample import Score
from burnish.reward.score import ON_ERROR

if TYPE_CHECKING:
    from burnish.config.reward import RewardConfig, RewardModelConfig
    from burnish.loop.answers import Answer
    from burnish.loop.run import Run

# Columns of a prompt that a reward model may read.
PROMPT_COLUMNS = ("prompt_ids", "raw_prompt", "uid", "data_source", "ground_truth", "extra_info")


@dataclass(frozen=True)
class Weights:
    """What the two scores count in their sum."""

    model: float
    function: float
    mixes: bool

    @staticmethod
    def of(reward: RewardConfig, model: RewardModelConfig) -> Weights:
        """The model's score replaces the function's, unless a weight is set; one that is not set is then 1."""
        if not model.enable:
            return Weights(0.0, 1.0, mixes=False)
        given = (reward.model_weight, reward.function_weight)
        if given == (None, None):
            return Weights(1.0, 0.0, mixes=False)
        by_model, by_function = (1.0 if weight is None else weight for weight in given)
        return Weights(by_model, by_function, mixes=True)


class RewardModelScorer:
    """A reward model, and how its score counts."""

    def __init__(
        self,
        model: RewardModel | CustomRewardModel,
        reward: RewardConfig,
        weights: Weights,
        notices: tuple[str, ...] = (),  # for the start of a run
    ) -> None:
        self.notices = notices
        self.model = model
        self.reward = reward
        self.weights = weights
        self.failed = 0  # scores that were no numbers, since the last `take`
        self._told: set[str] = set()
        self._one_at_a_time = threading.Lock()  # a filter asks while the loop learns, where both go side by side

    def score(self, batch: Batch) -> Batch:
        """Adds the scores to a gathered batch, unless they are there already."""
        if "greedy_responses" in batch:
            batch = batch.add(greedy_scores=self._greedy_scores(batch))
        if "token_level_scores" in batch:  # a filter had to know them
            return batch
        return add_scores(batch, self.scores(batch, batch["function_score"]))

    def score_group(self, prompt: Batch, answers: Sequence[Answer]) -> list[Answer]:
        """The same for the answers to one prompt, where they must be known before the others are there."""
        rows = prompt.repeat(len(answers))
        rows = rows.add(responses=Ragged.of([answer.completion.ids for answer in answers], torch.int64))
        scores = self.scores(rows, [answer.score for answer in answers])
        return [replace(answer, score=score) for answer, score in zip(answers, scores, strict=True)]

    def scores(self, rows: Batch, by_function: Sequence[Score]) -> list[Score]:
        """The sum of both, and each by itself among the extras where they are mixed."""
        with self._one_at_a_time:
            by_model = self.model.compute_scores(rows)
        wrong = [row for row, value in enumerate(by_model) if not math.isfinite(value)]
        self.failed += len(wrong)
        if wrong and ON_ERROR[self.reward.on_error].metadata.get("stops"):
            raise UserError(
                f"the reward model gave {by_model[wrong[0]]} for a response to {rows['uid'][wrong[0]]}",
                key="reward_model.model.path",
                hint="reward.on_error=fallback to go on with reward.fallback_score",
            )
        return [self._one(value, function) for value, function in zip(by_model, by_function, strict=True)]

    def _one(self, by_model: float, function: Score) -> Score:
        extras = dict(function.extras)
        if self.weights.mixes:
            extras |= {"model_score": by_model, "function_score": function.value}
        if not math.isfinite(by_model):
            return Score(self.reward.fallback_score, extras, f"the reward model gave {by_model}")
        value = self.weights.model * by_model + self.weights.function * function.value
        return Score(value, extras, function.problem)

    def _greedy_scores(self, batch: Batch) -> torch.Tensor:
        """The score of each prompt's greedy response, for every row of its group; read once per prompt."""
        first: dict[str, int] = {}
        for row, uid in enumerate(batch["uid"]):
            first.setdefault(uid, row)
        prompts = batch.keep(*(name for name in PROMPT_COLUMNS if name in batch))
        rows = prompts.add(responses=batch["greedy_responses"]).select(list(first.values()))
        scores = self.scores(rows, [batch["greedy_function_score"][row] for row in first.values()])
        by_prompt = {uid: score.value for uid, score in zip(first, scores, strict=True)}
        return torch.tensor([by_prompt[uid] for uid in batch["uid"]], dtype=torch.float32)

    def take(self) -> dict[str, float]:
        """The numbers since the last call."""
        numbers = {**self.model.take(), "reward_model/failed": float(self.failed)}
        self.failed = 0
        return numbers

    def news(self, numbers: dict[str, float]) -> list[str]:
        """What a person should know of these numbers, each thing once in a run."""
        lines = {
            "reward_model/overlong_inputs": "inputs are longer than reward_model.max_length; they lose their beginning",
            "reward_model/overlong_responses": "responses alone are longer than reward_model.max_length; only how they "
            "end is seen",
            "reward_model/failed": "scores of the reward model are no numbers; reward.fallback_score replaces them",
        }
        new = [name for name in lines if numbers.get(name) and name not in self._told]
        self._told.update(new)
        return [f"{numbers[name]:.0f} {lines[name]} (from now on see the metric {name})" for name in new]


def add_scores(batch: Batch, scores: Sequence[Score]) -> Batch:
    """A score stands on the response's last token."""
    responses: Ragged = batch["responses"]
    flat, has_tokens = torch.zeros(len(responses.flat)), responses.lengths > 0
    values = torch.tensor([score.value for score in scores], dtype=torch.float32)
    flat[(responses.lengths.cumsum(0) - 1)[has_tokens]] = values[has_tokens]
    return batch.add(
        token_level_scores=Ragged.like(flat, responses),
        reward_extras=[score.extras for score in scores],
        reward_problem=[score.problem for score in scores],
    )


def reward_model_metrics(run: Run) -> dict[str, float]:
    """The judge's numbers of a step, if there is one; what is new about them is said."""
    if run.reward_model is None:
        return {}
    numbers = run.reward_model.take()
    for line in run.reward_model.news(numbers):
        run.loggers.note(line)
    return numbers


def precedence(weights: Weights, function: str | None) -> str:
    """Whose score counts, in words. `function` names the user's own, if there is one."""
    what = function or "reward functions and rules"
    if weights.mixes:
        return f"scores are {weights.model:g} x the reward model's + {weights.function:g} x that of {what}"
    return f"scores are the reward model's alone: {what} are not called (reward.function_weight=1 would add theirs)"
