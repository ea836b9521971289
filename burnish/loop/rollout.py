"""Rollout: the half of a run that produces. Prompts -> scored trajectories, as a batch in prompt order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from burnish.algos.filtering import num_to_open
from burnish.batch import Batch, Column, Ragged
from burnish.data.datagen import RowGenerator
from burnish.data.dataset import PromptDataset
from burnish.data.sampler import PromptSampler
from burnish.data.user_sampler import UserSampler
from burnish.log.clock import Clock
from burnish.loop.collect import EpisodeRunner, Group, Scored, collect_shortest, score_greedy, start_groups
from burnish.loop.event_loop import run_coroutine
from burnish.loop.journal import Journals
from burnish.loop.replay import recorded
from burnish.loop.tracing import EpisodeTracer, tracing
from burnish.reward.group_filter import GroupFilter
from burnish.reward.model_scorer import RewardModelScorer
from burnish.reward.trajectories import ScoredTrajectory, TrajectoryScorer, add_scores, credit_last
from burnish.rollout.engine import Engine, Sampling
from burnish.rollout.engines.digests import sync_weights
from burnish.rollout.episode import Episode, Journal, prompts_for
from burnish.rollout.oversampling import num_kept
from burnish.rollout.return_times import ReturnTimes
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
    over_sample_rate: float = 0.0  # share of the samples of a step that is dropped: the longest
    growth: RowGenerator | None = None  # rows generated during training
    greedy_baseline: bool = False  # the estimator needs a greedy response per prompt (ReMax)
    max_epochs: int | None = None  # where epochs end the run: filtering makes steps of more prompts
    replay_dir: str | None = None  # recorded trajectories, read instead of generated
    verify_dtype: torch.dtype | None = None  # in which engine and policy weights are compared; None: not at all
    journals: Journals = Journals()  # noqa: RUF009
    tracer: EpisodeTracer | None = None  # None: conversations are not traced
    sleeps: bool = True  # the engine frees its cache while the learner works
    version: int = 0  # of the weights that the engine holds
    return_times: ReturnTimes = field(default_factory=ReturnTimes)
    min_prefill: int = 0  # tokens that had to be prefilled since the last `take_engine_counts`
    close_tools: Callable[[], None] = lambda: None  # stops their processes and connections

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

    def update_curriculum(self, batch: Batch) -> list[str]:
        """After a step: the sampler may reorder its prompts, and new rows may arrive. Returns notes for the log."""
        _, sampler = self.training_data()
        sampler.update(batch)
        if self.growth is None:
            return []
        sampler.grow(self.growth.grow())
        return self.growth.take_notices()

    # trajectories

    def collect(self, prompts: Batch, step: int) -> Batch:
        """The step's batch: n scored trajectories per prompt, in prompt order whatever finished first.

        With a group filter, `prompts` are tried first; others replace those that are rejected.
        """
        self.scorer.begin()
        with (
            recorded(self.replay_dir, step) as recording,
            self.journals.open(str(step)) as journal,
            tracing(self.tracer, step),
        ):
            runner = EpisodeRunner(self.engine, self.episode, recording, journal, self.return_times, self.tracer)
            collect = self._collect if self.filter is None else self._collect_filtered
            prompts, groups, greedy = run_coroutine(collect(runner, prompts, step))
        self.min_prefill += runner.queue.prefill.minimum
        batch = self._to_batch(prompts, groups, scored=self.reward_model is None or self.filter is not None)
        return batch.add(**self._greedy_columns(prompts, greedy, batch)) if self.greedy_baseline else batch

    def collect_validation(self, prompts: Batch, step: int = 0) -> Batch:
        """The same for validation after this step, with its own sampling."""
        samples = prompts_for(prompts, self.val_sampling, self.val_n, seed=self.seed, step=VALIDATION_STEP)
        self.scorer.begin()

        async def collect(journal: Journal) -> list[list[Scored]]:
            runner = EpisodeRunner(
                self.engine, self.episode, journal=journal, return_times=self.return_times, tracer=self.tracer
            )
            groups = start_groups(runner, self.scorer, samples)
            scored = await runner.wait(asyncio.gather(*(group.finished() for group in groups)))
            self.min_prefill += runner.queue.prefill.minimum
            return scored

        with self.journals.open(f"validation-{step}") as journal, tracing(self.tracer, step, validate=True):
            scored = run_coroutine(collect(journal))
        return self._to_batch(prompts, scored, scored=self.reward_model is None)

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
        if self.over_sample_rate:
            samples = prompts_for(prompts, self.sampling, self.n, seed=self.seed, step=step)
            kept = num_kept(sum(map(len, samples)), self.over_sample_rate)
            return prompts, await collect_shortest(runner, self.scorer, samples, kept), []
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
                self._check_rewards(step)
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
                if num_rejected == group_filter.num_groups:  # none of a whole batch: perhaps no reward works
                    self._check_rewards(step)
                if num_rejected >= max(len(data), MIN_REJECTED):
                    raise group_filter.all_rejected(num_rejected, len(data))
        await runner.cancel([task for _, group in opened[num_tried:] for task in group.all_tasks()])
        sampler.give_back(len(opened) - num_tried)
        group_filter.count(num_tried, len(kept))
        prompts = Batch.join([prompt for prompt, _, _ in kept])
        greedy = await self._score_greedy(runner, prompts, [group for _, group, _ in kept], step)
        return prompts, [scored for _, _, scored in kept], greedy

    def _check_rewards(self, step: int) -> None:
        """Whether groups are rejected because rewards fail: that is the error to report."""
        if self.reward_model is not None:
            self.reward_model.check_failures(f"step {step}")
        self.scorer.scorer.check_failures(f"step {step}")

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
            for row in credit_last(scored_rows)  # none of a sample that was dropped
        ]
        # An agent may start from another prompt than the row's. Only rewards read dataset_row.
        replaced = ("prompt_ids", "media", "dataset_row")
        prompts = prompts.keep(*(name for name in prompts if name not in replaced))
        batch = prompts.select([number for number, _, _ in rows]).add(
            prompt_ids=Ragged.of([list(row.trajectory.prompt.ids) for _, _, row in rows], torch.int64),
            sample=[sample for _, sample, _ in rows],
            **response_columns([row.trajectory for _, _, row in rows]),
            response_text=[row.text for _, _, row in rows],
        )
        scores = [row.score for _, _, row in rows]
        return add_scores(batch, scores) if scored else batch.add(function_score=scores)

    def _greedy_columns(self, prompts: Batch, greedy: Sequence[ScoredTrajectory], batch: Batch) -> dict[str, Column]:
        """ReMax's baseline and what shaping needs of it, repeated for the rows of each prompt."""
        by_prompt = dict(zip(prompts["uid"], greedy, strict=True))
        each = [by_prompt[uid] for uid in batch["uid"]]
        columns: dict[str, Column] = {
            "greedy_lengths": torch.tensor([len(scored.trajectory.ids) for scored in each]),
            "greedy_finish_reason": [scored.trajectory.finish_reason for scored in each],
        }
        if self.reward_model is None:
            scores = torch.tensor([scored.total for scored in each], dtype=torch.float32)
            return columns | {"greedy_scores": scores}
        return columns | {
            "greedy_responses": Ragged.of([scored.trajectory.ids for scored in each], torch.int64),
            **({"greedy_media": [scored.trajectory.all_media for scored in each]} if "media" in batch else {}),
            "greedy_function_score": [scored.score for scored in each],
            "greedy_turn_rewards": torch.tensor([scored.turn_rewards for scored in each]),
        }

    def take_engine_counts(self) -> tuple[dict[str, float], int]:
        """The engine's counters since the last call, and how many tokens had to be prefilled in that time."""
        min_prefill, self.min_prefill = self.min_prefill, 0
        return self.engine.stats(), min_prefill

    def take_reward_problems(self, where: str) -> tuple[int, list[str]]:
        """On how many responses the reward failed since the last call, and a line for each distinct problem.

        UserError if too many failed; `where` says which samples these were.
        """
        self.scorer.scorer.check_failures(where)
        report = self.scorer.scorer.drain()
        lines = [
            f"reward problem, {problem.count} times: {problem.text}"
            f" (first: sample {problem.first.sample} of {problem.first.uid})"
            for problem in report.by_count()
        ]
        return report.num_failed, [*report.notices, *lines]

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
