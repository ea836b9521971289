"""burnish eval: score the responses in files, by data source. Loads no model and generates nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from burnish.config import Loaded, Overrides, load
from burnish.config.reward import SandboxConfig
from burnish.data.files import ListRows, Rows, read_files
from burnish.distributed.ray import RayCluster
from burnish.jobs.eval.measure import ScoredRow, Summary, summarize
from burnish.jobs.eval.responses import all_samples, check_columns, check_rows
from burnish.jobs.eval.write import check_output, write_scored
from burnish.log.console import Console, progress_counter
from burnish.loop.launch import ray_options
from burnish.loop.reward_nodes import reward_nodes
from burnish.reward.sample import Problem, Score
from burnish.reward.sandbox.settings import SandboxSettings
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings

if TYPE_CHECKING:
    from burnish.config.jobs import EvalConfig

CLUSTER_TIMEOUT = 300.0  # seconds to wait for the resources of a cluster
MAX_PENDING = 4096  # responses submitted and not yet scored, to bound the memory for large files


@dataclass(frozen=True)
class Report:
    """The results of an evaluation. `scored` has the scores of each row, in the order of the file."""

    name: str  # of the rows
    sources: dict[str, Summary]
    overall: Summary
    problems: list[Problem]
    scored: list[ScoredRow]
    seconds: float

    @property
    def failed_sources(self) -> list[str]:
        """Data sources without any response that could be scored."""
        return [name for name, summary in self.sources.items() if summary.failed == summary.responses]

    def as_dict(self) -> dict[str, Any]:
        """For JSON output; `test_score/...` are verl's metric names."""
        return {
            "data": self.name,
            "sources": {name: summary.as_dict() for name, summary in self.sources.items()},
            "all": self.overall.as_dict(),
            "metrics": {f"test_score/{name}": summary.score for name, summary in self.sources.items()},
            "problems": [{"text": problem.text, "count": problem.count} for problem in self.problems],
            "seconds": round(self.seconds, 3),
        }


def evaluate(
    overrides: Overrides = (),
    *,
    reward: Callable[..., Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
) -> Report:
    """Score responses: `burnish eval` from Python.

    `rows` (with `responses`, `data_source` and `reward_model`, as `burnish.generate` returns them) replaces data.path,
    `reward` replaces custom_reward_function. The report has `sources` (by name), `overall`, `scored` and `as_dict()`.
    """
    given = [] if rows is None else ["data.path"]
    loaded = load(overrides, config_path=config_path, config_name=config_name, job="eval", given=given)
    return evaluate_loaded(loaded, reward, rows)


def evaluate_loaded(
    loaded: Loaded,
    reward: Callable[..., Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    console: Console | None = None,
) -> Report:
    """Check files, columns and rows, score them, and write the output atomically at the end.

    Shows progress on `console`, if given.
    """
    cfg: EvalConfig = loaded.cfg
    start = time.monotonic()
    data: Rows = read_files(cfg.data.path, "data.path") if rows is None else ListRows(rows, "rows")
    if cfg.data.output_path is not None:
        check_output(cfg.data.output_path, data)
    check_columns(data, cfg.data, reads_prompts=False)
    sources = check_rows(data, cfg.data)
    with Scorer(on_nodes(cfg, settings_of(cfg)), reward) as scorer:
        scorer.check_sources(sources)
        check_columns(data, cfg.data, reads_prompts=scorer.reads_prompts or scorer.reads_rows or scorer.reads_pictures)
        scorer.check_columns(data.kinds)
        with progress(len(data), console) as report_progress:
            scored = score_rows(scorer, data, cfg, report_progress)
        problems = scorer.drain_problems()
    if cfg.data.output_path is not None:
        write_scored(data, scored, cfg.data.output_path)
    by_source = _by_source(data, cfg.data.data_source_key, scored)
    summaries = {name: summarize(group) for name, group in by_source.items()}
    return Report(data.name, summaries, summarize(scored), problems, scored, time.monotonic() - start)


def settings_of(cfg: EvalConfig) -> RewardSettings:
    return RewardSettings.of(cfg.custom_reward_function, cfg.reward, SandboxSettings.of(cfg.sandbox, SandboxConfig()))


def on_nodes(cfg: EvalConfig, settings: RewardSettings) -> RewardSettings:
    """With the workers on nodes of a Ray cluster where ray_init.reward_nodes asks for it."""
    ray_init = cfg.ray_init
    if not ray_init.reward_nodes:
        return settings

    def open_cluster() -> RayCluster:
        return RayCluster(ray_options(ray_init, CLUSTER_TIMEOUT))

    return replace(settings, pool=reward_nodes(open_cluster, ray_init.reward_nodes, None, CLUSTER_TIMEOUT))


@contextmanager
def progress(total: int, console: Console | None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of rows done."""
    if console is None:
        yield lambda done: None
        return
    with progress_counter("rows", total, console) as count:
        yield count


def score_rows(scorer: Scorer, rows: Rows, cfg: EvalConfig, report_progress: Callable[[int], None]) -> list[ScoredRow]:
    """Score all rows, in order, with at most MAX_PENDING responses submitted at a time."""
    scored: list[ScoredRow] = []
    pending: deque[list[Future[Score]]] = deque()
    num_pending = 0

    def collect_row() -> int:
        futures = pending.popleft()
        scores = [future.result() for future in futures]
        scored.append(ScoredRow([s.value for s in scores], [s.extras for s in scores], [s.problem for s in scores]))
        report_progress(len(scored))
        return len(futures)

    for samples in all_samples(
        rows,
        cfg.data,
        reads_prompts=scorer.reads_prompts,
        reads_rows=scorer.reads_rows,
        reads_pictures=scorer.reads_pictures,
    ):
        pending.append([scorer.submit(sample) for sample in samples])
        num_pending += len(samples)
        while num_pending > MAX_PENDING:
            num_pending -= collect_row()
    while pending:
        collect_row()
    return scored


def _by_source(rows: Rows, column: str, scored: Sequence[ScoredRow]) -> dict[str, list[ScoredRow]]:
    """Rows by data source, in the order of first appearance."""
    groups: dict[str, list[ScoredRow]] = {}
    for number, row in enumerate(scored):
        groups.setdefault(str(rows.row(number)[column]), []).append(row)
    return groups
