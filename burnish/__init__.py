"""Burnish: reinforcement-learning post-training of language models.

>>> import burnish
>>> result = burnish.train({"actor_rollout_ref.model.path": "...", "data.train_files": "..."}, reward=my_reward)
>>> burnish.generate({"model.path": "..."}, prompts=["2 + 2 = ?"]).responses
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.errors import UserError
    from burnish.jobs.eval.run import evaluate
    from burnish.jobs.generate import generate
    from burnish.jobs.sft.fit import sft
    from burnish.loop.api import train

# OpenMP threads wait for one another after every operator. By default they do so by spinning, and where another job has
# one of the cores, a run takes ten times as long. OpenMP reads this once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0"
__all__ = ["UserError", "evaluate", "generate", "sft", "train"]

# Importing burnish is free: torch is loaded when something that needs it is first used.
_LAZY = {
    "UserError": "burnish.errors",
    "evaluate": "burnish.jobs.eval.run",
    "generate": "burnish.jobs.generate",
    "sft": "burnish.jobs.sft.fit",
    "train": "burnish.loop.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
