from __future__ import annotations

import pytest
import torch

from burnish.algos.aggregate import LOSS_AGGREGATIONS, Totals, aggregate, totals
from burnish.errors import UserError

LENGTH = 12.0


def reference(columns, loss, mode):
    masks = columns.rows(columns.mask)
    rows = zip(columns.rows(loss), masks, strict=True)
    sums = [sum(x * m for x, m in zip(row, mask, strict=True)) for row, mask in rows]
    counts = [sum(mask) for mask in masks]
    sequences = sum(count > 0 for count in counts)
    return {
        "token-mean": sum(sums) / sum(counts),
        "token-sum": sum(sums),
        "seq-mean-token-sum": sum(sums) / sequences,
        "seq-mean-token-mean": sum(s / c for s, c in zip(sums, counts, strict=True) if c) / sequences,
        "seq-mean-token-sum-norm": sum(sums) / sequences / LENGTH,
    }[mode]


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS.names())
def test_aggregation_is_its_formula(mode, columns):
    loss = columns.noise()
    got = aggregate(loss, columns.mask, columns.lengths, mode, totals(columns.mask, columns.lengths), LENGTH)
    assert got.item() == pytest.approx(reference(columns, loss, mode))


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS.names())
@pytest.mark.parametrize("size", [1, 3, 4])
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(mode, size, columns):
    whole = columns.noise().requires_grad_()
    total = totals(columns.mask, columns.lengths)
    loss = aggregate(whole, columns.mask, columns.lengths, mode, total, LENGTH)
    loss.backward()
    parts = whole.detach().clone().requires_grad_()
    order = torch.randperm(len(columns.lengths), generator=columns.generator).split(size)
    pieces, masks = parts.split(columns.lengths.tolist()), columns.mask.split(columns.lengths.tolist())
    split_loss, counted = 0.0, Totals(0, 0)
    for rows in order:
        column, mask, lengths = (torch.cat([c[i] for i in rows]) for c in (pieces, masks, columns.lengths.split(1)))
        counted += totals(mask, lengths)
        part = aggregate(column, mask, lengths, mode, total, LENGTH)
        part.backward(retain_graph=True)
        split_loss += part.item()
    assert split_loss == pytest.approx(loss.item())
    assert counted == total
    torch.testing.assert_close(parts.grad, whole.grad)


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS.names())
def test_a_row_of_weight_two_acts_as_two_rows(mode):
    loss, mask, lengths = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([1, 0, 1, 1, 1]), torch.tensor([3, 2])
    weights = torch.tensor([2.0, 1.0])
    total = totals(mask, lengths, weights)
    doubled = torch.cat([loss[:3], loss]), torch.cat([mask[:3], mask]), torch.tensor([3, 3, 2])
    assert total == totals(*doubled[1:])
    weighted = aggregate(loss, mask, lengths, mode, total, LENGTH, weights)
    torch.testing.assert_close(weighted, aggregate(*doubled, mode, total, LENGTH))


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS.names())
def test_nothing_in_the_loss_is_zero_and_nan_outside_the_mask_is_not_seen(mode):
    lengths = torch.tensor([2, 0])
    nan = torch.full((2,), float("nan"), requires_grad=True)
    mask = torch.zeros(2)
    loss = aggregate(nan, mask, lengths, mode, totals(mask, lengths), LENGTH)
    loss.backward()
    assert loss.item() == 0
    assert nan.grad.tolist() == [0, 0]


def test_the_norm_needs_its_length_and_names_are_checked():
    one = torch.ones(1), torch.ones(1), torch.tensor([1])
    with pytest.raises(ValueError, match="scale_length"):
        aggregate(*one, "seq-mean-token-sum-norm", Totals(1, 1))
    with pytest.raises(UserError, match="Did you mean 'token-mean'"):
        aggregate(*one, "token_mean", Totals(1, 1))
