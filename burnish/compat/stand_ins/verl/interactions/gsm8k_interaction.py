"""Stand-in for verl.interactions.gsm8k_interaction."""

from __future__ import annotations

from burnish.compat.shims.tools import Gsm8kInteraction

__all__ = ["Gsm8kInteraction"]
