"""RewardNodes: reward workers on nodes of a Ray cluster (`ray_init.reward_nodes`), each node with a pool of its own.

A node that is lost is left out, and its samples are scored by those that are left; it is taken back when it returns.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from burnish.distributed.ray import RayActors, RayCluster
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import WorkerDied
from burnish.loop.elastic import bring_back
from burnish.reward.call import Inputs
from burnish.reward.pool import WorkerPool
from burnish.reward.process import Job
from burnish.reward.sample import Outcome, Sample
from burnish.reward.settings import RewardSettings
from burnish.reward.source import RewardSource

logger = logging.getLogger("burnish.reward")

HOST = "burnish.loop.reward_nodes:RewardHost"
PackedJob = tuple[Sample, bytes, list[Any]]  # sample, payload, and the same of its parts


class RewardHost:
    """The workers of one node."""

    concurrent = frozenset({"score"})

    def __init__(self, source: RewardSource, settings: RewardSettings) -> None:
        self._outcomes: dict[int, Future[Outcome]] = {}  # by id of the job
        self.pool = WorkerPool(source, settings, self._finish)

    def inputs(self) -> tuple[Inputs, list[str]]:
        return self.pool.inputs, self.pool.notices

    def score(self, packed: PackedJob) -> Future[Outcome]:
        job, outcome = _unpack(packed), Future()
        self._outcomes[id(job)] = outcome
        job.future.add_done_callback(partial(self._failed, job))
        self.pool.put(job)
        return outcome

    def _finish(self, job: Job, outcome: Outcome) -> None:
        self._outcomes.pop(id(job)).set_result(outcome)

    def _failed(self, job: Job, future: Future[Any]) -> None:
        """The pool is broken or closed."""
        outcome = self._outcomes.pop(id(job), None)
        if outcome is not None:
            error = None if future.cancelled() else future.exception()
            outcome.set_exception(error or RuntimeError("the reward workers were stopped"))

    def close(self) -> None:
        self.pool.close()


class RewardNodes:
    """The controller's side, with the interface of WorkerPool."""

    def __init__(
        self,
        cluster: RayCluster,
        nodes: int,
        prefix: str | None,
        timeout: float,
        source: RewardSource,
        settings: RewardSettings,
        finish: Callable[[Job, Outcome], None],
    ) -> None:
        self._cluster = cluster
        self._finish = finish
        self._lock = threading.Lock()
        self._open = [0] * nodes  # samples that each node has
        self._group: WorkerGroup | None = None
        try:
            actors = RayActors(cluster, nodes=nodes, cpus=float(settings.num_workers), prefix=prefix)
            names = [f"reward node {rank} of {nodes}" for rank in range(nodes)]
            self._group = group = WorkerGroup(names, actors, host=cluster.host, timeout=timeout)
            group.build(HOST, [(source, settings)] * nodes)
            group.elastic, group.on_death = True, self._lost
            self.inputs, self.notices = group.submit(0, "inputs").result()
        except BaseException:
            self.close()
            raise

    def put(self, job: Job) -> None:
        """Score a sample on the node that has fewest; returns at once."""
        if job.future.running() or job.future.set_running_or_notify_cancel():
            self._send(job)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._cluster.close()

    def _send(self, job: Job) -> None:
        assert self._group is not None
        with self._lock:
            rank = min(self._group.living or [0], key=self._open.__getitem__)
            self._open[rank] += 1
        future = self._group.submit(rank, "score", _pack(job))
        future.add_done_callback(partial(self._scored, job, rank))

    def _scored(self, job: Job, rank: int, future: Future[Outcome]) -> None:
        assert self._group is not None
        with self._lock:
            self._open[rank] -= 1
        error = future.exception()
        if error is None:
            self._finish(job, future.result())
        elif isinstance(error, WorkerDied) and self._group.living and not self._group.closing:
            self._send(job)
        else:
            job.future.set_exception(error)

    def _lost(self, rank: int) -> None:
        assert self._group is not None
        if not self._group.closing:
            logger.warning("%s was lost; its samples are scored by the others", self._group.names[rank])
            bring_back(self._group, rank)


def reward_nodes(
    open_cluster: Callable[[], RayCluster], nodes: int, prefix: str | None, timeout: float
) -> Callable[..., RewardNodes]:
    """What makes the pool of a Scorer. `prefix` of the actors' names; None: they have none."""

    def make(source: RewardSource, settings: RewardSettings, finish: Callable[[Job, Outcome], None]) -> RewardNodes:
        return RewardNodes(open_cluster(), nodes, prefix, timeout, source, settings, finish)

    return make


def _pack(job: Job) -> PackedJob:
    return job.sample, job.payload, [_pack(part) for part in job.parts]


def _unpack(packed: PackedJob) -> Job:
    sample, payload, parts = packed
    return Job(sample, payload, Future(), parts=tuple(map(_unpack, parts)))
