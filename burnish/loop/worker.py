"""Worker: one rank of a pool. It holds the same roles that a run in one process has, and does what handles ask for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from burnish.config.ranks import sequence_parallel_size, tensor_parallel_size
from burnish.distributed.host import RankInfo
from burnish.distributed.weights import Link, receive, send
from burnish.distributed.world import join, leave
from burnish.loop.build_reward_model import build_reward_model
from burnish.loop.roles import (
    build_critic,
    build_policy,
    build_reference,
    compared_dtype,
    engine_of,
    load_run_tokenizer,
    policy_source,
)
from burnish.models.device import pick_device
from burnish.models.load import load_generation_config
from burnish.rollout.engine import Capabilities, Completion, Request
from burnish.rollout.engines.digests import sync_weights
from burnish.seeding import derive_seed
from burnish.training.owners import accounted
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh

if TYPE_CHECKING:
    from burnish.config import TrainConfig

# Over how many devices an engine is spread; among several processes every device has a whole one.
ENGINE_SIZES = (
    *("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size"),
    "pipeline_model_parallel_size",
)


class Worker:
    """`ask` calls a method of a role; all ranks of the pool are asked together, and the first answers for all."""

    concurrent = frozenset({"generate", "abort", "engine_stats", "write"})

    def __init__(self, seat: RankInfo, cfg: TrainConfig, roles: tuple[str, ...], total_steps: int) -> None:
        self.seat = seat
        self.cfg = cfg
        self.device = own_device(cfg.trainer.device, seat.local_rank)
        if seat.size > 1:
            join(seat, self.device)
        torch.manual_seed(derive_seed(cfg.trainer.seed, "worker"))  # equal on all ranks: they load equal weights
        self.meshes: dict[tuple[int, int, int], ParallelContext] = {}
        self.source = policy_source(cfg)
        self.tokenizer = load_run_tokenizer(cfg, self.source)
        self.notices: list[str] = []
        self.roles: dict[str, Any] = {}
        for role in roles:
            self.roles[role] = getattr(self, f"_build_{role}")(total_steps)
        self._writers: dict[int, Callable[[Path], None]] = {}
        self._asked: dict[int, Future[Completion]] = {}

    # any role

    def ask(self, role: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method on every rank; the first rank's answer is sent back."""
        found = getattr(self.roles[role], method)
        with accounted(self.roles, self.device):
            value = found(*args, **kwargs) if callable(found) else found
        return value if self.seat.rank == 0 else None

    def take_notices(self) -> list[str]:
        return self.notices if self.seat.rank == 0 else []

    def prepare(self, number: int, role: str, contents: Collection[str], with_tokenizer: bool, copy: bool) -> None:
        """Make ready to write the role's state, with `copy` as it is now."""
        tokenizer = self.tokenizer if with_tokenizer else None
        self._writers[number] = self.roles[role].writer(contents, tokenizer, copy=copy)

    def write(self, number: int, folder: Path) -> str | None:
        """Write what was prepared under this number. What the disk said, if it refused: that ends no worker."""
        try:
            self._writers[number](folder)
        except OSError as error:
            return str(error)
        return None

    def forget(self, number: int) -> None:
        """Nobody will ask for it any more."""
        self._writers.pop(number, None)

    # the engine

    def generate(self, numbers: Sequence[int], requests: Sequence[Request]) -> Future[list[Completion]]:
        """Start requests under the controller's numbers; done when all of them are."""
        futures = self.roles["engine"].generate(requests)
        self._asked.update(zip(numbers, futures, strict=True))
        return _all_of(futures, lambda: [self._asked.pop(number, None) for number in numbers])

    def abort(self, numbers: Sequence[int]) -> None:
        self.roles["engine"].abort([self._asked[number] for number in numbers if number in self._asked])

    def engine_stats(self) -> dict[str, float]:
        return self.roles["engine"].stats()

    def engine_capabilities(self) -> Capabilities:
        return self.roles["engine"].capabilities

    def score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        return self.roles["engine"].score(rows, temperature) if rows else []

    def sync(self, version: int) -> float:
        """The weights of this process's policy become those of its engine. Seconds that comparing them took."""
        return sync_weights(self.roles["engine"], self.roles["policy"].weights(), version, compared_dtype(self.cfg))

    def send_weights(self, link: Link) -> None:
        """To engines in other processes: all ranks gather, the first sends."""
        stream = self.roles["policy"].weights()
        if self.seat.rank == 0:
            send(stream, link, self.device)
        else:
            for _ in stream:
                pass

    def receive_weights(self, link: Link, version: int) -> float:
        return sync_weights(self.roles["engine"], receive(link, self.device), version, compared_dtype(self.cfg))

    def close(self) -> None:
        engine = self.roles.get("engine")
        if engine is not None:
            engine.close()
        leave()

    # building

    def _build_policy(self, total_steps: int) -> Any:
        parallel = self._parallel(self.cfg.actor_rollout_ref.actor, self.cfg.actor_rollout_ref.actor.fsdp_config)
        return build_policy(self.cfg, self.source, self.device, total_steps, parallel)

    def _build_critic(self, total_steps: int) -> Any:
        parallel = self._parallel(self.cfg.critic, self.cfg.critic.model.fsdp_config)
        return build_critic(self.cfg, self.device, total_steps, parallel)

    def _build_reference(self, total_steps: int) -> Any:
        parallel = self._parallel(self.cfg.actor_rollout_ref.ref, self.cfg.actor_rollout_ref.ref.fsdp_config)
        return build_reference(self.cfg, self.source, self.device, self.roles["policy"], parallel)

    def _build_reward_model(self, total_steps: int) -> Any:
        parallel = self._parallel(self.cfg.reward_model, self.cfg.reward_model.model.fsdp_config)
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
            bucket_megabytes=bucket,
            beside="policy" in self.roles,
        )

    def _parallel(self, role: Any, fsdp: Any) -> ParallelContext:
        if self.seat.size == 1:
            return SINGLE_PROCESS
        sizes = (fsdp.fsdp_size, sequence_parallel_size(role), tensor_parallel_size(role))
        if sizes not in self.meshes:
            self.meshes[sizes] = build_mesh(
                self.device,
                fsdp_size=sizes[0],
                sequence_size=sizes[1],
                tensor_size=sizes[2],
                balance=self.cfg.trainer.balance_batch,
            )
        return self.meshes[sizes]


def own_device(name: str, local_rank: int) -> torch.device:
    """The device of this rank: the one of its number among those it may see, where there are several."""
    device = pick_device(name)
    if device.type == "cpu":
        return device
    module = getattr(torch, device.type)
    chosen = torch.device(device.type, local_rank % module.device_count())
    module.set_device(chosen)
    return chosen


def _all_of(futures: Sequence[Future[Completion]], forget: Callable[[], Any]) -> Future[list[Completion]]:
    """One future of all results; the first failure fails it."""
    whole: Future[list[Completion]] = Future()
    lock = threading.Lock()
    left = len(futures)

    def done(future: Future[Completion]) -> None:
        nonlocal left
        with lock:
            left -= 1
            failed = future.exception()
            if whole.done() or (failed is None and left):
                return
            forget()
            if failed is None:
                whole.set_result([each.result() for each in futures])
            else:
                whole.set_exception(failed)

    for future in futures:
        future.add_done_callback(done)
    return whole
