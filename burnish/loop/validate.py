"""Validation: trajectories of held-out prompts, scored and counted."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.batch import Batch
from burnish.log.folder import dump_rollouts
from burnish.log.metrics import sample_sums
from burnish.log.validation import pick_generations, validation_metrics
from burnish.loop.recorder import SHOWN, trajectory_records
from burnish.loop.rollout import Rollout
from burnish.loop.run import Run
from burnish.reward.trajectories import last_rows


def validate(run: Run) -> dict[str, float]:
    """val-core/... and val-aux/... of the engine's current weights; generations are dumped where the config asks."""
    rollout, recorder = run.rollout, run.recorder
    trainer = recorder.trainer
    data = rollout.val_data
    assert data is not None
    where = f"the validation at step {run.step}"
    with run.clock("testing"), recorder.loggers.activity("validation"):
        parts = [rollout.collect_validation(data.batch(index, epoch=0), run.step) for index in rollout.val_batches]
        batch = _score_by_model(rollout, Batch.join(with_media(parts)), where)
    for line in rollout.take_reward_problems(where)[1]:
        recorder.loggers.note(line)
    records = trajectory_records(batch, recorder.tokenizer, recorder.pictures)
    if trainer.validation_data_dir is not None:
        dump_rollouts(trainer.validation_data_dir, run.step, records)
    if trainer.log_val_generations > 0:
        inputs, outputs, scores = ([record[name] for record in records] for name in SHOWN)
        shown = pick_generations(inputs, outputs, scores, trainer.log_val_generations)
        recorder.loggers.table("val_generations", run.step, SHOWN, shown)
    return _metrics(batch)


def with_media(parts: Sequence[Batch]) -> list[Batch]:
    """Parts with equal columns, where only some have images."""
    if not any("media" in part for part in parts):
        return list(parts)
    return [part if "media" in part else part.add(media=[()] * len(part)) for part in parts]


def _metrics(batch: Batch) -> dict[str, float]:
    """An episode of several rows counts once."""
    last = last_rows(batch)
    scores = sample_sums(batch, "token_level_scores").tolist()
    names = sorted({name for extras in batch["reward_extras"] for name in extras})
    extras = {name: [batch["reward_extras"][row].get(name) for row in last] for name in names}
    sources, uids = ([batch[column][row] for row in last] for column in ("data_source", "uid"))
    return validation_metrics(sources, uids, scores, extras)


def _score_by_model(rollout: Rollout, batch: Batch, where: str) -> Batch:
    """The reward model scores while the engine sleeps, as in a step. Its metrics are logged for training steps only."""
    if rollout.reward_model is None:
        return batch
    if rollout.sleeps:
        rollout.engine.sleep(level=1)
    batch = rollout.reward_model.score(batch)
    rollout.engine.wake()
    rollout.reward_model.check_failures(where)
    rollout.reward_model.take_metrics()
    return batch
