"""Count what a rank sends: every collective and message that torch.distributed runs, with its bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from burnish.doctor.planner import traffic

# torch's operation -> kind of traffic. Context and expert ranks use the same one.
ALL_TO_ALL = "all-to-all"
KINDS = {
    "_allgather_base_": traffic.GATHER,
    "_reduce_scatter_base_": traffic.REDUCE,
    "all_reduce": traffic.TENSOR,
    "allreduce_": "sum",
    "alltoall_base_": ALL_TO_ALL,
    "send": traffic.PIPELINE,
}
NUMBER = 8  # bytes of a sum of one number, such as a norm


class Collectives(TorchDispatchMode):
    """Counts and bytes of the calls inside the context, by kind of traffic."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = function._schema.name.partition("::")
        kind = KINDS.get(name) if namespace in ("c10d", "_c10d_functional") else None
        if kind is not None:
            tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
            # An all-to-all is given its result first, and results differ with what others send.
            sent = tensors[1].nbytes if kind == ALL_TO_ALL else max(tensor.nbytes for tensor in tensors)
            if not (kind == "sum" and sent <= NUMBER):
                self.messages[kind] += 1
                self.bytes[kind] += sent
        return function(*args, **(kwargs or {}))
