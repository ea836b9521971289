"""burnish eval: a file of responses -> scores by data source. Nothing is generated, and no model is loaded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from burnish.config import Loaded, load
from burnish.config.reward import SandboxConfig
from burnish.data.files import ListRows, Rows, read_files
from burnish.jobs.eval.measure import Scored, Summary, summarise
from burnish.jobs.eval.responses import all_samples, check_columns, check_rows
from burnish.jobs.eval.write import check_output, write_scored
from burnish.log.console import counting, has_cursor
from burnish.reward.sample import Problem, Score
from burnish.reward.sandbox.settings import SandboxSettings
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings

if TYPE_CHECKING:
    from burnish.config.jobs import EvalConfig

IN_FLIGHT = 4096  # responses on their way to a worker, so that a large file is never in memory twice
LINES = 10  # of progress, where there is no bar to move


@dataclass(frozen=True)
class Report:
    """What an evaluation found. `scored` has a row's scores, in the order of the file."""

    name: str  # of the rows
    sources: dict[str, Summary]
    overall: Summary
    problems: list[Problem]
    scored: list[Scored]
    seconds: float

    @property
    def hopeless(self) -> list[str]:
        """Data sources of which no response could be scored."""
        return [name for name, found in self.sources.items() if found.failed == found.responses]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; `test_score/...` are verl's names."""
        return {
            "data": self.name,
            "sources": {name: found.as_dict() for name, found in self.sources.items()},
            "all": self.overall.as_dict(),
            "metrics": {f"test_score/{name}": found.score for name, found in self.sources.items()},
            "problems": [{"text": problem.text, "count": problem.count} for problem in self.problems],
            "seconds": round(self.seconds, 3),
        }


def evaluate(
    overrides: Sequence[str] = (),
    *,
    reward: Callable[..., Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
) -> Report:
    """What the command does, from Python. `reward` takes the place of custom_reward_function, `rows` of data.path."""
    loaded = load(overrides, config_path=config_path, config_name=config_name, job="eval")
    return evaluate_loaded(loaded, reward, rows)


def evaluate_loaded(
    loaded: Loaded,
    reward: Callable[..., Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    console: Console | None = None,
) -> Report:
    """Files, columns and rows are checked before a reward is called; the output is written whole, at the end.

    Progress is shown on the console, if there is one.
    """
    cfg: EvalConfig = loaded.cfg
    began = time.monotonic()
    found: Rows = read_files(cfg.data.path, "data.path") if rows is None else ListRows(rows, "rows")
    if cfg.data.output_path is not None:
        check_output(cfg.data.output_path, found)
    check_columns(found, cfg.data, reads_prompts=False)
    sources = check_rows(found, cfg.data)
    with Scorer(settings_of(cfg), reward) as scorer:
        scorer.check_sources(sources)
        check_columns(found, cfg.data, reads_prompts=scorer.reads_prompts)
        with progress(len(found), console) as tell:
            scored = score_rows(scorer, found, cfg, tell)
        problems = scorer.drain_problems()
    if cfg.data.output_path is not None:
        write_scored(found, scored, cfg.data.output_path)
    by_source = _by_source(found, cfg.data.data_source_key, scored)
    summaries = {name: summarise(group) for name, group in by_source.items()}
    return Report(found.name, summaries, summarise(scored), problems, scored, time.monotonic() - began)


def settings_of(cfg: EvalConfig) -> RewardSettings:
    return RewardSettings.of(cfg.custom_reward_function, cfg.reward, SandboxSettings.of(cfg.sandbox, SandboxConfig()))


@contextmanager
def progress(total: int, console: Console | None) -> Iterator[Callable[[int], None]]:
    """Gives a function to be told how many rows are done."""
    if console is None:
        yield lambda done: None
        return
    every = 1 if has_cursor(console) else max(1, total // LINES)
    with counting("rows", total, console) as count:
        yield lambda done: count(done) if done % every == 0 or done == total else None


def score_rows(scorer: Scorer, rows: Rows, cfg: EvalConfig, tell: Callable[[int], None]) -> list[Scored]:
    """All rows, in order; some thousand responses are on their way at once."""
    scored: list[Scored] = []
    waiting: deque[list[Future[Score]]] = deque()
    in_flight = 0

    def take() -> int:
        futures = waiting.popleft()
        scores = [future.result() for future in futures]
        scored.append(Scored([s.value for s in scores], [s.extras for s in scores], [s.problem for s in scores]))
        tell(len(scored))
        return len(futures)

    for samples in all_samples(rows, cfg.data, reads_prompts=scorer.reads_prompts):
        waiting.append([scorer.submit(sample) for sample in samples])
        in_flight += len(samples)
        while in_flight > IN_FLIGHT:
            in_flight -= take()
    while waiting:
        take()
    return scored


def _by_source(rows: Rows, column: str, scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    """In the order in which the sources first appear."""
    groups: dict[str, list[Scored]] = {}
    for number, row in enumerate(scored):
        groups.setdefault(str(rows.row(number)[column]), []).append(row)
    return groups
