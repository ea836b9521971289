"""Stand-in for verl.utils.dataset."""

from __future__ import annotations

from burnish.compat.shims.dataset import RLHFDataset

__all__ = [
    "RLHFDataset",
]
