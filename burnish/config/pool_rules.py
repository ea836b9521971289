"""Rules for processes: device pools of the roles, and launchers."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.async_rules import is_async
from burnish.config.ranks import has_engine_pool, has_reward_pool, is_single_process, num_nodes, num_ranks
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


def launchers(cfg: TrainConfig) -> Iterator[UserError]:
    """The launcher can start the processes of this run."""
    launcher = cfg.trainer.launcher
    if launcher == "processes" and num_nodes(cfg) > 1:
        yield UserError(
            "plain processes run on one machine only",
            key="trainer.launcher",
            value=launcher,
            hint="trainer.launcher=ray",
        )
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
    for key, model in (("actor_rollout_ref.model", cfg.actor_rollout_ref.model), ("critic.model", cfg.critic.model)):
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
    if nodes and cfg.reward.num_workers == 0:
        problem = "reward.num_workers=0 runs reward functions in the training process"
        yield UserError(problem, key=key, value=nodes, hint="reward.num_workers=2")


POOL_RULES = (device_pools, transport_arguments, launchers, reward_nodes, sharded_models)
