"""One training step: `produce` (prompts -> scored batch) and `learn` (batch -> updated roles).

Each phase adds columns to the batch; docs/architecture.md has the table. Schedules (loop/schedules.py) run the two
halves in turn or overlapped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from burnish.algos.masked import masked_share
from burnish.batch import Batch
from burnish.loop.credit import credit, filtrate
from burnish.loop.learner import Learner
from burnish.loop.rollout import Rollout
from burnish.reward.trajectories import last_rows


@dataclass(frozen=True)
class ScoredBatch:
    """What a step learns from."""

    step: int
    batch: Batch
    epoch: int  # of its last prompt
    metrics: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # for the log of this step


class StepResult(NamedTuple):
    """The batch with all columns, and the step's metrics."""

    scored: ScoredBatch
    batch: Batch
    metrics: dict[str, float]


def produce(rollout: Rollout, step: int) -> ScoredBatch:
    """Generate and score the next batch."""
    with rollout.clock("gen"):
        prompts = rollout.next_prompts()
        batch = rollout.collect(prompts, step)
    num_failed, notes = rollout.take_reward_problems(f"step {step}")
    metrics = {"reward/failed": float(num_failed)}
    if rollout.filter is not None:
        metrics |= rollout.filter.take_metrics()
    if rollout.over_sample_rate:
        metrics["rollout/dropped"] = float(len(prompts) * rollout.n - len(last_rows(batch)))
    return ScoredBatch(step, batch, rollout.training_data()[1].epoch, metrics, notes)


def learn(learner: Learner, scored: ScoredBatch, *, current: bool) -> StepResult:
    """Log-probs, values, advantages, updates. `current`: the policy has the weights that sampled the batch."""
    batch, step, clock = scored.batch, scored.step, learner.clock
    metrics: dict[str, float] = {}
    if learner.reward_model is not None:
        with clock("reward"):
            batch = learner.reward_model.score(batch)
            learner.reward_model.check_failures(f"step {step}")
    for phase, columns in learner.start_passes(batch, step, current=current):
        with clock(phase):
            batch = batch.add(**columns())
    if "entropys" in batch:
        # An update that computes entropies itself replaces this: it has those of all its passes.
        metrics["actor/entropy"] = masked_share(batch["entropys"].flat, batch["response_mask"].flat).mean()
    with clock("adv"):
        batch, correcting = learner.correction.apply(batch)
        batch, shaping = learner.shaper.shape(batch)
        old_column = learner.correction.old_column
        batch, crediting = credit(batch, learner.algorithm, learner.estimator, learner.kl, old_column)
        batch = filtrate(batch, learner.algorithm, learner.seed, step)
        metrics |= crediting | shaping | correcting
    for phase, update in learner.start_updates(batch, step):
        with clock(phase):
            result = update()
            batch, metrics = batch.add(**result.columns), metrics | result.metrics
    learner.num_unsynced += learner.updates_policy(step)
    return StepResult(scored, batch, scored.metrics | metrics)


def is_current(rollout: Rollout, learner: Learner, batch: Batch) -> bool:
    """Whether the policy still has the weights that sampled every token."""
    return learner.num_unsynced == 0 and rollout.is_current(batch)


def sync_weights(rollout: Rollout, learner: Learner) -> None:
    """The engine gets the policy's weights."""
    rollout.load_weights(learner.policy.weights(), changed=learner.num_unsynced > 0)
    learner.num_unsynced = 0


def learn_and_sync(rollout: Rollout, learner: Learner, scored: ScoredBatch) -> StepResult:
    """Learn while the engine sleeps, then give it the new weights."""
    if rollout.sleeps:
        with rollout.clock("sleep"):
            rollout.engine.sleep(level=1)
    result = learn(learner, scored, current=is_current(rollout, learner, scored.batch))
    if learner.num_unsynced:
        with rollout.clock("update_weights"):
            sync_weights(rollout, learner)
    with rollout.clock("wake"):
        rollout.engine.wake()
    return result
