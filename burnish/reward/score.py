"""Scorer: samples in, scores out, while others still generate."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from burnish.errors import UserError
from burnish.reward.evaluate import pack
from burnish.reward.inline import Inline
from burnish.reward.pool import Pool
from burnish.reward.process import Job
from burnish.reward.sample import Outcome, Problem, Sample, Score
from burnish.reward.settings import RewardSettings
from burnish.reward.source import FromCallable, FromFile, FromRules, Source
from burnish.table import Table

logger = logging.getLogger("burnish.reward")

_RESPONSE_SHOWN = 200
_PRINTS_REMEMBERED = 1000
_PROBLEMS_REMEMBERED = 100  # distinct ones between two drains; more are counted under the last

ON_ERROR = Table("way to treat a failing reward", key="reward.on_error")


@ON_ERROR.add("fallback")
def give_fallback(scorer: Scorer, sample: Sample, problem: str) -> Score:
    """The fallback score, with the problem beside it."""
    return Score(scorer.settings.fallback_score, {}, problem)


@ON_ERROR.add("stop")
def stop(scorer: Scorer, sample: Sample, problem: str) -> Score:
    """A UserError that names the function and the sample."""
    shown = sample.solution_str[:_RESPONSE_SHOWN] + ("..." if len(sample.solution_str) > _RESPONSE_SHOWN else "")
    raise UserError(
        f"{problem}\n"
        f"Sample {sample.sample} of uid {sample.uid!r}, data_source {sample.data_source!r}, response {shown!r}",
        key=scorer.source.key,
        value=scorer.source.label(sample.data_source),
        hint="reward.on_error=fallback to go on with reward.fallback_score",
    )


class Scorer:
    """Scores samples in worker processes, with a time and a memory limit each.

    A Python callable comes before `custom_reward_function.path`, and that before the built-in rules. Whatever a
    function does (raise, hang, crash, return nonsense), its sample gets a Score with a `problem`, or its future a
    UserError.
    """

    def __init__(self, settings: RewardSettings, reward: Callable[..., Any] | None = None) -> None:
        self.settings = settings
        self._on_error = ON_ERROR[settings.on_error].load()
        self.source = choose_source(settings, reward)
        self.problems: Counter[str] = Counter()  # by kind, since the beginning
        self._recent: dict[str, Problem] = {}
        self._prints_shown: set[int] = set()
        self._lock = threading.Lock()
        kind_of_pool = Pool if settings.num_workers > 0 else Inline
        self._pool = kind_of_pool(self.source, settings, self._finish)

    def check_sources(self, names: Iterable[str]) -> None:
        """UserError if one of these data sources has no reward; call it as soon as the data is known."""
        self.source.check_sources(names, self.settings.reward_kwargs)

    def submit(self, sample: Sample) -> Future[Score]:
        """Queue a sample; thread-safe, returns at once."""
        future: Future[Score] = Future()
        try:
            self.source.check_sources([sample.data_source], {})
            payload = pack(sample)
        except Exception as error:  # an object in extra_info that cannot be pickled raises what it likes
            future.set_exception(error if isinstance(error, UserError) else _cannot_travel(sample, error))
            return future
        self._pool.put(Job(sample, payload, future))
        return future

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Scores of all samples, in their order."""
        return [future.result() for future in [self.submit(sample) for sample in samples]]

    def drain_problems(self) -> list[Problem]:
        """The distinct problems since the last call, most frequent first."""
        with self._lock:
            recent, self._recent = self._recent, {}
        return sorted(recent.values(), key=lambda problem: -problem.count)

    def close(self) -> None:
        """End the workers. Futures that are not done are cancelled or get a RuntimeError."""
        self._pool.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self, job: Job, outcome: Outcome) -> None:
        """Called by the pool's thread for every job."""
        if outcome.printed:
            self._show_print(job.sample, outcome.printed)
        if outcome.kind is None:
            job.future.set_result(Score(outcome.value, outcome.extras))
            return
        self._remember(job.sample, outcome)
        try:
            score = self._on_error(self, job.sample, outcome.text)
        except UserError as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(score)

    def _remember(self, sample: Sample, outcome: Outcome) -> None:
        with self._lock:
            self.problems[outcome.kind] += 1
            headline = outcome.text.partition("\n")[0]
            if headline not in self._recent and len(self._recent) >= _PROBLEMS_REMEMBERED:
                headline = "other problems"
            known = self._recent.get(headline)
            first, text = (known.first, known.text) if known else (sample, outcome.text)
            self._recent[headline] = Problem(text, (known.count if known else 0) + 1, first)

    def _show_print(self, sample: Sample, printed: str) -> None:
        """Each distinct print once, so that a chatty function does not flood the log."""
        seen = hash(printed)
        if seen not in self._prints_shown and len(self._prints_shown) < _PRINTS_REMEMBERED:
            self._prints_shown.add(seen)
            logger.debug("%s printed: %s", self.source.label(sample.data_source), printed)


def choose_source(settings: RewardSettings, reward: Callable[..., Any] | None) -> Source:
    """Callable before custom_reward_function.path before the built-in rules."""
    if reward is not None:
        if settings.path is not None:
            logger.warning("custom_reward_function.path=%s is not used: a function was given in Python", settings.path)
        return FromCallable(reward)
    if settings.path is not None:
        return FromFile(settings.path, settings.name)
    return FromRules()


def _cannot_travel(sample: Sample, error: Exception) -> UserError:
    return UserError(
        f"ground_truth or extra_info of uid {sample.uid!r} cannot be sent to a worker: {type(error).__name__}: {error}"
    )
