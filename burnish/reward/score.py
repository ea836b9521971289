"""Scorer: scores samples asynchronously, while generation of others continues."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from burnish.errors import UserError
from burnish.redact import redact_text
from burnish.registry import Registry
from burnish.reward.call import Caller
from burnish.reward.evaluate import pack
from burnish.reward.inline import InlinePool
from burnish.reward.output import OutputLog
from burnish.reward.pool import WorkerPool
from burnish.reward.process import Job
from burnish.reward.remote import RemotePool, check_urls
from burnish.reward.sample import RAISED, Outcome, Problem, Report, Sample, Score
from burnish.reward.sandbox_pool import SandboxPool
from burnish.reward.settings import RewardSettings
from burnish.reward.source import (
    FromCallable,
    FromFile,
    FromRemoteFile,
    FromRules,
    FromUrls,
    FromVerifiers,
    RewardSource,
)

logger = logging.getLogger("burnish.reward")

_SHOWN_CHARACTERS = 200
_MAX_PROBLEMS = 100  # distinct problems between two drains; any more are counted as "other problems"

ON_ERROR = Registry("reward error handler", key="reward.on_error")


@ON_ERROR.register("fallback")
def use_fallback_score(scorer: Scorer, sample: Sample, problem: str) -> Score:
    """Return the fallback score, with the problem."""
    return Score(scorer.settings.fallback_score, {}, problem)


@ON_ERROR.register("stop", stops=True)
def raise_error(scorer: Scorer, sample: Sample, problem: str) -> Score:
    """Raise a UserError that names the function and the sample."""
    shown = _shortened(sample.solution_str)
    raise UserError(
        f"{problem}\n"
        f"Sample {sample.sample} of uid {sample.uid!r}, data_source {sample.data_source!r}, response {shown!r}",
        key=scorer.source.key,
        value=scorer.source.label(sample.data_source),
        hint="reward.on_error=fallback to continue with reward.fallback_score",
    )


class Scorer:
    """Scores samples in worker processes with time and memory limits.

    A Python callable takes precedence over `custom_reward_function.path`, which takes precedence over the built-in
    rules. If a function raises, hangs, crashes or returns an invalid value, its sample gets a Score with a `problem`,
    or its future raises a UserError (`reward.on_error`).
    """

    caller: type[Caller] = Caller  # calling convention of a user's function

    def __init__(self, settings: RewardSettings, reward: Callable[..., Any] | None = None) -> None:
        self.settings = settings
        self._on_error = ON_ERROR[settings.on_error].load()
        self.source = choose_source(settings, reward, self.caller)
        self.problems: Counter[str] = Counter()  # by kind, over the whole run
        self._recent: dict[str, Problem] = {}
        self._num_recent = 0  # samples scored since the last drain
        self._output = None if settings.log_path is None else OutputLog(Path(settings.log_path))
        self._lock = threading.Lock()
        self._pool: WorkerPool | InlinePool | RemotePool = self._make_pool()
        self._sandbox_pool: SandboxPool | None = None  # created when a data source needs it

    def check_sources(self, names: Iterable[str]) -> None:
        """Raise UserError if one of these data sources has no reward. Call this as soon as the data is loaded."""
        names = list(names)
        self.source.check_sources(names, self.settings.reward_kwargs)
        if any(self.source.runs_code(name) for name in names):
            self._get_sandbox_pool()

    @property
    def notices(self) -> list[str]:
        """Messages for the user about how responses are scored."""
        return [*self._pool.notices, *([] if self._sandbox_pool is None else [self._sandbox_pool.notice])]

    def _get_sandbox_pool(self) -> SandboxPool:
        with self._lock:
            if self._sandbox_pool is None:
                self._sandbox_pool = SandboxPool(self.settings.sandbox, self._finish)
            return self._sandbox_pool

    def _make_pool(self) -> WorkerPool | InlinePool | RemotePool:
        if isinstance(self.source, FromUrls):
            return RemotePool(self.settings, self._finish)
        if self.settings.pool is not None:
            return self.settings.pool(self.source, replace(self.settings, pool=None), self._finish)
        pool = WorkerPool if self.settings.num_workers > 0 else InlinePool
        return pool(self.source, self.settings, self._finish)

    @property
    def reads_prompts(self) -> bool:
        """Whether samples must include the text of prompt and response."""
        return self._pool.inputs.texts

    @property
    def reads_pictures(self) -> bool:
        """Whether samples must include the images and videos that the model saw."""
        return self._pool.inputs.pictures

    @property
    def reads_rows(self) -> bool:
        """Whether samples must include their row of the data."""
        return self._pool.inputs.row

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise UserError if the function requires a column that the data does not have."""
        names = sorted(names)
        missing = [column for column in self._pool.inputs.columns if column not in names]
        if missing:
            raise UserError(
                f"{self.source.label('')} requires {', '.join(map(repr, missing))}, which is no column of the data",
                key=self.source.key,
                allowed=f"prompts, completions, completion_ids, ground_truth and the columns {', '.join(names)}",
                hint=f"custom_reward_function.reward_kwargs.{missing[0]}=... to pass a value",
            )

    def begin(self) -> None:
        """Start a new round of responses; forget samples that were announced with `expect` but not submitted."""

    def expect(self, count: int) -> None:
        """Announce `count` more samples. Only batch scorers, which wait for all of them, use this."""

    def withdraw(self) -> None:
        """An announced sample will not be submitted: it failed, or has a score already."""

    def already_scored(self) -> None:
        """A conversation was scored by its environment or agent: it counts as a sample that did not fail."""
        self.withdraw()
        with self._lock:
            self._num_recent += 1

    def fail(self, sample: Sample, problem: str) -> Score:
        """The score of a conversation that failed, by `reward.on_error`: its reward cannot be computed."""
        self.withdraw()
        with self._lock:
            self._num_recent += 1
        self._record_problem(sample, RAISED, problem)
        return self._on_error(self, sample, problem)

    def submit(self, sample: Sample) -> Future[Score]:
        """Queue a sample; thread-safe, returns at once."""
        future: Future[Score] = Future()
        try:
            self.source.check_sources([sample.data_source], {})
            payload = pack(sample)
        except Exception as error:  # objects in extra_info may raise anything when pickled
            future.set_exception(error if isinstance(error, UserError) else unpicklable_sample(sample, error))
            return future
        pool = self._get_sandbox_pool() if self.source.runs_code(sample.data_source) else self._pool
        pool.put(Job(sample, payload, future))
        return future

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Scores of all samples, in their order."""
        self.expect(len(samples))
        return [future.result() for future in [self.submit(sample) for sample in samples]]

    def drain(self) -> Report:
        """What happened since the last call."""
        with self._lock:
            report = self._report()
            self._recent, self._num_recent = {}, 0
        notice = None if self._output is None else self._output.take_notice()
        return report if notice is None else replace(report, notices=(notice,))

    def _report(self) -> Report:
        return Report(self._num_recent, tuple(self._recent.values()))

    def drain_problems(self) -> list[Problem]:
        """The distinct problems since the last call, most frequent first."""
        return self.drain().by_count()

    def check_failures(self, where: str) -> None:
        """Raise UserError with the first cause if too many samples failed (`reward.failure_threshold`).

        `where` says which samples were scored since the last drain.
        """
        with self._lock:
            report = self._report()
        threshold = self.settings.failure_threshold
        if threshold is None or not report.problems or report.num_failed < threshold * report.num_samples:
            return
        first = report.problems[0]
        printed = "" if self._output is None or not self._output.written else f"\nIt prints to {self._output.path}"
        raise too_many_failures(
            report.num_failed,
            report.num_samples,
            where,
            f"{first.text}\nFirst: sample {first.first.sample} of uid {first.first.uid!r}, response"
            f" {_shortened(first.first.solution_str)!r}{printed}",
            key=self.source.key,
            value=self.source.label(first.first.data_source),
        )

    def close(self) -> None:
        """Stop the workers. Pending futures are cancelled or raise RuntimeError."""
        self._pool.close()
        if self._sandbox_pool is not None:
            self._sandbox_pool.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self, job: Job, outcome: Outcome) -> None:
        """Set the result of a job's future. Called from the pool's thread."""
        if outcome.printed:
            self._log_printed(job.sample, outcome.printed)
        with self._lock:
            self._num_recent += 1
        if outcome.kind is None:
            job.future.set_result(Score(outcome.value, outcome.extras))
            return
        self._record_problem(job.sample, outcome.kind, outcome.text)
        try:
            score = self._on_error(self, job.sample, outcome.text)
        except UserError as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(score)

    def _record_problem(self, sample: Sample, kind: str, text: str) -> None:
        with self._lock:
            self.problems[kind] += 1
            headline = text.partition("\n")[0]
            if headline not in self._recent and len(self._recent) >= _MAX_PROBLEMS:
                headline = "other problems"
            previous = self._recent.get(headline)
            if previous is None:
                self._recent[headline] = Problem(text, 1, sample)
            else:
                self._recent[headline] = replace(previous, count=previous.count + 1)

    def _log_printed(self, sample: Sample, printed: str) -> None:
        label = self.source.label(sample.data_source)
        if self._output is None:
            logger.debug("%s printed: %s", label, printed)
        else:
            self._output.write(f"{label}, sample {sample.sample} of {sample.uid}", printed)


def too_many_failures(
    num_failed: int, num_samples: int, where: str, cause: str, *, key: str, value: str | None = None
) -> UserError:
    """The error for `reward.failure_threshold`, with the first cause."""
    count = f"all {num_samples}" if num_failed == num_samples else f"{num_failed} of {num_samples}"
    return UserError(
        f"the reward failed on {count} samples of {where}. First cause: {redact_text(cause)}",
        key=key,
        value=value,
        hint="reward.failure_threshold=null to continue with reward.fallback_score",
    )


def _shortened(text: str) -> str:
    return text[:_SHOWN_CHARACTERS] + ("..." if len(text) > _SHOWN_CHARACTERS else "")


def choose_source(
    settings: RewardSettings, reward: Callable[..., Any] | None, caller: type[Caller] = Caller
) -> RewardSource:
    """A Python function, else custom_reward_function.path, verifiers or a remote reward, else the built-in rules."""
    _check_conflicts(settings, reward)
    if reward is not None:
        if settings.path is not None:
            logger.warning(
                "custom_reward_function.path=%s is ignored: a reward function was passed in Python", settings.path
            )
        return FromCallable(reward, caller=caller)
    if settings.path is not None:
        return FromFile(settings.path, settings.name, caller=caller)
    if settings.verifiers:
        return FromVerifiers(settings.verifiers, settings.verifier_weights or (1.0,) * len(settings.verifiers))
    if settings.remote_url:
        if len(settings.remote_url) == 1 and settings.remote_url[0].endswith(".py"):
            return FromRemoteFile(settings.remote_url[0])
        check_urls(settings.remote_url)
        return FromUrls(settings.remote_url)
    return FromRules()


def _check_conflicts(settings: RewardSettings, reward: Callable[..., Any] | None) -> None:
    """Refuse several rewards. The config rules check the keys, but do not know of a function passed in Python."""
    is_set = {
        "a reward function": reward is not None or settings.path is not None,
        "reward.verifiers": bool(settings.verifiers),
        "reward.remote_url": bool(settings.remote_url),
    }
    names = [name for name, value in is_set.items() if value]
    if len(names) > 1:
        problem = f"{' and '.join(names)} are set together; only one can score"
        raise UserError(problem, key=names[-1], hint=f"set only {names[0]}")


def unpicklable_sample(sample: Sample, error: Exception) -> UserError:
    return UserError(
        f"ground_truth or extra_info of uid {sample.uid!r} cannot be sent to a worker: {type(error).__name__}: {error}"
    )
