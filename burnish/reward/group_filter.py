"""Group filtering (DAPO's dynamic sampling): which groups carry a learning signal, and counts of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from burnish.algos.filtering import differs, within
from burnish.errors import UserError
from burnish.registry import Registry
from burnish.reward.shaping import Shaper
from burnish.reward.trajectories import ScoredTrajectory

if TYPE_CHECKING:
    from burnish.config.algorithm import FilterGroupsConfig

KEY = "algorithm.filter_groups"

FILTER_METRICS = Registry("filter metric", key=f"{KEY}.metric")

ScoredGroup = Sequence[ScoredTrajectory]  # one per sample of a prompt


@FILTER_METRICS.register("score")
def scores(group: ScoredGroup, shaper: Shaper) -> list[float]:
    """The reward's score, and the rewards of turns."""
    return [sample.total for sample in group]


@FILTER_METRICS.register("acc")
def accuracies(group: ScoredGroup, shaper: Shaper) -> list[float]:
    """The reward's extra `acc`; a reward that returns a plain number is its own accuracy."""
    return [extra(sample, "acc") if sample.score.extras else sample.total for sample in group]


@FILTER_METRICS.register("seq_reward", "seq_final_reward")
def shaped_scores(group: ScoredGroup, shaper: Shaper) -> list[float]:
    """The score after length penalties and scale."""
    lengths = torch.tensor([len(sample.trajectory.ids) for sample in group])
    reasons = [sample.trajectory.finish_reason for sample in group]
    return shaper.shape_rows(torch.tensor(scores(group, shaper)), lengths, reasons).tolist()


class GroupFilter:
    """Keeps or rejects groups. A step needs `num_groups`; `num_in_flight` prompts generate at a time."""

    def __init__(self, config: FilterGroupsConfig, num_groups: int, num_in_flight: int, shaper: Shaper) -> None:
        self.config = config
        self.metric = config.metric or "score"
        self.num_groups = num_groups
        self.num_in_flight = num_in_flight
        self.shaper = shaper
        self._metrics: dict[str, float] = {}

    def keeps(self, group: ScoredGroup) -> bool:
        """Whether the group has a learning signal."""
        values = self._values(group)
        if self.config.reward_range is None:
            return differs(values)
        return within(values, *self.config.reward_range)

    @property
    def max_prompts(self) -> int | None:
        """Prompts that a step may try; None: no limit."""
        rounds = self.config.max_num_gen_batches
        return rounds * self.num_in_flight if rounds > 0 else None

    def count(self, num_tried: int, num_kept: int) -> None:
        """Note a step's counts for `take_metrics`."""
        self._metrics = {
            "train/num_gen_batches": float(-(-num_tried // self.num_in_flight)),
            "train/num_prompts": float(num_tried),
            "train/num_filtered_groups": float(num_tried - num_kept),
            "train/filtered_groups": (num_tried - num_kept) / num_tried,
        }

    def take_metrics(self) -> dict[str, float]:
        """The metrics of the last step."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def too_many_rounds(self, num_kept: int) -> UserError:
        rounds = self.config.max_num_gen_batches
        problem = (
            f"{rounds} rounds of {self.num_in_flight} prompts gave {num_kept} of the {self.num_groups} groups of a step"
        )
        hint = f"{KEY}.max_num_gen_batches=0 for no limit, or data that is neither too easy nor too hard"
        return UserError(problem, key=f"{KEY}.max_num_gen_batches", value=rounds, hint=hint)

    def all_rejected(self, num_rejected: int, num_rows: int) -> UserError:
        cause = "had equal values" if self.config.reward_range is None else "had a mean outside reward_range"
        problem = f"the last {num_rejected} groups (an epoch has {num_rows}) were all rejected: {self.metric} {cause}"
        hint = f"a larger actor_rollout_ref.rollout.n, other data or another reward, or {KEY}.enable=false"
        return UserError(problem, key=f"{KEY}.enable", value=True, hint=hint)

    def _values(self, group: ScoredGroup) -> list[float]:
        if self.metric in FILTER_METRICS:
            return FILTER_METRICS[self.metric].load()(group, self.shaper)
        return [extra(sample, self.metric) for sample in group]


def extra(sample: ScoredTrajectory, name: str) -> float:
    """A numeric extra of the reward; where the reward failed, its fallback score."""
    value: Any = sample.score.extras.get(name)
    if isinstance(value, bool | int | float):
        return float(value)
    if sample.score.problem is not None:
        return sample.score.value
    numeric = {key for key, entry in sample.score.extras.items() if isinstance(entry, bool | int | float)}
    problem = "the reward did not return it" if value is None else f"the reward returned {value!r}, not a number"
    raise UserError(
        problem,
        key=f"{KEY}.metric",
        value=name,
        allowed=sorted({*FILTER_METRICS.names(), *numeric}),
        hint=f"{KEY}.metric=score",
    )
