"""burnish runs: the runs in a folder, with state, step, time left and best validation."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.cli.parser import print_json

if TYPE_CHECKING:
    from burnish.view.listing import RunSummary

STYLES = {"running": "green", "crashed": "red", "hung": "red", "unreadable": "red"}
HEADER = ("state", "step", "left", "best validation", "updated", "run")
MIN_PATH = 20  # columns; below, the table is wider than the terminal


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "runs",
        help="list the runs in a folder",
        description="Lists the runs in and below a folder, those that wrote last first. States: running, finished,"
        " stopped (Ctrl-C, SIGTERM), hung (ended by trainer.hang_timeout), crashed (an error, or killed), unreadable.",
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(), metavar="FOLDER", help="folder to search (default: .)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array and nothing else")


def run(args: argparse.Namespace) -> int:
    from burnish.log.console import get_console, get_stderr
    from burnish.view.listing import MAX_FOLDERS, list_runs

    runs, complete = list_runs(args.folder)
    if not complete:
        get_stderr().print(f"searched the first {MAX_FOLDERS:,} folders only", style="yellow")
    if args.json:
        print_json([_entry(run) for run in runs])
        return 0
    if not runs:
        get_console().print(f"no runs in {args.folder}")
        return 0
    _print_table(runs, args.folder)
    return 0


def _entry(run: RunSummary) -> dict[str, object]:
    scores = run.validation
    best = None if scores is None else {"step": scores.best_step, "score": scores.best}
    last = None if scores is None else {"step": scores.last_step, "score": scores.last}
    return {
        "path": str(run.path.absolute()),
        "state": run.state,
        "step": run.step,
        "total_steps": run.total_steps,
        "seconds_left": run.seconds_left,
        "best_validation": best,
        "last_validation": last,
        "updated": run.updated,
        "problem": run.problem or None,
    }


def _print_table(runs: list[RunSummary], folder: Path) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    from burnish.escape import printable
    from burnish.log.console import get_console, line_width

    now = time.time()
    rows = [_cells(run, folder, now) for run in runs]
    widths = [max(cell_len(row[column]) for row in [HEADER, *rows]) for column in range(len(HEADER) - 1)]
    console = get_console()
    width = line_width(console)
    room = None if width is None else max(MIN_PATH, width - sum(widths) - 2 * len(widths))
    for row, run in zip([HEADER, *rows], [None, *runs], strict=True):
        text = Text(no_wrap=True)
        for number, (cell, columns) in enumerate(zip(row, widths, strict=False)):
            style = STYLES.get(cell, "") if number == 0 else ""
            text.append(cell + " " * (columns - cell_len(cell)) + "  ", style="bold" if run is None else style)
        text.append(_end(row[-1], room), style="bold" if run is None else "")
        console.print(text, soft_wrap=True)
        if run is not None and run.problem:
            problem = printable(" ".join(run.problem.split()))
            console.print(Text(_start(f"  {problem}", width), style="red"), soft_wrap=True)


def _cells(run: RunSummary, folder: Path, now: float) -> tuple[str, ...]:
    from burnish.escape import printable
    from burnish.log.step_format import duration

    scores = run.validation
    path = run.path.relative_to(folder.expanduser()) if run.path != folder.expanduser() else run.path
    return (
        run.state,
        f"{run.step}/{run.total_steps if run.total_steps is not None else '?'}",
        "" if run.seconds_left is None else duration(run.seconds_left),
        "" if scores is None else f"{scores.best:.4g} (step {scores.best_step})",
        "" if run.updated is None else _ago(now - run.updated),
        printable(str(path)).replace("\n", "\\n"),
    )


def _ago(seconds: float) -> str:
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {name} ago"
    return f"{max(0, int(seconds))} s ago"


def _end(text: str, room: int | None) -> str:
    """The end of a path that is too long: its last names tell runs apart."""
    from rich.cells import cell_len

    if room is None or cell_len(text) <= room:
        return text
    while cell_len(text) > room - 3:
        text = text[1:]
    return f"...{text}"


def _start(text: str, room: int | None) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if room is None or cell_len(text) <= room else f"{set_cell_size(text, room - 3)}..."
