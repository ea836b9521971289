"""One step of a run, without the loop around it."""

from __future__ import annotations

from burnish.batch import Batch
from burnish.loop.run import Run
from burnish.loop.step import learn_and_sync, produce


def one_step(run: Run) -> tuple[Batch, dict[str, float]]:
    """The batch with all columns, and the metrics."""
    result = learn_and_sync(run.rollout, run.learner, produce(run.rollout, run.step + 1))
    return result.batch, result.metrics
