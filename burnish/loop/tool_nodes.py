"""ToolNodes: isolated tools on nodes of a Ray cluster (`ray_init.tool_nodes`), a process per conversation.

A conversation stays on its node. If the node is lost, it moves to another one, where the calls that it has made so far
are repeated, unless the tool forbids that (`limits: {repeatable: false}`): then it starts there without its state.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from burnish.distributed.ray import RayActors, RayCluster
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import WorkerDied
from burnish.loop.elastic import bring_back
from burnish.rollout.tools.execution import MAX_THREADS
from burnish.rollout.tools.isolated import RESTARTED, ConversationWorker, LoadTemplate, Template, ToolTemplate
from burnish.rollout.tools.tool import ToolResult

if TYPE_CHECKING:
    from burnish.config import TrainConfig

logger = logging.getLogger("burnish")

HOST = "burnish.loop.tool_nodes:ToolHost"
Source = tuple[bytes, str, str]  # what a template is loaded from: the pickled function, and the tool's place for errors


class ToolHost:
    """The templates and conversations of one node."""

    concurrent = frozenset({"start", "request"})

    def __init__(self) -> None:
        self._templates: dict[Source, ToolTemplate] = {}
        self._workers: dict[int, ConversationWorker] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="burnish-tools")

    def describe(self, source: Source) -> list[dict[str, Any]]:
        return self._template(source).tools

    def start(self, id: int, source: Source, opening: tuple[Any, ...], seconds: float) -> Future[None]:
        return self._threads.submit(self._start, id, source, opening, seconds)

    def request(self, id: int, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        return self._threads.submit(self._request, id, method, arguments)

    def close(self) -> None:
        for template in self._templates.values():
            template.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _template(self, source: Source) -> ToolTemplate:
        with self._lock:
            if source not in self._templates:
                self._templates[source] = Template(*source)
            return self._templates[source]

    def _start(self, id: int, source: Source, opening: tuple[Any, ...], seconds: float) -> None:
        worker = self._workers[id] = self._template(source).worker(opening, repeatable=True)
        worker.start(seconds)

    def _request(self, id: int, method: str, arguments: tuple[Any, ...]) -> Any:
        worker = self._workers.pop(id) if method == "close" else self._workers[id]
        return getattr(worker, method)(*arguments)


class ToolNodes:
    """The controller's side of all nodes. They are started with the first template and end with the last."""

    def __init__(self, start: Callable[[], tuple[WorkerGroup, Callable[[], None]]]) -> None:
        """`start` makes the processes, one per node, and returns what to call after their end."""
        self.start_processes = start
        self._end: Callable[[], None] = lambda: None
        self._group: WorkerGroup | None = None
        self._num_templates = 0
        self._lock = threading.Lock()
        self._open: Counter[int] = Counter()  # conversations of each node
        self._ids = itertools.count()

    def load(self, build: bytes, where: str, key: str) -> NodeTemplate:
        """As Template, on the nodes."""
        if self._group is None:
            self._start()
        self._num_templates += 1
        source = (build, where, key)
        try:
            return NodeTemplate(self, source, self.group.submit(0, "describe", source).result())
        except BaseException:
            self.release()
            raise

    @property
    def group(self) -> WorkerGroup:
        assert self._group is not None
        return self._group

    def claim(self) -> tuple[int, int]:
        """The node that has fewest conversations, and the id of a new one there."""
        with self._lock:
            living = self.group.living
            if not living:
                raise RuntimeError("no node of tools is left")
            rank = min(living, key=self._open.__getitem__)
            self._open[rank] += 1
            return rank, next(self._ids)

    def leave(self, rank: int) -> None:
        with self._lock:
            self._open[rank] -= 1

    def release(self) -> None:
        """A template is closed."""
        self._num_templates -= 1
        if self._num_templates == 0:
            self.group.close()
            self._end()
            self._group = None

    def _start(self) -> None:
        self._group, self._end = self.start_processes()
        try:
            self._group.build(HOST, [()] * self._group.size)
        except BaseException:
            self._group.close()
            self._end()
            self._group = None
            raise
        self._group.elastic, self._group.on_death = True, self._lost

    def _lost(self, rank: int) -> None:
        if not self.group.closing:
            logger.warning("%s was lost; its conversations go on elsewhere", self.group.names[rank])
            bring_back(self.group, rank)


class NodeTemplate:
    """A template on every node."""

    def __init__(self, nodes: ToolNodes, source: Source, tools: list[dict[str, Any]]) -> None:
        self.nodes = nodes
        self.source = source
        self.tools = tools

    def worker(self, opening: tuple[Any, ...], *, repeatable: bool) -> NodeWorker:
        return NodeWorker(self, opening, repeatable)

    def close(self) -> None:
        self.nodes.release()


class NodeWorker:
    """The tools of one conversation, on the node where it is."""

    def __init__(self, template: NodeTemplate, opening: tuple[Any, ...], repeatable: bool) -> None:
        self.nodes = template.nodes
        self.source = template.source
        self.opening = opening
        self.repeatable = repeatable
        self._calls: list[tuple[Any, ...]] = []  # so far
        self._lock = threading.Lock()  # one call at a time
        self._place: tuple[int, int] | None = None  # node, and the conversation's id there

    def start(self, seconds: float) -> None:
        with self._lock:
            self._move(seconds)

    def call(self, tool: int, arguments: dict[str, Any], seconds: float) -> ToolResult:
        with self._lock:
            restarted = self._place is None and not self.repeatable
            result = self._request("call", (tool, arguments, seconds), seconds)
            self._calls.append((tool, arguments, seconds))
        return replace(result, text=RESTARTED + result.text) if restarted else result

    def score(self, tool: int, seconds: float) -> float:
        with self._lock:
            return self._request("score", (tool, seconds), seconds)

    def close(self, tool: int, seconds: float) -> None:
        with self._lock:
            if self._place is not None:
                (rank, id), self._place = self._place, None
                self.nodes.leave(rank)
                with contextlib.suppress(WorkerDied):
                    self.nodes.group.submit(rank, "request", id, "close", (tool, seconds)).result()

    def _request(self, method: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        while True:
            try:
                if self._place is None:
                    self._move(seconds)
                return self._ask(method, arguments)
            except WorkerDied as error:
                self._leave()
                if not self.repeatable:
                    raise RuntimeError(f"the tool's node was lost: {error}") from error

    def _move(self, seconds: float) -> None:
        """To a node, where the calls of the conversation are repeated."""
        self._place = rank, id = self.nodes.claim()
        self.nodes.group.submit(rank, "start", id, self.source, self.opening, seconds).result()
        for call in self._calls if self.repeatable else ():
            self._ask("call", call)

    def _ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        assert self._place is not None
        rank, id = self._place
        return self.nodes.group.submit(rank, "request", id, method, arguments).result()

    def _leave(self) -> None:
        if self._place is not None:
            self.nodes.leave(self._place[0])
            self._place = None


def tool_nodes(cfg: TrainConfig, open_cluster: Callable[[TrainConfig], RayCluster]) -> LoadTemplate:
    """What loads isolated tools."""
    nodes, timeout = cfg.ray_init.tool_nodes, cfg.trainer.ray_wait_register_center_timeout
    if not nodes:
        return Template
    prefix = f"burnish/{cfg.trainer.experiment_name}/tools"

    def start() -> tuple[WorkerGroup, Callable[[], None]]:
        cluster = open_cluster(cfg)
        try:
            actors = RayActors(cluster, nodes=nodes, cpus=1.0, prefix=prefix)
            names = [f"tool node {rank} of {nodes}" for rank in range(nodes)]
            return WorkerGroup(names, actors, host=cluster.host, timeout=timeout), cluster.close
        except BaseException:
            cluster.close()
            raise

    return ToolNodes(start).load
