"""Workers as Ray actors, one per rank. Ray places them on the machines of a cluster and ends them.

Calls are methods of the actors (ray_actor.py), batches are objects of Ray's store, and deaths are told by Ray. A local
cluster, which we start, stays on the loopback interface and has a random token.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from burnish.distributed.channel import Result
from burnish.distributed.ray_actor import HostActor, versions
from burnish.distributed.ray_link import RayEvents, RayLink
from burnish.distributed.worker_group import Link
from burnish.errors import UserError, WorkerDied, install_extra

GRACE = 5.0  # seconds that an actor has to end before it is killed
NAME_PATIENCE = 15.0  # seconds in which Ray forgets the name of an actor that was killed
# Ray starts workers with a clean environment; these variables change numerics or where models are loaded from.
# Ray's variable for other systems: without "clusters", its ports are bound to the loopback interface only.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
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
        self.options = options
        self.notices: list[str] = []
        self._added: list[str] = []  # environment variables
        address = find_cluster(options.options)
        self.owned = "ray" not in sys.modules or not _ray().is_initialized()
        if self.owned and address is None:
            self._add_variables()
        self.ray = _ray()
        if not self.owned:
            return
        environment = {key: os.environ[key] for key in FORWARDED_VARIABLES if key in os.environ}
        arguments: dict[str, Any] = {"runtime_env": {"env_vars": environment}, **options.options}
        if address is None:
            # Read at the import, which may have been before the variable was set.
            self.ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
            if options.num_cpus is not None:
                arguments["num_cpus"] = options.num_cpus
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # standard error escapes the codes of colors
        self.ray.init(**{**arguments, "address": address or "local"})
        if os.environ.get("RAY_AUTH_MODE") != "token" or not has_authentication():
            who = "other users of this machine" if address is None else "everybody who reaches the cluster's ports"
            self.notices.append(
                f"Ray has no token authentication: {who} can run code in this run. Ray 2.52 or later with "
                "RAY_AUTH_MODE=token has it; on one machine trainer.launcher=processes needs no Ray"
            )

    def _add_variables(self) -> None:
        """For a local cluster, its processes and this one: loopback only, and a token unless the user has set this."""
        variables = dict(LOOPBACK_ONLY)
        if not any(name in os.environ for name in AUTHENTICATION):
            # Not a token of Ray's, which it would write to a file that others may be able to read.
            variables["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            if "ray" not in sys.modules:
                variables["RAY_AUTH_MODE"] = "token"  # read at the import; later, ray.init sets it if it is not set
            self._added = list(AUTHENTICATION)
        self._added += LOOPBACK_ONLY
        os.environ |= variables

    @property
    def host(self) -> str | None:
        """The address of this machine for workers on other machines; None if the cluster has no other."""
        several = sum(node["Alive"] for node in self.ray.nodes()) > 1
        return self.ray.util.get_node_ip_address() if several else None

    def gauge(self, name: str, description: str, labels: dict[str, str]) -> Any:
        """A metric that Ray exports to Prometheus, as `ray_` and its name, for its dashboard."""
        gauge = self.ray.util.metrics.Gauge(name, description, tag_keys=tuple(labels))
        gauge.set_default_tags(labels)
        return gauge

    def close(self) -> None:
        if self.options.timeline:
            self.ray.timeline(self.options.timeline)
        if self.owned:
            self.ray.shutdown()
        for name in self._added:
            os.environ.pop(name, None)


class RayActors:
    """One named actor per worker, packed on as few machines as possible, or spread evenly over `nodes`."""

    def __init__(
        self,
        cluster: RayCluster,
        *,
        nodes: int = 1,
        resource: str | None = None,
        runtime_env: Callable[[int], dict[str, Any]] = lambda rank: {},
        cpus: float | None = None,
        prefix: str | None = None,
    ) -> None:
        """`cpus` of each actor, by default what the cluster has for it; `prefix` of their names, before their ranks."""
        self.cluster = cluster
        self.ray = cluster.ray
        self.nodes = nodes
        self.runtime_env = runtime_env  # of each rank, beside that of the cluster
        self.resource = resource  # "GPU" or another accelerator, one per worker
        self.cpus = cpus
        self.prefix = prefix
        self._actors: dict[str, Any] = {}
        self._machines: dict[str, tuple[str, str]] = {}  # address and Ray's id, by worker
        self._options: dict[int, dict[str, Any]] = {}  # of each actor
        self._resolve: Callable[[int, Result], None] = lambda rank, result: None
        self._fail: Callable[[int, str], None] = lambda rank, why: None
        self._deaths: dict[str, str] = {}
        self._events: RayEvents | None = None
        self._placement: Any = None

    def start(self, names: Sequence[str], address: str = "") -> None:
        """Create the actors. They are called by Ray, so they need no address."""
        cpus = self.cpus
        if cpus is None:
            cpus = min(1.0, self.ray.cluster_resources().get("CPU", 1.0) / len(names) / 2)
        needs = {"CPU": cpus} | ({} if self.resource is None else {self.resource: 1.0})
        self._placement = self._reserve(needs, len(names))
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        each = len(names) // self.nodes
        for index, name in enumerate(names):
            bundle = strategy(self._placement, placement_group_bundle_index=index // each)
            self._options[index] = {"scheduling_strategy": bundle, **_actor_needs(needs)}
            try:
                self._actors[name] = self._create(index)
            except ValueError as error:
                raise name_taken(self._options[index]) from error

    def _create(self, index: int) -> Any:
        """ValueError if an actor has this name."""
        options = self._options[index]
        if environment := self.runtime_env(index):
            options["runtime_env"] = environment
        if self.prefix is not None:
            options["name"] = f"{self.prefix}/{index}"
        actor_class = self.ray.remote(max_restarts=0)(HostActor)
        deadline = time.monotonic() + NAME_PATIENCE
        while True:
            try:
                return actor_class.options(**options).remote(self.cluster.host is not None)
            except ValueError:  # until Ray has forgotten an earlier actor; or another run has it
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def connect(
        self,
        names: Sequence[str],
        timeout: float,
        resolve: Callable[[int, Result], None],
        fail: Callable[[int, str], None],
    ) -> list[Link]:
        self._events, self._resolve, self._fail = RayEvents(), resolve, fail
        try:
            self.start(names)
            self._await_start(names, timeout)
        except BaseException:
            self.stop()
            raise
        return [self._link(rank, name) for rank, name in enumerate(names)]

    def _link(self, rank: int, name: str) -> Link:
        def failed(error: BaseException) -> None:
            if name not in self._actors:  # `stop` ended it
                return
            self._deaths.setdefault(name, self._describe(name, error))
            self._fail(rank, self._deaths[name])

        assert self._events is not None
        return RayLink(self._actors[name], self._events, partial(self._resolve, rank), failed)

    def revive(self, rank: int) -> Link | None:
        """The machine of an actor that died may come back, or another may take its place: Ray says when."""
        name = list(self._actors)[rank]
        self.ray.kill(self._actors[name])  # Ray may only have lost sight of it, and then its name is taken
        actor = self._actors[name] = self._create(rank)
        answer = actor.machine.remote()
        while self._events is not None:
            if self.ray.wait([answer], timeout=1.0)[0]:
                self._deaths.pop(name, None)
                self._await_start([name], self.cluster.options.timeout)
                return self._link(rank, name)
        return None

    def _await_start(self, names: Sequence[str], timeout: float) -> None:
        """Until these actors run. One that dies before, and a machine with other versions, is named at once."""
        machines = {name: self._actors[name].machine.remote() for name in names}
        self._machines |= dict(self._collect(machines, timeout))
        started = {name: self._actors[name].start.remote(self._machines[name][0]) for name in names}
        for name, found in self._collect(started, timeout):
            for package, ours in versions().items():
                if found[package] != ours:
                    raise version_skew(self._machines[name][0], package, found[package], ours)

    def _collect(self, answers: dict[str, Any], timeout: float) -> Iterator[tuple[str, Any]]:
        """Answers by worker, as they come."""
        by_ref = {ref: name for name, ref in answers.items()}
        waiting, deadline = list(by_ref), time.monotonic() + timeout
        while waiting:
            ready, waiting = self.ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = ", ".join(by_ref[ref] for ref in waiting)
                raise WorkerDied(missing, f"did not start within {timeout:g} s")
            name = by_ref[ready[0]]
            try:
                yield name, self.ray.get(ready[0])
            except self.ray.exceptions.RayError as error:
                if "No module named 'burnish'" in str(error):
                    raise not_installed(str(error)) from error
                raise WorkerDied(name, f"could not start: {self._describe(name, error)}") from error

    def _describe(self, name: str, error: BaseException) -> str:
        """Ray's own words about a death, with the actor's name and machine."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        fields = ("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:", "repr:")
        words = [line for line in lines if not line.startswith(fields)] or [type(error).__name__]
        actor = "" if self.prefix is None else f"actor {self.prefix}/{list(self._actors).index(name)}, "
        address, _ = self._machines.get(name, ("unknown", ""))
        return f"died ({actor}node {address}): {' '.join(words)[:500]}"

    def share(self, value: Any) -> Any:
        return self.ray.put(value)

    def poll(self) -> None:
        """The actors have all they need."""

    def exit_reason(self, name: str) -> str | None:
        return self._deaths.get(name)

    def node(self, name: str) -> str:
        return self._machines[name][1]

    def kill(self) -> None:
        for actor in self._actors.values():
            self.ray.kill(actor)

    def stop(self) -> None:
        if self._actors:
            ended = [actor.ended.remote() for actor in self._actors.values()]
            self.ray.wait(ended, num_returns=len(ended), timeout=GRACE)
        self.kill()
        if self._placement is not None:
            self.ray.util.remove_placement_group(self._placement)
        if self._events is not None:
            self._events.close()
        for rank in range(len(self._actors)):
            self._fail(rank, "was stopped")
        self._actors, self._placement, self._events = {}, None, None

    def _reserve(self, needs: dict[str, float], count: int) -> Any:
        """A placement group with one bundle per machine, so that neighboring ranks share a machine."""
        alive = [node["Alive"] for node in self.ray.nodes()]
        if sum(alive) < self.nodes and all(alive):  # a machine that was lost may come back
            raise too_few_machines(self.nodes, sum(alive))
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


def check_cluster(num_machines: int, options: dict[str, Any]) -> None:
    """Raise where a run on several machines has no cluster to run on."""
    _ray()
    if num_machines > 1 and find_cluster(options) is None:
        raise too_few_machines(num_machines, 0)


def find_cluster(options: dict[str, Any]) -> str | None:
    """The address of the cluster that ray.init would connect to; None if it would start a local one."""
    address = options.get("address") or os.environ.get("RAY_ADDRESS")
    if address:
        return None if address == "local" else address
    current = os.path.join(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        with open(current, encoding="utf-8") as file:
            # Another user's cluster could run code in this process.
            return (file.read().strip() or None) if os.fstat(file.fileno()).st_uid == os.geteuid() else None
    except OSError:
        return None


def has_authentication() -> bool:
    """Whether the installed Ray knows tokens."""
    return importlib.util.find_spec("ray._private.authentication") is not None


def too_few_machines(needed: int, found: int) -> UserError:
    """The error for a run on more machines than there are."""
    cluster = "no Ray cluster is running" if found == 0 else f"the Ray cluster has {found}"
    return UserError(
        f"the run needs {needed} machines, but {cluster}",
        key="trainer.nnodes",
        value=needed,
        hint="ray start --head on this machine and ray start --address=HOST:6379 on the others; or trainer.nnodes=1",
    )


def version_skew(node: str, package: str, theirs: str, ours: str) -> UserError:
    return UserError(
        f"node {node} of the Ray cluster has {package} {theirs}, but the controller has {ours}",
        key="trainer.launcher",
        value="ray",
        hint="install the same versions on every node, and restart its ray start",
    )


def not_installed(error: str) -> UserError:
    found = re.search(r"ip=([\w.:]+)", error)
    node = "a node" if found is None else f"node {found[1]}"
    return UserError(
        f"{node} of the Ray cluster has no burnish",
        key="trainer.launcher",
        value="ray",
        hint="install it in the environment in which ray start runs on that node",
    )


def name_taken(options: dict[str, Any]) -> UserError:
    return UserError(
        f"{options['name']} runs on this Ray cluster already: another run has the same name and namespace",
        key="trainer.experiment_name",
        hint="trainer.experiment_name=another",
    )


def installed() -> bool:
    from importlib.util import find_spec

    return find_spec("ray") is not None


def _ray() -> Any:
    try:
        import ray
        import ray.util.metrics
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UserError(
            f"several machines need Ray: {install_extra('ray')}",
            key="trainer.nnodes",
            hint="trainer.launcher=processes, for several processes of this machine",
        ) from error
    return ray
