"""Worker: one rank of a pool. It holds the roles that a single-process run has; handles call them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from burnish.config.ranks import expert_parallel_size, sequence_parallel_size, tensor_parallel_size
from burnish.distributed.channel import NO_RESULT
from burnish.distributed.process_group import RankInfo, destroy_process_group, init_process_group
from burnish.distributed.rendezvous import verify_group
from burnish.distributed.weights import Endpoint, receive, send
from burnish.log.timeline import Span
from burnish.loop.build_reward_model import build_reward_model
from burnish.loop.media_transfer import MediaStore
from burnish.loop.pools import engines_alone
from burnish.loop.profiling import process_profiler, watch_mini_batches
from burnish.loop.roles import (
    build_critic,
    build_policy,
    build_reference,
    compared_dtype,
    engine_of,
    load_run_tokenizer,
    policy_source,
)
from burnish.loop.row_transfer import PackedResult, PackedShard, RoleLayout
from burnish.loop.sharing import stage_options
from burnish.loop.worker_clock import WorkerClock
from burnish.models.device import pick_device
from burnish.models.load import load_generation_config
from burnish.models.model_input import Media
from burnish.rollout.engine import Capabilities, Completion, Request
from burnish.rollout.engines.digests import sync_weights
from burnish.seeding import derive_seed
from burnish.training.device_memory import memory_reported
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh

if TYPE_CHECKING:
    from burnish.config import TrainConfig

# Keys that spread one engine over devices. In a pool every device has an engine of its own.
ENGINE_SIZES = (
    *("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size"),
    "pipeline_model_parallel_size",
)


class Worker:
    """The handles call all ranks together; of the ranks that have a role's result, one returns it."""

    # `role_layout` too: the controller asks for it while a pass of another role runs.
    concurrent = frozenset(
        {"generate", "abort", "end_session", "expect_return", "engine_stats", "write", "take_spans", "role_layout"}
    )

    def __init__(self, info: RankInfo, cfg: TrainConfig, roles: tuple[str, ...], total_steps: int) -> None:
        self.info = info
        self.cfg = cfg
        self.device = device_of_rank(cfg.trainer.device, info.local_rank)
        if info.size > 1 and not engines_alone(roles):
            init_process_group(info, self.device)
        torch.manual_seed(derive_seed(cfg.trainer.seed, "worker"))  # equal on all ranks: they must load equal weights
        self.contexts: dict[tuple[Any, ...], ParallelContext] = {}  # by their sizes
        self.source = policy_source(cfg)
        self.tokenizer = load_run_tokenizer(cfg, self.source)
        self.notices: list[str] = []
        self.media = MediaStore()
        self.roles: dict[str, Any] = {}
        for role in roles:
            self.roles[role] = getattr(self, f"_build_{role}")(total_steps)
            sequence = getattr(getattr(self.roles[role], "backend", None), "sequence", None)
            for number, group in enumerate([] if sequence is None else sequence.own_groups):
                verify_group(group, info.key, f"group {number} of the sequences of {role}")
        self.profiler = process_profiler(cfg, roles, info.rank, self.device)
        watch_mini_batches(self.roles, self.profiler)
        self.clock = WorkerClock()
        self._writers: dict[int, Callable[[Path], None]] = {}
        self._in_flight: dict[int, Future[Completion]] = {}  # by request id

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

    def sync_weights(self, version: int) -> float:
        """Load this process's policy into its engine. Returns the seconds spent comparing weights."""
        with self.clock.phase("update_weights"):
            return sync_weights(self.roles["engine"], self.roles["policy"].weights(), version, compared_dtype(self.cfg))

    def send_weights(self, endpoint: Endpoint) -> None:
        """Send the policy to engines in other processes: all ranks gather it, the main rank sends."""
        policy = self.roles["policy"]
        with self.clock.phase("update_weights"):
            if policy.backend.parallel.is_main:
                send(policy.weights(), endpoint, self.device)
            else:
                for _ in policy.weights():
                    pass

    def receive_weights(self, endpoint: Endpoint, version: int) -> float:
        with self.clock.phase("update_weights"):
            return sync_weights(self.roles["engine"], receive(endpoint, self.device), version, compared_dtype(self.cfg))

    def close(self) -> None:
        self.profiler.close()
        engine = self.roles.get("engine")
        if engine is not None:
            engine.close()
        destroy_process_group()

    # building

    def _build_policy(self, total_steps: int) -> Any:
        actor = self.cfg.actor_rollout_ref.actor
        parallel = self._parallel("actor_rollout_ref.actor", actor, actor.fsdp_config)
        return build_policy(self.cfg, self.source, self.device, total_steps, parallel)

    def _build_critic(self, total_steps: int) -> Any:
        parallel = self._parallel("critic", self.cfg.critic, self.cfg.critic.model.fsdp_config)
        return build_critic(self.cfg, self.device, total_steps, parallel)

    def _build_reference(self, total_steps: int) -> Any:
        ref = self.cfg.actor_rollout_ref.ref
        parallel = self._parallel("actor_rollout_ref.ref", ref, ref.fsdp_config)
        return build_reference(self.cfg, self.source, self.device, self.roles["policy"], parallel)

    def _build_reward_model(self, total_steps: int) -> Any:
        config = self.cfg.reward_model
        parallel = self._parallel("reward_model", config, config.model.fsdp_config)
        return build_reward_model(self.cfg, self.device, self.tokenizer, self.notices, parallel)

    def _build_engine(self, total_steps: int) -> Any:
        rollout = replace(self.cfg.actor_rollout_ref.rollout, **dict.fromkeys(ENGINE_SIZES, 1))
        generation = load_generation_config(self.source)
        bucket = rollout.update_weights_bucket_megabytes
        return engine_of(
            rollout,
            self.source,
            self.device,
            generation,
            self.tokenizer,
            own_thread=True,
            data=self.cfg.data,
            bucket_megabytes=bucket,
            beside="policy" in self.roles,
        )

    def _parallel(self, section: str, role: Any, fsdp: Any) -> ParallelContext:
        """The ranks' position for a role; roles with equal sizes share process groups."""
        if self.info.size == 1:
            return SINGLE_PROCESS
        stages = stage_options(section, role)
        sizes = {
            "fsdp_size": fsdp.fsdp_size,
            "sequence_size": sequence_parallel_size(role),
            "tensor_size": tensor_parallel_size(role),
            "expert_size": expert_parallel_size(role),
        }
        key = (*sizes.values(), stages)
        if key not in self.contexts:
            balance = self.cfg.trainer.balance_batch
            self.contexts[key] = build_mesh(self.device, **sizes, stages=stages, balance=balance)
            for number, group in enumerate(self.contexts[key].groups):
                verify_group(group, self.info.key, f"group {number} of mesh {len(self.contexts)}")
        return self.contexts[key]


def device_of_rank(name: str, local_rank: int) -> torch.device:
    """The rank's device among those that this process sees."""
    device = pick_device(name)
    if device.type == "cpu":
        return device
    module = getattr(torch, device.type)
    chosen = torch.device(device.type, local_rank % module.device_count())
    module.set_device(chosen)
    return chosen
