"""Bytes of the fused head: a chunk of logits, and the sum of its weights' gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from burnish.doctor.activations import FLOAT, Width
from burnish.doctor.shapes import Shape

# Of the head itself, written down here so that planning loads no torch; a test compares them.
BUDGET = {"cpu": 64 << 20, "cuda": 1280 << 20}  # bytes of a chunk
TILE = 128  # rows that a GPU's product takes at once


def torch_entry(compute: int, entropy: bool) -> int:
    """The product, the same in float32 where it is not that, and probabilities where the entropy needs them too."""
    return compute + (FLOAT if compute != FLOAT else 0) + (FLOAT if entropy else 0)


def triton_entry(compute: int, entropy: bool) -> int:
    """The product alone: all else is done in its place."""
    return compute


ENTRIES: dict[str, Callable[[int, bool], int]] = {"torch": torch_entry, "triton": triton_entry}


@dataclass(frozen=True)
class HeadPlan:
    """Where the head is computed, and by which kernel."""

    device: str = "cuda"
    kernel: str = "torch"

    @staticmethod
    def of(kernel: str, on_cpu: bool) -> HeadPlan:
        """On a CPU it is torch, whatever was asked for."""
        return HeadPlan("cpu") if on_cpu else HeadPlan("cuda", kernel)

    def rows(self, vocab: int, responses: int, entry: int) -> int:
        """Response tokens whose logits exist at the same time; the chunks are about equally long."""
        most = self.most(vocab, entry)
        tile = 1 if self.device == "cpu" or most < TILE else TILE
        each = -(-responses // max(1, -(-responses // most)))
        return min(responses, most, -(-each // tile) * tile)

    def most(self, vocab: int, entry: int) -> int:
        """Rows that the budget holds, in whole tiles of a GPU's product."""
        rows = max(1, BUDGET[self.device] // (vocab * entry))
        return rows if self.device == "cpu" or rows < TILE else rows // TILE * TILE

    def logits(self, vocab: int, responses: int, compute: int, *, entropy: bool) -> int:
        """Bytes of a chunk, in the forward pass and in the backward pass alike."""
        entry = ENTRIES[self.kernel](compute, entropy)
        return self.rows(vocab, responses, entry) * vocab * entry

    def gradient(self, shape: Shape, width: Width) -> int:
        """The sum of the weights' gradient, in float32; a CPU adds products of 16 bits by way of a second tensor."""
        second = width.compute if self.device == "cpu" and width.compute != FLOAT else 0
        return shape.embedding * (FLOAT + second)


ON_GPU = HeadPlan()
