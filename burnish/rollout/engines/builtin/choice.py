"""Which of its two ways to decode the built-in engine takes: token by token, or in windows on the device."""

from __future__ import annotations

from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.engines.builtin.plan import uses_loop


def builtin_engine(options: EngineOptions) -> BuiltinEngine:
    """The engine that the device and the options ask for."""
    if not uses_loop(options):
        return BuiltinEngine(options)
    from burnish.rollout.engines.builtin.loop import LoopEngine

    return LoopEngine(options)
