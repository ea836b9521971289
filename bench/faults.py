"""What a run survives: faults are done to real runs of a tiny model, and each is compared with a run nobody touched.

usage: bench/faults.py [NAME ...] [--kills 25] [--tries 6] [--seed 0]

Prints the table of docs/reliability.md. `tried` counts faults, `survived` those after which the run reached its end (by
itself, or with the same command), `lost` what then differs: weights, optimizers, sample order, responses, and every
metric but timing_* and perf/*, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from killing import BESIDE, GRPO, PPO, Commands, Instant, Task, Untouched, differences, kill, kill_until

AHEAD = ("async_training.mode=one_step_off",)
TWO_RANKS = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes")


@dataclass
class Counts:
    """One line of the table."""

    tried: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)
    remark: str = ""

    def add(self, survived: bool, lost: Sequence[str]) -> None:
        self.tried += 1
        self.survived += survived
        self.lost += lost


class Bench:
    """Where faults are done: one process to fork commands from, and untouched runs to compare with."""

    def __init__(self, folder: Path, *, kills: int, tries: int, seed: int = 0) -> None:
        self.folder, self.kills, self.tries = folder, kills, tries
        self.chance = random.Random(seed)
        (folder / "task").mkdir(parents=True)
        self.task = Task(folder / "task")
        self.commands = Commands(folder)
        self._untouched: dict[tuple[str, ...], Untouched] = {}
        self._made = 0

    def close(self) -> None:
        self.commands.__exit__()

    def untouched(self, *settings: str) -> Untouched:
        if settings not in self._untouched:
            folder = self.folder / f"whole_{len(self._untouched)}"
            self._untouched[settings] = Untouched(self.commands, self.task, folder, settings)
        return self._untouched[settings]

    def new_folder(self) -> Path:
        self._made += 1
        return self.folder / f"run_{self._made}"


FAULTS: dict[str, Callable[[Bench], Counts]] = {}


def fault(name: str) -> Callable[[Callable], Callable]:
    def put(function: Callable[[Bench], Counts]) -> Callable[[Bench], Counts]:
        FAULTS[name] = function
        return function

    return put


def killed(bench: Bench, *settings: str, kills: int | None = None, but: Sequence[str] = ()) -> Counts:
    whole = bench.untouched(*settings)
    tally = kill_until(whole, bench.kills if kills is None else kills, bench.chance.randrange(10**6), but)
    by_phase = ", ".join(f"{phase} {count}" for phase, count in tally.kills.most_common())
    return Counts(tally.kills.total(), tally.kills.total(), tally.differences, by_phase)


@fault("kill -9, GRPO")
def kill_grpo(bench: Bench) -> Counts:
    return killed(bench, *GRPO)


@fault("kill -9, PPO with a critic")
def kill_ppo(bench: Bench) -> Counts:
    return killed(bench, *PPO)


@fault("kill -9, checkpoints written beside the run")
def kill_beside(bench: Bench) -> Counts:
    """Which checkpoints a disk leaves out that is slower than the run is a matter of time; the last one is not."""
    return killed(bench, *GRPO, *BESIDE, but=["checkpoints"])


@fault("kill -9, one step off")
def kill_ahead(bench: Bench) -> Counts:
    return killed(bench, *GRPO, *AHEAD)


@fault("kill -9, two ranks")
def kill_two_ranks(bench: Bench) -> Counts:
    """To the process that leads them; they end with it."""
    return killed(bench, *GRPO, *TWO_RANKS, kills=max(1, bench.kills // 5))


@fault("SIGTERM from a scheduler")
def terminated(bench: Bench) -> Counts:
    """Exit status 143 and a checkpoint of the step it was in; the same command goes on."""
    whole, counts = bench.untouched(*GRPO), Counts()
    for _ in range(bench.tries):
        folder = bench.new_folder()
        at = whole.instant(bench.chance, ("gen", "update_actor", "save_checkpoint"))
        first = whole.run(folder, at=at, do=lambda pid: os.kill(pid, signal.SIGTERM))
        second = whole.run(folder)
        stopped = first.status == 143 and "stopped after step" in first.printed and "resumed from" in second.printed
        counts.add(stopped and second.status == 0, differences(whole.folder, folder, but=["checkpoints"]))
    return counts


@fault("disk full while saving")
def disk_full(bench: Bench) -> Counts:
    """Two saves in a row are refused; the run says so, goes on, and saves when there is room."""
    whole, counts = bench.untouched(*GRPO), Counts()
    for harm in ("full disk", *(["full tmpfs"] if can_mount() else [])):
        folder = bench.new_folder()
        ended = whole.run(folder, harm=harm)
        told = ended.printed.count("The run goes on, and tries again after every step")
        lost = differences(whole.folder, folder, but=["training/failed_saves", "checkpoints"])
        counts.add(ended.status == 0 and told == 2, lost)
    counts.remark = "a real full disk too" if can_mount() else "writes refused by the system"
    return counts


def can_mount() -> bool:
    """May a process here have a disk of its own?"""
    return os.system("unshare -m true 2> /dev/null") == 0 and os.geteuid() == 0


@fault("checkpoint file truncated or a bit flipped")
def damaged(bench: Bench) -> Counts:
    """Any file of the newest checkpoint: it is named, the one before is used, and the run ends as it should."""
    whole, counts = bench.untouched(*GRPO), Counts()
    for number in range(bench.tries):
        folder = bench.new_folder()
        whole.run(folder, at=Instant("update_actor", 4), do=kill)
        files = sorted(path for path in (folder / "global_step_3").rglob("*") if path.is_file() and path.stat().st_size)
        file = bench.chance.choice(files)
        content = bytearray(file.read_bytes())
        if number % 2:
            content = content[: bench.chance.randrange(len(content))]
        else:
            content[bench.chance.randrange(len(content))] ^= 1 << bench.chance.randrange(8)
        file.write_bytes(content)
        ended = whole.run(folder)
        named = "global_step_3 is damaged" in ended.printed and "global_step_2" in ended.printed
        counts.add(ended.status == 0 and named, differences(whole.folder, folder))
    return counts


@fault("a rank of two is killed")
def rank_killed(bench: Bench) -> Counts:
    """The run restarts from its last checkpoint by itself, with two new ranks."""
    whole, counts = bench.untouched(*GRPO, *TWO_RANKS), Counts()
    for _ in range(max(1, bench.tries // 2)):
        folder, hit = bench.new_folder(), []
        at = whole.instant(bench.chance, ("gen", "ref", "update_actor", "save_checkpoint"))
        ended = whole.run(folder, at=at, do=lambda pid: hit.append(kill(bench.chance.choice(ranks_of(pid)))))
        restarted = "of 2 was killed by SIGKILL; the run goes on from its last checkpoint" in ended.printed
        lost = differences(whole.folder, folder, but=["training/restarts"])
        counts.add(ended.status == 0 and restarted and len(hit) == 1, lost)
    return counts


def ranks_of(pid: int) -> list[int]:
    """The processes that hold the roles of this run."""
    return [child for child in child_processes(pid) if b"burnish.distributed.host" in command_line(child)]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@fault("a worker dies again and again")
def worker_died(bench: Bench) -> Counts:
    """Two deaths in one run, each survived."""
    whole, counts = bench.untouched(*GRPO), Counts()
    for _ in range(max(1, bench.tries // 2)):
        folder = bench.new_folder()
        ended = whole.run(folder, harm="worker dies")
        lost = differences(whole.folder, folder, but=["training/restarts"])
        for restart in (1, 2):
            counts.add(ended.status == 0 and f"restart {restart}: rank 1 of 2 was killed" in ended.printed, lost)
            lost = []
    return counts


@fault("a rank hangs")
def hung(bench: Bench) -> Counts:
    """The watchdog names phase and rank, writes the stacks down and ends the run; the same command goes on."""
    whole, counts = bench.untouched(*GRPO), Counts()
    patient = Untouched.__new__(Untouched)
    patient.__dict__ |= vars(whole) | {"settings": (*whole.settings, "trainer.hang_timeout=1.5")}
    for _ in range(max(1, bench.tries // 3)):
        folder = bench.new_folder()
        first = patient.run(folder, harm="hang")
        stacks = folder / "hang_rank_0.txt"
        named = "rank 0 hangs in step, update_actor" in first.printed and stacks.exists()
        named = named and first.status == 124 and "in hung" in stacks.read_text()
        counts.add(named and whole.run(folder).status == 0, differences(whole.folder, folder))
    return counts


@fault("a reward worker is killed")
def reward_worker_killed(bench: Bench) -> Counts:
    """Its samples are scored by the next one."""
    whole, counts = bench.untouched(*GRPO), Counts()
    for _ in range(bench.tries):
        folder, hit = bench.new_folder(), []
        at = Instant("reward", bench.chance.randint(1, whole.counts["reward"]))
        ended = whole.run(folder, at=at, do=lambda pid: hit.append(kill_leaf(pid)))
        counts.add(ended.status == 0 and hit == [True], differences(whole.folder, folder))
    return counts


def kill_leaf(pid: int) -> bool:
    """kill -9 to the process at the end of this one's line of children."""
    leaf = pid
    while children := child_processes(leaf):
        leaf = children[-1]
    if leaf != pid:
        kill(leaf)
    return leaf != pid


def child_processes(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in task.read_text().split()]
    return found


@fault("the tracker is unreachable or hangs")
def tracker_gone(bench: Bench) -> Counts:
    """It is named once, the run goes on, and the numbers are in the run folder though nobody asked for a file."""
    whole, counts = bench.untouched(*GRPO), Counts()
    for harm in ("tracker unreachable", "tracker hangs"):
        folder = bench.new_folder()
        arguments = bench.task.arguments(folder, *whole.settings, "trainer.logger=[console,tensorboard]")
        ended = bench.commands.run(arguments, harm=harm)
        named = ended.printed.count("failed in log") == 1
        counts.add(ended.status == 0 and named, differences(whole.folder, folder))
    return counts


def table(rows: dict[str, Counts]) -> str:
    lines = ["| fault | tried | survived | lost |", "|---|---|---|---|"]
    lines += [f"| {name} | {row.tried} | {row.survived} | {len(row.lost)} |" for name, row in rows.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *FAULTS], metavar="NAME", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--kills", type=int, default=25, help="kill -9 for each way of training")
    parser.add_argument("--tries", type=int, default=6, help="of every other fault")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "bench", kills=asked.kills, tries=asked.tries, seed=asked.seed)
        for name in asked.names or FAULTS:
            rows[name] = FAULTS[name](bench)
            print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
        bench.close()
    print(table(rows))
    return 0 if all(row.survived == row.tried and not row.lost for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
