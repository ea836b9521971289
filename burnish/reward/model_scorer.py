"""RewardModelScorer: scores by a reward model, alone or mixed with those of the reward function."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from burnish.batch import Batch, Ragged
from burnish.errors import UserError
from burnish.reward.sample import Score
from burnish.reward.score import ON_ERROR, too_many_failures
from burnish.reward.trajectories import ScoredTrajectory, add_scores, last_rows

if TYPE_CHECKING:
    from burnish.config.reward import RewardConfig, RewardModelConfig
    from burnish.training.protocols import RewardModelRole

# Columns of a prompt that a reward model may read.
PROMPT_COLUMNS = ("prompt_ids", "raw_prompt", "uid", "data_source", "ground_truth", "extra_info")

# Counters that a person should know about when they first become nonzero.
WARNINGS = {
    "reward_model/overlong_inputs": "inputs exceed reward_model.max_length; their beginning is cut off",
    "reward_model/overlong_responses": "responses alone exceed reward_model.max_length; only their end is scored",
    "reward_model/failed": "scores of the reward model are not finite; reward.fallback_score replaces them",
}


@dataclass(frozen=True)
class ScoreWeights:
    """Coefficients of the model's and the function's score in their sum."""

    model: float
    function: float
    mixes: bool

    @staticmethod
    def of(reward: RewardConfig, model: RewardModelConfig) -> ScoreWeights:
        """The model's score replaces the function's unless a weight is set; the other weight then defaults to 1."""
        if not model.enable:
            return ScoreWeights(0.0, 1.0, mixes=False)
        weights = (reward.model_weight, reward.function_weight)
        if weights == (None, None):
            return ScoreWeights(1.0, 0.0, mixes=False)
        model_weight, function_weight = (1.0 if weight is None else weight for weight in weights)
        return ScoreWeights(model_weight, function_weight, mixes=True)


class RewardModelScorer:
    """A reward model and how its score counts."""

    def __init__(
        self,
        model: RewardModelRole,
        reward: RewardConfig,
        weights: ScoreWeights,
        notices: tuple[str, ...] = (),  # for the start of the run
    ) -> None:
        self.notices = notices
        self.model = model
        self.reward = reward
        self.weights = weights
        self.num_scored = 0  # since the last `take_metrics`
        self.num_failed = 0  # non-finite scores among them
        self._warned: set[str] = set()
        self._lock = threading.Lock()  # with async schedules a group filter scores while the learner does

    def score(self, batch: Batch) -> Batch:
        """Add score columns to a collected batch; a group filter may have added them already."""
        if "greedy_responses" in batch:
            batch = batch.add(greedy_scores=self._greedy_scores(batch) + batch["greedy_turn_rewards"])
        if "token_level_scores" in batch:
            return batch
        scores: list[Score] = list(batch["function_score"])  # an episode's earlier rows have none, and keep that
        last = last_rows(batch)
        rows = batch if len(last) == len(batch) else batch.select(last)
        for row, score in zip(last, self.scores(rows, [scores[row] for row in last]), strict=True):
            scores[row] = score
        return add_scores(batch, scores)

    def score_group(self, prompt: Batch, group: Sequence[Sequence[ScoredTrajectory]]) -> list[list[ScoredTrajectory]]:
        """Score the samples of one prompt, where a group filter needs them before the batch is complete."""
        last = [sample[-1] for sample in group]
        rows = prompt.keep(*(name for name in prompt if name != "media")).repeat(len(last))
        rows = rows.add(responses=Ragged.of([one.trajectory.ids for one in last], torch.int64))
        if any(one.trajectory.all_media for one in last):
            rows = rows.add(media=[one.trajectory.all_media for one in last])
        scores = self.scores(rows, [one.score for one in last])
        return [[replace(row, score=score) for row in sample] for sample, score in zip(group, scores, strict=True)]

    def scores(self, rows: Batch, function_scores: Sequence[Score]) -> list[Score]:
        """The weighted sum; where both count, each is also in the extras."""
        with self._lock:
            model_scores = self.model.compute_scores(rows)
        failed = [row for row, value in enumerate(model_scores) if not math.isfinite(value)]
        self.num_scored += len(model_scores)
        self.num_failed += len(failed)
        if failed and ON_ERROR[self.reward.on_error].metadata.get("stops"):
            raise UserError(
                f"the reward model returned {model_scores[failed[0]]} for a response to {rows['uid'][failed[0]]}",
                key="reward_model.model.path",
                hint="reward.on_error=fallback to continue with reward.fallback_score",
            )
        return [self._mix(value, function) for value, function in zip(model_scores, function_scores, strict=True)]

    def check_failures(self, where: str) -> None:
        """Raise UserError if too many scores since the last `take_metrics` are not finite."""
        threshold = self.reward.failure_threshold
        if threshold is None or not self.num_failed or self.num_failed < threshold * self.num_scored:
            return
        cause = "the reward model's score is not finite"
        raise too_many_failures(self.num_failed, self.num_scored, where, cause, key="reward_model.model.path")

    def _mix(self, model_score: float, function: Score) -> Score:
        extras = dict(function.extras)
        if self.weights.mixes:
            extras |= {"model_score": model_score, "function_score": function.value}
        if not math.isfinite(model_score):
            return Score(self.reward.fallback_score, extras, f"the reward model returned {model_score}")
        value = self.weights.model * model_score + self.weights.function * function.value
        return Score(value, extras, function.problem)

    def _greedy_scores(self, batch: Batch) -> torch.Tensor:
        """The score of each prompt's greedy response, for every row of its group; computed once per prompt."""
        first: dict[str, int] = {}
        for row, uid in enumerate(batch["uid"]):
            first.setdefault(uid, row)
        prompts = batch.keep(*(name for name in PROMPT_COLUMNS if name in batch))
        media = {"media": batch["greedy_media"]} if "greedy_media" in batch else {}
        rows = prompts.add(responses=batch["greedy_responses"], **media).select(list(first.values()))
        scores = self.scores(rows, [batch["greedy_function_score"][row] for row in first.values()])
        by_prompt = {uid: score.value for uid, score in zip(first, scores, strict=True)}
        return torch.tensor([by_prompt[uid] for uid in batch["uid"]], dtype=torch.float32)

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        metrics = {**self.model.take(), "reward_model/failed": float(self.num_failed)}
        self.num_scored = self.num_failed = 0
        return metrics

    def new_warnings(self, metrics: dict[str, float]) -> list[str]:
        """Warnings about these metrics, each once per run."""
        names = [name for name in WARNINGS if metrics.get(name) and name not in self._warned]
        self._warned.update(names)
        return [f"{metrics[name]:.0f} {WARNINGS[name]} (from now on see the metric {name})" for name in names]


def precedence(weights: ScoreWeights, function: str | None) -> str:
    """A notice that says whose score counts. `function` names the user's own reward, if there is one."""
    name = function or "reward functions and rules"
    if weights.mixes:
        return f"scores are {weights.model:g} x the reward model's + {weights.function:g} x that of {name}"
    return f"scores are the reward model's alone: {name} are not called (reward.function_weight=1 would add theirs)"
