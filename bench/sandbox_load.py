"""Programs of a model under load: how many per second, and what they leave behind.

    python bench/sandbox_load.py [--programs 10000] [--parallel 200] [--burst 1000] [--results FOLDER]

Runs programs in bursts through the sandbox of code rewards, as a step of training does: most are correct, the others
loop, crash, fork, allocate, write files, leave daemons, ignore signals or flood their output. After each burst the
machine is compared with how it was before: processes, mounts, files in the temporary folder, descriptors and memory of
this process, control groups. Prints the table of docs/sandbox.md; full runs write sandbox_load.json.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tables

from burnish.isolation.probe import isolation
from burnish.reward.sandbox.local import LocalRunner
from burnish.reward.sandbox.result import RunResult
from burnish.reward.sandbox.settings import SandboxSettings

MARK = "burnish_sandbox_load"  # on the command line of every process that a program starts
CORRECT = "print(sum(map(int, input().split())))"
# Name -> program, and how many of 100 programs it is. What is left of 100 is correct.
HOSTILE = {
    "crashes": ("raise ValueError", 4),
    "sleeps": ("import time; time.sleep(600)", 2),
    "loops": ("while True: pass", 1),
    "allocates": ("x = bytearray(2**31)", 3),
    "forks": (
        "import os, time\nfor _ in range(20):\n  if os.fork() == 0: time.sleep(600)\ntime.sleep(0.1)",
        3,
    ),
    "leaves a daemon": (
        "import os, subprocess, sys\nif os.fork() == 0:\n  os.setsid()\n"
        f"  subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{MARK}'])\nprint(1)",
        3,
    ),
    "writes files": ("for n in range(200): open(f'file{n}', 'w').write('x' * 10**5)", 3),
    "kills everything": ("import os; os.kill(-1, 9)", 2),
    "floods its output": ("while True: print('x' * 1000)", 3),
}
SECONDS = 2.0  # of hostile programs; correct ones have time, since many share a core
PATIENCE = 300.0


@dataclass(frozen=True)
class Remains:
    """What exists now that could be left behind."""

    processes: int
    mounts: int
    files: int
    descriptors: int

    @staticmethod
    def count() -> Remains:
        return Remains(
            processes=_num_processes(),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            files=len(os.listdir(tempfile.gettempdir())),
            descriptors=len(os.listdir("/proc/self/fd")),
        )

    def more_than(self, before: Remains) -> dict[str, int]:
        mine, theirs = vars(self), vars(before)
        return {name: mine[name] - theirs[name] for name in mine if mine[name] > theirs[name]}


def _num_processes() -> int:
    """Processes below this one, and those of programs that have left it."""
    count, me = 0, os.getpid()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path("/proc", name, "cmdline").read_bytes()
            parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # has ended meanwhile
            continue
        count += int(parent) == me or MARK.encode() in text
    return count


def programs(count: int) -> list[tuple[str, str]]:
    """(name, code) of so many programs, evenly mixed."""
    mix = [name for name, (_, share) in HOSTILE.items() for _ in range(share)]
    mix += ["correct"] * (100 - len(mix))
    order = [mix[(number * 37) % 100] for number in range(count)]  # 37 and 100 have no common factor
    return [(name, CORRECT if name == "correct" else HOSTILE[name][0]) for name in order]


def run(count: int, parallel: int, burst: int) -> dict[str, float | int | str]:
    """Run the programs and return a row of the table."""
    settings = SandboxSettings(timeout=SECONDS, memory_mb=256, output_kb=16, max_parallel=parallel)
    hostile, patient = LocalRunner(settings), LocalRunner(replace(settings, timeout=PATIENCE))
    hostile.check()

    def one(program: tuple[str, str]) -> tuple[str, RunResult]:
        name, code = program
        with (patient if name == "correct" else hostile).prepare(code) as run_it:
            return name, run_it("3 4")

    outcomes: Counter[str] = Counter()
    left: Counter[str] = Counter()
    queue = programs(count)
    with ThreadPoolExecutor(parallel) as threads:
        list(threads.map(one, programs(parallel)))  # threads and caches exist from here on
        before, started, memory = Remains.count(), time.monotonic(), _resident_kb()
        for start in range(0, count, burst):
            for name, result in threads.map(one, queue[start : start + burst]):
                outcomes[outcome(name, result)] += 1
            left += Counter(settled(before))
        seconds = time.monotonic() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "programs": count,
        "parallel": parallel,
        "per_second": count / seconds,
        "cpu_ms": 1e3 * (usage.ru_utime + usage.ru_stime) / (count + parallel),
        "right": outcomes["right"],
        "wrong": outcomes["wrong"],
        "failed": outcomes["sandbox failed"],
        "processes": left["processes"],
        "mounts": left["mounts"],
        "files": left["files"],
        "descriptors": left["descriptors"],
        "memory_mb": max(0, _resident_kb() - memory) / 1024,
    }


def outcome(name: str, result: RunResult) -> str:
    """Whether a program ended as it must: correct ones with their answer, others without it."""
    if result.problem is not None:
        return "sandbox failed"
    is_answer = result.ok and result.stdout == "7\n"
    return "right" if is_answer == (name == "correct") else "wrong"


def settled(before: Remains, seconds: float = 10.0) -> dict[str, int]:
    """What is left after a burst, when the kernel has had time to tear down the last namespaces."""
    deadline = time.monotonic() + seconds
    while (more := Remains.count().more_than(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return more


def _resident_kb() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])


COLUMNS = {
    "programs": "{programs:,}",
    "at a time": "{parallel}",
    "per second": "{per_second:.1f}",
    "CPU per program": "{cpu_ms:.0f} ms",
    "ended as they must": "{right:,}",
    "failures of the sandbox": "{failed}",
    "left: processes, mounts, files, descriptors": "{processes}, {mounts}, {files}, {descriptors}",
    "memory of the run": "+{memory_mb:.0f} MB",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--parallel", type=int, default=200)
    parser.add_argument("--burst", type=int, default=1000)
    tables.add_option(parser)
    args = parser.parse_args()
    if not isolation().strong:
        sys.exit(isolation().description)
    row = run(args.programs, args.parallel, args.burst)
    print(tables.table(COLUMNS, [row]))
    tables.save(args, "sandbox_load", COLUMNS, [row], full=args.programs >= 10_000, isolation=isolation().description)


if __name__ == "__main__":
    main()
