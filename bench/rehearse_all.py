"""Rehearse every launch command in a folder of cases for one step, and print the outcomes.

    python bench/rehearse_all.py [--cases ../shared/cases] [--only PATTERN] [--jobs N] [--steps N]

A case file has JSON lines: `name`, `entry` and `argv` of a command, or `file` and `config` of a YAML.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

# Programs that Burnish does not support: preference training and tools.
UNSUPPORTED = re.compile(r"train_(dpo|kto|rm|prm)|batch_inference|configs/(model|datasets|envs|tools)/|dpo_")


@dataclass(frozen=True)
class Case:
    """One command, or one YAML file within its tree."""

    name: str
    words: tuple[str, ...] = ()
    config: str = ""  # path of the YAML


@dataclass(frozen=True)
class Outcome:
    """A row of the table."""

    name: str
    verdict: str
    seconds: float
    dropped: int
    messages: str


def cases(folder: Path, only: str, trees: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            name = f"{path.stem} {row['version']} {row.get('name') or row['file']}"
            config = _write(trees / row["version"], row) if "config" in row else ""
            words = () if config else ("python3", "-m", row["entry"], *row["argv"])
            unsupported = UNSUPPORTED.search(row.get("entry") or row["file"])
            if unsupported is None and re.search(only, name):
                yield Case(name, words, config)


def _write(tree: Path, row: dict[str, Any]) -> str:
    """Write the YAML at its path in the tree, so that its `defaults:` find the config groups beside it."""
    path = tree / row["file"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(row["config"], sort_keys=False), encoding="utf-8")
    return str(path)


def rehearse_case(case: Case, steps: int) -> Outcome:
    from burnish.dialects.translate import translate_command, translate_yaml
    from burnish.errors import UserError
    from burnish.rehearsal.rehearse import rehearse

    try:
        translation = translate_yaml(case.config) if case.config else translate_command(case.words)
    except UserError as error:
        return Outcome(case.name, "cannot be read", 0.0, 0, error.text())
    report = rehearse(translation, steps=steps)
    messages = report.refused + [finding.text for finding in report.findings]
    return Outcome(case.name, report.verdict, report.seconds, len(report.dropped), " | ".join(messages))


def _one(task: tuple[Case, int]) -> Outcome:
    try:
        return rehearse_case(*task)
    except Exception as error:  # a bug in one case must not hide the others
        return Outcome(task[0].name, "CRASHED", 0.0, 0, f"{type(error).__name__}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, default=Path(__file__).parents[2] / "shared" / "cases")
    parser.add_argument("--only", default="", help="regular expression on dialect, version and name")
    parser.add_argument("--jobs", type=int, default=1, help="cases to run in parallel")
    parser.add_argument("--steps", type=int, default=1)
    args = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with tempfile.TemporaryDirectory() as trees:
        tasks = [(case, args.steps) for case in cases(args.cases, args.only, Path(trees))]
        outcomes: list[Outcome] = []
        # Replace processes regularly: modules imported by a user's files stay loaded.
        with get_context("spawn").Pool(args.jobs, maxtasksperchild=20) as pool:
            for outcome in pool.imap(_one, tasks):
                outcomes.append(outcome)
                print(
                    f"{outcome.verdict:<14} {outcome.seconds:6.1f} s  {outcome.dropped:2d} dropped  {outcome.name}"
                    + (f"\n    {outcome.messages[:400]}" if outcome.messages else ""),
                    flush=True,
                )
    passed = [outcome for outcome in outcomes if outcome.verdict == "passed"]
    slowest = max((outcome.seconds for outcome in outcomes), default=0.0)
    share = len(passed) / max(1, len(outcomes))
    print(f"{len(passed)} of {len(outcomes)} passed ({share:.1%}); the slowest took {slowest:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
