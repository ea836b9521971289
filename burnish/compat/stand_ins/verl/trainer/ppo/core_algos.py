"""Stand-in for verl.trainer.ppo.core_algos."""

from __future__ import annotations

from burnish.compat.verl_core_algos import *  # noqa: F403
