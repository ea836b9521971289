"""Rules about the processes of a run: which devices its roles have, and who starts them."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.async_rules import is_async
from burnish.config.ranks import has_engine_pool, has_reward_pool, is_single_process, num_nodes, num_ranks
from burnish.config.root import TrainConfig
from burnish.errors import UserError


def own_devices(cfg: TrainConfig) -> Iterator[UserError]:
    """Devices of a role's own are counted; side by side in one process is the only way to do without."""
    if (
        not cfg.actor_rollout_ref.hybrid_engine
        and not has_engine_pool(cfg)
        and not (is_single_process(cfg) and is_async(cfg))
    ):
        yield UserError(
            "the engines then need devices of their own, and none are counted (rollout.nnodes x n_gpus_per_node is 0)",
            key="actor_rollout_ref.hybrid_engine",
            value=False,
            hint="rollout.nnodes=1 rollout.n_gpus_per_node=1, or actor_rollout_ref.hybrid_engine=true",
        )
    own = cfg.reward_model
    if own.enable and own.enable_resource_pool and not has_reward_pool(cfg):
        yield UserError(
            "the reward model then needs devices of its own, and none are counted",
            key="reward_model.enable_resource_pool",
            value=True,
            hint="reward_model.nnodes=1 reward_model.n_gpus_per_node=1",
        )


def launchers(cfg: TrainConfig) -> Iterator[UserError]:
    """Who can start the processes that are asked for."""
    asked = cfg.trainer.launcher
    if asked == "processes" and num_nodes(cfg) > 1:
        yield UserError(
            "plain processes run on one machine only", key="trainer.launcher", value=asked, hint="trainer.launcher=ray"
        )
    if asked == "torchrun" and (has_engine_pool(cfg) or has_reward_pool(cfg)):
        yield UserError(
            "torchrun's processes all hold the same roles; devices of their own need Ray or processes",
            key="trainer.launcher",
            value=asked,
            hint="trainer.launcher=ray",
        )


def sharded_models(cfg: TrainConfig) -> Iterator[UserError]:
    """What cannot be sharded over ranks."""
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


POOL_RULES = (own_devices, launchers, sharded_models)
