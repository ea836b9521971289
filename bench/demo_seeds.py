"""The demo with many seeds: accuracy before and after reinforcement learning, and time.

    python bench/demo_seeds.py [--seeds 20] [--first 1] [--jobs 1]

A seed passes if held-out greedy accuracy is in [0.2, 0.4] before and at least 0.8 after, within 180 s. Runs of
20 seeds write demo_seeds.json. Exits with status 1 if fewer than 95 % pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import tables

COLUMNS = {
    "seed": "{seed}",
    "before": "{before:.3f}",
    "after": "{after:.3f}",
    "seconds": "{seconds:.1f}",
    "pass": "{passed}",
}


def demo(seed: int, threads: int | None) -> dict:
    """The JSON line that `burnish demo` prints."""
    env = dict(os.environ) if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "burnish.cli.main", "demo", "--seed", str(seed), "--json", "--folder", folder]
        finished = subprocess.run(command, capture_output=True, text=True, env=env)
    if finished.returncode:
        raise SystemExit(f"seed {seed}: {finished.stderr.strip()}")
    return json.loads(finished.stdout.strip().splitlines()[-1])


def passes(result: dict) -> bool:
    return 0.2 <= result["before"] <= 0.4 and result["after"] >= 0.8 and result["seconds"] <= 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="seeds to run in parallel, with one thread each")
    tables.add_option(parser)
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    print(tables.table(COLUMNS, []), end="")
    rows = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(lambda seed: demo(seed, None if args.jobs == 1 else 1), seeds):
            rows.append({**result, "passed": "yes" if passes(result) else "NO"})
            print(tables.table(COLUMNS, rows[-1:]).splitlines()[-1], flush=True)
    num_passed = sum(map(passes, rows))
    print(f"\n{num_passed} of {len(rows)} seeds pass")
    tables.save(args, "demo_seeds", COLUMNS, rows, full=len(rows) >= 20)
    return 0 if num_passed >= 0.95 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
