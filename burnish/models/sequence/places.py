"""Positions of a packed token stream at which outputs are needed, with or without sequence parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Places:
    """Positions of a stream at which outputs are needed [R], and those that this rank holds [n]."""

    local: Tensor | None  # [n], relative to this rank's slice
    mine: Tensor | None = None  # [n], indices into the R positions; None: all, without sequence parallelism
    num: int = 0  # R
    group: ProcessGroup | None = None

    def own(self, column: Tensor) -> Tensor:
        """[R, ...] -> [n, ...]."""
        return column if self.mine is None else column[self.mine]

    def whole(self, local: Tensor) -> Tensor:
        """[n, ...] of every rank -> [R, ...] on every rank.

        Gradients flow only through this rank's entries, so that the sum over ranks counts each entry once.
        """
        return local if self.mine is None else _Whole.apply(local, self.mine, self.num, self.group)


ALL_HERE = Places(None)


class _Whole(torch.autograd.Function):
    """All-gather by summation: every position belongs to one rank, so that the sum is exact."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mine: Tensor, num: int, group: ProcessGroup) -> Tensor:
        ctx.save_for_backward(mine)
        whole = local.new_zeros((num, *local.shape[1:]))
        whole[mine] = local
        distributed.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (mine,) = ctx.saved_tensors
        return grad[mine], None, None, None
