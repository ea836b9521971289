"""What surrounds the layers of a decode step, in Triton's interpreter, against lists."""

from __future__ import annotations

import torch

from burnish.models.kernels.step import advance, place_tokens

NONE = -1  # no end id


def test_places_of_tokens():
    """Rows that write to a block's first and last slot, one that fills its table, and one that has ended."""
    tables = torch.tensor([[3, 5, 0], [7, 8, 0], [1, 2, 4], [6, 9, 0], [0, 0, 0]], dtype=torch.int32)[:, :3]
    active, length = torch.tensor([1, 1, 1, 0, 1]), torch.tensor([16, 31, 47, 20, 0])
    slots, lengths = place_tokens(active, length, tables, 16, dummy_slot=160)
    assert slots.tolist() == [5 * 16, 8 * 16 + 15, 4 * 16 + 15, 160, 0] and lengths.tolist() == [17, 32, 48, 1, 1]
    full = place_tokens(torch.tensor([0]), torch.tensor([48]), tables[:1], 16, dummy_slot=160)
    assert [part.item() for part in full] == [160, 1]


def test_advance():
    """A row goes on, one ends by a token, one by its length, one has ended before; the last step of a window."""
    tokens, log_probs = torch.tensor([4, 9, 5, 9]), torch.tensor([-0.5, -1.0, -2.0, -3.0])
    all_tokens, all_log_probs = torch.full((4, 3), 77), torch.zeros(4, 3)
    end_ids, step = torch.tensor([[2, 3], [2, 9], [2, NONE], [9, NONE]]), torch.tensor([2])
    token, length, num_tokens = torch.tensor([1, 1, 1, 8]), torch.tensor([10, 20, 30, 40]), torch.tensor([1, 2, 6, 3])
    active, limit = torch.tensor([1, 1, 1, 0]), torch.tensor([7, 7, 7, 7])
    advance(tokens, log_probs, all_tokens, all_log_probs, end_ids, step, (token, length, num_tokens, active, limit))
    assert all_tokens.tolist() == [[77, 77, 4], [77, 77, 9], [77, 77, 5], [77, 77, 9]]
    assert all_log_probs[:, 2].equal(log_probs) and not all_log_probs[:, :2].any()
    assert token.tolist() == [4, 9, 5, 8] and length.tolist() == [11, 21, 31, 40]
    assert num_tokens.tolist() == [2, 3, 7, 3] and active.tolist() == [1, 0, 0, 0] and step.item() == 0
