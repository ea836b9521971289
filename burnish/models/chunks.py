"""The head a chunk of rows at a time: how many rows at once, their products, and the sum of what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.sizing import FLOAT32_ACCUMULATING_DEVICES, chunk_rows


@dataclass(frozen=True)
class Chunks:
    """`count` rows, cut evenly into chunks of at most `rows`."""

    count: int
    rows: int

    @staticmethod
    def of(count: int, vocabulary: int, entry_bytes: int, device: torch.device) -> Chunks:
        return Chunks(count, chunk_rows(count, vocabulary, entry_bytes, device.type))

    def parts(self) -> Iterator[slice]:
        for start in range(0, self.count, self.rows):
            yield slice(start, min(start + self.rows, self.count))

    def space(self, hidden: Tensor, vocabulary: int) -> Tensor:
        """Room for one chunk's product, used again by each."""
        return hidden.new_empty(min(self.rows, self.count), vocabulary)


def product(hidden: Tensor, weight: Tensor, space: Tensor) -> Tensor:
    """hidden @ weight.T, in the space."""
    return torch.mm(hidden, weight.t(), out=space[: len(hidden)])


def sum_space(weight: Tensor) -> Tensor:
    """Where the chunks' shares of a weight's gradient are added up, in at least float32."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.zeros(weight.shape, dtype=dtype, device=weight.device)


def add_product(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """total += grad.T @ hidden, without a second tensor of that size where the product can add by itself."""
    if grad.dtype == total.dtype:
        torch.addmm(total, grad.t(), hidden, out=total)
    elif total.device.type in FLOAT32_ACCUMULATING_DEVICES:  # operands in 16 bits, the sum in float32
        torch.addmm(total, grad.t(), hidden, out_dtype=total.dtype, out=total)
    else:
        total.add_(grad.t() @ hidden)
