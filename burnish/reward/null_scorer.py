"""NullScorer: replaces Scorer when only a reward model scores responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from burnish.reward.sample import Problem, Report, Sample, Score


class NullScorer:
    """Accepts any data source, starts no workers, and scores every sample 0."""

    reads_prompts = False
    reads_rows = False
    reads_pictures = False
    notices: tuple[str, ...] = ()

    def check_sources(self, names: Iterable[str]) -> None:
        """Accept any data source."""

    def check_columns(self, names: Iterable[str]) -> None:
        """Accept any columns."""

    def begin(self) -> None:
        """Do nothing."""

    def expect(self, count: int) -> None:
        """Do nothing."""

    def withdraw(self) -> None:
        """Do nothing."""

    def already_scored(self) -> None:
        """Do nothing."""

    def fail(self, sample: Sample, problem: str) -> Score:
        return Score(0.0, {}, problem)

    def submit(self, sample: Sample) -> Future[Score]:
        future: Future[Score] = Future()
        future.set_result(Score(0.0))
        return future

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(0.0) for _ in samples]

    def drain(self) -> Report:
        return Report()

    def drain_problems(self) -> list[Problem]:
        return []

    def check_failures(self, where: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
