"""Learner: the half of a run that updates. Its roles may live in this process or in others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.algos.kl import KL_ESTIMATORS, FixedKL
from burnish.batch import Batch, Ragged
from burnish.log.clock import Clock
from burnish.loop.correct import Correction
from burnish.registry import Entry
from burnish.reward.model_scorer import RewardModelScorer
from burnish.reward.shaping import Shaper
from burnish.training.protocols import CriticRole, PolicyRole, ReferenceRole

if TYPE_CHECKING:
    from burnish.config.algorithm import AlgorithmConfig


@dataclass
class Learner:
    """Policy, critic, reference and how advantages are computed."""

    policy: PolicyRole
    critic: CriticRole | None
    reference: ReferenceRole | None
    reward_model: RewardModelScorer | None
    estimator: Entry
    algorithm: AlgorithmConfig
    kl: FixedKL
    shaper: Shaper
    correction: Correction
    critic_warmup: int  # steps in which only the critic is updated
    seed: int
    clock: Clock
    num_unsynced: int = 0  # steps that changed the policy since the engine last received its weights

    def updates_policy(self, step: int) -> bool:
        return step > self.critic_warmup

    def needs_old_log_probs(self, step: int, num_rows: int, *, current: bool) -> bool:
        """Whether log-probs are computed before the update. Not where both would be the same forward pass
        (docs/architecture.md). `current`: the policy still has the weights that sampled the batch."""
        if self.correction.acts or not self.updates_policy(step) or "sum_pi_squared" in self.estimator.needs:
            return True
        if self.correction.bypass:  # the engine's log-probs replace them
            return False
        return self.algorithm.use_kl_in_reward or not current or not self.policy.updates_once(num_rows)

    def reference_columns(self, batch: Batch) -> dict[str, Ragged]:
        """ref_log_prob, and exact_kl where the KL in the reward is the exact one."""
        assert self.reference is not None
        columns = {"ref_log_prob": self.reference.compute_log_probs(batch)}
        if self.algorithm.use_kl_in_reward and "exact" in KL_ESTIMATORS[self.algorithm.kl_penalty].needs:
            columns["exact_kl"] = self.policy.compute_exact_kl(batch)
        return columns
