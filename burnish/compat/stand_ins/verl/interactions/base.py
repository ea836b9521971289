"""Stand-in for verl.interactions.base."""

from __future__ import annotations

from burnish.compat.shims.tools import BaseInteraction

__all__ = [
    "BaseInteraction",
]
