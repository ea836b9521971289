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
from burnish.registry import Registry
from burnish.reward.call import Caller
from burnish.reward.evaluate import pack
from burnish.reward.inline import Inline
from burnish.reward.pool import Pool
from burnish.reward.process import Job
from burnish.reward.programs import Programs
from burnish.reward.remote import Remote, check_urls
from burnish.reward.sample import Outcome, Problem, Sample, Score
from burnish.reward.settings import RewardSettings
from burnish.reward.source import FromCallable, FromFile, FromRemoteFile, FromRules, FromUrls, FromVerifiers, Source

logger = logging.getLogger("burnish.reward")

_RESPONSE_SHOWN = 200
_PRINTS_REMEMBERED = 1000
_PROBLEMS_REMEMBERED = 100  # distinct ones between two drains; more are counted under the last

ON_ERROR = Registry("way to treat a failing reward", key="reward.on_error")


@ON_ERROR.register("fallback")
def give_fallback(scorer: Scorer, sample: Sample, problem: str) -> Score:
    """The fallback score, with the problem beside it."""
    return Score(scorer.settings.fallback_score, {}, problem)


@ON_ERROR.register("stop", stops=True)
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

    caller: type[Caller] = Caller  # how a user's own function is called

    def __init__(self, settings: RewardSettings, reward: Callable[..., Any] | None = None) -> None:
        self.settings = settings
        self._on_error = ON_ERROR[settings.on_error].load()
        self.source = choose_source(settings, reward, self.caller)
        self.problems: Counter[str] = Counter()  # by kind, since the beginning
        self._recent: dict[str, Problem] = {}
        self._prints_shown: set[int] = set()
        self._lock = threading.Lock()
        self._pool: Pool | Inline | Remote = self._make_pool()
        self._programs: Programs | None = None  # made when a data source turns up whose answers are code

    def check_sources(self, names: Iterable[str]) -> None:
        """UserError if one of these data sources has no reward; call it as soon as the data is known."""
        names = list(names)
        self.source.check_sources(names, self.settings.reward_kwargs)
        if any(self.source.runs_code(name) for name in names):
            self._code_pool()

    @property
    def notices(self) -> list[str]:
        """What a person should know about how answers are scored."""
        return [*self._pool.notices, *([] if self._programs is None else [self._programs.notice])]

    def _code_pool(self) -> Programs:
        with self._lock:
            if self._programs is None:
                self._programs = Programs(self.settings.sandbox, self._finish)
            return self._programs

    def _make_pool(self) -> Pool | Inline | Remote:
        if isinstance(self.source, FromUrls):
            return Remote(self.settings, self._finish)
        kind = Pool if self.settings.num_workers > 0 else Inline
        return kind(self.source, self.settings, self._finish)

    @property
    def reads_prompts(self) -> bool:
        """Does it want the whole texts of samples?"""
        return self.source.reads_prompts

    def begin(self) -> None:
        """A new round of responses begins: what was expected and never came is forgotten."""

    def expect(self, count: int) -> None:
        """So many more samples will be submitted. Only a manager that calls once per batch waits for them."""

    def submit(self, sample: Sample) -> Future[Score]:
        """Queue a sample; thread-safe, returns at once."""
        future: Future[Score] = Future()
        try:
            self.source.check_sources([sample.data_source], {})
            payload = pack(sample)
        except Exception as error:  # an object in extra_info that cannot be pickled raises what it likes
            future.set_exception(error if isinstance(error, UserError) else cannot_travel(sample, error))
            return future
        pool = self._code_pool() if self.source.runs_code(sample.data_source) else self._pool
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
        """End the workers. Futures that are not done are cancelled or get a RuntimeError."""
        self._pool.close()
        if self._programs is not None:
            self._programs.close()

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


def choose_source(settings: RewardSettings, reward: Callable[..., Any] | None, caller: type[Caller] = Caller) -> Source:
    """A Python function before custom_reward_function.path; verifiers or a remote reward alone; else the rules."""
    _refuse_two(settings, reward)
    if reward is not None:
        if settings.path is not None:
            logger.warning("custom_reward_function.path=%s is not used: a function was given in Python", settings.path)
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


def _refuse_two(settings: RewardSettings, reward: Callable[..., Any] | None) -> None:
    """A function that was given in Python is unknown to the config's rules; this holds for all."""
    named = {
        "a reward function": reward is not None or settings.path is not None,
        "reward.verifiers": bool(settings.verifiers),
        "reward.remote_url": bool(settings.remote_url),
    }
    given = [name for name, is_given in named.items() if is_given]
    if len(given) > 1:
        problem = f"{' and '.join(given)} are set together: which one scores?"
        raise UserError(problem, key=given[-1], hint=f"only {given[0]}")


def cannot_travel(sample: Sample, error: Exception) -> UserError:
    return UserError(
        f"ground_truth or extra_info of uid {sample.uid!r} cannot be sent to a worker: {type(error).__name__}: {error}"
    )
