"""One step, as the table in docs/rooms.md has it: each room adds its columns."""

from __future__ import annotations

from burnish.batch import Batch
from burnish.loop.credit import credit, filtrate
from burnish.loop.gather import gather
from burnish.loop.run import Run


def train_step(run: Run, prompts: Batch) -> tuple[Batch, dict[str, float]]:
    """prompts -> responses -> scores -> credit -> updates -> new weights; the batch and the roles' numbers."""
    step, clock = run.step + 1, run.clock
    with clock("gen"):
        batch = gather(run, prompts, step)
        if run.cfg.actor_rollout_ref.rollout.free_cache_engine:
            run.engine.sleep(level=1)
    if run.judge is not None:
        with clock("reward"):
            batch = run.judge.judge(batch)
    if run.reads_old_log_probs(len(batch)):
        with clock("old_log_prob"):
            batch = batch.add(**run.policy.read(batch))
    if run.reference is not None:
        with clock("ref"):
            batch = batch.add(**run.read_reference(batch))
    if run.critic is not None:
        with clock("values"):
            batch = batch.add(values=run.critic.read(batch))
    with clock("adv"):
        batch, correcting = run.correction.apply(batch)
        batch, shaping = run.shaper.shape(batch)
        batch, metrics = credit(batch, run.cfg.algorithm, run.estimator, run.kl, run.correction.old_column)
        batch = filtrate(batch, run.cfg.algorithm, run.seed, step)
        metrics |= shaping | correcting
    if run.critic is not None:
        with clock("update_critic"):
            metrics |= run.critic.teach(batch, step)
    if step > run.cfg.trainer.critic_warmup:
        with clock("update_actor"):
            taught = run.policy.teach(batch, step)
            batch, metrics = batch.add(**taught.columns), metrics | taught.metrics
        with clock("update_weights"):
            run.send_weights()
    run.engine.wake()
    return batch, metrics
