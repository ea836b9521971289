"""Launching: start the processes of a run's pools, build their roles, and hand out handles to them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from burnish.config.ranks import engine_size, has_engine_pool
from burnish.distributed import torchrun
from burnish.distributed.process_group import RankInfo
from burnish.distributed.processes import Processes
from burnish.distributed.ray import RayActors, RayCluster, RayOptions, check_cluster, installed
from burnish.distributed.torchrun import Torchrun
from burnish.distributed.traffic import total_traffic
from burnish.distributed.worker_group import NOT_RESPONDING, Starter, WorkerGroup
from burnish.errors import UserError
from burnish.log.gauges import MakeGauge
from burnish.log.timeline import Span
from burnish.loop.elastic import ElasticEngines
from burnish.loop.handles import CriticHandle, EngineHandle, PolicyHandle, ReferenceHandle, RewardModelHandle
from burnish.loop.pools import Pool, engines_alone
from burnish.loop.profiling import worker_command, worker_environment
from burnish.models.device import pick_device
from burnish.registry import Registry

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.config.trainer import RayInitConfig

SPANS_TIMEOUT = 5.0  # seconds
DEVICE_TRANSPORTS = {"cuda": "nccl"}  # of weights between devices of this type; gloo serves all others
GPU_TRANSPORTS = tuple(DEVICE_TRANSPORTS.values())
TRANSPORT_KEY = "actor_rollout_ref.rollout.checkpoint_engine.backend"
ACTOR_NAMES = {"trainer": "actor_rollout_ref", "reward": "reward_model"}  # of pools, as Ray's dashboard shows them
SIZE_KEYS = {"rollout": "rollout", "reward": "reward_model"}  # of pools: the sections of their sizes, else trainer
LAUNCHERS = Registry("launcher", key="trainer.launcher")


class ProcessKeys(Protocol):
    """The keys of `trainer` that say which processes a job has; every job that can have several has them."""

    device: str
    nnodes: int
    n_gpus_per_node: int
    launcher: str
    ray_wait_register_center_timeout: int


class ProcessConfig(Protocol):
    """The root config of a job that can run in several processes."""

    ray_init: RayInitConfig

    @property
    def trainer(self) -> ProcessKeys: ...


@dataclass(frozen=True)
class WorkerProgram:
    """What each process of a job hosts: an object of `factory`, built with (RankInfo, config, roles, *args)."""

    factory: str  # "module:class", a subclass of RoleWorker
    args: tuple[Any, ...] = ()
    run_name: str | None = None  # in the names of Ray's actors; None: they have none
    # (roles, rank, command) -> command, and (roles, rank) -> Ray's runtime environment: both may start a profiler
    command: Callable[[Sequence[str], int, list[str]], list[str]] = lambda roles, rank, words: words
    environment: Callable[[Sequence[str], int], dict[str, Any]] = lambda roles, rank: {}


def train_worker(cfg: TrainConfig, total_steps: int) -> WorkerProgram:
    """The processes of `burnish train`."""
    return WorkerProgram(
        "burnish.loop.worker:Worker",
        (total_steps,),
        cfg.trainer.experiment_name,
        partial(worker_command, cfg),
        partial(worker_environment, cfg),
    )


@dataclass
class LaunchedRoles:
    """The worker groups of a run, by the roles they hold."""

    groups: dict[str, WorkerGroup] = field(default_factory=dict)  # by role
    notices: list[str] = field(default_factory=list)
    elastic: bool = False  # whether the engines are a pool of their own, each of them alone
    make_gauge: MakeGauge | None = None  # of the cluster's metrics
    close_callbacks: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        for close in reversed(self.close_callbacks):
            close()

    def kill_hung(self, phase: str, timeout: float) -> str:
        """Kill workers that make no progress, so that the run can restart; returns their stack traces."""
        lines, silent = [], []
        for group in dict.fromkeys(self.groups.values()):
            for name, stacks in group.stacks().items():
                lines.append(f"{name} {stacks}")
                silent += [name] if stacks == NOT_RESPONDING else []
        who = ", ".join(silent) or "the ranks"
        for group in dict.fromkeys(self.groups.values()):
            group.kill(who, f"hung in {phase} for {timeout:g} s (trainer.hang_timeout)")
        return "\n".join(lines)

    def take_spans(self) -> dict[str, list[Span]]:
        """When each worker process was busy since the last call, by its name.

        A worker that does not answer is left out: a record for the viewer must not stop a run.
        """
        groups = list(dict.fromkeys(self.groups.values()))
        futures = {name: group.submit(rank, "take_spans") for group in groups for rank, name in enumerate(group.names)}
        answered, _ = wait(futures.values(), timeout=SPANS_TIMEOUT)
        return {
            name: future.result()
            for name, future in futures.items()
            if future in answered and future.exception() is None
        }

    def take_transport(self) -> dict[str, float]:
        """Metrics of the batches sent to workers and their results since the last call; none without workers."""
        groups = dict.fromkeys(self.groups.values())
        return total_traffic([group.traffic for group in groups]) if groups else {}

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
        name = rollout.checkpoint_engine.backend
        default = DEVICE_TRANSPORTS.get(pick_device(cfg.trainer.device).type, "gloo")
        backend = {"naive": default}.get(name, name)
        group, bucket_bytes = self.groups["engine"], rollout.update_weights_bucket_megabytes << 20
        if self.elastic and group.size > 1:
            return ElasticEngines(group, backend, bucket_bytes)
        return EngineHandle(group, backend, bucket_bytes, engine_size(cfg))


def check_launcher(cfg: ProcessConfig, pools: list[Pool]) -> None:
    """Raise, before anything is loaded, where processes or devices cannot run these pools."""
    world_size = torchrun.world_size() if torchrun.launched() else 1
    if world_size > 1 and (len(pools) != 1 or pools[0].size != world_size):
        num_ranks = sum(pool.size for pool in pools) or 1
        raise UserError(
            f"torchrun started {world_size} processes, but the run needs {num_ranks}",
            key="trainer.n_gpus_per_node",
            value=cfg.trainer.n_gpus_per_node,
            hint=f"trainer.n_gpus_per_node={world_size // cfg.trainer.nnodes}",
        )
    uses_ray = world_size == 1 and cfg.trainer.launcher in ("auto", "ray")
    if uses_ray and num_machines(pools) > 1:
        check_cluster(num_machines(pools), cfg.ray_init.options)
    if pools and _launcher_name(cfg, pools, []) != "ray":  # Ray has the devices of its cluster
        _check_devices(cfg, pools)


def num_machines(pools: list[Pool]) -> int:
    """Machines of the largest pool."""
    return max((pool.nodes for pool in pools), default=1)


def _check_devices(cfg: ProcessConfig, pools: list[Pool]) -> None:
    """Ranks that run collectives cannot share a device."""
    device = pick_device(cfg.trainer.device)
    if device.type == "cpu":
        return
    available = getattr(torch, device.type).device_count()
    for pool in pools:
        if pool.per_node > available:
            key = f"{SIZE_KEYS.get(pool.name, 'trainer')}.n_gpus_per_node"
            problem = f"one {device.type} device per process is needed, and this machine has {available}"
            raise UserError(problem, key=key, value=pool.per_node, hint=f"{key}={available}")


def check_transport(cfg: TrainConfig) -> None:
    """Raise where weights cannot be sent to the engines."""
    transport = cfg.actor_rollout_ref.rollout.checkpoint_engine.backend
    if has_engine_pool(cfg) and transport in GPU_TRANSPORTS and pick_device(cfg.trainer.device).type == "cpu":
        raise UserError(
            f"{transport} requires CUDA devices; none found",
            key=TRANSPORT_KEY,
            value=transport,
            hint=f"{TRANSPORT_KEY}=gloo",
        )


def launch(cfg: ProcessConfig, pools: list[Pool], program: WorkerProgram) -> LaunchedRoles:
    """Start every pool's processes and build their roles."""
    launched = LaunchedRoles()
    try:
        launcher = LAUNCHERS[_launcher_name(cfg, pools, launched.notices)].load()(cfg, program, launched)
        first_device = 0
        for pool in pools:
            _start_pool(cfg, pool, program, launcher, launched, first_device)
            first_device += pool.per_node
        for group in dict.fromkeys(launched.groups.values()):
            for notices in group.call("take_notices"):
                launched.notices += notices
    except BaseException:
        launched.close()
        raise
    return launched


def _start_pool(
    cfg: ProcessConfig,
    pool: Pool,
    program: WorkerProgram,
    launcher: Launcher,
    launched: LaunchedRoles,
    first_device: int,
) -> None:
    names = [pool.worker_name(rank) for rank in range(pool.size)]
    timeout = cfg.trainer.ray_wait_register_center_timeout
    group = WorkerGroup(names, launcher.starter(pool), host=launcher.host, timeout=timeout)
    launched.close_callbacks.append(group.close)
    address, key = group.new_rendezvous(), secrets.token_bytes(32)
    launched.elastic |= engines_alone(pool.roles, pool.engine_size)
    infos = [
        RankInfo(rank, pool.size, first_device + rank % pool.per_node, address, pool.timeout, key)
        for rank in range(pool.size)
    ]
    group.build(program.factory, [(info, cfg, pool.roles, *program.args) for info in infos])
    launched.groups |= dict.fromkeys(pool.roles, group)


def _launcher_name(cfg: ProcessConfig, pools: list[Pool], notices: list[str]) -> str:
    """`auto`: torchrun where it started this process, else Ray; on one machine without Ray, local processes."""
    name = cfg.trainer.launcher
    if name != "auto":
        return name
    if torchrun.launched():
        return "torchrun"
    if installed() or num_machines(pools) > 1:
        return "ray"
    notices.append("Ray is not installed: the ranks are local processes (trainer.launcher=processes)")
    return "processes"


@dataclass
class Launcher:
    """A starter for each pool, and this machine's address if its processes may run on other machines."""

    starter: Callable[[Pool], Starter]
    host: str | None = None


@LAUNCHERS.register("processes")
def _processes(cfg: ProcessConfig, program: WorkerProgram, launched: LaunchedRoles) -> Launcher:
    """Local processes."""
    return Launcher(lambda pool: Processes(partial(program.command, pool.roles)))


@LAUNCHERS.register("torchrun")
def _torchrun(cfg: ProcessConfig, program: WorkerProgram, launched: LaunchedRoles) -> Launcher:
    """The processes that torchrun started."""
    if not torchrun.launched():
        raise UserError(
            "torchrun did not start this process",
            key="trainer.launcher",
            value="torchrun",
            hint="torchrun --nproc-per-node 2 -m burnish train ...",
        )
    return Launcher(lambda pool: Torchrun(), torchrun.controller_host())


def open_cluster(cfg: ProcessConfig) -> RayCluster:
    """The cluster of the run, which the first to open it closes."""
    return RayCluster(ray_options(cfg.ray_init, cfg.trainer.ray_wait_register_center_timeout))


def ray_options(ray_init: RayInitConfig, timeout: float) -> RayOptions:
    """From the section of a job."""
    return RayOptions(ray_init.num_cpus, dict(ray_init.options), ray_init.timeline_json_file, timeout)


@LAUNCHERS.register("ray")
def _ray(cfg: ProcessConfig, program: WorkerProgram, launched: LaunchedRoles) -> Launcher:
    """Ray actors, on a running cluster or a local one."""
    cluster = open_cluster(cfg)
    launched.close_callbacks.append(cluster.close)
    launched.notices += cluster.notices
    launched.make_gauge = cluster.gauge
    resources = {"cuda": "GPU", "npu": "NPU"}
    resource = resources.get(pick_device(cfg.trainer.device).type) if cfg.trainer.device != "cpu" else None

    def starter(pool: Pool) -> RayActors:
        environment = partial(program.environment, pool.roles)
        name = ACTOR_NAMES.get(pool.name, pool.name)
        prefix = None if program.run_name is None else f"burnish/{program.run_name}/{name}"
        return RayActors(cluster, nodes=pool.nodes, resource=resource, runtime_env=environment, prefix=prefix)

    return Launcher(starter, cluster.host)
