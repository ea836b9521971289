"""Run the rehearsed job with the code of the real one, and turn its problems into findings."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.config import Loaded
from burnish.errors import UserError
from burnish.log.logger import Loggers
from burnish.rehearsal.plan import DATA, REWARD, RUN, Plan, Progress

REWARD_PROBLEM = "reward problem, "


class RecordingLoggers(Loggers):
    """No loggers; keeps the notes of the run."""

    def __init__(self, progress: Progress = lambda text: None) -> None:
        super().__init__(())
        self.notes: list[str] = []
        self.progress = progress

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.progress(f"step {step} is done")

    def note(self, text: str) -> None:
        self.notes.append(text)


def run_job(plan: Plan) -> None:
    """Run the plan's job; every error becomes a finding."""
    try:
        with no_output():
            JOBS[plan.job](plan, plan.load())
    except UserError as error:
        plan.add_finding(_where(error), error)
    except KeyboardInterrupt:
        raise
    except Exception as error:  # in the user's code or in ours: the real run would fail too
        plan.add_finding(RUN, _with_location(error))


@contextlib.contextmanager
def no_output() -> Iterator[None]:
    """Discard what the job prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _where(error: UserError) -> str:
    key = error.key or ""
    origins = {"data.": DATA, "data_source": REWARD, "custom_reward_function": REWARD, "reward": REWARD}
    return next((where for prefix, where in origins.items() if key.startswith(prefix)), RUN)


def _with_location(error: Exception) -> str:
    """The error and its innermost frame outside installed libraries."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}{place}"


def rehearse_training(plan: Plan, loaded: Loaded) -> None:
    from burnish.loop.api import start
    from burnish.loop.build import build
    from burnish.loop.fit import fit

    loaded.cfg.reward.failure_threshold = None  # every problem is to be found; _check_rewards judges them
    run = build(loaded.cfg, tools=stand_ins_of_conversations(plan, loaded.cfg))
    loggers = RecordingLoggers(plan.progress)
    run.recorder.loggers = loggers
    _check_rows(plan, run.rollout.train_data)
    try:
        start(run, loaded)
        result = fit(run)
        total = sum(getattr(run.rollout.scorer.scorer, "problems", {}).values())
    finally:
        run.close()
    if result.interrupted:
        raise KeyboardInterrupt
    _check_rewards(plan, loggers.notes, total, result.metrics, loaded)
    _check_metrics(plan, result.metrics)


def stand_ins_of_conversations(plan: Plan, cfg: Any) -> list[Any]:
    """The run's tools; none is the user's."""
    from burnish.models.load import load_tokenizer
    from burnish.rehearsal.conversations import has_conversations
    from burnish.rehearsal.stand_in_tools import replace_conversation_parts

    if not has_conversations(plan):
        return []
    tokenizer = load_tokenizer(cfg.actor_rollout_ref.model.path, key="actor_rollout_ref.model.path")
    return replace_conversation_parts(cfg, len(tokenizer))


def _check_rows(plan: Plan, data: Any) -> None:
    report = getattr(data, "report", None)
    if report is not None and report.failed:
        plan.add_finding(DATA, report.text(), breaks=report.kept == 0)


def _check_rewards(plan: Plan, notes: Sequence[str], total: int, metrics: Mapping[str, float], loaded: Loaded) -> None:
    """A reward that fails on every response breaks the run; one that fails on some is reported."""
    problems = [note.removeprefix(REWARD_PROBLEM) for note in notes if note.startswith(REWARD_PROBLEM)]
    num_responses = loaded.cfg.data.train_batch_size * loaded.cfg.actor_rollout_ref.rollout.n
    all_failed = metrics.get("reward/failed", 0) >= num_responses
    hint = "; note that the rows are synthetic" if plan.synthetic_rows else ""
    for problem in problems:
        count = "every response" if all_failed else f"{total} responses, not on all"
        plan.add_finding(REWARD, f"the reward failed on {count}: {problem}{hint}", breaks=all_failed)


def _check_metrics(plan: Plan, metrics: Mapping[str, float]) -> None:
    invalid = [name for name, value in metrics.items() if value != value and name.startswith(("actor/", "critic/"))]
    if invalid:
        plan.add_finding(RUN, f"NaN after the update: {', '.join(sorted(invalid)[:6])}")


def rehearse_sft(plan: Plan, loaded: Loaded) -> None:
    from burnish.jobs.sft.build import build
    from burnish.jobs.sft.fit import fit, start

    run = build(loaded.cfg)
    run.loggers = RecordingLoggers(plan.progress)
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
        sources = report.failed_sources
        prefix = f"no response of {', '.join(sources)} could be scored: " if sources else ""
        plan.add_finding(REWARD, f"{prefix}{problem.text}", breaks=bool(sources))


JOBS: dict[str, Callable[[Plan, Loaded], None]] = {
    "train": rehearse_training,
    "sft": rehearse_sft,
    "generate": rehearse_generation,
    "eval": rehearse_evaluation,
}
