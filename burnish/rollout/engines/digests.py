"""Digests: a checksum of every weight, to verify that an engine holds what it was sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from burnish.models.fused.fp8 import fp8_layers
from burnish.models.stream import WeightStream
from burnish.rollout.engine import Engine
from burnish.sizing import DIGEST_WIDTH as WIDTH

WORD = 8  # bytes; sums of whole words need no conversion, which would take ten times as long
ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # signed; odd, so that its multiples do not vanish modulo 2^64
Digests = dict[str, Tensor]


Sums = tuple[Tensor, Tensor, Tensor, Tensor]


def sums_of(tensor: Tensor) -> Sums:
    """The parts of a digest: column and row sums of a weight's words, words of an incomplete row, leftover bytes.

    The parts are no views, so that the weight can be freed. Empty parts launch no kernel: launches dominate the time.
    """
    words, bytes_left = _words(tensor.detach().contiguous().view(-1))
    nothing = _nothing(words.device)
    rows, left = divmod(len(words), WIDTH)
    table = words[: rows * WIDTH].view(rows, WIDTH) if left else words.view(rows, WIDTH)
    return (
        table.sum(0) if rows else nothing,
        table.sum(1) if rows else nothing,
        words[rows * WIDTH :].clone() if left else nothing,
        nothing if bytes_left is None else bytes_left.long(),
    )


def _words(data: Tensor) -> tuple[Tensor, Tensor | None]:
    """A flat tensor as 8-byte words, and the bytes after the last word."""
    if data.storage_offset() * data.element_size() % WORD:  # a slice that starts inside a word
        data = data.clone()
    size = data.numel() * data.element_size()
    if size % WORD == 0:
        return data.view(torch.int64), None
    data = data.view(torch.uint8)
    whole = size - size % WORD
    return data[:whole].view(torch.int64), data[whole:]


@lru_cache(maxsize=8)
def _nothing(device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=device)


def digests(weights: Sequence[Sums]) -> Tensor:
    """A digest of each weight, int64 [weights]; it depends on every bit and its position.

    It stays on the device, without a sync. All weights at once, because kernel launches would dominate the time.
    """
    flat = torch.cat([part for parts in weights for part in parts if len(part)] or [weights[0][0]])
    lengths = tuple(tuple(map(len, parts)) for parts in weights)
    marks, factors, index = _layout(lengths, flat.device)
    scattered = flat + marks
    for shift, factor in ((33, -0x00AE502812AA7333), (29, -0x3B314601E57A13AD)):
        scattered = (scattered ^ (scattered >> shift)) * factor
    scattered = (scattered ^ (scattered >> 32)) * factors
    return torch.zeros(len(weights), dtype=torch.int64, device=flat.device).index_add_(0, index, scattered)


@lru_cache(maxsize=4)
def _layout(lengths: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For every entry of the concatenated sums: a mark of its position, the factor of its part, its weight's index."""
    counts = torch.tensor(lengths).flatten()
    starts = counts.cumsum(0) - counts
    positions = torch.arange(1, int(counts.sum()) + 1) - starts.repeat_interleave(counts)
    parts = torch.arange(len(counts)).repeat_interleave(counts)
    marks, factors, index = positions * ODD, 2 * (parts % 4) + 1, parts // 4
    return marks.to(device), factors.to(device), index.to(device)


def digest(tensor: Tensor) -> Tensor:
    """The digest of one weight, 0-d."""
    return digests([sums_of(tensor)])[0]


def digests_of(model: nn.Module) -> Digests:
    """The digests of all parameters, tied ones under all of their names; those of 8 bits together with their scales."""
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    rounded = fp8_layers(model)
    sums = [sums_of(rounded[name].checked_bytes() if name in rounded else named[name]) for name in named]
    return dict(zip(named, digests(sums), strict=True))


def sync_weights(
    engine: Engine, stream: Iterable[tuple[str, Tensor]], version: int, dtype: torch.dtype | None
) -> float:
    """Load new weights into the engine and verify them; returns the seconds that verification took.

    `dtype`: the format of the engine's weights; None skips verification.
    """
    if dtype is None or not engine.capabilities.digests:
        # A remote handle verifies in the engine's process and returns the seconds.
        return engine.load_weights(stream, version) or 0.0
    tally = Tally(dtype, engine.local_weight)
    engine.load_weights(WeightStream(lambda: tally.over(stream)), version)
    started = time.perf_counter()
    tally.compare(engine.digests(), version)
    return tally.seconds + time.perf_counter() - started


class Tally:
    """Computes the digests of a stream while it is read."""

    def __init__(self, dtype: torch.dtype, local: Callable[[str, Tensor], Tensor] = lambda name, whole: whole) -> None:
        self.dtype = dtype
        self.local = local  # what the engine's process holds of a weight in `dtype`
        self.sums: dict[str, Sums] = {}
        self.seconds = 0.0

    def over(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream:
            started = time.perf_counter()
            self.sums[name] = sums_of(self.local(name, tensor.to(self.dtype)))
            self.seconds += time.perf_counter() - started
            yield name, tensor

    def compare(self, held: Digests, version: int) -> None:
        """Raise unless every weight of the engine equals the one that was sent, bit by bit."""
        not_sent = sorted(held.keys() - self.sums.keys())
        common = [name for name in held if name in self.sums]
        theirs = torch.stack([held[name] for name in common]).cpu()
        ours = digests([self.sums[name] for name in common]).cpu()
        different = [name for name, differs in zip(common, (theirs != ours).tolist(), strict=True) if differs]
        if not_sent or different:
            wrong = [*not_sent, *different]
            raise RuntimeError(
                f"after sync of version {version} the engine's weights differ from the policy's:"
                f" {', '.join(wrong[:3])} ({len(wrong)} of {len(held)} tensors)"
            )
