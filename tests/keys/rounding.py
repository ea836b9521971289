"""Rows of the engine's 8-bit weights. vLLM is not started: one sees the arguments that it would get on a GPU."""

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
    Row(f"{ROLLOUT}.quantization", "fp8", arguments, VLLM, expected={"quantization": "fp8_per_block"}),
    Row(
        f"{ROLLOUT}.use_block_quant_rollout",
        "false",
        arguments,
        (*VLLM, f"{ROLLOUT}.quantization=fp8"),
        expected={"quantization": "fp8_per_tensor"},
    ),
]
