"""Digests: a number for every weight, so that what an engine holds can be compared with what it was sent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from burnish.models.stream import WeightStream
from burnish.rollout.engine import Engine
from burnish.sizing import DIGEST_WIDTH as WIDTH

WORD = 8  # bytes; sums of whole words need no conversion, which would take ten times as long
ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed number; odd, so that no multiple of it vanishes
Digests = dict[str, Tensor]


Sums = tuple[Tensor, Tensor, Tensor, Tensor]


def sums_of(tensor: Tensor) -> Sums:
    """What a digest is made of: a weight's words summed up by columns and by rows, and what fills no row or word.

    Nothing is a view: the weight may be a copy that nobody else needs. And nothing is computed that is empty: a GPU is
    told of one thing after the other, and that is what takes the time.
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
    """A flat tensor in words of 8 bytes, and the bytes behind the last."""
    if data.storage_offset() * data.element_size() % WORD:  # a part of a tensor, that begins inside a word
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


def digests(found: Sequence[Sums]) -> Tensor:
    """A number of each; it depends on every bit and on where it stands. int64 [weights] on their device, so that nobody
    waits for it. All weights at once: for each alone, a GPU would take longer to be told than to compute."""
    flat = torch.cat([part for parts in found for part in parts if len(part)] or [found[0][0]])
    lengths = tuple(tuple(map(len, parts)) for parts in found)
    marks, factors, owners = _layout(lengths, flat.device)
    scattered = flat + marks
    for shift, factor in ((33, -0x00AE502812AA7333), (29, -0x3B314601E57A13AD)):
        scattered = (scattered ^ (scattered >> shift)) * factor
    scattered = (scattered ^ (scattered >> 32)) * factors
    return torch.zeros(len(found), dtype=torch.int64, device=flat.device).index_add_(0, owners, scattered)


@lru_cache(maxsize=4)
def _layout(lengths: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For every entry of all sums one after the other: a mark of its place, the factor of its part, whose it is."""
    counts = torch.tensor(lengths).flatten()
    starts = counts.cumsum(0) - counts
    places = torch.arange(1, int(counts.sum()) + 1) - starts.repeat_interleave(counts)
    parts = torch.arange(len(counts)).repeat_interleave(counts)
    found = (places * ODD, 2 * (parts % 4) + 1, parts // 4)
    return tuple(part.to(device) for part in found)


def digest(tensor: Tensor) -> Tensor:
    """Of one weight, 0-d."""
    return digests([sums_of(tensor)])[0]


def digests_of(model: nn.Module) -> Digests:
    """Of every parameter, tied ones under all their names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return dict(zip(named, digests([sums_of(parameter) for parameter in named.values()]), strict=True))


def sync_weights(
    engine: Engine, stream: Iterable[tuple[str, Tensor]], version: int, dtype: torch.dtype | None
) -> float:
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
        self.sums: dict[str, Sums] = {}
        self.seconds = 0.0

    def over(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream:
            started = time.perf_counter()
            self.sums[name] = sums_of(tensor.to(self.dtype))
            self.seconds += time.perf_counter() - started
            yield name, tensor

    def compare(self, held: Digests, version: int) -> None:
        """Every weight that the engine holds must be one that was sent, bit for bit."""
        unsent = sorted(held.keys() - self.sums.keys())
        common = [name for name in held if name in self.sums]
        theirs = torch.stack([held[name] for name in common]).cpu()
        ours = digests([self.sums[name] for name in common]).cpu()
        other = [name for name, differs in zip(common, (theirs != ours).tolist(), strict=True) if differs]
        if unsent or other:
            wrong = [*unsent, *other]
            raise RuntimeError(
                f"after the transfer of version {version} the engine holds other weights than the policy:"
                f" {', '.join(wrong[:3])} ({len(wrong)} of {len(held)} tensors)"
            )
