"""A function on several gloo ranks of this machine, each a process of its own."""

from __future__ import annotations

import faulthandler
import multiprocessing
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Imported once, by a server without threads from which every rank is forked: a rank starts in milliseconds.
PRELOADED = ["torch", "torch.distributed", "torch.distributed.fsdp", "transformers", "burnish.models.load"]
GRACE = 2.0  # seconds for the other ranks' messages, once one has failed


def run_ranks(size: int, function: Callable[..., Any], *args: Any, limit: float = 120.0) -> list[Any]:
    """function(rank, *args) on `size` ranks, a gloo process group around them; what each returned, in order of rank.

    The function is a module's own, not a closure; arguments and results are pickled by value. A rank that raises ends
    the others and the test, with its traceback; so does the time limit, with every rank's stack. Ranks see the
    environment as it was at the first call, and none of pytest's fixtures.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    work = pickle.dumps((function, args))
    ranks: dict[Connection, int] = {}
    processes: list[BaseProcess] = []
    with tempfile.TemporaryDirectory() as folder:
        if str(ROOT) not in sys.path:
            # A rank gets this process's path, and imports the function from there. In front, because some libraries
            # install a package `tests` of their own.
            sys.path.insert(0, str(ROOT))
        try:
            for rank in range(size):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_rank, args=(rank, size, work, sender, folder, limit), daemon=True)
                process.start()
                sender.close()
                processes.append(process)
                ranks[receiver] = rank
            return _collect(ranks, folder, limit)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(ranks: dict[Connection, int], folder: str, limit: float) -> list[Any]:
    """Every rank's result; a failure is raised when the others have had their say."""
    pending, size, deadline = dict(ranks), len(ranks), time.monotonic() + limit + GRACE
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    while pending:
        ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for receiver in ready:
            rank = pending.pop(receiver)
            try:
                succeeded, result = pickle.loads(receiver.recv_bytes())
            except EOFError:
                succeeded, result = False, "the process died without a word"
            (results if succeeded else failures)[rank] = result
        if failures:
            deadline = min(deadline, time.monotonic() + GRACE)
    if failures:
        raise AssertionError("\n".join(f"rank {rank} of {size}: {said}" for rank, said in failures.items()))
    if pending:
        stacks = [f"rank {rank} of {size}:\n{_stack_file(folder, rank).read_text()}" for rank in pending.values()]
        raise AssertionError(f"no answer within {limit:g} s.\n" + "\n".join(stacks))
    return [results[rank] for rank in range(size)]


def _stack_file(folder: str, rank: int) -> Path:
    return Path(folder) / f"stack_{rank}"


def _rank(rank: int, size: int, work: bytes, sender: Connection, folder: str, limit: float) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    with _stack_file(folder, rank).open("w") as stack:
        faulthandler.dump_traceback_later(limit, file=stack)
        try:
            meeting, patience = f"file://{folder}/meeting", timedelta(seconds=2 * limit + GRACE)
            distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=patience)
            function, args = pickle.loads(work)
            answer = pickle.dumps((True, function(rank, *args)))
            distributed.barrier()  # nobody leaves while another still talks to it
            distributed.destroy_process_group()
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        sender.send_bytes(answer)
        sender.close()
        faulthandler.cancel_dump_traceback_later()
