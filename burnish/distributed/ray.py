"""Workers as Ray actors, one per rank. Ray places them on the machines of a cluster and ends them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.distributed.host import serve
from burnish.errors import UserError

GRACE = 5.0  # seconds that an actor has to end before it is killed
# Ray starts workers with a clean environment; these variables change numerics or where models are loaded from.
FORWARDED_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "HF_HUB_OFFLINE", "HF_HOME", "PYTHONPATH", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class RayOptions:
    """How to connect to Ray."""

    num_cpus: int | None = None  # of a local cluster
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of ray.init
    timeline: str | None = None  # file to write Ray's timeline to
    timeout: float = 300.0  # seconds to wait for resources


class RayCluster:
    """A running cluster, or a local one that this process starts and shuts down."""

    def __init__(self, options: RayOptions) -> None:
        self.ray = _ray()
        self.options = options
        self.owned = not self.ray.is_initialized()
        if self.owned:
            environment = {key: os.environ[key] for key in FORWARDED_VARIABLES if key in os.environ}
            arguments: dict[str, Any] = {"runtime_env": {"env_vars": environment}, **options.options}
            if options.num_cpus is not None and not os.environ.get("RAY_ADDRESS"):
                arguments["num_cpus"] = options.num_cpus
            self.ray.init(**arguments)

    @property
    def host(self) -> str:
        """The address of this machine for workers on other machines."""
        return self.ray.util.get_node_ip_address()

    def close(self) -> None:
        if self.options.timeline:
            self.ray.timeline(self.options.timeline)
        if self.owned:
            self.ray.shutdown()


class RayActors:
    """One actor per worker, packed on as few machines as possible, or spread evenly over `nodes`."""

    def __init__(self, cluster: RayCluster, *, nodes: int = 1, resource: str | None = None) -> None:
        self.cluster = cluster
        self.ray = cluster.ray
        self.nodes = nodes
        self.resource = resource  # "GPU" or another accelerator, one per worker
        self._actors: dict[str, Any] = {}
        self._serving: dict[str, Any] = {}
        self._placement: Any = None

    def start(self, names: Sequence[str], address: tuple[str, int], secret: bytes) -> None:
        cpus = min(1.0, self.ray.cluster_resources().get("CPU", 1.0) / len(names) / 2)
        needs = {"CPU": cpus} | ({} if self.resource is None else {self.resource: 1.0})
        self._placement = self._reserve(needs, len(names))
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actor_class = self.ray.remote(max_restarts=0)(HostActor)
        each = len(names) // self.nodes
        for index, name in enumerate(names):
            bundle = strategy(self._placement, placement_group_bundle_index=index // each)
            actor = actor_class.options(scheduling_strategy=bundle, **_actor_needs(needs)).remote()
            self._actors[name] = actor
            self._serving[name] = actor.serve.remote(address, secret, name)

    def exit_reason(self, name: str) -> str | None:
        serving = self._serving.get(name)
        if serving is None or not self.ray.wait([serving], timeout=0)[0]:
            return None
        try:
            self.ray.get(serving)
        except self.ray.exceptions.RayError as error:
            return f"died: {str(error).splitlines()[0]}"
        return "ended"

    def kill(self) -> None:
        for actor in self._actors.values():
            self.ray.kill(actor)

    def stop(self) -> None:
        if self._serving:
            self.ray.wait(list(self._serving.values()), num_returns=len(self._serving), timeout=GRACE)
        self.kill()
        if self._placement is not None:
            self.ray.util.remove_placement_group(self._placement)
        self._actors, self._serving, self._placement = {}, {}, None

    def _reserve(self, needs: dict[str, float], count: int) -> Any:
        """A placement group with one bundle per machine, so that neighboring ranks share a machine."""
        bundle = {name: amount * (count // self.nodes) for name, amount in needs.items()}
        placement = self.ray.util.placement_group(
            [bundle] * self.nodes, strategy="STRICT_SPREAD" if self.nodes > 1 else "PACK"
        )
        timeout = self.cluster.options.timeout
        ready, _ = self.ray.wait([placement.ready()], timeout=timeout)
        if not ready:
            self.ray.util.remove_placement_group(placement)
            available = {name: count for name, count in self.ray.cluster_resources().items() if name in needs}
            raise UserError(
                f"Ray could not reserve {self.nodes} x {bundle} within {timeout:.0f} s; the cluster has {available}",
                key="trainer.n_gpus_per_node",
                value=count // self.nodes,
                hint="trainer.n_gpus_per_node=1, or join more machines (ray start --address=...)",
            )
        return placement


def _actor_needs(needs: dict[str, float]) -> dict[str, Any]:
    """Resources as actor options: CPUs and GPUs have options of their own."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus"}
    options: dict[str, Any] = {named[name]: amount for name, amount in needs.items() if name in named}
    others = {name: amount for name, amount in needs.items() if name not in named}
    return options | ({"resources": others} if others else {})


class HostActor:
    """The actor that runs a worker's host."""

    def serve(self, address: tuple[str, int], secret: bytes, name: str) -> None:
        serve(address, secret, name)


def installed() -> bool:
    from importlib.util import find_spec

    return find_spec("ray") is not None


def _ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UserError(
            "several machines need Ray: pip install burnish[ray]",
            key="trainer.nnodes",
            hint="trainer.launcher=processes, for several processes of this machine",
        ) from error
    return ray
