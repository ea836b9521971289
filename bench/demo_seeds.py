"""The demo with many seeds: accuracy before and after reinforcement learning, and time.

    python bench/demo_seeds.py [--task sort] [--seeds N] [--first 1] [--jobs 1]
    python bench/demo_seeds.py --task tools --shuffled --seeds 2

A seed passes if held-out greedy accuracy rises from the range in BARS to more than its target, within 180 s. Full runs
(20 seeds of `sort`, 10 of `tools`) write demo_seeds.json or demo_tools_seeds.json. Exits with status 1 if fewer seeds
pass than the task requires.

`--shuffled` is a control of the task `tools`: the calculator answers with the result of another call. Then a seed
passes if accuracy stays below the target, and the result file is demo_tools_shuffled.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tables

from burnish.demo.run import run_demo
from burnish.rollout.tools.builtin.calculator import SCHEMA, Calculator
from burnish.rollout.tools.tool import ToolResult

COLUMNS = {
    "seed": "{seed}",
    "before": "{before:.3f}",
    "after": "{after:.3f}",
    "seconds": "{seconds:.1f}",
    "pass": "{passed}",
}


@dataclass(frozen=True)
class Bar:
    """What a task must reach."""

    name: str  # of the result file
    seeds: int
    before: tuple[float, float]  # accuracy after the warm-up
    after: float  # accuracy at the end, at least
    share: float  # of the seeds


BARS = {
    "sort": Bar("demo_seeds", 20, (0.2, 0.4), 0.8, 0.95),
    "tools": Bar("demo_tools_seeds", 10, (0.0, 0.4), 0.8, 0.9),
}


def demo(task: str, seed: int, threads: int | None) -> dict:
    """The JSON line that `burnish demo` prints."""
    env = dict(os.environ) if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "burnish.cli.main", "demo", "--task", task, "--seed", str(seed), "--json"]
        finished = subprocess.run([*command, "--folder", folder], capture_output=True, text=True, env=env)
    if finished.returncode:
        raise SystemExit(f"seed {seed}: {finished.stderr.strip()}")
    return json.loads(finished.stdout.strip().splitlines()[-1])


class ShuffledCalculator(Calculator):
    """Answers with the result of another call."""

    def __init__(self, seed: int) -> None:
        super().__init__(SCHEMA)
        self.results: list[ToolResult] = []
        self.rng = random.Random(seed)

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        result = await super().call(state, arguments)
        other = self.rng.choice(self.results[-200:] or [result])
        self.results.append(result)
        return other


def shuffled_demo(seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(run_demo(Path(folder), seed, task="tools", tools=[ShuffledCalculator(seed)]).line())


def passes(bar: Bar, result: dict) -> bool:
    low, high = bar.before
    return low <= result["before"] <= high and result["after"] >= bar.after and result["seconds"] <= 180


def control(args: argparse.Namespace, bar: Bar) -> int:
    rows = []
    for seed in range(args.first, args.first + (args.seeds or 2)):
        result = shuffled_demo(seed)
        rows.append({**result, "passed": "yes" if result["after"] < bar.after else "NO"})
        print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
    tables.save(args, "demo_tools_shuffled", COLUMNS, rows, full=len(rows) >= 2)
    return 0 if all(row["passed"] == "yes" for row in rows) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=BARS, default="sort")
    parser.add_argument("--seeds", type=int, help="number of seeds (default: 20 of sort, 10 of tools)")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="seeds to run in parallel, with one thread each")
    parser.add_argument("--shuffled", action="store_true", help="a control: the tool answers other calls")
    tables.add_option(parser)
    args = parser.parse_args()
    bar = BARS[args.task]
    if args.shuffled:
        return control(args, bar)
    seeds = range(args.first, args.first + (args.seeds or bar.seeds))
    print(tables.table(COLUMNS, []), end="")
    rows = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(lambda seed: demo(args.task, seed, None if args.jobs == 1 else 1), seeds):
            rows.append({**result, "passed": "yes" if passes(bar, result) else "NO"})
            print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
    num_passed = sum(row["passed"] == "yes" for row in rows)
    print(f"\n{num_passed} of {len(rows)} seeds pass")
    tables.save(args, bar.name, COLUMNS, rows, full=len(rows) >= bar.seeds)
    return 0 if num_passed >= bar.share * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
