"""Tiles cover what a causal, windowed mask shows, once; put together they are the plain product."""

from __future__ import annotations

import pytest
import torch

from burnish.models.attention import eager_attention
from burnish.models.sequence.ring import Route
from burnish.models.sequence.tiles import Gradients, Merged, Queries, tile_scores, tiles
from burnish.models.varlen import AttentionShape

SEGMENTS = [5, 26, 1, 9, 17, 2]
SHARE = 15
WINDOWS = (None, 1, 4, 40)


def visible(window):
    """[T, T]: may the query of a row look at the key of a column?"""
    segment = torch.repeat_interleave(torch.arange(len(SEGMENTS)), torch.tensor(SEGMENTS))
    places = torch.arange(len(segment))
    distance = places[:, None] - places[None, :]
    return (segment[:, None] == segment[None, :]) & (distance >= 0) & (distance < (window or len(segment)))


@pytest.mark.parametrize("entries", [1, 40, 1 << 20])
@pytest.mark.parametrize("window", WINDOWS)
def test_tiles_show_every_visible_pair_once(window, entries):
    seen = torch.zeros(4 * SHARE, 4 * SHARE, dtype=torch.int64)
    for mine in range(4):
        for other in range(mine + 1):
            for tile in tiles(SEGMENTS, SHARE, mine, other, window, heads=2, entries=entries):
                query, key = torch.zeros(1, 1, SHARE, 1), torch.zeros(1, SHARE, 1)
                scores = tile_scores(query, key, AttentionShape(1.0, window), tile)[0, 0]
                assert scores.numel() * 2 <= max(entries, 2 * SHARE)
                assert tile.masked or scores.isfinite().all()
                part = seen[mine * SHARE : (mine + 1) * SHARE, other * SHARE : (other + 1) * SHARE]
                part[tile.queries, tile.keys] += scores.isfinite().long()
    assert torch.equal(seen, visible(window).long())


@pytest.mark.parametrize("window", WINDOWS)
def test_a_route_brings_every_visible_slice_and_no_other(window):
    route = Route(0, 4, SEGMENTS, SHARE, window)
    shown = visible(window).unflatten(1, (4, SHARE)).any(-1).unflatten(0, (4, SHARE)).any(1)  # [rank, owner]
    for owner in range(4):
        assert route.last(owner) == max(rank for rank in range(4) if shown[rank, owner])
        for rank in range(4):
            assert route.sees(rank, owner) == bool(shown[rank, owner])
    assert route.steps == 1 + max(route.last(owner) - owner for owner in range(4))


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 4])
def test_merged_tiles_are_the_plain_product(window, softcap):
    """One row of four slices, the queries those of the last; values narrower than keys; two heads share a key."""
    torch.manual_seed(0)
    shape, length = AttentionShape(0.6, window, softcap), 4 * SHARE
    query, key, value = torch.randn(3, 2, SHARE, 8), torch.randn(3, length, 8), torch.randn(3, length, 5)
    whole = [x.clone().requires_grad_() for x in (query, key, value)]
    plain = eager_attention(whole[0].flatten(0, 1)[None], whole[1][None], whole[2][None], shape)[0].unflatten(0, (3, 2))
    grad = torch.randn_like(plain)
    plain.backward(grad)

    cut = [
        (other, tile)
        for other in (3, 2, 1, 0)
        for tile in tiles([length], SHARE, 3, other, window, heads=6, entries=300)
    ]
    slices = [(key[:, start : start + SHARE], value[:, start : start + SHARE]) for start in range(0, length, SHARE)]
    merged = Merged(query, 5)
    for other, tile in cut:
        merged.add(query, *slices[other], shape, tile)
    torch.testing.assert_close(merged.output, plain.detach(), rtol=0, atol=5e-6)

    found = Gradients(torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value))
    asked = Queries(query, merged.lse, grad, (grad * merged.output).sum(-1))
    for other, tile in cut:
        start = other * SHARE
        part = Gradients(found.query, found.key[:, start : start + SHARE], found.value[:, start : start + SHARE])
        part.add(asked, *slices[other], shape, tile)
    for ours, theirs in zip((found.query, found.key, found.value), whole, strict=True):
        torch.testing.assert_close(ours, theirs.grad, rtol=0, atol=5e-6)
