"""Rows of async_training and rollout; how generating ahead is observed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from . import observe as see
from .kit import Case, recorded
from .row import Row

MODE = "async_training.mode"
SECTION = "async_training"
PATIENCE = 60  # seconds


def stepped(case: Case) -> list[Any]:
    """The batches of a run's steps, without validating, logging and saving."""
    run, batches = case.run, []
    run.recorder.loggers.close()
    run.sync_weights()
    while not run.finished:
        batches.append(run.schedule.step(run.step + 1).batch)
        run.step += 1
    return batches


def versions(case: Case) -> list[int]:
    """Of the weights that sampled each step's first token."""
    return [int(batch["weight_version"].flat[0]) for batch in stepped(case)]


def most_waiting(case: Case) -> int:
    """Batches that a producer makes while a slow learner takes its time."""
    run, waiting = case.run, [0]
    update = run.learner.policy.update

    def slowly(*arguments: Any) -> Any:
        patience = time.monotonic() + PATIENCE
        while run.schedule.producing or run.schedule._may_start():
            assert time.monotonic() < patience
            time.sleep(0.001)
        waiting.append(len(run.schedule.pending))
        return update(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.learner.policy, "update", slowly)
        stepped(case)
    return max(waiting)


def interrupts(case: Case) -> bool:
    """Is the engine halted amid responses for new weights?"""
    calls = recorded(case.run.rollout.engine, "pause")
    stepped(case)
    return bool(calls)


def times_read(case: Case) -> int:
    """How often the policy reads its old log-probs."""
    calls = recorded(case.run.learner.policy, "compute_log_probs")
    stepped(case)
    return len(calls)


def total_steps(case: Case) -> int:
    return case.run.total_steps


AHEAD = (f"{MODE}=one_step_off",)
QUEUE = (f"{MODE}=queue", "trainer.total_training_steps=4")
EVERY_STEP = (*QUEUE, f"{SECTION}.trigger_parameter_sync_step=1")

ROWS = [
    Row(MODE, "one_step_off", versions, ("trainer.total_training_steps=4",), expected=[1, 1, 2, 3]),
    Row(f"{SECTION}.queue_size", "1", most_waiting, (*EVERY_STEP, f"{SECTION}.staleness_threshold=9"), expected=1),
    Row(f"{SECTION}.staleness_threshold", "2", most_waiting, EVERY_STEP, expected=2),
    Row(
        f"{SECTION}.trigger_parameter_sync_step",
        "2",
        versions,
        (*QUEUE, f"{SECTION}.staleness_threshold=0"),
        expected=[1, 1, 2, 2],
    ),
    Row(
        f"{SECTION}.require_batches",
        "2",
        see.batch_size,
        (*QUEUE, "data.train_batch_size=0", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        expected=4,
    ),
    Row(f"{SECTION}.partial_rollout", "false", interrupts, EVERY_STEP, expected=False),
    Row(f"{SECTION}.use_rollout_log_probs", "true", times_read, AHEAD, expected=0),
    Row(
        f"{SECTION}.compute_prox_log_prob",
        "true",
        times_read,
        (*AHEAD, f"{SECTION}.use_rollout_log_probs=true"),
        expected=2,
    ),
    Row("rollout.total_rollout_steps", "4", total_steps, AHEAD, expected=1),
    Row(
        "rollout.total_epochs",
        "2",
        total_steps,
        (*AHEAD, "trainer.total_training_steps=null"),
        expected=6,
    ),
    Row(
        "rollout.test_freq",
        "2",
        see.validated_steps,
        (*AHEAD, lambda kit: f"data.val_files={kit.val_file}", "trainer.val_before_train=false"),
        expected=[2],
    ),
]
