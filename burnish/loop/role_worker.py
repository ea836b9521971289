"""RoleWorker: one rank of a pool, whatever the job. It holds roles as one process would; handles call them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch

from burnish.distributed.channel import NO_RESULT
from burnish.distributed.process_group import RankInfo, destroy_process_group, init_process_group
from burnish.distributed.rendezvous import verify_group
from burnish.log.timeline import Span
from burnish.loop.media_transfer import MediaStore
from burnish.loop.pools import engines_alone
from burnish.loop.row_transfer import PackedResult, PackedShard, RoleLayout
from burnish.loop.worker_clock import WorkerClock
from burnish.models.device import pick_device
from burnish.models.model_input import Media
from burnish.profiling.process import ProcessProfiler
from burnish.rollout.engine import Capabilities, Completion, Request
from burnish.seeding import derive_seed
from burnish.training.device_memory import memory_reported
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh
from burnish.training.stages import ONE_STAGE, StageOptions


class RoleWorker:
    """The handles call all ranks together; of the ranks that have a role's result, one returns it.

    A job's worker is a subclass that builds the job's roles.
    """

    # `role_layout` too: the controller asks for it while a pass of another role runs.
    concurrent = frozenset(
        {"generate", "abort", "end_session", "expect_return", "engine_stats", "write", "take_spans", "role_layout"}
    )
    profiler: ProcessProfiler
    tokenizer: Any  # that of checkpoints and exports

    def __init__(self, info: RankInfo, device: str, roles: tuple[str, ...], seed: int, engine_size: int = 1) -> None:
        """`device`: trainer.device; `roles` of this worker; `engine_size`: ranks that share an engine."""
        self.info = info
        self.device = device_of_rank(device, info.local_rank)
        if info.size > 1 and not engines_alone(roles, engine_size):
            init_process_group(info, self.device)
        torch.manual_seed(derive_seed(seed, "worker"))  # equal on all ranks: they must load equal weights
        self.contexts: dict[tuple[Any, ...], ParallelContext] = {}  # by their sizes
        self.notices: list[str] = []
        self.media = MediaStore()
        self.roles: dict[str, Any] = {}
        self.clock = WorkerClock()
        self._writers: dict[int, Callable[[Path], None]] = {}
        self._in_flight: dict[int, Future[Completion]] = {}  # by request id

    def host(self, name: str, role: Any) -> None:
        """Hold a role, once its process groups are known to be those of this run."""
        self.roles[name] = role
        sequence = getattr(getattr(role, "backend", None), "sequence", None)
        for number, group in enumerate([] if sequence is None else sequence.own_groups):
            verify_group(group, self.info.key, f"group {number} of the sequences of {name}")

    def parallel_context(
        self,
        *,
        fsdp_size: int = -1,
        sequence_size: int = 1,
        tensor_size: int = 1,
        expert_size: int = 1,
        stages: StageOptions = ONE_STAGE,
        balance: bool = True,
    ) -> ParallelContext:
        """The ranks' position for a role; roles with equal sizes share process groups."""
        if self.info.size == 1:
            return SINGLE_PROCESS
        key = (fsdp_size, sequence_size, tensor_size, expert_size, stages, balance)
        if key not in self.contexts:
            self.contexts[key] = build_mesh(
                self.device,
                fsdp_size=fsdp_size,
                sequence_size=sequence_size,
                tensor_size=tensor_size,
                expert_size=expert_size,
                stages=stages,
                balance=balance,
            )
            for number, group in enumerate(self.contexts[key].groups):
                verify_group(group, self.info.key, f"group {number} of mesh {len(self.contexts)}")
        return self.contexts[key]

    # any role

    def call_role(self, role: str, method: str, *args: Any, media: Sequence[Media] = (), **kwargs: Any) -> Any:
        """Call a method or read an attribute of a role, on every rank. `media`: pictures that were not sent before."""
        self.media.receive(media)
        args = tuple(map(self.media.restore_batch, args))
        attribute = getattr(self.roles[role], method)
        with memory_reported(self.roles, self.device), self.clock.of_call(role, method):
            value = attribute(*args, **kwargs) if callable(attribute) else attribute
        backend = getattr(self.roles[role], "backend", None)
        return value if backend is None or backend.parallel.reports_results else NO_RESULT

    def role_layout(self, role: str) -> RoleLayout:
        """Which rows of a batch this rank runs."""
        return RoleLayout.of(self.roles[role])

    def run_shard(self, role: str, method: str, *args: Any, shared: PackedShard) -> Any:
        """Call a method of a role with this rank's rows; one rank of each data rank returns their results."""
        shard = shared.unpack(self.media)
        with memory_reported(self.roles, self.device), self.clock.of_call(role, method):
            value = getattr(self.roles[role], method)(shard, *args)
        return PackedResult.of(value) if self.roles[role].backend.parallel.reports_shard else NO_RESULT

    def profile(self, method: str, *args: Any) -> Any:
        """Start or stop recordings of this process."""
        return getattr(self.profiler, method)(*args)

    def take_spans(self) -> list[Span]:
        """When this process was busy since the last call."""
        return self.clock.take()

    def take_notices(self) -> Any:
        """What the user should know about how the roles were built, the same on all ranks."""
        return self.notices if self.info.rank == 0 else NO_RESULT

    def prepare_writer(self, id: int, role: str, contents: Collection[str], with_tokenizer: bool, copy: bool) -> None:
        """Prepare to write the role's state, with `copy` as it is now."""
        tokenizer = self.tokenizer if with_tokenizer else None
        self._writers[id] = self.roles[role].writer(contents, tokenizer, copy=copy)

    def write(self, id: int, folder: Path) -> str | None:
        """Write a prepared state. A disk error is returned, not raised: it must not end the worker."""
        try:
            with self.clock.phase("save_checkpoint"):
                self._writers[id](folder)
        except OSError as error:
            return str(error)
        return None

    def drop_writer(self, id: int) -> None:
        self._writers.pop(id, None)

    # the engine

    def generate(
        self, ids: Sequence[int], requests: Sequence[Request], media: Sequence[Media] = ()
    ) -> list[Future[Completion]]:
        """Start requests under the controller's ids; the host sends each completion when it is finished."""
        self.media.receive(media)
        futures = self.roles["engine"].generate(self.media.restore_requests(requests))
        for id, future in zip(ids, futures, strict=True):
            self._in_flight[id] = future
            future.add_done_callback(partial(self._finish, id))
        self.clock.generating(futures)
        return futures

    def _finish(self, id: int, future: Future[Completion]) -> None:
        self._in_flight.pop(id, None)

    def abort(self, ids: Sequence[int]) -> None:
        self.roles["engine"].abort([future for id in ids if (future := self._in_flight.get(id)) is not None])

    def end_session(self, session: str) -> None:
        self.roles["engine"].end_session(session)

    def expect_return(self, session: str, seconds: float) -> None:
        self.roles["engine"].expect_return(session, seconds)

    def engine_stats(self) -> dict[str, float]:
        return self.roles["engine"].stats()

    def engine_capabilities(self) -> Capabilities:
        return self.roles["engine"].capabilities

    def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        return self.roles["engine"].score(rows, temperature) if rows else []

    def close(self) -> None:
        self.profiler.close()
        engine = self.roles.get("engine")
        if engine is not None:
            engine.close()
        destroy_process_group()


def device_of_rank(name: str, local_rank: int) -> torch.device:
    """The rank's device among those that this process sees."""
    device = pick_device(name)
    if device.type == "cpu":
        return device
    module = getattr(torch, device.type)
    chosen = torch.device(device.type, local_rank % module.device_count())
    module.set_device(chosen)
    return chosen
