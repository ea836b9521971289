"""Rules for processes: device pools of the roles, and launchers."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.adapters import TrainedModelConfig
from burnish.config.async_rules import is_async
from burnish.config.jobs import EvalConfig
from burnish.config.ranks import has_engine_pool, has_reward_pool, is_single_process, num_nodes, num_ranks
from burnish.config.root import TrainConfig
from burnish.errors import UserError


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


POOL_RULES = (device_pools, launchers, reward_nodes, sharded_models)
