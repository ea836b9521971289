"""TensorGroup: the ranks that share the matrices of one engine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.errors import WorkerDied

Result = TypeVar("Result")


@dataclass
class TensorGroup:
    """The first rank leads: it schedules and samples, and sends every pass to the others, which run it too."""

    ranks: dist.ProcessGroup
    ended: bool = False  # closed, or a command failed on this rank: the others may wait in its middle

    @property
    def rank(self) -> int:
        return self.ranks.rank()

    @property
    def size(self) -> int:
        return self.ranks.size()

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # commands

    def send(self, name: str, args: tuple[Any, ...] = ()) -> None:
        """From the leader; nothing once the group has ended."""
        if self.ended:
            return
        with self._peers():
            dist.broadcast_object_list([(name, args)], group_src=0, group=self.ranks, device=torch.device("cpu"))

    def receive(self) -> tuple[str, tuple[Any, ...]]:
        command: list[Any] = [None]
        with self._peers():
            dist.broadcast_object_list(command, group_src=0, group=self.ranks, device=torch.device("cpu"))
        return command[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.ranks)
        return values

    # tensors

    def sum(self, part: Tensor, *, ordered: bool = False) -> Tensor:
        """The sum over all ranks, computed in float32 at least.

        `ordered`: add in the order of the ranks. An all-reduce adds the parts of a tensor in different orders, so that
        the bits of a row depend on its place in the batch.
        """
        total = part.to(torch.promote_types(part.dtype, torch.float32), memory_format=torch.contiguous_format)
        with self._peers():
            if ordered and self.size > 2:
                parts = [torch.empty_like(total) for _ in range(self.size)]
                dist.all_gather(parts, total, group=self.ranks)
                total = functools.reduce(torch.add, parts)
            else:
                total = total.clone() if total is part else total
                dist.all_reduce(total, group=self.ranks)
        return total.to(part.dtype)

    def min(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        smallest = torch.tensor(number)
        with self._peers():
            dist.all_reduce(smallest, dist.ReduceOp.MIN, group=self.ranks)
        return int(smallest)

    def barrier(self) -> None:
        """Wait until the CPU of every rank is here."""
        if not self.ended:
            self.min(0)

    @contextlib.contextmanager
    def _peers(self) -> Iterator[None]:
        """A collective. Where it fails, another rank is lost, and the run has to start again."""
        who = f"rank {self.rank} of an engine on {self.size} ranks"
        if self.ended:
            raise WorkerDied(who, "has ended: it was closed, or a pass failed")
        try:
            yield
        except RuntimeError as error:
            raise WorkerDied(who, f"has lost another: {error}") from error


class OnTensorRanks(Protocol):
    group: TensorGroup | None


def on_all_ranks(method: Callable[..., Result]) -> Callable[..., Result]:
    """A method that all ranks of `group` run: the leader sends its name and arguments to the others first.

    It must not call another method of this kind.
    """

    @functools.wraps(method)
    def run(self: OnTensorRanks, *args: Any) -> Result:
        group = self.group
        if group is None:
            return method(self, *args)
        try:
            if group.leads:
                group.send(method.__name__, args)
            return method(self, *args)
        except BaseException:
            group.ended = True
            raise

    return run
