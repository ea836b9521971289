"""A Python that has loaded everything, and forks a `burnish` command whenever it is told to.

A run that is killed fifty times need not import torch fifty times. Each line of standard input is a JSON object:
{"arguments": [...], "output": "file", "harm": "name" or null}. Each line of standard output is about the command that
runs: "pid N", "enter PHASE", "leave PHASE", and "status N" at its end. The phases are told from outside: nothing in
burnish knows of this.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import burnish.cli.main
import burnish.log.patience
import burnish.loop.api
import burnish.loop.fit
import burnish.training.checkpoint as checkpoint
from burnish.config import load
from burnish.errors import WorkerDied
from burnish.log.clock import Clock
from burnish.log.tensorboard import TensorboardLogger
from burnish.reward.sandbox import linux
from burnish.reward.score import Scorer
from burnish.training.checkpoint import Checkpoints
from burnish.training.policy import Policy

SMALL = 2000  # bytes that fit on a disk that is full
DISK = 6_000_000  # bytes of a disk of our own
HARMS: dict[str, Callable[[list[str]], None]] = {}
AFTERWARDS: list[Callable[[], object]] = []  # done when the command has ended by itself


def harm(name: str) -> Callable[[Callable], Callable]:
    def put(function: Callable) -> Callable:
        HARMS[name] = function
        return function

    return put


def around(owner: object, name: str, phase: str, say: Callable[[str], None]) -> None:
    """Tell when this function is entered and left."""
    function = getattr(owner, name)

    def told(*arguments: object, **more: object) -> object:
        say(f"enter {phase}")
        try:
            return function(*arguments, **more)
        finally:
            say(f"leave {phase}")

    setattr(owner, name, told)


def tell_phases(say: Callable[[str], None]) -> None:
    enter, leave = Clock._enter, Clock._leave

    def entered(self: Clock, name: str) -> None:
        say(f"enter {name}")
        enter(self, name)

    def left(self: Clock, name: str) -> None:
        leave(self, name)
        say(f"leave {name}")

    Clock._enter, Clock._leave = entered, left
    around(burnish.loop.api, "resume", "resume", say)
    around(Checkpoints, "save", "write", say)
    around(checkpoint, "_write_manifest", "manifest", say)
    around(Checkpoints, "keep", "keep", say)
    around(Scorer, "submit", "reward", say)
    around(burnish.loop.fit, "dump_rollouts", "dump", say)


@harm("full disk")
def full_disk(arguments: list[str]) -> None:
    """The system refuses to write files of more than a few bytes until the checkpoint of step 3 was refused too."""
    save, refusing = Checkpoints.save, {2, 3}

    def refused(self: Checkpoints, step: int, *more: object, **named: object) -> object:
        if step in refusing:
            resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, resource.RLIM_INFINITY))
        try:
            return save(self, step, *more, **named)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            if step == 3:
                refusing.clear()

    Checkpoints.save = refused


@harm("full tmpfs")
def full_tmpfs(arguments: list[str]) -> None:
    """The same with a disk of our own that is really full: nothing fits there from the save of step 2 to that of 3."""
    run = folder_of(arguments)
    disk = run.parent / f"{run.name}.disk"
    disk.mkdir()
    linux.unshare(linux.CLONE_NEWNS | (0 if os.geteuid() == 0 else linux.CLONE_NEWUSER))
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", str(disk), "tmpfs", 0, f"size={DISK}")
    (disk / "run").mkdir()
    arguments[:] = [word.replace(str(run), str(disk / "run")) for word in arguments]
    save, filler, filled = Checkpoints.save, disk / "filler", []

    def on_a_full_disk(self: Checkpoints, step: int, *more: object, **named: object) -> object:
        if step == 2 and not filled:
            filled.append(fill(filler))
        try:
            return save(self, step, *more, **named)
        finally:
            if step == 3:
                filler.unlink()

    Checkpoints.save = on_a_full_disk
    AFTERWARDS.append(lambda: shutil.copytree(disk / "run", run))


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return  # no more fits


def folder_of(arguments: list[str]) -> Path:
    key = "trainer.default_local_dir="
    return Path(next(word.removeprefix(key) for word in arguments if word.startswith(key)))


@harm("hang")
def hang(arguments: list[str]) -> None:
    """The second update never ends."""
    teach = Policy.teach

    def hung(self: Policy, batch: object, step: int) -> object:
        if step == 2:
            threading.Event().wait()
        return teach(self, batch, step)

    Policy.teach = hung


@harm("worker dies")
def worker_dies(arguments: list[str]) -> None:
    """The second and the third update lose a worker, the first time."""
    teach, dead = Policy.teach, set()

    def dying(self: Policy, batch: object, step: int) -> object:
        if step in (2, 3) and step not in dead:
            dead.add(step)
            raise WorkerDied("rank 1 of 2", "was killed by signal 9")
        return teach(self, batch, step)

    Policy.teach = dying


@harm("tracker unreachable")
def tracker_unreachable(arguments: list[str]) -> None:
    def refuse(self: TensorboardLogger, step: int, metrics: object) -> None:
        raise ConnectionError("no route to host")

    TensorboardLogger.log = refuse


@harm("tracker hangs")
def tracker_hangs(arguments: list[str]) -> None:
    """It never answers; the run waits a fifth of a second for it, not half a minute."""
    TensorboardLogger.log = lambda self, step, metrics: threading.Event().wait()
    burnish.log.patience.LIMIT = 0.2


def run_command(order: dict, say: Callable[[str], None]) -> int:
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    tell_phases(say)
    if order.get("harm"):
        HARMS[order["harm"]](order["arguments"])
    status = burnish.cli.main.main(order["arguments"])
    for do in AFTERWARDS:
        do()
    return status


def main() -> None:
    telling = os.dup(1)
    burnish.loop.fit.draw_curves = lambda metrics, picture: None  # takes longer than these runs
    load(["actor_rollout_ref.model.path=model"], check=False)  # what it remembers, the forks need not do again

    def say(text: str) -> None:
        os.write(telling, f"{text} {time.monotonic()}\n".encode())

    say("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            status = 70
            try:
                status = run_command(json.loads(line), say)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                sys.stdout.flush()
                os._exit(status)
        say(f"pid {pid}")
        say(f"status {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
    os._exit(0)  # torch takes its time to take itself down


if __name__ == "__main__":
    main()
