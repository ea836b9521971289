"""Layout: parallel sizes, micro-batches and placement of a run, and the overrides that select them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

from burnish.config import TrainConfig
from burnish.config.ranks import uses_megatron
from burnish.config.rules import has_critic
from burnish.doctor.gpus import Cluster
from burnish.doctor.shapes import Shape

ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "model"))
ENGINE_SIZE = f"{ROLLOUT}.tensor_model_parallel_size"
SYNC, ONE_STEP_OFF = "sync", "one_step_off"
KEEP, OPTIMIZER, ALL = "keep", "optimizer", "all"  # what is offloaded to CPU memory between phases
OFFLOADS = (KEEP, OPTIMIZER, ALL)


@dataclass(frozen=True)
class Layout:
    """One way to run a training step on a cluster."""

    machines: int  # of the training ranks
    per_machine: int
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    virtual: int = 1
    expert: int = 1
    fsdp_size: int = -1  # ranks that share one copy of a stage's weights; -1: all
    micro_batch_tokens: int = 16_384  # on one rank
    recompute: bool = True
    offload: str = KEEP
    engine_machines: int = 0  # machines with engines only; 0: engines share the ranks' devices
    engine_per_machine: int = 0
    engine_tensor: int = 1  # GPUs of one machine that share an engine
    mode: str = SYNC

    @property
    def ranks(self) -> int:
        return self.machines * self.per_machine

    @property
    def num_engines(self) -> int:
        return (self.engine_machines * self.engine_per_machine or self.ranks) // self.engine_tensor

    @property
    def is_apart(self) -> bool:
        return self.engine_machines > 0

    @property
    def num_gpus(self) -> int:
        return self.ranks + self.engine_machines * self.engine_per_machine

    @property
    def stage_ranks(self) -> int:
        """Ranks that hold the same layers and the same part of each matrix: FSDP divides weights over some of them."""
        return self.ranks // (self.pipeline * self.tensor)

    @property
    def shard(self) -> int:
        """Ranks that share one copy of a stage's weights."""
        return self.stage_ranks if self.fsdp_size <= 0 else min(self.fsdp_size, self.stage_ranks)

    @property
    def replicas(self) -> int:
        return self.stage_ranks // self.shard

    @property
    def data(self) -> int:
        """Groups of ranks that see different sequences."""
        return self.stage_ranks // self.context

    @property
    def uses_megatron(self) -> bool:
        return max(self.tensor, self.pipeline, self.expert) > 1

    def text(self) -> str:
        """In words, for the report."""
        sizes = {"tensor": self.tensor, "context": self.context, "pipeline": self.pipeline, "expert": self.expert}
        words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        if self.virtual > 1:
            words.append(f"{self.virtual} chunks a stage")
        sharded = f"weights sharded over {self.shard}" if self.shard > 1 else "weights on every rank"
        if self.replicas > 1 and self.shard > 1:
            sharded += f", {self.replicas} copies"
        words += [f"data {self.data}", sharded]
        words.append(f"micro-batches of {self.micro_batch_tokens:,} tokens a rank")
        words.append("recomputation" if self.recompute else "no recomputation")
        if self.offload != KEEP:
            words.append("optimizer offloaded" if self.offload == OPTIMIZER else "weights and optimizer offloaded")
        shared = f" of {self.engine_tensor} GPUs each" if self.engine_tensor > 1 else ""
        place = f"engines{shared} on the same GPUs"
        if self.is_apart:
            place = f"{self.num_engines} engine{'s' * (self.num_engines > 1)}{shared} on GPUs of their own"
        overlap = ", overlapped by one step" if self.mode == ONE_STEP_OFF else ""
        return f"{self.ranks} rank{'s' * (self.ranks > 1)} ({', '.join(words)}); {place}{overlap}"


def placements(cluster: Cluster) -> Iterator[tuple[int, int, int, int]]:
    """(machines, GPUs each) of the ranks, and of the engines; zeros where engines share the ranks' GPUs.

    Pools are whole machines, or parts of the only one.
    """
    yield cluster.machines, cluster.per_machine, 0, 0
    total = cluster.machines if cluster.machines > 1 else cluster.per_machine
    for engines in sorted({max(1, total // 4), total // 2, total - max(1, total // 4)}):
        if not 0 < engines < total:
            continue
        if cluster.machines > 1:
            yield total - engines, cluster.per_machine, engines, cluster.per_machine
        else:
            yield 1, total - engines, 1, engines


def divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]


def indivisible(layout: Layout, shape: Shape) -> str | None:
    """Why the model's shape does not allow these sizes, or None. The run checks the same before it loads weights."""
    if layout.ranks % (layout.tensor * layout.context * layout.pipeline):
        return "ranks are no multiple of tensor x context x pipeline"
    if layout.stage_ranks % layout.shard:
        return "ranks of a stage are no multiple of fsdp_size"
    if layout.expert > 1 and layout.shard % layout.expert:
        return "ranks that share a copy of the weights are no multiple of the expert size"
    parts = (shape.heads, shape.kv_heads, shape.intermediate)
    if layout.tensor > 1 and any(part % layout.tensor for part in parts):
        return "heads, key-value heads or MLP columns are no multiple of the tensor size"
    if not divides_engine(layout.engine_tensor, shape):
        return "heads or MLP columns are no multiple of the engine's tensor size"
    if layout.tensor > 1 and shape.experts:
        return "experts do not combine with tensor parallelism"
    if (shape.heads // layout.tensor) % layout.context:
        return "heads are no multiple of the context size"
    if shape.layers % (layout.pipeline * layout.virtual):
        return "layers are no multiple of the pipeline stages"
    if layout.expert > 1 and (not shape.experts or shape.experts % layout.expert):
        return "experts are no multiple of the expert size"
    return None


def divides_engine(size: int, shape: Shape) -> bool:
    """As engines divide layers: where there are more GPUs than key-value heads, some hold the same."""
    has_kv_heads = shape.kv_heads % size == 0 or size % shape.kv_heads == 0
    return has_kv_heads and shape.heads % size == 0 and shape.intermediate % size == 0


def settings(layout: Layout, cfg: TrainConfig) -> dict[str, Any]:
    """Key -> value of everything that the layout decides, for the roles of this run."""
    tokens = layout.micro_batch_tokens
    found: dict[str, Any] = {"trainer.nnodes": layout.machines, "trainer.n_gpus_per_node": layout.per_machine}
    found["actor_rollout_ref.hybrid_engine"] = not layout.is_apart
    if layout.is_apart:
        found |= {"rollout.nnodes": layout.engine_machines, "rollout.n_gpus_per_node": layout.engine_per_machine}
    found[ENGINE_SIZE] = layout.engine_tensor
    found["async_training.mode"] = layout.mode
    found |= _role(layout, ACTOR, f"{ACTOR}.fsdp_config", cfg.actor_rollout_ref.actor)
    found |= {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": tokens}
    found |= {f"{ROLLOUT}.log_prob_use_dynamic_bsz": True, f"{ROLLOUT}.log_prob_max_token_len_per_gpu": tokens}
    found[f"{MODEL}.enable_gradient_checkpointing"] = layout.recompute
    found |= _offload(layout, f"{ACTOR}.fsdp_config", trained=True)
    if uses_reference(cfg):
        found |= _role(layout, REF, f"{REF}.fsdp_config", cfg.actor_rollout_ref.ref)
        found |= {f"{REF}.log_prob_use_dynamic_bsz": True, f"{REF}.log_prob_max_token_len_per_gpu": tokens}
        found |= _offload(layout, f"{REF}.fsdp_config", trained=False)
    if has_critic(cfg):
        found |= _role(layout, "critic", "critic.model.fsdp_config", cfg.critic)
        found |= {"critic.use_dynamic_bsz": True, "critic.ppo_max_token_len_per_gpu": tokens}
        found |= {"critic.forward_max_token_len_per_gpu": tokens}
        found["critic.model.enable_gradient_checkpointing"] = layout.recompute
        found |= _offload(layout, "critic.model.fsdp_config", trained=True)
    return found


def uses_reference(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.actor.use_kl_loss or cfg.algorithm.use_kl_in_reward


def _role(layout: Layout, section: str, fsdp: str, config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {f"{fsdp}.fsdp_size": layout.fsdp_size}
    if not layout.uses_megatron:
        strategy = "fsdp" if uses_megatron(config) else config.strategy
        return found | {f"{section}.strategy": strategy, f"{section}.ulysses_sequence_parallel_size": layout.context}
    megatron = f"{section}.megatron"
    return found | {
        f"{section}.strategy": "megatron",
        f"{megatron}.tensor_model_parallel_size": layout.tensor,
        f"{megatron}.context_parallel_size": layout.context,
        f"{megatron}.pipeline_model_parallel_size": layout.pipeline,
        f"{megatron}.virtual_pipeline_model_parallel_size": layout.virtual if layout.virtual > 1 else None,
        f"{megatron}.expert_model_parallel_size": layout.expert,
    }


def _offload(layout: Layout, fsdp: str, *, trained: bool) -> dict[str, Any]:
    """Frozen models have no optimizer: they wait in CPU memory wherever anything does."""
    found: dict[str, Any] = {f"{fsdp}.param_offload": layout.offload == ALL or (not trained and layout.offload != KEEP)}
    if trained:
        found[f"{fsdp}.optimizer_offload"] = layout.offload != KEEP
    return found


def applied(layout: Layout, cfg: TrainConfig) -> TrainConfig:
    """A config with the layout's settings, as loading their overrides would give it."""
    values = settings(layout, cfg)
    if layout.uses_megatron:
        sections = [key.rpartition(".")[0] for key in values if key.endswith(".strategy")]
        values |= {f"{section}.ulysses_sequence_parallel_size": layout.context for section in sections}
    if layout.mode != SYNC:
        values[f"{ROLLOUT}.free_cache_engine"] = False
    return _changed(cfg, values)


def _changed(cfg: TrainConfig, values: dict[str, Any]) -> TrainConfig:
    """A copy of the sections that change; others are shared, because thousands of layouts are tried."""
    new = copy(cfg)
    copied: dict[str, Any] = {"": new}
    for key, value in values.items():
        *path, name = key.split(".")
        for depth in range(1, len(path) + 1):
            prefix = ".".join(path[:depth])
            if prefix not in copied:
                above = copied[".".join(path[: depth - 1])]
                copied[prefix] = copy(getattr(above, path[depth - 1]))
                setattr(above, path[depth - 1], copied[prefix])
        setattr(copied[".".join(path)], name, value)
    return new
