"""Places of a packed token stream at which a number is wanted, where ranks may share the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Places:
    """Places of a stream at which a number is wanted, [R], and those of them that this process holds, [n]."""

    local: Tensor | None  # [n], in this process's slice
    mine: Tensor | None = None  # [n], which of the R they are; None: all of them, the stream is not shared
    num: int = 0  # R
    group: ProcessGroup | None = None

    def own(self, column: Tensor) -> Tensor:
        """[R, ...] -> [n, ...]."""
        return column if self.mine is None else column[self.mine]

    def whole(self, found: Tensor) -> Tensor:
        """[n, ...] of every rank -> [R, ...] on every rank.

        Gradients flow through this rank's own entries only: summed over the ranks, each entry's counts once.
        """
        return found if self.mine is None else _Whole.apply(found, self.mine, self.num, self.group)


ALL_HERE = Places(None)


class _Whole(torch.autograd.Function):
    """Every place belongs to one rank, so that summing over ranks is putting together, bit by bit."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, mine: Tensor, num: int, group: ProcessGroup) -> Tensor:
        ctx.save_for_backward(mine)
        whole = found.new_zeros((num, *found.shape[1:]))
        whole[mine] = found
        distributed.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (mine,) = ctx.saved_tensors
        return grad[mine], None, None, None
