"""Workers as Ray actors, one per rank, placed on the machines of a cluster. Ray places, watches and ends them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.distributed.host import serve
from burnish.errors import UserError

# Ray's workers start from a clean environment; these make arithmetic and offline loading what they are here.
GRACE = 5.0  # seconds between asking an actor to end and killing it
PASSED_ON = ("ONEDNN_MAX_CPU_ISA", "HF_HUB_OFFLINE", "HF_HOME", "PYTHONPATH", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class RayOptions:
    """How Ray is reached, and what is left of it after the run."""

    num_cpus: int | None = None  # of a cluster that is started here
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of ray.init
    timeline: str | None = None  # file for Ray's timeline
    patience: float = 300.0  # seconds to wait for the workers' places


class RayCluster:
    """A running cluster, or a local one that is started and ended here."""

    def __init__(self, options: RayOptions) -> None:
        self.ray = _ray()
        self.options = options
        self.owned = not self.ray.is_initialized()
        if self.owned:
            environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
            given: dict[str, Any] = {"runtime_env": {"env_vars": environment}, **options.options}
            if options.num_cpus is not None and not os.environ.get("RAY_ADDRESS"):
                given["num_cpus"] = options.num_cpus
            self.ray.init(**given)

    @property
    def host(self) -> str:
        """The address at which workers on other machines reach this one."""
        return self.ray.util.get_node_ip_address()

    def close(self) -> None:
        if self.options.timeline:
            self.ray.timeline(self.options.timeline)
        if self.owned:
            self.ray.shutdown()


class RayActors:
    """Places one actor per worker: on as few machines as hold them, or as many on each of `nodes`."""

    def __init__(self, cluster: RayCluster, *, nodes: int = 1, resource: str | None = None) -> None:
        self.cluster = cluster
        self.ray = cluster.ray
        self.nodes = nodes
        self.resource = resource  # "GPU" or another accelerator, one per worker
        self._actors: dict[str, Any] = {}
        self._serving: dict[str, Any] = {}
        self._places: Any = None

    def start(self, names: Sequence[str], address: tuple[str, int], secret: bytes) -> None:
        cpus = min(1.0, self.ray.cluster_resources().get("CPU", 1.0) / len(names) / 2)
        needs = {"CPU": cpus} | ({} if self.resource is None else {self.resource: 1.0})
        self._places = self._take_places(needs, len(names))
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actor_class = self.ray.remote(max_restarts=0)(HostActor)
        each = len(names) // self.nodes
        for index, name in enumerate(names):
            place = strategy(self._places, placement_group_bundle_index=index // each)
            actor = actor_class.options(scheduling_strategy=place, **_actor_needs(needs)).remote()
            self._actors[name] = actor
            self._serving[name] = actor.serve.remote(address, secret, name)

    def why_dead(self, name: str) -> str | None:
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
        if self._places is not None:
            self.ray.util.remove_placement_group(self._places)
        self._actors, self._serving, self._places = {}, {}, None

    def _take_places(self, needs: dict[str, float], count: int) -> Any:
        """One bundle per machine, so that ranks of one machine are together."""
        bundle = {name: amount * (count // self.nodes) for name, amount in needs.items()}
        places = self.ray.util.placement_group(
            [bundle] * self.nodes, strategy="STRICT_SPREAD" if self.nodes > 1 else "PACK"
        )
        patience = self.cluster.options.patience
        ready, _ = self.ray.wait([places.ready()], timeout=patience)
        if not ready:
            self.ray.util.remove_placement_group(places)
            there = {name: count for name, count in self.ray.cluster_resources().items() if name in needs}
            raise UserError(
                f"Ray found no place for {self.nodes} x {bundle} within {patience:.0f} s; the cluster has {there}",
                key="trainer.n_gpus_per_node",
                value=count // self.nodes,
                hint="trainer.n_gpus_per_node=1, or join more machines (ray start --address=...)",
            )
        return places


def _actor_needs(needs: dict[str, float]) -> dict[str, Any]:
    """As Ray's actors want it: CPUs and GPUs have arguments of their own."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus"}
    found: dict[str, Any] = {named[name]: amount for name, amount in needs.items() if name in named}
    others = {name: amount for name, amount in needs.items() if name not in named}
    return found | ({"resources": others} if others else {})


class HostActor:
    """The actor: it only serves."""

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
