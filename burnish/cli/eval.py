"""burnish eval: a thin caller of burnish.jobs.eval."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from burnish.config import load

if TYPE_CHECKING:
    from burnish.jobs.eval.measure import Summary
    from burnish.jobs.eval.run import Report

PAGE = 160  # columns of the table where no terminal says how wide it is


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="score the responses in a file",
        description="burnish eval data.path=RESPONSES.parquet [key=value ...] [--json]",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the config tree")
    parser.add_argument("--config-path", metavar="DIR", help="folder of YAML configs")
    parser.add_argument("--config-name", metavar="NAME", help="YAML config in that folder, with or without .yaml")
    parser.add_argument("--cfg", action="store_true", help="print the resolved config and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: argparse.Namespace) -> int:
    """Exit status 1 if not one response of some data source could be scored."""
    loaded = load(args.overrides, config_path=args.config_path, config_name=args.config_name, job="eval")
    if args.cfg:
        print(loaded.yaml(), end="")
        return 0
    from rich.console import Console

    from burnish.jobs.eval.run import evaluate_loaded

    # Results go to standard output, everything said on the way to standard error.
    aside = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
    for notice in loaded.notices:
        aside.print(notice)
    report = evaluate_loaded(loaded, console=aside)
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        show(report)
    for problem in report.problems:
        aside.print(f"reward problem, {problem.count} times: {problem.text}", style="yellow")
    return 1 if report.hopeless else 0


def show(report: Report) -> None:
    """A line per data source, and one for all where there are several."""
    from rich.console import Console
    from rich.table import Table

    summaries = dict(report.sources)
    if len(summaries) > 1:
        summaries["(all)"] = report.overall
    columns = [(name, cells) for name, cells in _columns(list(summaries.values())) if any(cells)]
    table = Table("data source", *(name for name, _ in columns))
    for row, source in enumerate(summaries):
        table.add_row(source, *(cells[row] for _, cells in columns), end_section=row == len(report.sources) - 1)
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(table, width=None if console.is_terminal else PAGE)


def _columns(summaries: list[Summary]) -> list[tuple[str, list[str]]]:
    """(name, a cell per summary); a column without a single number is left out."""

    def each(form: str, values: list) -> list[str]:
        return ["" if value is None else form.format(value) for value in values]

    def at(name: str, label: str, sizes: list[int]) -> list[tuple[str, list[str]]]:
        return [(f"{label}@{k}", each("{:.3f}", [getattr(one, name).get(k) for one in summaries])) for k in sizes]

    sizes = sorted({k for one in summaries for k in one.best_at if k > 1})
    all_pass = all(one.pass_at for one in summaries)  # then the best of k says the same or less
    intervals = [one.interval and f"{one.interval[0]:.3f} to {one.interval[1]:.3f}" for one in summaries]
    return [
        ("rows", each("{}", [one.rows for one in summaries])),
        ("responses", each("{}", [one.responses for one in summaries])),
        ("score", each("{:.3f}", [one.score for one in summaries])),
        ("95 %", each("{}", intervals)),
        ("acc", each("{:.3f}", [one.acc for one in summaries])),
        *at("pass_at", "pass", sizes),
        *([] if all_pass else at("best_at", "best", sizes)),
        *at("maj_at", "maj", sizes),
        ("failed", each("{}", [one.failed or None for one in summaries])),
    ]
