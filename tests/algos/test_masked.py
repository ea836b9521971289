from __future__ import annotations

import math
import statistics
import time

import pytest
import torch

from burnish.algos import masked as m


def test_row_sums_counts_and_means(columns):
    x = columns.noise()
    rows, masks = columns.rows(x), columns.rows(columns.mask)
    assert m.row_sums(x, columns.lengths).tolist() == pytest.approx([sum(row) for row in rows])
    assert m.row_counts(columns.mask, columns.lengths).tolist() == [sum(row) for row in masks]
    kept = [[v for v, keep in zip(row, mask, strict=True) if keep] for row, mask in zip(rows, masks, strict=True)]
    means = [sum(row) / len(row) if row else 0.0 for row in kept]
    assert m.row_means(x, columns.mask, columns.lengths).tolist() == pytest.approx(means)


def test_token_rows_and_tokens_left():
    lengths = torch.tensor([3, 0, 2])
    assert m.token_rows(lengths).tolist() == [0, 0, 0, 2, 2]
    assert m.tokens_left(lengths).tolist() == [3, 2, 1, 2, 1]
    assert m.spread(torch.tensor([5, 6, 7]), lengths).tolist() == [5, 5, 5, 7, 7]


def test_next_in_row_stops_at_the_rows_end():
    lengths = torch.tensor([3, 0, 2])
    assert m.next_in_row(torch.tensor([1.0, 2, 3, 4, 5]), lengths).tolist() == [2, 3, 0, 5, 0]
    assert m.next_in_row(torch.empty(0), torch.tensor([0, 0])).tolist() == []


@pytest.mark.parametrize("unbiased", [True, False])
def test_mean_variance_and_whitening(columns, unbiased):
    x = columns.noise()
    kept = x[columns.mask.bool()].tolist()
    mean = statistics.fmean(kept)
    var = statistics.variance(kept) if unbiased else statistics.pvariance(kept)
    assert m.masked_mean(x, columns.mask).item() == pytest.approx(mean)
    assert m.masked_var(x, columns.mask, unbiased).item() == pytest.approx(var)
    white = m.whiten(x, columns.mask, unbiased=unbiased)
    tokens = zip(x.tolist(), columns.mask.tolist(), strict=True)
    expected = [(v - mean) / math.sqrt(var + 1e-8) * keep for v, keep in tokens]
    assert white.tolist() == pytest.approx(expected)
    shifted = m.whiten(x, columns.mask, keep_mean=True, unbiased=unbiased)
    assert m.masked_mean(shifted, columns.mask).item() == pytest.approx(mean)


def test_nan_outside_the_mask_is_never_seen_not_even_by_the_gradient():
    x = torch.tensor([1.0, float("nan"), 3.0], requires_grad=True)
    mask = torch.tensor([1, 0, 1])
    assert m.masked_mean(x, mask).item() == pytest.approx(2.0)
    assert m.whiten(x.detach(), mask).isfinite().all()
    m.masked(x, mask).sum().backward()
    assert x.grad.tolist() == [1, 0, 1]


def test_one_token_and_none_have_defined_moments():
    assert m.masked_var(torch.tensor([5.0]), torch.tensor([1])).item() == 0
    assert m.whiten(torch.tensor([5.0]), torch.tensor([1])).tolist() == [0]
    assert m.masked_mean(torch.tensor([5.0]), torch.tensor([0])).item() == 0
    assert m.whiten(torch.empty(0), torch.empty(0)).tolist() == []


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95, 1.0])
def test_reverse_scan_is_the_loop(columns, decay):
    x = columns.noise()
    expected = []
    for row in columns.rows(x):
        running, out = 0.0, []
        for value in reversed(row):
            running = value + decay * running
            out.append(running)
        expected += reversed(out)
    assert m.reverse_scan(x, columns.lengths, decay).tolist() == pytest.approx(expected, rel=1e-12)


def test_reverse_scan_of_a_row_does_not_depend_on_its_neighbors():
    row = torch.randn(37, generator=torch.Generator().manual_seed(0))
    alone = m.reverse_scan(row, torch.tensor([37]), 0.97)
    joined = m.reverse_scan(torch.cat([torch.randn(5), row, torch.randn(200)]), torch.tensor([5, 37, 200]), 0.97)
    assert torch.equal(alone, joined[5:42])


def test_reverse_scan_with_one_long_row_among_a_thousand_short_ones():
    lengths = torch.full((1001,), 20)
    lengths[500] = 32_768
    x = torch.randn(int(lengths.sum()), generator=torch.Generator().manual_seed(1))
    start = time.perf_counter()
    y = m.reverse_scan(x, lengths, 1.0)
    assert time.perf_counter() - start < 10  # a padded matrix would hold 33 million entries
    long_row = x[500 * 20 : 500 * 20 + 32_768].double()
    exact = long_row.flip(0).cumsum(0).flip(0)
    assert (y[500 * 20 : 500 * 20 + 32_768] - exact).abs().max() < 1e-3
    assert y[:20].tolist() == pytest.approx(x[:20].double().flip(0).cumsum(0).flip(0).tolist(), abs=1e-5)


def test_metrics_of_parts_add_up_to_those_of_the_whole(columns):
    x = columns.noise()
    whole = {"a": m.masked_share(x, columns.mask)}
    parts = [{"a": m.masked_share(x[i : i + 7], columns.mask[i : i + 7])} for i in range(0, len(x), 7)]
    assert m.add_metrics(parts)["a"].mean() == pytest.approx(whole["a"].mean(), rel=1e-5)
    assert m.masked_share(torch.ones(2), torch.zeros(2)).mean() == 0
