"""Rules for processes: device pools of the roles, and launchers."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.adapters import TrainedModelConfig
from burnish.config.async_rules import is_async
from burnish.config.jobs import EvalConfig
from burnish.config.ranks import (
    engine_devices,
    engine_size,
    has_engine_pool,
    has_reward_pool,
    is_single_process,
    num_nodes,
    num_ranks,
)
from burnish.config.root import TrainConfig
from burnish.errors import UserError, nearest

TRANSPORT = "actor_rollout_ref.rollout.checkpoint_engine"
# Arguments of verl's transports, which have a counterpart in every weight sync here. Those of other transports are
# not read.
TRANSPORT_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "naive": (),
    "gloo": (),
    "nccl": ("group_name", "rebuild_group"),
}


def device_pools(cfg: TrainConfig) -> Iterator[UserError]:
    """A role with its own pool needs at least one device; only async training in one process needs none."""
    if (
        not cfg.actor_rollout_ref.hybrid_engine
        and not has_engine_pool(cfg)
        and not (is_single_process(cfg) and is_async(cfg))
    ):
        yield UserError(
            "the engines need their own devices, but rollout.nnodes x rollout.n_gpus_per_node is 0",
            key="actor_rollout_ref.hybrid_engine",
            value=False,
            hint="rollout.nnodes=1 rollout.n_gpus_per_node=1, or actor_rollout_ref.hybrid_engine=true",
        )
    role = cfg.reward_model
    if role.enable and role.enable_resource_pool and not has_reward_pool(cfg):
        yield UserError(
            "the reward model needs its own devices, but reward_model.nnodes x reward_model.n_gpus_per_node is 0",
            key="reward_model.enable_resource_pool",
            value=True,
            hint="reward_model.nnodes=1 reward_model.n_gpus_per_node=1",
        )


def engine_groups(cfg: TrainConfig) -> Iterator[UserError]:
    """Engines of several devices leave none over. A server uses those of one node."""
    size, (nodes, per_node) = engine_size(cfg), engine_devices(cfg)
    spans_nodes = cfg.actor_rollout_ref.rollout.name == "builtin"
    devices, place = (nodes * per_node, "run") if spans_nodes else (per_node, "node")
    if devices % size == 0:
        return
    rollout, key = cfg.actor_rollout_ref.rollout, "actor_rollout_ref.rollout.tensor_model_parallel_size"
    tensor = rollout.tensor_model_parallel_size
    sizes = [number for number in range(1, devices + 1) if devices % (number * size // tensor) == 0]
    hint = f"{key}={max((number for number in sizes if number <= tensor), default=1)}"
    if not sizes:  # the other sizes are too large
        others = ("pipeline_model_parallel_size", "data_parallel_size")
        hint = " ".join(f"actor_rollout_ref.rollout.{name}=1" for name in others)
    problem = f"engines of {size} devices do not divide the {devices} of a {place}"
    yield UserError(problem, key=key, value=tensor, allowed=sizes or None, hint=hint)


def shared_server_weights(cfg: TrainConfig) -> Iterator[UserError]:
    """CUDA handles of a rank name its own GPU, which has another number in a server that sees several ranks' GPUs."""
    rollout = cfg.actor_rollout_ref.rollout
    if (
        rollout.name == "sglang"
        and engine_size(cfg) > 1
        and rollout.engine_kwargs.sglang.get("weight_sync") == "tensor"
    ):
        key = "actor_rollout_ref.rollout.engine_kwargs.sglang.weight_sync"
        problem = "not supported for a server that uses the devices of several ranks"
        yield UserError(problem, key=key, value="tensor", hint=f"{key}=disk")


def transport_arguments(cfg: TrainConfig) -> Iterator[UserError]:
    """The arguments of the transport that is used are known."""
    transport = cfg.actor_rollout_ref.rollout.checkpoint_engine
    arguments = transport.engine_kwargs.get(transport.backend)
    known = TRANSPORT_ARGUMENTS.get(transport.backend)
    if not has_engine_pool(cfg) or arguments is None or known is None:
        return
    key = f"{TRANSPORT}.engine_kwargs.{transport.backend}"
    if not isinstance(arguments, dict):
        yield UserError("not a mapping of arguments", key=key, value=arguments, hint="leave it out")
        return
    for name, value in arguments.items():
        if name not in known:
            similar = nearest(name, known)
            problem = "the transport has no such argument." + (f" Did you mean {similar!r}?" if similar else "")
            yield UserError(problem, key=f"{key}.{name}", value=value, hint="leave it out")


def check_one_machine(launcher: str, num_nodes: int) -> Iterator[UserError]:
    if launcher == "processes" and num_nodes > 1:
        yield UserError(
            "plain processes run on one machine only",
            key="trainer.launcher",
            value=launcher,
            hint="trainer.launcher=ray",
        )


def launchers(cfg: TrainConfig) -> Iterator[UserError]:
    """The launcher can start the processes of this run."""
    launcher = cfg.trainer.launcher
    yield from check_one_machine(launcher, num_nodes(cfg))
    if launcher == "torchrun" and (has_engine_pool(cfg) or has_reward_pool(cfg)):
        yield UserError(
            "torchrun cannot start separate device pools",
            key="trainer.launcher",
            value=launcher,
            allowed=["ray", "processes"],
            hint="trainer.launcher=ray",
        )


def sharded_models(cfg: TrainConfig) -> Iterator[UserError]:
    """4-bit weights run on one rank only."""
    if num_ranks(cfg) == 1:
        return
    yield from check_shardable(cfg.actor_rollout_ref.model, "actor_rollout_ref.model")
    yield from check_shardable(cfg.critic.model, "critic.model")


def check_shardable(model: TrainedModelConfig, key: str) -> Iterator[UserError]:
    if model.load_in_4bit:
        yield UserError(
            "4-bit weights cannot be sharded over ranks",
            key=f"{key}.load_in_4bit",
            value=True,
            hint=f"{key}.load_in_4bit=false, or trainer.n_gpus_per_node=1",
        )


def reward_nodes(cfg: TrainConfig) -> Iterator[UserError]:
    """Reward workers on other nodes need Ray, and workers."""
    key, nodes = "ray_init.reward_nodes", cfg.ray_init.reward_nodes
    if nodes and cfg.trainer.launcher != "ray":
        yield UserError("reward workers on nodes need Ray", key=key, value=nodes, hint="trainer.launcher=ray")
    yield from node_workers(cfg)


def node_workers(cfg: TrainConfig | EvalConfig) -> Iterator[UserError]:
    """Nodes that score have workers."""
    key, nodes = "ray_init.reward_nodes", cfg.ray_init.reward_nodes
    if nodes and cfg.reward.num_workers == 0:
        problem = "reward.num_workers=0 runs reward functions in the process of the run"
        yield UserError(problem, key=key, value=nodes, hint="reward.num_workers=2")


def tool_nodes(cfg: TrainConfig) -> Iterator[UserError]:
    nodes = cfg.ray_init.tool_nodes
    if nodes and cfg.trainer.launcher != "ray":
        yield UserError("tools on nodes need Ray", key="ray_init.tool_nodes", value=nodes, hint="trainer.launcher=ray")


POOL_RULES = (
    *(device_pools, engine_groups, shared_server_weights, transport_arguments),
    *(launchers, reward_nodes, tool_nodes, sharded_models),
)
