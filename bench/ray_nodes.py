"""Nodes for bench/faults.py: several Ray nodes on this machine, of which one is killed amid a run and another joins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from killing import GRPO, Baseline, Commands, Task, differences

# A dead node is noticed after a second and a half, not after half a minute.
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
MAX_RUNS = 4  # per fault: the node that is killed may be idle
# What counts the fault, and where the cluster was.
IGNORED = ("training/restarts", "rollout/asked_again", "rollout/engines", "ray_init.options address")


@dataclass(frozen=True)
class Kind:
    """What the nodes beside the head do."""

    head: int  # CPUs of the first node
    others: tuple[int, ...]  # of each other node
    settings: tuple[str, ...]
    phases: tuple[str, ...]  # in which a node is killed
    reported: str  # what the run prints then
    restarts: int  # of the run, at most


KINDS = {
    "engines": Kind(
        2,
        (1, 1),
        (
            "actor_rollout_ref.hybrid_engine=false",
            "actor_rollout_ref.rollout.nnodes=2",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
            "trainer.n_gpus_per_node=2",
        ),
        ("gen",),
        "was lost: 1 of 2 engines are left",
        1,  # where the loss is noticed only in the weight sync that follows
    ),
    "training ranks": Kind(
        1,
        (1, 1),
        ("trainer.nnodes=2", "trainer.n_gpus_per_node=1"),
        ("gen", "ref", "update_actor", "save_checkpoint"),
        "resuming from the last checkpoint",
        1,
    ),
    "reward workers": Kind(
        1, (2, 2), ("reward.num_workers=2", "ray_init.reward_nodes=2"), ("reward",), "its samples are scored", 0
    ),
}


@dataclass
class Outcome:
    tried: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)


class Nodes:
    """A cluster whose head stays, and whose other nodes may be killed."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    def replace(self, rng: random.Random, cpus: int) -> None:
        """Kill a node, and let a new one join."""
        self.cluster.remove_node(rng.choice(sorted(self.cluster.worker_nodes, key=id)), allow_graceful=False)
        self.cluster.add_node(num_cpus=cpus)

    @property
    def settings(self) -> tuple[str, ...]:
        options = f"{{address: '{self.cluster.address}', log_to_driver: false}}"
        return f"ray_init.options={options}", "trainer.launcher=ray", "trainer.ray_wait_register_center_timeout=100"


@contextmanager
def nodes(kind: Kind) -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": kind.head, "include_dashboard": False, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    try:
        for cpus in kind.others:
            cluster.add_node(num_cpus=cpus)
        yield Nodes(cluster)
    finally:
        cluster.shutdown()


def kill_nodes(commands: Commands, task: Task, folder: Path, name: str, tries: int, seed: int) -> Outcome:
    """Every run has a cluster of its own, so that no fault meets what another one left; an undisturbed run is first."""
    kind, rng, outcome = KINDS[name], random.Random(seed), Outcome()
    with nodes(kind) as undisturbed:
        settings = (*GRPO, *kind.settings, *undisturbed.settings)
        baseline = Baseline(commands, task, folder / "undisturbed", settings)
    for number in range(MAX_RUNS * tries):
        run, killed = folder / f"killed_{number}", []
        with nodes(kind) as several:

            def kill(pid: int, several: Nodes = several, killed: list[int] = killed) -> None:
                several.replace(rng, kind.others[0])
                killed.append(pid)

            arguments = task.arguments(run, *GRPO, *kind.settings, *several.settings)
            at = baseline.random_instant(rng, kind.phases)
            result = commands.run(arguments, at=at, do=kill, usual=baseline.usual)
        if result.status:
            outcome.lost.append(f"{run.name}: status {result.status}: {result.printed[-2000:]}")
        outcome.lost += [f"{run.name}: {line}" for line in differences(baseline.folder, run, IGNORED)]
        if kind.reported in result.printed and killed:
            outcome.tried += 1
            outcome.survived += result.status == 0 and f"restart {kind.restarts + 1}" not in result.printed
        if outcome.tried == tries:
            break
    return outcome
