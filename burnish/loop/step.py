"""One step, as the table in docs/rooms.md has it: each room adds its columns.

It has two halves. `produce` is rooms 1 to 3, `learn` the rest. In turn they are a step; side by side they are
asynchronous training (loop/overlap.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from burnish.batch import Batch
from burnish.loop.credit import credit, filtrate
from burnish.loop.gather import gather, reward_problems
from burnish.loop.run import Run


@dataclass(frozen=True)
class Produced:
    """What a step learns from, and what was found out while it was made."""

    step: int
    batch: Batch
    epoch: int  # of its last prompt
    numbers: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # said when it is learnt


def train_step(run: Run, prompts: Batch) -> tuple[Batch, dict[str, float]]:
    """prompts -> responses -> scores -> credit -> updates -> new weights; the batch and the roles' numbers."""
    return learn_and_send(run, produce(run, prompts, run.step + 1))


def learn_and_send(run: Run, produced: Produced) -> tuple[Batch, dict[str, float]]:
    """The second half while the engine rests, and new weights for it."""
    if run.cfg.actor_rollout_ref.rollout.free_cache_engine:
        with run.clock("sleep"):
            run.engine.sleep(level=1)
    batch, metrics = learn(run, produced)
    if run.unsent:
        with run.clock("update_weights"):
            run.send_weights()
    with run.clock("wake"):
        run.engine.wake()
    return batch, metrics


def produce(run: Run, prompts: Batch, step: int) -> Produced:
    """Responses to the prompts, scored."""
    with run.clock("gen"):
        batch = gather(run, prompts, step)
    failed, notes = reward_problems(run)
    numbers = {"reward/failed": float(failed)}
    if run.filter is not None:
        numbers |= run.filter.take()
    return Produced(step, batch, run.sampler.epoch, numbers, notes)


def learn(run: Run, produced: Produced) -> tuple[Batch, dict[str, float]]:
    """Read, credit, teach. The engine is not touched: what it samples with is decided elsewhere."""
    batch, step, clock = produced.batch, produced.step, run.clock
    run.epoch = produced.epoch
    for note in produced.notes:
        run.loggers.note(note)
    if run.reward_model is not None:
        with clock("reward"):
            batch = run.reward_model.score(batch)
    if run.reads_old_log_probs(len(batch), current=run.is_current(batch)):
        with clock("old_log_prob"):
            batch = batch.add(**run.policy.compute_log_probs(batch))
    if run.reference is not None:
        with clock("ref"):
            batch = batch.add(**run.read_reference(batch))
    if run.critic is not None:
        with clock("values"):
            batch = batch.add(values=run.critic.compute_values(batch))
    with clock("adv"):
        batch, correcting = run.correction.apply(batch)
        batch, shaping = run.shaper.shape(batch)
        batch, metrics = credit(batch, run.cfg.algorithm, run.estimator, run.kl, run.correction.old_column)
        batch = filtrate(batch, run.cfg.algorithm, run.seed, step)
        metrics |= shaping | correcting
    if run.critic is not None:
        with clock("update_critic"):
            metrics |= run.critic.update(batch, step)
    if step > run.cfg.trainer.critic_warmup:
        with clock("update_actor"):
            taught = run.policy.update(batch, step)
            batch, metrics = batch.add(**taught.columns), metrics | taught.metrics
        run.unsent += 1
    return batch, produced.numbers | metrics
