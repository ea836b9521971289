"""Compute the language-model head in chunks of rows: chunk sizes, their matrix products, and gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.sizing import FLOAT32_ACCUMULATING_DEVICES, chunk_rows


@dataclass(frozen=True)
class Chunks:
    """`count` rows, split evenly into chunks of at most `rows`."""

    count: int
    rows: int

    @staticmethod
    def of(count: int, vocabulary: int, entry_bytes: int, device: torch.device) -> Chunks:
        return Chunks(count, chunk_rows(count, vocabulary, entry_bytes, device.type))

    def parts(self) -> Iterator[slice]:
        for start in range(0, self.count, self.rows):
            yield slice(start, min(start + self.rows, self.count))

    def buffer(self, hidden: Tensor, vocabulary: int) -> Tensor:
        """A buffer for one chunk's product, shared by all chunks."""
        return hidden.new_empty(min(self.rows, self.count), vocabulary)


def product(hidden: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
    """hidden @ weight.T, written to the buffer."""
    return torch.mm(hidden, weight.t(), out=buffer[: len(hidden)])


def gradient_accumulator(weight: Tensor) -> Tensor:
    """Zeros in the shape of the weight, at least float32, to which chunks add their gradients."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.zeros(weight.shape, dtype=dtype, device=weight.device)


def add_product(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """total += grad.T @ hidden, without a temporary of that size where the device supports it."""
    if grad.dtype == total.dtype:
        torch.addmm(total, grad.t(), hidden, out=total)
    elif total.device.type in FLOAT32_ACCUMULATING_DEVICES:  # operands in 16 bits, the sum in float32
        torch.addmm(total, grad.t(), hidden, out_dtype=total.dtype, out=total)
    else:
        total.add_(grad.t() @ hidden)
