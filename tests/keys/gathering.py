"""Rows of the keys that choose, shape and keep what is gathered, and of those that end a run; how they are observed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from burnish.batch import Batch
from burnish.errors import UserError
from burnish.loop.lease import VARIABLES
from burnish.loop.state import save
from burnish.training.checkpoint import Checkpoints

from . import observe as see
from .kit import SAMPLES, USER, Case, fixed_batch, recorded
from .row import Row

FILTER = "algorithm.filter_groups"
BUFFER = "reward_model.overlong_buffer"
ROLLOUT = "actor_rollout_ref.rollout"
RUN_FOLDER = "${trainer.default_local_dir}"


def kept_answers(case: Case) -> list[str]:
    """The right answers of the prompts that a step takes."""
    case.run.sync_weights()
    return case.run.rollout.collect(case.run.rollout.next_prompts(), step=1)["ground_truth"][::SAMPLES]


def only_odd(case: Case) -> bool:
    """Are all prompts of the step those with an odd answer?"""
    return all(int(answer) % 2 for answer in kept_answers(case))


def first_prompts(case: Case) -> int:
    """Prompts that a step sends to the engine at first."""
    calls = recorded(case.run.rollout.engine, "generate")
    kept_answers(case)
    return len(calls[0][0]) // SAMPLES


def num_rounds(case: Case) -> int:
    """Rounds of generation in a step, which stops with an error where the limit leaves it short of prompts."""
    calls = recorded(case.run.rollout.engine, "generate")
    with contextlib.suppress(UserError):
        kept_answers(case)
    return len(calls)


def shaped_batch(case: Case) -> Batch:
    """Shaped scores of fixed responses, every fourth of which was cut off."""
    run = case.run
    batch = fixed_batch(run)
    reasons = ["length" if length == 4 else "stop" for length in batch["responses"].lengths.tolist()]
    return run.learner.shaper.shape(batch.add(finish_reason=reasons))[0]


def shaped_scores(case: Case) -> list[float]:
    batch = shaped_batch(case)
    return batch["shaped_scores" if "shaped_scores" in batch else "token_level_scores"].flat.tolist()


def shaped_columns(case: Case) -> set[str]:
    return set(shaped_batch(case))


def generated_again(case: Case) -> int:
    """Requests that a step sends to the engine when it is made a second time."""
    run = case.run
    run.sync_weights()
    run.rollout.collect(see.prompts(case), step=1)
    calls = recorded(run.rollout.engine, "generate")
    run.rollout.collect(see.prompts(case), step=1)
    return sum(len(call[0]) for call in calls)


def writing_thread(case: Case) -> str:
    """Who writes a checkpoint."""
    names: list[str] = []
    write: Callable[..., Any] = Checkpoints.save

    def noted(*arguments: Any, **more: Any) -> Any:
        names.append(threading.current_thread().name)
        return write(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", noted)
        save(case.run)
        case.run.recorder.saving.wait()
    return names[0]


def steps_within_an_hour(case: Case) -> int:
    """The last step of a run on a machine that is there for another hour."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLES[0], str(time.time() + 3600))
        return case.fitted().result.step


logged_steps = see.fitted(lambda run: sorted(run.metrics))

GRADED = (f"custom_reward_function.path={USER / 'graded.py'}",)
FILTERED = (*GRADED, f"{FILTER}.enable=true")
BUFFERED = (f"{BUFFER}.enable=true", f"{BUFFER}.len=2")
SKIPPING = (f"{ROLLOUT}.skip_rollout=true", f"{ROLLOUT}.skip_dump_dir={RUN_FOLDER}/first")
OTHER_THREAD = "burnish-save"

ROWS = [
    Row(f"{FILTER}.enable", "true", kept_answers, GRADED),
    Row(f"{FILTER}.metric", "oddity", only_odd, FILTERED, expected=True),
    Row(f"{FILTER}.reward_range", "[0,2]", only_odd, FILTERED, expected=True),
    Row(f"{FILTER}.max_num_gen_batches", "1", num_rounds, (*FILTERED, "data.gen_batch_size=2"), expected=1),
    Row("data.gen_batch_size", "3", first_prompts, FILTERED, expected=3),
    Row(f"{BUFFER}.enable", "true", shaped_scores, BUFFERED[1:]),
    Row(f"{BUFFER}.len", "4", shaped_scores, BUFFERED),
    Row(f"{BUFFER}.penalty_factor", "3", shaped_scores, BUFFERED),
    Row(f"{BUFFER}.log", "true", shaped_columns, BUFFERED),
    Row("reward.stop_properly_penalty", "0.5", shaped_scores),
    Row("reward.scale", "2", shaped_scores),
    Row("reward.normalize", "batch", shaped_scores),
    Row("reward.clip_range", "[-0.5,0.5]", shaped_scores),
    Row(f"{ROLLOUT}.skip_rollout", "true", generated_again, SKIPPING[1:], expected=0),
    Row(f"{ROLLOUT}.skip_dump_dir", f"{RUN_FOLDER}/second", see.files, SKIPPING),
    Row("actor_rollout_ref.actor.checkpoint.async_save", "true", writing_thread, expected=OTHER_THREAD),
    Row(
        "critic.checkpoint.async_save",
        "true",
        writing_thread,
        ("algorithm.adv_estimator=gae",),
        expected=OTHER_THREAD,
    ),
    Row("trainer.log_freq", "2", logged_steps, expected=[2]),
    Row("trainer.export_dir", f"{RUN_FOLDER}/trained", see.files),
    Row("trainer.esi_redundant_time", "1e5", steps_within_an_hour, expected=0),
]
