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
from burnish.training.protocols import CriticRole, Pending, PolicyRole, ReferenceRole, Result

if TYPE_CHECKING:
    from burnish.config.algorithm import AlgorithmConfig
    from burnish.training.policy import UpdateResult

Phase = tuple[str, Pending[Result]]  # of the clock, and what to wait for in it


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

    def start_passes(self, batch: Batch, step: int, *, current: bool) -> list[Phase[dict[str, Ragged]]]:
        """The forward passes that the step needs: none reads a column of another."""
        starts: list[Phase[Pending[dict[str, Ragged]]]] = []
        if self.needs_old_log_probs(step, len(batch), current=current):
            starts.append(("old_log_prob", lambda: self.policy.start_log_probs(batch)))
        if self.reference is not None:
            starts.append(("ref", lambda: self._start_reference(batch)))
        critic = self.critic
        if critic is not None:
            starts.append(("values", lambda: critic.start_values(batch)))
        return self._started(starts)

    def start_updates(self, batch: Batch, step: int) -> list[Phase[UpdateResult]]:
        """The updates of the step."""
        starts: list[Phase[Pending[UpdateResult]]] = []
        critic = self.critic
        if critic is not None:
            starts.append(("update_critic", lambda: critic.start_update(batch, step)))
        if self.updates_policy(step):
            starts.append(("update_actor", lambda: self.policy.start_update(batch, step)))
        return self._started(starts)

    def _started(self, starts: list[Phase[Pending[Result]]]) -> list[Phase[Result]]:
        """Started work by phase, and how to wait for it.

        Ranks get all of it now and run it back to back; a role of this process runs when it is waited for. A profiler
        records phases one by one: then none starts before its phase.
        """
        if self.clock.in_turn():
            return [(phase, lambda start=start: start()()) for phase, start in starts]
        return [(phase, start()) for phase, start in starts]

    def _start_reference(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        """ref_log_prob, and exact_kl where the KL in the reward is the exact one."""
        assert self.reference is not None
        log_probs = self.reference.start_log_probs(batch)
        if not (self.algorithm.use_kl_in_reward and "exact" in KL_ESTIMATORS[self.algorithm.kl_penalty].needs):
            return log_probs
        exact = self.policy.start_exact_kl(batch)
        return lambda: log_probs() | exact()
