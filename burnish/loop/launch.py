"""Launching: the processes of a run's pools, each with its roles built, and handles to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from burnish.config.ranks import has_engine_pool, num_nodes
from burnish.distributed import torchrun
from burnish.distributed.group import NO_ANSWER, Group, Starter
from burnish.distributed.host import RankInfo
from burnish.distributed.processes import Processes
from burnish.distributed.ray import RayActors, RayCluster, RayOptions, installed
from burnish.distributed.torchrun import Torchrun
from burnish.errors import UserError
from burnish.loop.handles import CriticHandle, EngineHandle, PolicyHandle, ReferenceHandle, RewardModelHandle
from burnish.loop.pools import Pool
from burnish.models.device import pick_device
from burnish.registry import Registry

if TYPE_CHECKING:
    from burnish.config import TrainConfig

WORKER = "burnish.loop.worker:Worker"
OWN_TRANSPORT = {"cuda": "nccl"}  # of weights between devices of this kind; gloo serves all others
GPU_TRANSPORTS = tuple(OWN_TRANSPORT.values())
TRANSPORT_KEY = "actor_rollout_ref.rollout.checkpoint_engine.backend"
LAUNCHERS = Registry("launcher", key="trainer.launcher")


@dataclass
class Launched:
    """The groups of a run and which of them holds which role."""

    groups: dict[str, Group] = field(default_factory=dict)  # by role
    notices: list[str] = field(default_factory=list)
    closing: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        for close in reversed(self.closing):
            close()

    def break_off(self, phase: str, patience: float) -> str:
        """End workers that stand still, so that the run can start again; their stacks, in words."""
        told, silent = [], []
        for group in dict.fromkeys(self.groups.values()):
            for name, stacks in group.stacks().items():
                told.append(f"{name} {stacks}")
                silent += [name] if stacks == NO_ANSWER else []
        who = ", ".join(silent) or "the ranks"
        for group in dict.fromkeys(self.groups.values()):
            group.break_off(who, f"hung in {phase} for {patience:g} s (trainer.hang_timeout)")
        return "\n".join(told)

    def policy(self) -> PolicyHandle:
        return PolicyHandle(self.groups["policy"], "policy")

    def critic(self) -> CriticHandle | None:
        return CriticHandle(self.groups["critic"], "critic") if "critic" in self.groups else None

    def reference(self) -> ReferenceHandle | None:
        return ReferenceHandle(self.groups["reference"], "reference") if "reference" in self.groups else None

    def reward_model(self) -> RewardModelHandle | None:
        return RewardModelHandle(self.groups["reward_model"], "reward_model") if "reward_model" in self.groups else None

    def engine(self, cfg: TrainConfig) -> EngineHandle:
        rollout = cfg.actor_rollout_ref.rollout
        own = OWN_TRANSPORT.get(pick_device(cfg.trainer.device).type, "gloo")
        asked = rollout.checkpoint_engine.backend
        backend = {"naive": own}.get(asked, asked)
        return EngineHandle(self.groups["engine"], backend, rollout.update_weights_bucket_megabytes << 20)


def check_launcher(cfg: TrainConfig, pools: list[Pool]) -> None:
    """Refuse before anything is loaded what the processes at hand cannot be."""
    there = torchrun.world_size() if torchrun.launched() else 1
    if there > 1 and (len(pools) != 1 or pools[0].size != there):
        wanted = sum(pool.size for pool in pools) or 1
        raise UserError(
            f"torchrun started {there} processes, the run asks for {wanted}",
            key="trainer.n_gpus_per_node",
            value=cfg.trainer.n_gpus_per_node,
            hint=f"trainer.n_gpus_per_node={there // cfg.trainer.nnodes}",
        )
    transport = cfg.actor_rollout_ref.rollout.checkpoint_engine.backend
    if has_engine_pool(cfg) and transport in GPU_TRANSPORTS and pick_device(cfg.trainer.device).type == "cpu":
        raise UserError(
            "is a way between GPUs, and there are none",
            key=TRANSPORT_KEY,
            value=transport,
            hint=f"{TRANSPORT_KEY}=gloo",
        )


def launch(cfg: TrainConfig, pools: list[Pool], total_steps: int) -> Launched:
    """Start every pool's processes and let them build their roles."""
    launched = Launched()
    try:
        launcher = LAUNCHERS[_chosen(cfg, launched.notices)].load()(cfg, launched)
        first_device = 0
        for pool in pools:
            _open(cfg, pool, launcher, launched, first_device, total_steps)
            first_device += pool.per_node
        for group in dict.fromkeys(launched.groups.values()):
            launched.notices += group.call("take_notices")[0]
    except BaseException:
        launched.close()
        raise
    return launched


def _open(cfg: TrainConfig, pool: Pool, launcher: Launcher, launched: Launched, device: int, total_steps: int) -> None:
    names = [pool.worker_name(rank) for rank in range(pool.size)]
    group = Group(
        names, launcher.starter(pool), host=launcher.host, patience=cfg.trainer.ray_wait_register_center_timeout
    )
    launched.closing.append(group.close)
    meeting = group.meeting_place()
    seats = [
        RankInfo(rank, pool.size, device + rank % pool.per_node, meeting, pool.timeout) for rank in range(pool.size)
    ]
    group.build(WORKER, [(seat, cfg, pool.roles, total_steps) for seat in seats])
    launched.groups |= dict.fromkeys(pool.roles, group)


def _chosen(cfg: TrainConfig, notices: list[str]) -> str:
    """`auto` takes torchrun's processes where it has started them, else Ray; one machine can do without."""
    asked = cfg.trainer.launcher
    if asked != "auto":
        return asked
    if torchrun.launched():
        return "torchrun"
    if installed() or num_nodes(cfg) > 1:
        return "ray"
    notices.append("Ray is not installed: the ranks are plain processes of this machine (trainer.launcher=processes)")
    return "processes"


@dataclass
class Launcher:
    """How processes come to be: a starter for each pool, and the address at which they reach the controller."""

    starter: Callable[[Pool], Starter]
    host: str = "127.0.0.1"


@LAUNCHERS.register("processes")
def _processes(cfg: TrainConfig, launched: Launched) -> Launcher:
    """Processes of this machine."""
    return Launcher(lambda pool: Processes())


@LAUNCHERS.register("torchrun")
def _torchrun(cfg: TrainConfig, launched: Launched) -> Launcher:
    """The processes that torchrun has started."""
    if not torchrun.launched():
        raise UserError(
            "torchrun did not start this process",
            key="trainer.launcher",
            value="torchrun",
            hint="torchrun --nproc-per-node 2 -m burnish train ...",
        )
    return Launcher(lambda pool: Torchrun())


@LAUNCHERS.register("ray")
def _ray(cfg: TrainConfig, launched: Launched) -> Launcher:
    """Ray actors, on a running cluster or a local one."""
    own = cfg.ray_init
    options = RayOptions(
        num_cpus=own.num_cpus,
        options=dict(own.options),
        timeline=own.timeline_json_file,
        patience=cfg.trainer.ray_wait_register_center_timeout,
    )
    cluster = RayCluster(options)
    launched.closing.append(cluster.close)
    resources = {"cuda": "GPU", "npu": "NPU"}
    resource = resources.get(pick_device(cfg.trainer.device).type) if cfg.trainer.device != "cpu" else None
    return Launcher(lambda pool: RayActors(cluster, nodes=pool.nodes, resource=resource), cluster.host)
