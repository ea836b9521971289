"""Run: everything a training run holds, built once and handed to the step, the fit and the validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from burnish.algos.kl import KL_ESTIMATORS, FixedKL
from burnish.data.datagen import RowGenerator
from burnish.data.dataset import PromptDataset
from burnish.data.sampler import PromptSampler
from burnish.data.user_sampler import UserSampler
from burnish.log.clock import Clock
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.loop.best import Best
from burnish.loop.correct import Correction
from burnish.loop.lease import Lease
from burnish.loop.saving import Saving
from burnish.registry import Entry
from burnish.reward.absent import NoFunction
from burnish.reward.score import Scorer
from burnish.reward.shaping import Shaper
from burnish.rollout.engine import Engine, Sampling
from burnish.rollout.engines.digests import sync_weights
from burnish.training.checkpoint import Checkpoints
from burnish.training.critic import Critic
from burnish.training.mirror import Mirror
from burnish.training.policy import Policy
from burnish.training.reference import Reference

if TYPE_CHECKING:
    from burnish.batch import Batch, Ragged
    from burnish.config import TrainConfig
    from burnish.loop.filter import GroupFilter
    from burnish.loop.schedules import Schedule
    from burnish.reward.model_scorer import RewardModelScorer


@dataclass
class Run:
    """The roles, the rooms and where the run stands. `step` is the last finished step."""

    cfg: TrainConfig
    tokenizer: Any
    train_data: PromptDataset | None  # None only for val_only
    sampler: PromptSampler | UserSampler | None
    val_data: PromptDataset | None
    engine: Engine
    sampling: Sampling
    val_sampling: Sampling
    scorer: Scorer | NoFunction
    policy: Policy
    critic: Critic | None
    reward_model: RewardModelScorer | None  # None leaves the scores to functions
    reference: Reference | None
    estimator: Entry
    kl: FixedKL
    shaper: Shaper
    filter: GroupFilter | None  # None keeps every group
    loggers: Loggers
    folder: RunFolder
    checkpoints: Checkpoints
    total_steps: int
    schedule: Schedule  # whether steps are made in turn, or generated ahead
    close_cast: Callable[[], None] = lambda: None  # ends the processes that hold the roles
    break_off: Callable[[str, float], str] | None = None  # the same when they hang
    clock: Clock = field(default_factory=Clock)
    notices: list[str] = field(default_factory=list)  # said once the loggers stand
    saving: Saving = field(default_factory=Saving)
    growth: RowGenerator | None = None  # rows made during training
    mirror: Mirror | None = None  # copies of the checkpoints elsewhere
    correction: Correction = field(default_factory=Correction)
    lease: Lease = field(default_factory=lambda: Lease(ends=None, spare=0.0))
    best: Best = field(default_factory=Best)  # validation so far
    restarts: int = 0  # after a worker died
    undumped: dict[int, list[dict]] = field(default_factory=dict)  # responses by step, for a disk to have room again
    compared: torch.dtype | None = None  # the format in which the engine's weights are compared with the policy's
    step: int = 0
    epoch: int = 0  # of the prompts learnt from last
    saved_step: int = 0  # of the newest checkpoint
    version: int = 0  # of the weights that the engine holds
    unsent: int = 0  # steps that changed the policy since then

    @property
    def seed(self) -> int:
        return self.cfg.trainer.seed

    @property
    def finished(self) -> bool:
        """All steps are made; or all epochs, where those count and filtering makes steps of more prompts."""
        return self.step >= self.total_steps or self.schedule.at_end(self)

    @property
    def used_up(self) -> bool:
        """Are all epochs drawn, where those count?"""
        trainer = self.cfg.trainer
        counts_epochs = self.filter is not None and trainer.total_training_steps is None
        return counts_epochs and self.sampler is not None and self.sampler.epochs_done >= trainer.total_epochs

    def next_prompts(self) -> Batch:
        """The prompts of the next step; where groups are filtered, the first of them."""
        if self.filter is None:
            indices, epoch = self.sampler.next()
            return self.train_data.batch(indices, epoch)
        return self.train_data.batch(*self.sampler.draw(self.filter.in_flight))

    def learn_order(self, batch: Batch) -> None:
        """After a step: a curriculum looks at it, and new rows may come."""
        self.sampler.update(batch)
        if self.growth is not None:
            self.sampler.grow(self.growth.grow())

    def is_current(self, batch: Batch) -> bool:
        """Was every token sampled with the weights that the policy has now?"""
        return not self.unsent and bool((batch["weight_version"].flat == self.version).all())

    def reads_old_log_probs(self, num_rows: int, current: bool = True) -> bool:
        """Must the policy be read before it is taught? Not where both would be the same pass (see docs/rooms.md)."""
        taught_now = self.step + 1 > self.cfg.trainer.critic_warmup
        if self.correction.acts or not taught_now:
            return True
        if self.correction.bypass:  # the engine's stand in for them
            return False
        return self.cfg.algorithm.use_kl_in_reward or not current or not self.policy.updates_once(num_rows)

    def read_reference(self, batch: Batch) -> dict[str, Ragged]:
        """ref_log_prob, and exact_kl where the KL in the reward is the exact one."""
        columns = {"ref_log_prob": self.reference.compute_log_probs(batch)}
        algorithm = self.cfg.algorithm
        if algorithm.use_kl_in_reward and "exact" in KL_ESTIMATORS[algorithm.kl_penalty].needs:
            columns["exact_kl"] = self.policy.compute_exact_kl(batch)
        return columns

    def send_weights(self) -> None:
        """The policy's weights become the engine's: a new version, if they have changed."""
        if self.unsent or self.version == 0:
            self.version, self.unsent = self.version + 1, 0
        self.clock.add("verify_weights", sync_weights(self.engine, self.policy.weights(), self.version, self.compared))

    def mishaps(self) -> dict[str, float]:
        """What went wrong and was survived; nothing, as a rule."""
        counts = {"training/restarts": self.restarts, "training/failed_saves": self.saving.failures}
        return {name: float(count) for name, count in counts.items() if count > 0}

    def close(self) -> None:
        self.saving.close()
        self.engine.close()
        self.close_cast()
        self.scorer.close()
        self.schedule.close()  # it ends now that nobody answers what it waits for
        self.loggers.close()
