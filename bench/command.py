"""A server that forks `burnish` commands from a process with everything imported, for bench/faults.py.

A run that is killed fifty times does not import torch fifty times. Each line of standard input is a JSON object:
{"arguments": [...], "output": "file", "inject": "name" or null}. Each line of standard output is an event of the
running command with a time: "pid N", "enter PHASE", "leave PHASE", and "status N" at its end. Phases and faults are
patched in from here; burnish itself has no hooks for them.
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
import burnish.log.rollout_writer
import burnish.log.tracker_thread
import burnish.loop.api
import burnish.loop.fit
import burnish.training.checkpoint as checkpoint
from burnish.config import load
from burnish.errors import WorkerDied
from burnish.isolation import linux
from burnish.log.clock import Clock
from burnish.log.tensorboard import TensorboardLogger
from burnish.loop.journal import FileJournal
from burnish.reward.score import Scorer
from burnish.training.checkpoint import Checkpoints
from burnish.training.policy import Policy

MAX_FILE = 2000  # bytes per file while the disk is "full"
TMPFS = 6_000_000  # bytes
FAULTS: dict[str, Callable[[list[str]], None]] = {}
AT_EXIT: list[Callable[[], object]] = []  # run if the command ends by itself


def fault(name: str) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        FAULTS[name] = function
        return function

    return register


def trace(owner: object, name: str, phase: str, emit: Callable[[str], None]) -> None:
    """Emit an event when this function is entered and left."""
    function = getattr(owner, name)

    def traced(*args: object, **kwargs: object) -> object:
        emit(f"enter {phase}")
        try:
            return function(*args, **kwargs)
        finally:
            emit(f"leave {phase}")

    setattr(owner, name, traced)


def trace_phases(emit: Callable[[str], None]) -> None:
    enter, leave = Clock._enter, Clock._leave

    def traced_enter(self: Clock, name: str) -> None:
        emit(f"enter {name}")
        enter(self, name)

    def traced_leave(self: Clock, name: str) -> None:
        leave(self, name)
        emit(f"leave {name}")

    Clock._enter, Clock._leave = traced_enter, traced_leave
    trace(burnish.loop.api, "resume", "resume", emit)
    trace(Checkpoints, "save", "write", emit)
    trace(checkpoint, "_write_manifest", "manifest", emit)
    trace(Checkpoints, "keep", "keep", emit)
    trace(Scorer, "submit", "reward", emit)
    trace(burnish.log.rollout_writer, "dump_rollouts", "dump", emit)
    trace(FileJournal, "begin", "act", emit)  # a tool or an environment starts to work


@fault("full disk")
def full_disk(arguments: list[str]) -> None:
    """The system refuses larger files in the saves of steps 2 and 3."""
    save, failing = Checkpoints.save, {2, 3}

    def failing_save(self: Checkpoints, step: int, *args: object, **kwargs: object) -> object:
        if step in failing:
            resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, resource.RLIM_INFINITY))
        try:
            return save(self, step, *args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            if step == 3:
                failing.clear()

    Checkpoints.save = failing_save


@fault("full tmpfs")
def full_tmpfs(arguments: list[str]) -> None:
    """The same with a tmpfs that is really full from the save of step 2 to that of step 3."""
    run = run_folder(arguments)
    disk = run.parent / f"{run.name}.disk"
    disk.mkdir()
    linux.unshare(linux.CLONE_NEWNS | (0 if os.geteuid() == 0 else linux.CLONE_NEWUSER))
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", str(disk), "tmpfs", 0, f"size={TMPFS}")
    (disk / "run").mkdir()
    arguments[:] = [word.replace(str(run), str(disk / "run")) for word in arguments]
    save, filler, filled = Checkpoints.save, disk / "filler", []

    def save_on_full_disk(self: Checkpoints, step: int, *args: object, **kwargs: object) -> object:
        if step == 2 and not filled:
            filled.append(fill_disk(filler))
        try:
            return save(self, step, *args, **kwargs)
        finally:
            if step == 3:
                filler.unlink()

    Checkpoints.save = save_on_full_disk
    AT_EXIT.append(lambda: shutil.copytree(disk / "run", run))


def fill_disk(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return  # the disk is full


def run_folder(arguments: list[str]) -> Path:
    key = "trainer.default_local_dir="
    return Path(next(word.removeprefix(key) for word in arguments if word.startswith(key)))


@fault("hang")
def hang(arguments: list[str]) -> None:
    """The second update hangs."""
    update = Policy.update

    def hung(self: Policy, batch: object, step: int) -> object:
        if step == 2:
            threading.Event().wait()
        return update(self, batch, step)

    Policy.update = hung


@fault("worker dies")
def worker_dies(arguments: list[str]) -> None:
    """The second and the third update lose a worker, once each."""
    update, dead = Policy.update, set()

    def dying(self: Policy, batch: object, step: int) -> object:
        if step in (2, 3) and step not in dead:
            dead.add(step)
            raise WorkerDied("rank 1 of 2", "was killed by signal 9")
        return update(self, batch, step)

    Policy.update = dying


@fault("tracker unreachable")
def tracker_unreachable(arguments: list[str]) -> None:
    def refuse(self: TensorboardLogger, step: int, metrics: object) -> None:
        raise ConnectionError("no route to host")

    TensorboardLogger.log = refuse


@fault("tracker hangs")
def tracker_hangs(arguments: list[str]) -> None:
    """It never answers. The run waits 0.2 s for it instead of half a minute."""
    TensorboardLogger.log = lambda self, step, metrics: threading.Event().wait()
    burnish.log.tracker_thread.LIMIT = 0.2


def run_command(request: dict, emit: Callable[[str], None]) -> int:
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    trace_phases(emit)
    if request.get("inject"):
        FAULTS[request["inject"]](request["arguments"])
    status = burnish.cli.main.main(request["arguments"])
    for callback in AT_EXIT:
        callback()
    return status


def main() -> None:
    events = os.dup(1)
    burnish.loop.fit.draw_curves = lambda metrics, picture: None  # slower than these runs
    load(["actor_rollout_ref.model.path=model"], check=False)  # fills caches that the forks inherit

    def emit(text: str) -> None:
        os.write(events, f"{text} {time.monotonic()}\n".encode())

    emit("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            status = 70
            try:
                status = run_command(json.loads(line), emit)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                sys.stdout.flush()
                os._exit(status)
        emit(f"pid {pid}")
        emit(f"status {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
    os._exit(0)  # skip the slow teardown of torch


if __name__ == "__main__":
    main()
