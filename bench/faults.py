"""Fault injection: real runs of a tiny model are disturbed and compared with an undisturbed run.

    python bench/faults.py [NAME ...] [--kills 25] [--tries 6] [--seed 0]

Prints the table of docs/reliability.md. `tried` counts faults, `survived` those after which the run completed (by
itself or with the same command), `lost` the differences from the undisturbed run: weights, optimizers, sample order,
responses, and every metric except times and the engine's work, bit for bit. Runs of all faults write faults.json,
faults_conversations.json and faults_nodes.json; conversations need the extras mcp and openenv, nodes ray.
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
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tables
from conversations import KINDS, kill_conversations
from killing import ASYNC_SAVE, GRPO, PPO, Baseline, Commands, Instant, Task, differences, kill, kill_repeatedly
from ray_nodes import KINDS as NODE_KINDS
from ray_nodes import kill_nodes

ONE_STEP_OFF = ("async_training.mode=one_step_off",)
COLUMNS = {"fault": "{fault}", "tried": "{tried}", "survived": "{survived}", "lost": "{lost}"}
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
    """A process that forks commands, and undisturbed runs to compare with."""

    def __init__(self, folder: Path, *, kills: int, tries: int, seed: int = 0) -> None:
        self.folder, self.kills, self.tries = folder, kills, tries
        self.rng = random.Random(seed)
        (folder / "task").mkdir(parents=True)
        self.task = Task(folder / "task")
        self.commands = Commands(folder)
        self._baselines: dict[tuple[str, ...], Baseline] = {}
        self._num_folders = 0

    def close(self) -> None:
        self.commands.__exit__()

    def baseline(self, *settings: str) -> Baseline:
        if settings not in self._baselines:
            folder = self.folder / f"baseline_{len(self._baselines)}"
            self._baselines[settings] = Baseline(self.commands, self.task, folder, settings)
        return self._baselines[settings]

    def new_folder(self) -> Path:
        self._num_folders += 1
        return self.folder / f"run_{self._num_folders}"


FAULTS: dict[str, Callable[[Bench], Counts]] = {}


def fault(name: str) -> Callable[[Callable], Callable]:
    def register(function: Callable[[Bench], Counts]) -> Callable[[Bench], Counts]:
        FAULTS[name] = function
        return function

    return register


def killed(bench: Bench, *settings: str, kills: int | None = None, ignore: Sequence[str] = ()) -> Counts:
    num_kills = bench.kills if kills is None else kills
    tally = kill_repeatedly(bench.baseline(*settings), num_kills, bench.rng.randrange(10**6), ignore)
    by_phase = ", ".join(f"{phase} {count}" for phase, count in tally.kills.most_common())
    return Counts(tally.kills.total(), tally.kills.total(), tally.differences, by_phase)


@fault("kill -9, GRPO")
def kill_grpo(bench: Bench) -> Counts:
    return killed(bench, *GRPO)


@fault("kill -9, PPO with a critic")
def kill_ppo(bench: Bench) -> Counts:
    return killed(bench, *PPO)


@fault("kill -9, checkpoints written beside the run")
def kill_async_save(bench: Bench) -> Counts:
    """Which checkpoints are skipped when the disk is slower than the run depends on timing; the last one does not."""
    return killed(bench, *GRPO, *ASYNC_SAVE, ignore=["checkpoints"])


@fault("kill -9, one step off")
def kill_one_step_off(bench: Bench) -> Counts:
    return killed(bench, *GRPO, *ONE_STEP_OFF)


@fault("kill -9, two ranks")
def kill_two_ranks(bench: Bench) -> Counts:
    """Kills the main process; its ranks end with it."""
    return killed(bench, *GRPO, *TWO_RANKS, kills=max(1, bench.kills // 5))


def killed_conversations(bench: Bench, kind: str) -> Counts:
    """No call is executed again that had answered."""
    seed = bench.rng.randrange(10**6)
    outcome = kill_conversations(bench.commands, bench.task, bench.new_folder(), kind, bench.kills, seed)
    by_phase = ", ".join(f"{phase} {count}" for phase, count in outcome.kills.most_common())
    total = outcome.kills.total()
    return Counts(total, total, outcome.lost, f"{by_phase}; {outcome.in_flight} while a tool or environment worked")


CONVERSATIONS = {f"kill -9, conversations with {kind}": partial(killed_conversations, kind=kind) for kind in KINDS}
FAULTS |= CONVERSATIONS


def killed_nodes(bench: Bench, kind: str) -> Counts:
    """Its work is done by the others, or the run restarts by itself; a node that joins is used."""
    folder = bench.new_folder()
    folder.mkdir()
    outcome = kill_nodes(bench.commands, bench.task, folder, kind, bench.tries, bench.rng.randrange(10**6))
    return Counts(outcome.tried, outcome.survived, outcome.lost)


NODES = {f"a node of {kind} is killed, another joins (Ray)": partial(killed_nodes, kind=kind) for kind in NODE_KINDS}
FAULTS |= NODES


@fault("SIGTERM from a scheduler")
def terminated(bench: Bench) -> Counts:
    """Exits with status 143 and a checkpoint of the current step; the same command resumes."""
    baseline, counts = bench.baseline(*GRPO), Counts()
    for _ in range(bench.tries):
        folder = bench.new_folder()
        at = baseline.random_instant(bench.rng, ("gen", "update_actor", "save_checkpoint"))
        first = baseline.run(folder, at=at, do=lambda pid: os.kill(pid, signal.SIGTERM))
        second = baseline.run(folder)
        stopped = first.status == 143 and "stopped after step" in first.printed and "resumed from" in second.printed
        counts.add(stopped and second.status == 0, differences(baseline.folder, folder, ignore=["checkpoints"]))
    return counts


@fault("disk full while saving")
def disk_full(bench: Bench) -> Counts:
    """Two saves in a row fail; the run reports it, continues, and saves when there is space."""
    baseline, counts = bench.baseline(*GRPO), Counts()
    for inject in ("full disk", *(["full tmpfs"] if can_mount() else [])):
        folder = bench.new_folder()
        result = baseline.run(folder, inject=inject)
        reports = result.printed.count("The run continues and tries again after every step")
        lost = differences(baseline.folder, folder, ignore=["training/failed_saves", "checkpoints"])
        counts.add(result.status == 0 and reports == 2, lost)
    counts.remark = "including a full tmpfs" if can_mount() else "file size limit only"
    return counts


def can_mount() -> bool:
    """Whether this process may mount a tmpfs."""
    return os.system("unshare -m true 2> /dev/null") == 0 and os.geteuid() == 0


@fault("checkpoint file truncated or a bit flipped")
def damaged(bench: Bench) -> Counts:
    """A damaged file of the newest checkpoint is reported, and the run resumes from the previous one."""
    baseline, counts = bench.baseline(*GRPO), Counts()
    for number in range(bench.tries):
        folder = bench.new_folder()
        baseline.run(folder, at=Instant("update_actor", 4), do=kill)
        files = sorted(path for path in (folder / "global_step_3").rglob("*") if path.is_file() and path.stat().st_size)
        file = bench.rng.choice(files)
        content = bytearray(file.read_bytes())
        if number % 2:
            content = content[: bench.rng.randrange(len(content))]
        else:
            content[bench.rng.randrange(len(content))] ^= 1 << bench.rng.randrange(8)
        file.write_bytes(content)
        result = baseline.run(folder)
        named = "global_step_3 is damaged" in result.printed and "global_step_2" in result.printed
        counts.add(result.status == 0 and named, differences(baseline.folder, folder))
    return counts


@fault("a rank of two is killed")
def rank_killed(bench: Bench) -> Counts:
    """The run restarts by itself from its last checkpoint, with two new ranks."""
    baseline, counts = bench.baseline(*GRPO, *TWO_RANKS), Counts()
    for _ in range(max(1, bench.tries // 2)):
        folder, hit = bench.new_folder(), []
        at = baseline.random_instant(bench.rng, ("gen", "ref", "update_actor", "save_checkpoint"))
        result = baseline.run(folder, at=at, do=lambda pid: hit.append(kill(bench.rng.choice(ranks_of(pid)))))
        restarted = "of 2 was killed by SIGKILL; resuming from the last checkpoint" in result.printed
        lost = differences(baseline.folder, folder, ignore=["training/restarts"])
        counts.add(result.status == 0 and restarted and len(hit) == 1, lost)
    return counts


def ranks_of(pid: int) -> list[int]:
    """Process ids of the ranks of this run."""
    return [child for child in child_processes(pid) if b"burnish.distributed.host" in command_line(child)]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@fault("a worker dies again and again")
def worker_died(bench: Bench) -> Counts:
    """Two deaths in one run."""
    baseline, counts = bench.baseline(*GRPO), Counts()
    for _ in range(max(1, bench.tries // 2)):
        folder = bench.new_folder()
        result = baseline.run(folder, inject="worker dies")
        lost = differences(baseline.folder, folder, ignore=["training/restarts"])
        for restart in (1, 2):
            counts.add(result.status == 0 and f"restart {restart}: rank 1 of 2 was killed" in result.printed, lost)
            lost = []
    return counts


@fault("a rank hangs")
def hung(bench: Bench) -> Counts:
    """The watchdog reports phase and rank, dumps the stacks and ends the run; the same command resumes."""
    baseline, counts = bench.baseline(*GRPO), Counts()
    watched = Baseline.__new__(Baseline)
    watched.__dict__ |= vars(baseline) | {"settings": (*baseline.settings, "trainer.hang_timeout=1.5")}
    for _ in range(max(1, bench.tries // 3)):
        folder = bench.new_folder()
        first = watched.run(folder, inject="hang")
        stacks = folder / "hang_rank_0.txt"
        named = "rank 0 hangs in step, update_actor" in first.printed and stacks.exists()
        named = named and first.status == 124 and "in hung" in stacks.read_text()
        counts.add(named and baseline.run(folder).status == 0, differences(baseline.folder, folder))
    return counts


@fault("a reward worker is killed")
def reward_worker_killed(bench: Bench) -> Counts:
    """Another worker scores its samples."""
    baseline, counts = bench.baseline(*GRPO), Counts()
    for _ in range(bench.tries):
        folder, hit = bench.new_folder(), []
        at = Instant("reward", bench.rng.randint(1, baseline.counts["reward"]))
        result = baseline.run(folder, at=at, do=lambda pid: hit.append(kill_leaf(pid)))
        counts.add(result.status == 0 and hit == [True], differences(baseline.folder, folder))
    return counts


def kill_leaf(pid: int) -> bool:
    """kill -9 the last process in this one's chain of children."""
    leaf = pid
    while children := child_processes(leaf):
        leaf = children[-1]
    if leaf != pid:
        kill(leaf)
    return leaf != pid


def child_processes(pid: int) -> list[int]:
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        pids += [int(word) for word in task.read_text().split()]
    return pids


@fault("the tracker is unreachable or hangs")
def tracker_gone(bench: Bench) -> Counts:
    """Reported once; the run continues and writes its metrics to the run folder although no file logger is set."""
    baseline, counts = bench.baseline(*GRPO), Counts()
    for inject in ("tracker unreachable", "tracker hangs"):
        folder = bench.new_folder()
        arguments = bench.task.arguments(folder, *baseline.settings, "trainer.logger=[console,tensorboard]")
        result = bench.commands.run(arguments, inject=inject)
        named = result.printed.count("failed in log") == 1
        lost = differences(baseline.folder, folder, ignore=["trainer.logger"])
        counts.add(result.status == 0 and named, lost)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *FAULTS], metavar="NAME", help=f"one of {', '.join(FAULTS)}")
    parser.add_argument("--kills", type=int, default=25, help="number of kill -9 per kind of training")
    parser.add_argument("--tries", type=int, default=6, help="number of tries of every other fault")
    parser.add_argument("--seed", type=int, default=0)
    tables.add_option(parser)
    args = parser.parse_args()
    counts: dict[str, Counts] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "bench", kills=args.kills, tries=args.tries, seed=args.seed)
        for name in args.names or FAULTS:
            counts[name] = FAULTS[name](bench)
            print(f"{name}: {counts[name]}", file=sys.stderr, flush=True)
        bench.close()
    rows = [
        {"fault": name, "tried": row.tried, "survived": row.survived, "lost": len(row.lost), "remark": row.remark}
        for name, row in counts.items()
    ]
    print(tables.table(COLUMNS, rows), end="")
    # Conversations and nodes need more libraries, so they may be run alone; they have tables of their own.
    apart = {"faults_conversations": CONVERSATIONS, "faults_nodes": NODES}
    apart["faults"] = {name: None for name in FAULTS if name not in CONVERSATIONS and name not in NODES}
    for name, kinds in apart.items():
        if tried := [row for row in rows if row["fault"] in kinds]:
            tables.save(args, name, COLUMNS, tried, full=len(tried) == len(kinds))
    return 0 if all(row.survived == row.tried and not row.lost for row in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
