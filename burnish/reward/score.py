"""Scorer: scores samples asynchronously, while generation of others continues."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any

from burnish.errors import UserError
from burnish.registry import Registry
from burnish.reward.call import Caller
from burnish.reward.evaluate import pack
from burnish.reward.inline import InlinePool
from burnish.reward.pool import WorkerPool
from burnish.reward.process import Job
from burnish.reward.remote import RemotePool, check_urls
from burnish.reward.sample import Outcome, Problem, Sample, Score
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
_MAX_PRINTS = 1000
_MAX_PROBLEMS = 100  # distinct problems between two drains; any more are counted as "other problems"

ON_ERROR = Registry("reward error handler", key="reward.on_error")


@ON_ERROR.register("fallback")
def use_fallback_score(scorer: Scorer, sample: Sample, problem: str) -> Score:
    """Return the fallback score, with the problem."""
    return Score(scorer.settings.fallback_score, {}, problem)


@ON_ERROR.register("stop", stops=True)
def raise_error(scorer: Scorer, sample: Sample, problem: str) -> Score:
    """Raise a UserError that names the function and the sample."""
    shown = sample.solution_str[:_SHOWN_CHARACTERS] + ("..." if len(sample.solution_str) > _SHOWN_CHARACTERS else "")
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
        self._prints_shown: set[int] = set()
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
        pool = WorkerPool if self.settings.num_workers > 0 else InlinePool
        return pool(self.source, self.settings, self._finish)

    @property
    def reads_prompts(self) -> bool:
        """Whether samples must include the text of prompt and response."""
        return self.source.reads_prompts

    def begin(self) -> None:
        """Start a new round of responses; forget samples that were announced with `expect` but not submitted."""

    def expect(self, count: int) -> None:
        """Announce `count` more samples. Only batch scorers, which wait for all of them, use this."""

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

    def drain_problems(self) -> list[Problem]:
        """The distinct problems since the last call, most frequent first."""
        with self._lock:
            recent, self._recent = self._recent, {}
        return sorted(recent.values(), key=lambda problem: -problem.count)

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
        """Log each distinct output once, so that a function that prints a lot does not flood the log."""
        key = hash(printed)
        if key not in self._prints_shown and len(self._prints_shown) < _MAX_PRINTS:
            self._prints_shown.add(key)
            logger.debug("%s printed: %s", self.source.label(sample.data_source), printed)


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
