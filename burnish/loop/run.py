"""Run: everything a training run holds, built once and handed to the step, the fit and the validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from burnish.algos.kl import FixedKL
from burnish.data.dataset import PromptDataset
from burnish.data.sampler import PromptSampler
from burnish.log.clock import Clock
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers
from burnish.reward.score import Scorer
from burnish.rollout.engine import Engine, Sampling
from burnish.table import Row
from burnish.train.checkpoint import Checkpoints
from burnish.train.critic import Critic
from burnish.train.policy import Policy
from burnish.train.reference import Reference

if TYPE_CHECKING:
    from burnish.config import TrainConfig


@dataclass
class Run:
    """The roles, the rooms and where the run stands. `step` is the last finished step."""

    cfg: TrainConfig
    tokenizer: Any
    train_data: PromptDataset | None  # None only for val_only
    sampler: PromptSampler | None
    val_data: PromptDataset | None
    engine: Engine
    sampling: Sampling
    val_sampling: Sampling
    scorer: Scorer
    policy: Policy
    critic: Critic | None
    reference: Reference | None
    estimator: Row
    kl: FixedKL
    loggers: Loggers
    folder: RunFolder
    checkpoints: Checkpoints
    total_steps: int
    clock: Clock = field(default_factory=Clock)
    notices: list[str] = field(default_factory=list)  # said once the loggers stand
    step: int = 0
    saved_step: int = 0  # of the newest checkpoint
    version: int = 0  # of the weights that the engine holds

    @property
    def seed(self) -> int:
        return self.cfg.trainer.seed

    def reads_old_log_probs(self, num_rows: int) -> bool:
        """Must the policy be read before it is taught? Not where both would be the same pass (see docs/rooms.md)."""
        kl_in_reward = self.cfg.algorithm.use_kl_in_reward
        taught_now = self.step + 1 > self.cfg.trainer.critic_warmup
        return kl_in_reward or not taught_now or not self.policy.updates_once(num_rows)

    def send_weights(self) -> None:
        """The policy's weights become the engine's."""
        self.version += 1
        self.engine.load_weights(self.policy.weights(), self.version)

    def close(self) -> None:
        self.engine.close()
        self.scorer.close()
        self.loggers.close()
