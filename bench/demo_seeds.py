"""Does the demo hold for every seed? Accuracy before and after reinforcement, and the time, for many seeds.

usage: bench/demo_seeds.py [--seeds 20] [--first 1] [--jobs 1]
A seed holds if held-out greedy accuracy is in [0.2, 0.4] before and at least 0.8 after, within 180 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor


def demo(seed: int, threads: int | None) -> dict:
    """The command's own last line. With several jobs at once each gets one thread."""
    import os

    env = dict(os.environ) if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "burnish.cli.main", "demo", "--seed", str(seed), "--json", "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"seed {seed}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def holds(result: dict) -> bool:
    return 0.2 <= result["before"] <= 0.4 and result["after"] >= 0.8 and result["seconds"] <= 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at once; times then say nothing")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    print("| seed | before | after | seconds | holds |\n|---|---|---|---|---|")
    with ThreadPoolExecutor(args.jobs) as pool:
        results = []
        for result in pool.map(lambda seed: demo(seed, None if args.jobs == 1 else 1), seeds):
            results.append(result)
            cells = [result["seed"], result["before"], result["after"], result["seconds"]]
            print("| " + " | ".join(map(str, cells)) + f" | {'yes' if holds(result) else 'NO'} |", flush=True)
    good = sum(map(holds, results))
    print(f"\n{good} of {len(results)} seeds hold")
    return 0 if good >= 0.95 * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
