"""The calibration that ships. Written by bench/plan_fit.py --write; not edited by hand."""

from __future__ import annotations

from typing import Any

SHIPPED: dict[str, Any] = {
    "coefficients": {
        "linear": 1.078,
        "elementwise": 3.524,
        "attention": 4.076,
        "head": 1.218,
        "optimizer": 1.036,
        "launch": 0.001317,
        "rows": 1.488e-05,
        "phase": 0.003302,
        "decode_layer": 4.107e-05,
        "decode_weights": 0.9087,
        "decode_linear": 1.256,
        "decode_cache": 0.9412,
        "decode_prompt": 0.734,
        "decode_sample": 4.581,
        "rollout_tokens": 9.116e-07,
        "rollout_rows": 5.244e-05,
        "rollout": 0.022,
        "sync_tensors": 0.0001134,
        "sync_bytes": 0.4326,
        "host_tokens": 1.058e-07,
        "step": 0.0015,
    },
    "eager": 2.175,
    "origin": "one NVIDIA H200, 2026-11-18: 5 setups and earlier benchmarks",
    "error": {
        "of the step": {
            "0.5B PPO 512x256, recomputed, 2 updates": -0.014,
            "0.5B PPO 64x512, recomputed": 0.015,
            "0.5B PPO 1024x256 (bench/gpu_step.py --ppo)": -0.102,
        },
        "largest of a large phase": 0.258,
    },
}
