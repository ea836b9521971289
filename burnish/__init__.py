"""Burnish: reinforcement-learning post-training of language models.

>>> import burnish
>>> burnish.train(["actor_rollout_ref.model.path=...", "data.train_files=..."], reward=my_reward)
"""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"
__all__ = ["UserError", "sft", "train"]


def __getattr__(name: str) -> Any:
    # Importing burnish is free: torch is loaded when something that needs it is first used.
    if name == "train":
        from burnish.loop.api import train

        return train
    if name == "sft":
        from burnish.jobs.sft.fit import sft

        return sft
    if name == "UserError":
        from burnish.errors import UserError

        return UserError
    raise AttributeError(f"module 'burnish' has no attribute {name!r}")
