"""Seconds of communication: latency per message, and bytes over the links that a group of ranks shares.

Nothing here is measured: one GPU was available. Line rates are the vendors' (gpus.py); the shares of them that
collectives reach, and their latencies, are assumptions that the report states.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.doctor.gpus import Cluster
from burnish.doctor.planner import traffic
from burnish.doctor.planner.layout import Layout
from burnish.doctor.planner.traffic import Flow

LINE_SHARE = 0.8  # of the line rate
LINK_LATENCY, NETWORK_LATENCY = 15e-6, 40e-6  # seconds of a message within a machine, and of one between machines
OVERLAP = 0.8  # of the time in which a GPU computes, gathers and reductions of weights cost nothing
LEAST_EXPOSED = 0.05  # of their own time that is never hidden: the first gather and the last reduction
# Kinds that run beside computation.
HIDDEN = frozenset({traffic.GATHER, traffic.REDUCE, traffic.COPIES})


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: how many, and how many of them are on one machine."""

    size: int
    local: int

    @property
    def crosses(self) -> bool:
        return self.local < self.size


def group_of(kind: str, layout: Layout, per_machine: int) -> Group:
    """Ranks are numbered with tensor ranks innermost, then context and data, and stages outermost."""
    sizes = {
        traffic.TENSOR: (layout.tensor, 1),
        traffic.CONTEXT: (layout.context, layout.tensor),
        traffic.RESULTS: (layout.context, layout.tensor),
        traffic.GATHER: (layout.shard, layout.tensor),
        traffic.REDUCE: (layout.shard, layout.tensor),
        traffic.COPIES: (layout.replicas, layout.tensor * layout.shard),
        traffic.EXPERT: (layout.expert, 1),
        traffic.PIPELINE: (2, layout.tensor * layout.stage_ranks),
    }
    size, stride = sizes[kind]
    return Group(size, max(1, min(size, per_machine // stride)))


def flow_seconds(kind: str, flow: Flow, layout: Layout, cluster: Cluster) -> float:
    """Of all messages of one kind."""
    group, gpu = group_of(kind, layout, cluster.per_machine), cluster.gpu
    latency = flow.messages * (NETWORK_LATENCY if group.crosses else LINK_LATENCY)
    link, network = gpu.link * LINE_SHARE, gpu.network * LINE_SHARE
    others = (group.size - 1) / group.size
    if kind == traffic.PIPELINE:
        return latency + flow.bytes / (network if group.crosses else link)
    if kind in (traffic.CONTEXT, traffic.EXPERT):
        away = (group.size - group.local) / group.size
        within = flow.bytes * max(0.0, others - away) / link
        return latency + max(within, flow.bytes * away / network)
    # Rings: every GPU of the group on a machine has an adapter of its own.
    rate = min(link, network * group.local) if group.crosses else link
    twice = 2 if kind in (traffic.COPIES, traffic.TENSOR, traffic.RESULTS) else 1
    return latency + twice * flow.bytes * others / rate


@dataclass(frozen=True)
class Exposed:
    """Seconds of a phase that communication adds to computation."""

    seconds: float
    by_kind: dict[str, float]  # all of them, also hidden ones


def exposed(flows: dict[str, Flow], computing: float, layout: Layout, cluster: Cluster) -> Exposed:
    """What computation does not hide. Gathers and reductions run beside it; everything else waits its turn."""
    by_kind = {kind: flow_seconds(kind, flow, layout, cluster) for kind, flow in flows.items()}
    hidden = sum(seconds for kind, seconds in by_kind.items() if kind in HIDDEN)
    waiting = sum(by_kind.values()) - hidden
    return Exposed(waiting + max(hidden - OVERLAP * computing, LEAST_EXPOSED * hidden), by_kind)


def broadcast_seconds(num_bytes: float, layout: Layout, cluster: Cluster) -> float:
    """One rank's weights to engines on other GPUs."""
    crosses = layout.machines + layout.engine_machines > 1 and cluster.machines > 1
    return num_bytes / (LINE_SHARE * (cluster.gpu.network if crosses else cluster.gpu.link))
