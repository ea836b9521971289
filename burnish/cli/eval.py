"""burnish eval: score the responses in a file."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from burnish.cli.parser import add_config_arguments, load_config

if TYPE_CHECKING:
    from burnish.jobs.eval.measure import Summary
    from burnish.jobs.eval.run import Report

PAGE_WIDTH = 160  # columns of the table if the output is not a terminal


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="score the responses in a file",
        description="Scores the responses in a file and prints a table per data source. `burnish explain --job eval`"
        " documents the keys.",
    )
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status 1 if no response of some data source could be scored."""
    loaded = load_config(args, "eval")
    if loaded is None:
        return 0
    from burnish.jobs.eval.run import evaluate_loaded
    from burnish.log.console import get_stderr

    # Results go to stdout, notices to stderr.
    stderr = get_stderr()
    for notice in loaded.notices:
        stderr.print(notice)
    report = evaluate_loaded(loaded, console=stderr)
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        show(report)
    for problem in report.problems:
        stderr.print(f"reward problem ({problem.count} times): {problem.text}", style="yellow")
    return 1 if report.failed_sources else 0


def show(report: Report) -> None:
    """Print a table with one row per data source, and a row for all if there are several."""
    from rich.table import Table

    from burnish.log.console import Console

    summaries = dict(report.sources)
    if len(summaries) > 1:
        summaries["(all)"] = report.overall
    columns = [(name, cells) for name, cells in _columns(list(summaries.values())) if any(cells)]
    table = Table("data source", *(name for name, _ in columns))
    for row, source in enumerate(summaries):
        table.add_row(source, *(cells[row] for _, cells in columns), end_section=row == len(report.sources) - 1)
    console = Console()
    console.print(table, width=None if console.is_terminal else PAGE_WIDTH)


def _columns(summaries: list[Summary]) -> list[tuple[str, list[str]]]:
    """(name, one cell per summary) for each column."""

    def cells(form: str, values: list) -> list[str]:
        return ["" if value is None else form.format(value) for value in values]

    def at_k(name: str, label: str, sizes: list[int]) -> list[tuple[str, list[str]]]:
        return [
            (f"{label}@{k}", cells("{:.3f}", [getattr(summary, name).get(k) for summary in summaries])) for k in sizes
        ]

    sizes = sorted({k for summary in summaries for k in summary.best_at if k > 1})
    all_pass = all(summary.pass_at for summary in summaries)  # then best@k adds nothing to pass@k
    intervals = [
        summary.interval and f"{summary.interval[0]:.3f} to {summary.interval[1]:.3f}" for summary in summaries
    ]
    return [
        ("rows", cells("{}", [summary.rows for summary in summaries])),
        ("responses", cells("{}", [summary.responses for summary in summaries])),
        ("score", cells("{:.3f}", [summary.score for summary in summaries])),
        ("95 %", cells("{}", intervals)),
        ("acc", cells("{:.3f}", [summary.acc for summary in summaries])),
        *at_k("pass_at", "pass", sizes),
        *([] if all_pass else at_k("best_at", "best", sizes)),
        *at_k("maj_at", "maj", sizes),
        ("failed", cells("{}", [summary.failed or None for summary in summaries])),
    ]
