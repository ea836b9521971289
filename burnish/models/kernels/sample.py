"""Sampling from logits in Triton: the token, drawn with a counter-based random number, and its log-prob.

The first kernel reads all logits once and stores the maximum and the sum of exponentials of each chunk. The second one
selects the chunk into which the random number falls from those alone, and reads only that chunk again. Greedy rows take
the maximum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.kernels.lazy_triton import kernel, tl

CHUNK = 4096  # logits per program


class ChunkStatistics(NamedTuple):
    """[rows, chunks] each."""

    peaks: Tensor  # the largest logit
    sums: Tensor  # of exp(logit - peak)
    best: Tensor  # int32: where the largest logit is


def measure_chunks(logits: Tensor, temperature: Tensor, softcap: float | None = None) -> ChunkStatistics:
    """One pass over logits [rows, vocabulary], which are capped and divided by the temperature [rows]."""
    rows, vocabulary = logits.shape
    chunks = -(-vocabulary // CHUNK)
    peaks = torch.empty(rows, chunks, dtype=torch.float32, device=logits.device)
    sums, best = torch.empty_like(peaks), torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    capped = {"CAPPED": softcap is not None, "CHUNK": CHUNK}
    _measure[(rows, chunks)](
        logits, temperature, peaks, sums, best, softcap or 0.0, logits.stride(0), vocabulary, **capped, num_warps=8
    )
    return ChunkStatistics(peaks, sums, best)


def log_probs_of(
    logits: Tensor,
    temperature: Tensor,
    tokens: Tensor,
    softcap: float | None = None,
    measured: ChunkStatistics | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-softmax(logits / temperature) at given tokens, and the log-sum-exp of each row; float32 [rows].

    The same kernels for sampled tokens and in training (`rollout.invariant`): equal logits give equal bits.
    """
    rows, vocabulary = logits.shape
    peaks, sums, _ = measured or measure_chunks(logits, temperature, softcap)
    log_probs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    normalizer = torch.empty_like(log_probs)
    chunks = peaks.shape[1]
    _log_probs[(rows,)](
        logits,
        temperature,
        tokens,
        peaks,
        sums,
        log_probs,
        normalizer,
        softcap or 0.0,
        logits.stride(0),
        vocabulary,
        chunks,
        CHUNKS_PAD=1 << (chunks - 1).bit_length(),
        CAPPED=softcap is not None,
        num_warps=4,
    )
    return log_probs, normalizer


def sample_tokens(
    logits: Tensor,  # [rows, vocabulary], any float
    temperature: Tensor,  # [rows] float32
    greedy: Tensor,  # [rows] int64, 0 or 1
    seed: Tensor,  # [rows] int64
    index: Tensor,  # [rows] int64: the token's position in its response
    softcap: float | None = None,
    measured: ChunkStatistics | None = None,
) -> tuple[Tensor, Tensor]:
    """Tokens [rows] int64 and log-softmax(logits / temperature) at them, float32."""
    rows, vocabulary = logits.shape
    peaks, sums, best = measured or measure_chunks(logits, temperature, softcap)
    chunks = peaks.shape[1]
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    log_probs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _choose[(rows,)](
        logits,
        temperature,
        greedy,
        seed,
        index,
        peaks,
        sums,
        best,
        tokens,
        log_probs,
        softcap or 0.0,
        logits.stride(0),
        vocabulary,
        chunks,
        CHUNKS_PAD=1 << (chunks - 1).bit_length(),
        CAPPED=softcap is not None,
        CHUNK=CHUNK,
        num_warps=8,
    )
    return tokens, log_probs


@kernel
def _measure(
    logits,
    temperature,
    peaks,
    sums,
    best,
    softcap,
    logit_row,
    vocabulary,
    CAPPED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """One chunk of one row: its largest logit, the position of it, and the sum of exponentials."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    heat = tl.load(temperature + row)
    x = _scaled(logits + row * logit_row, place, vocabulary, heat, softcap, CAPPED)
    peak, at = tl.max(x, 0, return_indices=True)
    entry = row * tl.num_programs(1) + chunk
    tl.store(peaks + entry, peak)
    tl.store(best + entry, chunk * CHUNK + at)
    finite = tl.where(peak == float("-inf"), 0.0, peak)
    tl.store(sums + entry, tl.sum(tl.exp(x - finite), 0))


@kernel
def _choose(
    logits,
    temperature,
    greedy,
    seed,
    index,
    peaks,
    sums,
    best,
    tokens,
    log_probs,
    softcap,
    logit_row,
    vocabulary,
    chunks,
    CHUNKS_PAD: tl.constexpr,
    CAPPED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """One row: the chunk into which the random number falls, and the token inside it."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, CHUNKS_PAD)
    valid = number < chunks
    chunk_peak = tl.load(peaks + row * chunks + number, mask=valid, other=float("-inf"))
    chunk_sum = tl.load(sums + row * chunks + number, mask=valid, other=0.0)
    peak, likeliest = tl.max(chunk_peak, 0, return_indices=True)
    mass = chunk_sum * tl.exp(chunk_peak - peak)
    total = tl.sum(mass, 0)
    point = _uniform(tl.load(seed + row), tl.load(index + row)) * total
    reached = tl.cumsum(mass, 0)
    chosen = tl.sum(((reached <= point) & valid).to(tl.int32), 0)
    chosen = tl.minimum(chosen, chunks - 1)
    before = tl.sum(tl.where(number < chosen, mass, 0.0), 0)

    place = chosen * CHUNK + tl.arange(0, CHUNK)
    heat = tl.load(temperature + row)
    x = _scaled(logits + row * logit_row, place, vocabulary, heat, softcap, CAPPED)
    weight = tl.exp(x - peak)
    passed = (before + tl.cumsum(weight, 0) > point) & (weight > 0.0)
    drawn = tl.min(tl.where(passed, place, vocabulary), 0)
    last = tl.max(tl.where(weight > 0.0, place, 0), 0)  # rounding may have let the draw run past the chunk
    drawn = tl.minimum(drawn, last)

    largest = tl.load(best + row * chunks + likeliest)
    token = tl.where(tl.load(greedy + row) != 0, largest, drawn)
    token = tl.minimum(tl.maximum(token, 0), vocabulary - 1)
    logit = _scaled(logits + row * logit_row, token, vocabulary, heat, softcap, CAPPED)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(log_probs + row, logit - peak - tl.log(total))


@kernel
def _log_probs(
    logits,
    temperature,
    tokens,
    peaks,
    sums,
    log_probs,
    normalizer,
    softcap,
    logit_row,
    vocabulary,
    chunks,
    CHUNKS_PAD: tl.constexpr,
    CAPPED: tl.constexpr,
) -> None:
    """One row, from the statistics of its chunks."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, CHUNKS_PAD)
    chunk_peak = tl.load(peaks + row * chunks + number, mask=number < chunks, other=float("-inf"))
    chunk_sum = tl.load(sums + row * chunks + number, mask=number < chunks, other=0.0)
    peak = tl.max(chunk_peak, 0)
    rest = tl.log(tl.sum(chunk_sum * tl.exp(chunk_peak - peak), 0))
    token = tl.load(tokens + row)
    logit = _scaled(logits + row * logit_row, token, vocabulary, tl.load(temperature + row), softcap, CAPPED)
    tl.store(log_probs + row, logit - peak - rest)
    tl.store(normalizer + row, peak + rest)


@kernel
def _scaled(row, place, vocabulary, heat, softcap, CAPPED: tl.constexpr):
    """Soft-capped logits divided by the temperature; -inf beyond the vocabulary."""
    x = tl.load(row + place, mask=place < vocabulary, other=0.0).to(tl.float32)
    if CAPPED:
        x = (2.0 * tl.sigmoid(2.0 * x / softcap) - 1.0) * softcap  # tanh
    return tl.where(place < vocabulary, x / heat, float("-inf"))


@kernel
def _uniform(seed, index):
    """The number in [0, 1) of (seed, index): two rounds of the splitmix64 finalizer, as in the engine's CPU sampler."""
    mixed = _finalize(seed + (index + 1) * -7046029254386353131)
    mixed = _finalize(mixed ^ seed)
    return ((mixed >> 41) & 0x7FFFFF).to(tl.float32) / 8388608.0


@kernel
def _finalize(x):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
