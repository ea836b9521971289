"""The rehearsed job itself, one per kind: built by the same code as the real one, watched instead of logged."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.config import Loaded
from burnish.errors import UserError
from burnish.log.logger import RunInfo
from burnish.rehearsal.plan import DATA, REWARD, RUN, Plan

REWARD_PROBLEM = "reward problem, "


class Notebook:
    """Stands where the loggers stand, and remembers what they would have been told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.numbers: list[dict[str, float]] = []

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        """Nothing to open."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.numbers.append(dict(metrics))

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Nobody reads it."""

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        """Nothing to close."""


def run_job(plan: Plan) -> None:
    """Load the stand-in's config and run it; whatever breaks becomes a finding."""
    try:
        with quiet():
            JOBS[plan.job](plan, plan.load())
    except UserError as error:
        plan.find(_where(error), error)
    except KeyboardInterrupt:
        raise
    except Exception as error:  # the user's own code, or ours: either way the real run would meet it too
        plan.find(RUN, _told(error))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What the job prints is not what was asked for."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _where(error: UserError) -> str:
    key = error.key or ""
    places = {"data.": DATA, "data_source": REWARD, "custom_reward_function": REWARD, "reward": REWARD}
    return next((where for beginning, where in places.items() if key.startswith(beginning)), RUN)


def _told(error: Exception) -> str:
    """The error and the innermost place outside of installed libraries."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}{place}"


def rehearse_training(plan: Plan, loaded: Loaded) -> None:
    from burnish.loop.api import start
    from burnish.loop.build import build
    from burnish.loop.fit import fit

    run = build(loaded.cfg)
    notebook = Notebook()
    run.recorder.loggers = notebook
    _look_at_rows(plan, run.rollout.train_data)
    try:
        start(run, loaded)
        result = fit(run)
        scorer = run.rollout.scorer.scorer
        total = sum(scorer.problems.values()) if hasattr(scorer, "problems") else 0
    finally:
        run.close()
    if result.interrupted:
        raise KeyboardInterrupt
    _look_at_rewards(plan, notebook, total, result.metrics, loaded)
    _look_at_numbers(plan, result.metrics)


def _look_at_rows(plan: Plan, data: Any) -> None:
    report = getattr(data, "report", None)
    if report is not None and report.failed:
        plan.find(DATA, report.text(), breaks=report.kept == 0)


def _look_at_rewards(plan: Plan, notebook: Notebook, total: int, metrics: Mapping[str, float], loaded: Loaded) -> None:
    """A reward that fails on every sample teaches nothing; one that fails on some is worth knowing."""
    notes = [note.removeprefix(REWARD_PROBLEM) for note in notebook.notes if note.startswith(REWARD_PROBLEM)]
    scored = loaded.cfg.data.train_batch_size * loaded.cfg.actor_rollout_ref.rollout.n
    all_failed = metrics.get("reward/failed", 0) >= scored
    made = "; the rows were made here, so look at those too" if plan.made_rows else ""
    for note in notes:
        told = "every response" if all_failed else f"{total} responses, not on all"
        plan.find(REWARD, f"the reward failed on {told}: {note}{made}", breaks=all_failed)


def _look_at_numbers(plan: Plan, metrics: Mapping[str, float]) -> None:
    bad = [name for name, value in metrics.items() if value != value and name.startswith(("actor/", "critic/"))]
    if bad:
        plan.find(RUN, f"not a number after the update: {', '.join(sorted(bad)[:6])}")


def rehearse_imitation(plan: Plan, loaded: Loaded) -> None:
    from burnish.jobs.sft.build import build
    from burnish.jobs.sft.fit import fit, start

    run = build(loaded.cfg)
    run.loggers = Notebook()
    try:
        start(run, loaded)
        result = fit(run)
    finally:
        run.close()
    if result.interrupted:
        raise KeyboardInterrupt


def rehearse_generation(plan: Plan, loaded: Loaded) -> None:
    from burnish.jobs.generate import generate_loaded

    generate_loaded(loaded)


def rehearse_evaluation(plan: Plan, loaded: Loaded) -> None:
    from burnish.jobs.eval.run import evaluate_loaded

    report = evaluate_loaded(loaded)
    for problem in report.problems:
        every = f"no response of {', '.join(report.hopeless)} could be scored: " if report.hopeless else ""
        plan.find(REWARD, f"{every}{problem.text}", breaks=bool(report.hopeless))


JOBS: dict[str, Callable[[Plan, Loaded], None]] = {
    "train": rehearse_training,
    "sft": rehearse_imitation,
    "generate": rehearse_generation,
    "eval": rehearse_evaluation,
}
