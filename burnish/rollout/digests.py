"""Digests: a number for every weight, so that what an engine holds can be compared with what it was sent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from burnish.models.stream import WeightStream
from burnish.rollout.engine import Engine

WIDTH = 4096  # words of a row of the table that a weight is laid out in
WORD = 8  # bytes; sums of whole words need no conversion, which would take ten times as long
ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed number; odd, so that no multiple of it vanishes
Digests = dict[str, Tensor]


def digest(tensor: Tensor) -> Tensor:
    """Depends on every bit and on where it stands; a 0-d int64 on the tensor's device, so that nobody waits for it."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(data) // WORD
    words = data[: whole * WORD].view(torch.int64)
    rows = whole // WIDTH
    table = words[: rows * WIDTH].view(rows, WIDTH)
    parts = (table.sum(0), table.sum(1), words[rows * WIDTH :], data[whole * WORD :].long())
    return torch.stack([_mixed(part) * (2 * number + 1) for number, part in enumerate(parts)]).sum()


def digests_of(model: nn.Module) -> Digests:
    """Of every parameter, tied ones under all their names."""
    return {name: digest(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}


def fill(engine: Engine, stream: Iterable[tuple[str, Tensor]], version: int, dtype: torch.dtype | None) -> float:
    """Give the engine new weights, and see that it holds them. Seconds that the comparison took.

    `dtype` is the format that the engine keeps weights in; without one nothing is compared.
    """
    if dtype is None or not engine.capabilities.digests:
        # Engines behind a handle compare for themselves, and it says how long that took.
        return engine.load_weights(stream, version) or 0.0
    tally = Tally(dtype)
    engine.load_weights(WeightStream(lambda: tally.over(stream)), version)
    started = time.perf_counter()
    tally.compare(engine.digests(), version)
    return tally.seconds + time.perf_counter() - started


class Tally:
    """The digests of a stream, taken while it passes."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.sent: Digests = {}
        self.seconds = 0.0

    def over(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream:
            started = time.perf_counter()
            self.sent[name] = digest(tensor.to(self.dtype))
            self.seconds += time.perf_counter() - started
            yield name, tensor

    def compare(self, held: Digests, version: int) -> None:
        """Every weight that the engine holds must be one that was sent, bit for bit."""
        unsent = sorted(held.keys() - self.sent.keys())
        common = [name for name in held if name in self.sent]
        theirs = torch.stack([held[name].cpu() for name in common])
        ours = torch.stack([self.sent[name].cpu() for name in common])
        other = [name for name, differs in zip(common, (theirs != ours).tolist(), strict=True) if differs]
        if unsent or other:
            wrong = [*unsent, *other]
            raise RuntimeError(
                f"after the transfer of version {version} the engine holds other weights than the policy:"
                f" {', '.join(wrong[:3])} ({len(wrong)} of {len(held)} tensors)"
            )


def _mixed(sums: Tensor) -> Tensor:
    """One number of many: each is scattered over all 64 bits together with its place, then they are added up."""
    place = torch.arange(1, len(sums) + 1, dtype=torch.int64, device=sums.device)
    scattered = sums + place * ODD
    for shift, factor in ((33, -0x00AE502812AA7333), (29, -0x3B314601E57A13AD)):
        scattered = (scattered ^ (scattered >> shift)) * factor
    return (scattered ^ (scattered >> 32)).sum()
