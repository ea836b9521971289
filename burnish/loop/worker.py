"""Worker: one rank of a pool of `burnish train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.config.ranks import engine_size, expert_parallel_size, sequence_parallel_size, tensor_parallel_size
from burnish.distributed.process_group import RankInfo, init_neighbor_group
from burnish.distributed.weights import Endpoint, receive, send
from burnish.loop.build_engine import compared_dtype, engine_of
from burnish.loop.build_reward_model import build_reward_model
from burnish.loop.profiling import process_profiler, watch_mini_batches
from burnish.loop.role_worker import RoleWorker
from burnish.loop.roles import (
    build_critic,
    build_policy,
    build_reference,
    load_run_tokenizer,
    policy_source,
)
from burnish.loop.sharing import stage_options
from burnish.models.load import load_generation_config
from burnish.models.tensor_group import TensorGroup
from burnish.rollout.engines.digests import sync_weights
from burnish.training.parallel import ParallelContext

if TYPE_CHECKING:
    from burnish.config import TrainConfig


class Worker(RoleWorker):
    """Builds the roles of RL training; policies send their weights to engines."""

    def __init__(self, info: RankInfo, cfg: TrainConfig, roles: tuple[str, ...], total_steps: int) -> None:
        super().__init__(info, cfg.trainer.device, roles, cfg.trainer.seed, engine_size(cfg))
        self.cfg = cfg
        self.source = policy_source(cfg)
        self.tokenizer = load_run_tokenizer(cfg, self.source)
        for role in roles:
            self.host(role, getattr(self, f"_build_{role}")(total_steps))
        self.profiler = process_profiler(cfg, roles, info.rank, self.device)
        watch_mini_batches(self.roles, self.profiler)

    # weights

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
        rollout = self.cfg.actor_rollout_ref.rollout
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
            group=self._engine_group(),
        )

    def _engine_group(self) -> TensorGroup | None:
        """The ranks that share this one's engine; None where it has its own."""
        size = engine_size(self.cfg)
        return None if size == 1 else TensorGroup(init_neighbor_group(self.info, size))

    def _parallel(self, section: str, role: Any, fsdp: Any) -> ParallelContext:
        return self.parallel_context(
            fsdp_size=fsdp.fsdp_size,
            sequence_size=sequence_parallel_size(role),
            tensor_size=tensor_parallel_size(role),
            expert_size=expert_parallel_size(role),
            stages=stage_options(section, role),
            balance=self.cfg.trainer.balance_batch,
        )
