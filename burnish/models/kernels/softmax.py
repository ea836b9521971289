"""Parts that the attention kernels share: tiles of keys, their scores, and the running softmax over tiles."""

from __future__ import annotations

from burnish.models.kernels.lazy_triton import kernel, tl


@kernel
def split_tiles(start, stop, split, TILE: tl.constexpr, SPLITS: tl.constexpr):
    """The tiles of one split, of those that hold the keys start..stop."""
    first, last = start // TILE, tl.cdiv(stop, TILE)
    share = tl.cdiv(last - first, SPLITS)
    begin = first + split * share
    return begin, tl.minimum(begin + share, last)


@kernel
def load_tile(keys, values, base, visible, dims, DIM: tl.constexpr, DTYPE: tl.constexpr):
    """Keys and values [tile, d] at these offsets of the cache, in this dtype; zeros where nothing is visible."""
    source, valid = base[:, None] + dims[None, :], visible[:, None] & (dims < DIM)[None, :]
    k, v = tl.load(keys + source, mask=valid, other=0.0), tl.load(values + source, mask=valid, other=0.0)
    return k.to(DTYPE), v.to(DTYPE)


@kernel
def capped(scores, softcap):
    return (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * softcap  # tanh


@kernel
def tile_scores(q, k, visible, scaling, softcap, CAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Scaled and capped scores; -inf where masked."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling
    if CAPPED:
        scores = capped(scores, softcap)
    return tl.where(visible, scores, float("-inf"))


@kernel
def add_tile(scores, v, peak, total, mixed, PRECISION: tl.constexpr):
    """Add a tile to the running softmax. A query without a visible key stays at zero."""
    higher = tl.maximum(peak, tl.max(scores, 1))
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp(peak - finite)
    part = tl.exp(scores - finite[:, None])
    total = total * fade + tl.sum(part, 1)
    mixed = mixed * fade[:, None] + tl.dot(part.to(v.dtype), v, input_precision=PRECISION)
    return higher, total, mixed


@kernel
def merge(weight, part, peak, total, mixed):
    """Add results over other keys, of this log-sum-exp (-inf: none), to the running softmax."""
    higher = tl.maximum(peak, weight)
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    fade, share = tl.exp(peak - finite), tl.exp(weight - finite)
    return higher, total * fade + share, mixed * fade[:, None] + part * share[:, None]
