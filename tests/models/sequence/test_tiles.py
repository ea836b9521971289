"""Tiles cover what a causal, windowed mask shows, once; put together they are the plain product."""

from __future__ import annotations

import pytest
import torch

from burnish.models.attention import eager_attention
from burnish.models.sequence.ring import Route
from burnish.models.sequence.spans import PARTS, Span, share_of, spans_of
from burnish.models.sequence.tiles import Gradients, Merged, Queries, tile_scores, tiles
from burnish.models.varlen import AttentionShape

SEGMENTS = [5, 26, 1, 9, 17, 2]
SHARE = 15
WINDOWS = (None, 1, 4, 40)


def visible(window, segments=SEGMENTS):
    """[T, T]: may the query of a row look at the key of a column?"""
    segment = torch.repeat_interleave(torch.arange(len(segments)), torch.tensor(segments))
    places = torch.arange(len(segment))
    distance = places[:, None] - places[None, :]
    return (segment[:, None] == segment[None, :]) & (distance >= 0) & (distance < (window or len(segment)))


def part_of(number):
    return Span(number * SHARE, (number + 1) * SHARE, 0)


@pytest.mark.parametrize("entries", [1, 40, 1 << 20])
@pytest.mark.parametrize("window", WINDOWS)
def test_tiles_show_every_visible_pair_once(window, entries):
    seen = torch.zeros(4 * SHARE, 4 * SHARE, dtype=torch.int64)
    for mine in range(4):
        for other in range(mine + 1):
            for tile in tiles(SEGMENTS, part_of(mine), part_of(other), window, heads=2, entries=entries):
                query, key = torch.zeros(1, 1, SHARE, 1), torch.zeros(1, SHARE, 1)
                scores = tile_scores(query, key, AttentionShape(1.0, window), tile)[0, 0]
                assert scores.numel() * 2 <= max(entries, 2 * SHARE)
                assert tile.masked or scores.isfinite().all()
                part = seen[mine * SHARE : (mine + 1) * SHARE, other * SHARE : (other + 1) * SHARE]
                part[tile.queries, tile.keys] += scores.isfinite().long()
    assert torch.equal(seen, visible(window).long())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_route_brings_every_visible_slice_and_passes_none_too_far(window, size):
    share = share_of(sum(SEGMENTS), size, PARTS)
    padding = share * size - sum(SEGMENTS)
    segments = [*SEGMENTS, padding] if padding else SEGMENTS
    routes = [Route(rank, size, segments, share, window) for rank in range(size)]
    owner_of = torch.empty(share * size, dtype=torch.int64)
    for rank in range(size):
        for span in spans_of(rank, size, share, PARTS):
            owner_of[span.start : span.stop] = rank
    pairs = visible(window, segments).nonzero()
    needed = {(int(owner_of[query]), int(owner_of[key])) for query, key in pairs}
    for rank, route in enumerate(routes):
        assert {(rank, owner) for owner in range(size) if route.sees(rank, owner)} == {
            p for p in needed if p[0] == rank
        }
        furthest = max((other - rank) % size for other, owner in needed if owner == rank)
        assert route.reach[rank] == furthest
        for step in range(size):
            assert route.goes_on(step) == routes[route.neighbor(1)].arrives(step + 1)
    count = torch.zeros(share * size, share * size, dtype=torch.int64)
    for rank, route in enumerate(routes):
        places = torch.cat([torch.arange(span.start, span.stop) for span in route.spans[rank]])
        for owner in range(size):
            others = torch.cat([torch.arange(span.start, span.stop) for span in route.spans[owner]])
            for tile in route.tiles(rank, owner, 1):
                query, key = torch.zeros(1, 1, share, 1), torch.zeros(1, share, 1)
                scores = tile_scores(query, key, AttentionShape(1.0, window), tile)[0, 0]
                count[places[tile.queries][:, None], others[tile.keys][None]] += scores.isfinite().long()
    assert torch.equal(count, visible(window, segments).long())


def products(segments, size):
    """Query-key pairs that each rank computes, masked ones of a tile included."""
    share = share_of(sum(segments), size, PARTS)
    padding = share * size - sum(segments)
    padded = [*segments, padding] if padding else segments
    found = []
    for rank in range(size):
        route = Route(rank, size, padded, share, None)
        sizes = [(t.queries.stop - t.queries.start) * (t.keys.stop - t.keys.start) for t in every_tile(route, rank)]
        found.append(sum(sizes))
    return found


def every_tile(route, rank):
    return [tile for owner in range(route.size) for tile in route.tiles(rank, owner, 1)]


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_do_equal_work(size):
    """One row: exactly. Many rows, sorted by length as micro-batches are: nearly."""
    whole = products([4096], size)
    assert len(set(whole)) == 1
    assert max(whole) < 0.7 * 4096**2 / size  # what the last rank computes with one part for each
    generator = torch.Generator().manual_seed(0)
    lengths = sorted(torch.randint(100, 3000, (12,), generator=generator).tolist())
    found = products(lengths, size)
    assert max(found) < 1.25 * sum(found) / size


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
        for tile in tiles([length], part_of(3), part_of(other), window, heads=6, entries=300)
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
