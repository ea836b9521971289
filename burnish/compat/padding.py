"""Convert between padded [B, T] matrices and flat columns with row lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def group_numbers(index: Sequence[Any]) -> Tensor:
    """Number uids of any type (strings, array entries) in order of first appearance."""
    seen: dict[Any, int] = {}
    keys = index.tolist() if hasattr(index, "tolist") else index  # pyright: ignore[reportAttributeAccessIssue]
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys], dtype=torch.int64)


def full_lengths(matrix: Tensor) -> Tensor:
    return torch.full((matrix.shape[0],), matrix.shape[1], dtype=torch.int64)


def _inside(lengths: Tensor, device: torch.device) -> Tensor:
    """[B, T]: which slots of the padded matrix are tokens."""
    longest = int(lengths.max()) if len(lengths) else 0
    return (torch.arange(longest) < lengths[:, None]).to(device)


def padded(flat: Tensor, lengths: Tensor) -> Tensor:
    inside = _inside(lengths, flat.device)
    return flat.new_zeros(inside.shape).masked_scatter(inside, flat)


def flat(padded: Tensor, lengths: Tensor) -> Tensor:
    return padded[_inside(lengths, padded.device)]
