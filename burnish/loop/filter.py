"""Dynamic sampling: a step goes on until it has a full batch of groups that teach something.

It takes the shortest stretch of the prompt stream that holds `data.train_batch_size` kept groups. Groups are judged in
prompt order, whatever finished first; prompts taken up beyond that stretch go back and come first in the next step. So
nothing depends on time, on `data.gen_batch_size` or on where a run was resumed, and a checkpoint needs no more than the
sampler's position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from burnish.algos.filtering import differs, num_to_open, within
from burnish.batch import Batch
from burnish.errors import UserError
from burnish.loop.answers import Answer, Group, drive, drop_groups, start_groups
from burnish.registry import Registry
from burnish.reward.shaping import Shaper
from burnish.rollout.engine import Engine
from burnish.rollout.respond import requests_for

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.config.algorithm import FilterGroupsConfig
    from burnish.loop.run import Run

KEY = "algorithm.filter_groups"
PATIENCE = 100  # groups rejected in a row before the run gives up, and a whole epoch at least

FILTER_METRICS = Registry("filter metric", key=f"{KEY}.metric")


@FILTER_METRICS.register("score")
def scores(group: list[Answer], shaper: Shaper) -> list[float]:
    """What the reward gave."""
    return [answer.score.value for answer in group]


@FILTER_METRICS.register("acc")
def accuracies(group: list[Answer], shaper: Shaper) -> list[float]:
    """The extra of that name; a reward that returns a plain number has no other measure of being right."""
    return [extra(answer, "acc") if answer.score.extras else answer.score.value for answer in group]


@FILTER_METRICS.register("seq_reward", "seq_final_reward")
def shaped_scores(group: list[Answer], shaper: Shaper) -> list[float]:
    """The score after length penalties and scale."""
    made = [answer.completion for answer in group]
    lengths, reasons = torch.tensor([len(one.ids) for one in made]), [one.finish_reason for one in made]
    return shaper.rows(torch.tensor(scores(group, shaper)), lengths, reasons).tolist()


class GroupFilter:
    """Keeps or rejects groups, counts them, and draws replacements. `in_flight` prompts are open at first."""

    def __init__(self, config: FilterGroupsConfig, wanted: int, in_flight: int) -> None:
        self.config = config
        self.metric = config.metric or "score"
        self.wanted = wanted
        self.in_flight = in_flight
        self.numbers: dict[str, float] = {}

    @staticmethod
    def of(cfg: TrainConfig) -> GroupFilter | None:
        """None where every group is kept."""
        wanted = cfg.data.train_batch_size
        config = cfg.algorithm.filter_groups
        return GroupFilter(config, wanted, cfg.data.gen_batch_size or wanted) if config.enable else None

    def keeps(self, group: list[Answer], shaper: Shaper) -> bool:
        """Does the group teach something?"""
        values = self._values(group, shaper)
        if self.config.reward_range is None:
            return differs(values)
        return within(values, *self.config.reward_range)

    async def gather(self, run: Run, engine: Engine, prompts: Batch, step: int) -> tuple[Batch, list[list[Answer]]]:
        """The prompts that were kept and their answers. `prompts` are the first to be taken up."""
        opened: list[tuple[Batch, Group]] = []
        kept: list[tuple[Batch, list[Answer]]] = []
        decided = in_a_row = 0

        def take_up(more: Batch) -> None:
            requests = requests_for(more, run.sampling, run.cfg.actor_rollout_ref.rollout.n, seed=run.seed, step=step)
            groups = start_groups(run, engine, more, requests)
            opened.extend((more.select([row]), group) for row, group in enumerate(groups))

        take_up(prompts)
        while len(kept) < self.wanted:
            # What an engine that is not invariant computes together must not depend on when a reward came back.
            if decided == len(opened) or engine.capabilities.invariant:
                missing = num_to_open(self.wanted, len(kept), len(opened) - decided, self.in_flight)
                missing = min(missing, self._most_prompts() - len(opened))
                if missing > 0:
                    take_up(run.train_data.batch(*run.sampler.draw(missing)))
            if decided == len(opened):
                raise self._too_many_rounds(len(kept), decided)
            prompt, group = opened[decided]
            answers = await drive(engine, group.answers)
            if run.reward_model is not None:
                answers = run.reward_model.score_group(prompt, answers)
            decided += 1
            if self.keeps(answers, run.shaper):
                kept.append((prompt, answers))
                in_a_row = 0
            else:
                in_a_row += 1
                if in_a_row >= max(len(run.train_data), PATIENCE):
                    raise self._nothing_kept(in_a_row, len(run.train_data))
        await drop_groups(engine, [group for _, group in opened[decided:]])
        run.sampler.give_back(len(opened) - decided)
        self._count(decided, len(kept))
        return Batch.join([prompt for prompt, _ in kept]), [answers for _, answers in kept]

    def take(self) -> dict[str, float]:
        """The numbers of the last step."""
        numbers, self.numbers = self.numbers, {}
        return numbers

    def _values(self, group: list[Answer], shaper: Shaper) -> list[float]:
        if self.metric in FILTER_METRICS:
            return FILTER_METRICS[self.metric].load()(group, shaper)
        return [extra(answer, self.metric) for answer in group]

    def _most_prompts(self) -> int | float:
        rounds = self.config.max_num_gen_batches
        return rounds * self.in_flight if rounds > 0 else float("inf")

    def _count(self, decided: int, kept: int) -> None:
        self.numbers = {
            "train/num_gen_batches": float(-(-decided // self.in_flight)),
            "train/num_prompts": float(decided),
            "train/num_filtered_groups": float(decided - kept),
            "train/filtered_groups": (decided - kept) / decided,
        }

    def _too_many_rounds(self, kept: int, decided: int) -> UserError:
        rounds = self.config.max_num_gen_batches
        problem = f"{rounds} rounds of {self.in_flight} prompts gave {kept} of the {self.wanted} groups of a step"
        hint = f"{KEY}.max_num_gen_batches=0 for no limit, or data that is neither too easy nor too hard"
        return UserError(problem, key=f"{KEY}.max_num_gen_batches", value=rounds, hint=hint)

    def _nothing_kept(self, rejected: int, num_rows: int) -> UserError:
        what = "had equal values" if self.config.reward_range is None else "had a mean outside reward_range"
        problem = f"the last {rejected} groups (an epoch has {num_rows}) were all rejected: {self.metric} {what}"
        hint = f"a larger actor_rollout_ref.rollout.n, other data or another reward, or {KEY}.enable=false"
        return UserError(problem, key=f"{KEY}.enable", value=True, hint=hint)


def extra(answer: Answer, name: str) -> float:
    """An entry of what the reward returned beside the score; a reward that failed has only its fallback score."""
    value: Any = answer.score.extras.get(name)
    if isinstance(value, bool | int | float):
        return float(value)
    if answer.score.problem is not None:
        return answer.score.value
    numbers = {found for found, entry in answer.score.extras.items() if isinstance(entry, bool | int | float)}
    problem = "the reward did not return it" if value is None else f"the reward returned {value!r}, no number"
    raise UserError(
        problem,
        key=f"{KEY}.metric",
        value=name,
        allowed=sorted({*FILTER_METRICS.names(), *numbers}),
        hint=f"{KEY}.metric=score",
    )
