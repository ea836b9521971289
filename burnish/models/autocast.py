"""What autocast does to the inputs of matrix products, for code that it does not see."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def in_autocast_dtype(*tensors: Tensor) -> Iterator[Tensor]:
    """Cast as autocast would for a matrix product; outside of autocast, the tensors themselves."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return iter(tensors)
    return (tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)
