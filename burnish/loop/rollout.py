"""Rollout: the half of a run that produces. Prompts -> scored trajectories, as a batch in prompt order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.algos.filtering import num_to_open
from burnish.batch import Batch, Column, Ragged
from burnish.data.datagen import RowGenerator
from burnish.data.dataset import PromptDataset
from burnish.data.sampler import PromptSampler
from burnish.data.user_sampler import UserSampler
from burnish.log.clock import Clock
from burnish.loop.collect import EpisodeRunner, Group, Scored, run_coroutine, score_greedy, start_groups
from burnish.loop.replay import recorded
from burnish.reward.group_filter import GroupFilter
from burnish.reward.model_scorer import RewardModelScorer
from burnish.reward.trajectories import ScoredTrajectory, TrajectoryScorer, add_scores
from burnish.rollout.engine import Engine, Sampling
from burnish.rollout.engines.digests import sync_weights
from burnish.rollout.episode import Episode, prompts_for
from burnish.rollout.trajectory import is_sampled, response_columns

MIN_REJECTED = 100  # groups rejected in a row before the run gives up, and a whole epoch at least
VALIDATION_STEP = -1  # validation's noise depends on the prompt and not on the step, so that validations compare


@dataclass
class Rollout:
    """Data, engine, episode and rewards. Settings are read in build, not here."""

    engine: Engine
    episode: Episode
    scorer: TrajectoryScorer
    reward_model: RewardModelScorer | None  # None: reward functions alone
    train_data: PromptDataset | None  # None only for val_only
    val_data: PromptDataset | None
    sampler: PromptSampler | UserSampler | None
    sampling: Sampling
    val_sampling: Sampling
    n: int  # samples per prompt
    val_n: int
    val_batches: list[list[int]]  # row numbers of the validation data, batch by batch
    seed: int
    clock: Clock
    filter: GroupFilter | None = None  # None keeps every group
    growth: RowGenerator | None = None  # rows generated during training
    greedy_baseline: bool = False  # the estimator needs a greedy response per prompt (ReMax)
    max_epochs: int | None = None  # where epochs end the run: filtering makes steps of more prompts
    replay_dir: str | None = None  # recorded trajectories, read instead of generated
    verify_dtype: torch.dtype | None = None  # in which engine and policy weights are compared; None: not at all
    sleeps: bool = True  # the engine frees its cache while the learner works
    version: int = 0  # of the weights that the engine holds

    # prompts

    def next_prompts(self) -> Batch:
        """The prompts of the next step; with a group filter, the first of them."""
        data, sampler = self.training_data()
        if self.filter is None:
            return data.batch(*sampler.next())
        return data.batch(*sampler.draw(self.filter.num_in_flight))

    def training_data(self) -> tuple[PromptDataset, PromptSampler | UserSampler]:
        """The training prompts and their order; a run with trainer.val_only has none."""
        assert self.train_data is not None and self.sampler is not None
        return self.train_data, self.sampler

    @property
    def exhausted(self) -> bool:
        """Whether all epochs are drawn, where epochs end the run."""
        return self.max_epochs is not None and self.sampler is not None and self.sampler.epochs_done >= self.max_epochs

    def update_curriculum(self, batch: Batch) -> None:
        """After a step: the sampler may reorder its prompts, and new rows may arrive."""
        _, sampler = self.training_data()
        sampler.update(batch)
        if self.growth is not None:
            sampler.grow(self.growth.grow())

    # trajectories

    def collect(self, prompts: Batch, step: int) -> Batch:
        """The step's batch: n scored trajectories per prompt, in prompt order whatever finished first.

        With a group filter, `prompts` are tried first; others replace those that are rejected.
        """
        self.scorer.begin()
        with recorded(self.replay_dir, step) as recording:
            runner = EpisodeRunner(self.engine, self.episode, recording)
            collect = self._collect if self.filter is None else self._collect_filtered
            prompts, groups, greedy = run_coroutine(collect(runner, prompts, step))
        batch = self._to_batch(prompts, groups, scored=self.reward_model is None or self.filter is not None)
        return batch.add(**self._greedy_columns(greedy)) if self.greedy_baseline else batch

    def collect_validation(self, prompts: Batch) -> Batch:
        """The same for validation, with its own sampling."""
        samples = prompts_for(prompts, self.val_sampling, self.val_n, seed=self.seed, step=VALIDATION_STEP)
        self.scorer.begin()

        async def collect() -> list[list[Scored]]:
            runner = EpisodeRunner(self.engine, self.episode)
            groups = start_groups(runner, self.scorer, samples)
            return await runner.wait(asyncio.gather(*(group.finished() for group in groups)))

        return self._to_batch(prompts, run_coroutine(collect()), scored=self.reward_model is None)

    def _start(self, runner: EpisodeRunner, prompts: Batch, step: int) -> list[Group]:
        samples = prompts_for(prompts, self.sampling, self.n, seed=self.seed, step=step)
        greedy = None
        if self.greedy_baseline:
            greedy_sampling = replace(self.sampling, do_sample=False)
            greedy = [group[0] for group in prompts_for(prompts, greedy_sampling, 1, seed=self.seed, step=step)]
        return start_groups(runner, self.scorer, samples, greedy)

    async def _collect(
        self, runner: EpisodeRunner, prompts: Batch, step: int
    ) -> tuple[Batch, list[list[Scored]], list[ScoredTrajectory]]:
        groups = self._start(runner, prompts, step)
        scored = await runner.wait(asyncio.gather(*(group.finished() for group in groups)))
        return prompts, scored, await self._score_greedy(runner, prompts, groups, step)

    async def _collect_filtered(
        self, runner: EpisodeRunner, prompts: Batch, step: int
    ) -> tuple[Batch, list[list[Scored]], list[ScoredTrajectory]]:
        """Take the shortest stretch of the prompt stream that holds enough groups that the filter keeps.

        Groups are filtered in prompt order, whatever finished first; prompts started beyond that stretch go back to
        the sampler and come first in the next step. So nothing depends on timing, on data.gen_batch_size or on where
        the run was resumed, and a checkpoint needs no more than the sampler's position.
        """
        group_filter, (data, sampler) = self.filter, self.training_data()
        assert group_filter is not None
        opened: list[tuple[Batch, Group]] = []
        kept: list[tuple[Batch, Group, list[Scored]]] = []
        num_tried = num_rejected = 0

        def open_groups(more: Batch) -> None:
            groups = self._start(runner, more, step)
            opened.extend((more.select([row]), group) for row, group in enumerate(groups))

        open_groups(prompts)
        while len(kept) < group_filter.num_groups:
            # What an engine that is not batch-invariant computes together must not depend on when a reward returned.
            if num_tried == len(opened) or self.engine.capabilities.invariant:
                in_flight = len(opened) - num_tried
                missing = num_to_open(group_filter.num_groups, len(kept), in_flight, group_filter.num_in_flight)
                if group_filter.max_prompts is not None:
                    missing = min(missing, group_filter.max_prompts - len(opened))
                if missing > 0:
                    open_groups(data.batch(*sampler.draw(missing)))
            if num_tried == len(opened):
                raise group_filter.too_many_rounds(len(kept))
            prompt, group = opened[num_tried]
            scored = await runner.wait(group.finished())
            if self.reward_model is not None:
                scored = self.reward_model.score_group(prompt, scored)
            num_tried += 1
            if group_filter.keeps([sample[-1] for sample in scored]):
                kept.append((prompt, group, scored))
                num_rejected = 0
            else:
                num_rejected += 1
                if num_rejected >= max(len(data), MIN_REJECTED):
                    raise group_filter.all_rejected(num_rejected, len(data))
        await runner.cancel([task for _, group in opened[num_tried:] for task in group.all_tasks()])
        sampler.give_back(len(opened) - num_tried)
        group_filter.count(num_tried, len(kept))
        prompts = Batch.join([prompt for prompt, _, _ in kept])
        greedy = await self._score_greedy(runner, prompts, [group for _, group, _ in kept], step)
        return prompts, [scored for _, _, scored in kept], greedy

    async def _score_greedy(
        self, runner: EpisodeRunner, prompts: Batch, groups: Sequence[Group], step: int
    ) -> list[ScoredTrajectory]:
        if not self.greedy_baseline:
            return []
        samples = prompts_for(prompts, self.sampling, 1, seed=self.seed, step=step)
        return await score_greedy(runner, self.scorer, [group[0] for group in samples], groups)

    def _to_batch(self, prompts: Batch, groups: Sequence[Sequence[Scored]], *, scored: bool) -> Batch:
        """Response and score columns. Where a reward model scores later, the function's scores are kept for it."""
        rows = [
            (number, sample, row)
            for number, group in enumerate(groups)
            for sample, scored_rows in enumerate(group)
            for row in scored_rows
        ]
        batch = prompts.select([number for number, _, _ in rows]).add(
            sample=[sample for _, sample, _ in rows],
            **response_columns([row.trajectory for _, _, row in rows]),
            response_text=[row.text for _, _, row in rows],
        )
        scores = [row.score for _, _, row in rows]
        return add_scores(batch, scores) if scored else batch.add(function_score=scores)

    def _greedy_columns(self, greedy: Sequence[ScoredTrajectory]) -> dict[str, Column]:
        """ReMax's baseline and what shaping needs of it, repeated for the n samples of each prompt."""
        each = [scored for scored in greedy for _ in range(self.n)]
        columns: dict[str, Column] = {
            "greedy_lengths": torch.tensor([len(scored.trajectory.ids) for scored in each]),
            "greedy_finish_reason": [scored.trajectory.finish_reason for scored in each],
        }
        if self.reward_model is None:
            scores = torch.tensor([scored.score.value for scored in each], dtype=torch.float32)
            return columns | {"greedy_scores": scores}
        responses = Ragged.of([scored.trajectory.ids for scored in each], torch.int64)
        return columns | {"greedy_responses": responses, "greedy_function_score": [scored.score for scored in each]}

    def take_reward_problems(self) -> tuple[int, list[str]]:
        """On how many responses the reward failed since the last call, and a line for each distinct problem."""
        problems = self.scorer.scorer.drain_problems()
        lines = [
            f"reward problem, {problem.count} times: {problem.text}"
            f" (first: sample {problem.first.sample} of {problem.first.uid})"
            for problem in problems
        ]
        return sum(problem.count for problem in problems), lines

    # weights

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, changed: bool) -> None:
        """Give the engine the policy's weights: a new version, if they have changed."""
        if changed or self.version == 0:
            self.version += 1
        self.clock.add("verify_weights", sync_weights(self.engine, weights, self.version, self.verify_dtype))

    def is_current(self, batch: Batch) -> bool:
        """Whether the engine's present weights sampled every token of the batch that was sampled."""
        return bool((batch["weight_version"].flat[is_sampled(batch)] == self.version).all())

    def close(self) -> None:
        self.engine.close()
