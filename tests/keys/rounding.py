"""Rows of the engine's 8-bit weights: what the built-in engine scores with them, and vLLM's arguments.

vLLM is not started: one sees the arguments that it would get on a GPU. The matrices of the tests' models are smaller
than a block, so that blocks and matrices have the same scales in the built-in engine.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.loop import build_engine, roles
from burnish.rollout.engines.vllm.arguments import engine_arguments

from .kit import Case
from .row import Row

ROLLOUT = "actor_rollout_ref.rollout"
VLLM = (f"{ROLLOUT}.name=vllm",)


def scores(case: Case) -> list[list[float]]:
    """Log-probs by the engine's weights."""
    case.run.sync_weights()
    return case.run.rollout.engine.score([[3, 4, 5, 6, 7]], 1.0)


def arguments(case: Case) -> dict[str, Any]:
    """Of vLLM's engine."""
    source, rollout = roles.policy_source(case.cfg), case.cfg.actor_rollout_ref.rollout
    tokenizer = roles.load_run_tokenizer(case.cfg, source)
    with pytest.MonkeyPatch.context() as patch:
        entry = SimpleNamespace(load=lambda: engine_arguments, metadata={})
        patch.setattr(build_engine, "engine_row", lambda *chosen, **more: entry)
        found: Any = build_engine.engine_of(rollout, source, torch.device("cuda"), None, tokenizer)
    return {name: found[name] for name in ("quantization",) if name in found}


ROWS = [
    Row(f"{ROLLOUT}.quantization", "fp8", scores),
    Row(
        f"{ROLLOUT}.use_block_quant_rollout",
        "false",
        arguments,
        (*VLLM, f"{ROLLOUT}.quantization=fp8"),
        expected={"quantization": "fp8_per_tensor"},
    ),
]
