"""Bytes of the fused language-model head: a chunk of logits, and the accumulator of its weight gradient."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.doctor.activations import Itemsize
from burnish.doctor.shapes import Shape
from burnish.sizing import ENTRY_BYTES, FLOAT32_ACCUMULATING_DEVICES, chunk_rows
from burnish.sizing import FLOAT32_BYTES as FLOAT


@dataclass(frozen=True)
class HeadPlan:
    """The device and the kernel that compute the head."""

    device: str = "cuda"
    kernel: str = "torch"

    @staticmethod
    def of(kernel: str, on_cpu: bool) -> HeadPlan:
        """A CPU always uses the torch kernel."""
        return HeadPlan("cpu") if on_cpu else HeadPlan("cuda", kernel)

    def logits(self, vocab: int, num_response_tokens: int, compute: int, *, entropy: bool) -> int:
        """Bytes of a chunk, equal in the forward and the backward pass."""
        entry_bytes = ENTRY_BYTES[self.kernel](compute, entropy)
        rows = min(num_response_tokens, chunk_rows(num_response_tokens, vocab, entry_bytes, self.device))
        return rows * vocab * entry_bytes

    def gradient(self, shape: Shape, itemsize: Itemsize) -> int:
        """The float32 accumulator of the weight gradient, and a 16-bit product where it cannot add in place."""
        in_place = self.device in FLOAT32_ACCUMULATING_DEVICES or itemsize.compute == FLOAT
        return shape.embedding * (FLOAT + (0 if in_place else itemsize.compute))


ON_GPU = HeadPlan()
