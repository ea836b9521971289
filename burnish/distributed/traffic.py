"""Traffic: bytes of batches between the controller and the workers of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass
class Traffic:
    """What calls with shared data (`WorkerGroup.share`) have moved since the last `take`."""

    nodes: list[str]  # the machine of each rank
    once_per_node: bool = False  # whether ranks of a machine fetch shared data once, as with Ray
    put: int = 0  # by the controller, each object once
    returned: int = 0  # to the controller
    by_rank: Counter[int] = field(default_factory=Counter)
    by_node: Counter[str] = field(default_factory=Counter)
    _fetched: set[tuple[str, int]] = field(default_factory=set)

    def sent(self, object_id: int, num_bytes: int, rank: int) -> None:
        """This rank reads this object."""
        self.by_rank[rank] += num_bytes
        key = (self.nodes[rank], object_id)
        if not self.once_per_node or key not in self._fetched:
            self._fetched.add(key)
            self.by_node[self.nodes[rank]] += num_bytes

    def take(self) -> Traffic:
        """What was counted; counting begins anew."""
        counts = replace(self, by_rank=Counter(self.by_rank), by_node=Counter(self.by_node), _fetched=set())
        self.put = self.returned = 0
        self.by_rank.clear()
        self.by_node.clear()
        self._fetched.clear()
        return counts


def total_traffic(groups: Sequence[Traffic]) -> dict[str, float]:
    """Metrics of all groups since the last call. `rank` and `node` are those that fetched most."""
    counts = [group.take() for group in groups]
    nodes: Counter[str] = sum((count.by_node for count in counts), Counter())
    return {
        "perf/transport_put_bytes": float(sum(count.put for count in counts)),
        "perf/transport_returned_bytes": float(sum(count.returned for count in counts)),
        "perf/transport_rank_bytes": float(max((n for count in counts for n in count.by_rank.values()), default=0)),
        "perf/transport_node_bytes": float(max(nodes.values(), default=0)),
    }
