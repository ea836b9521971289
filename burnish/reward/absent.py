"""NoFunction: stands where a Scorer would, when a reward model's score is all that counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from burnish.reward.sample import Problem, Sample, Score


class NoFunction:
    """Calls nothing, starts no process, and takes every data source. Every sample scores 0."""

    reads_prompts = False
    notices: tuple[str, ...] = ()

    def check_sources(self, names: Iterable[str]) -> None:
        """Any data source will do."""

    def begin(self) -> None:
        """There is nothing to wait for."""

    def expect(self, count: int) -> None:
        """However many come."""

    def submit(self, sample: Sample) -> Future[Score]:
        future: Future[Score] = Future()
        future.set_result(Score(0.0))
        return future

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(0.0) for _ in samples]

    def drain_problems(self) -> list[Problem]:
        return []

    def close(self) -> None:
        """There is nothing to end."""
