"""flash-attn's kernel for packed rows of different lengths. The library is found when it is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.errors import UserError

# By major version: the module that has flash_attn_varlen_func, and how it is installed.
LIBRARIES = {
    2: ("flash_attn", "pip install flash-attn --no-build-isolation"),
    3: ("flash_attn_interface", "install flash-attn 3 from the `hopper` folder of its repository"),
}


@dataclass(frozen=True)
class AttentionShape:
    """What one layer's product needs besides query, key and value."""

    scaling: float
    window: int | None = None
    softcap: float | None = None


def check_varlen(number: int, device: torch.device, key: str, asked: str) -> None:
    """Refuse before a model is loaded what could not run."""
    if device.type != "cuda":
        raise UserError("flash-attn runs on NVIDIA GPUs only", key=key, value=asked, hint=f"{key}=sdpa")
    name, install = LIBRARIES[number]
    try:
        importlib.import_module(name)
    except ImportError as error:
        problem = f"needs the {name} library: {install}"
        raise UserError(problem, key=key, value=asked, hint=f"{key}=sdpa") from error


def varlen_product(
    number: int,
    query: Tensor,  # [T, heads, d]
    key: Tensor,  # [T, kv_heads, d]
    value: Tensor,
    segments: list[int],
    shape: AttentionShape,
    dropout: float,
) -> Tensor:
    """Causal attention inside each segment, [T, heads, d]."""
    if query.dtype == torch.float32:
        raise UserError(
            "flash-attn computes in 16 bits only",
            key="actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
            value="fp32",
            allowed="bf16, fp16",
        )
    ends = torch.tensor([0, *segments], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(query.device)
    longest = max(segments)
    options: dict[str, Any] = {"causal": True, "softmax_scale": shape.scaling}
    if shape.window is not None:
        options["window_size"] = (shape.window - 1, 0)
    if shape.softcap is not None:
        options["softcap"] = shape.softcap
    if dropout:
        options["dropout_p"] = dropout
    function = importlib.import_module(LIBRARIES[number][0]).flash_attn_varlen_func
    found = function(query, key, value, ends, ends, longest, longest, **options)
    return found[0] if isinstance(found, tuple) else found
