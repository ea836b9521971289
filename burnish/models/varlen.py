"""Kernels for packed rows of different lengths: the one in torch itself, and those of the flash-attn library."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
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


class Segments(list[int]):
    """Lengths of the rows of a packed stream. All layers need to know where they start: it is sent to a device once."""

    @staticmethod
    def of(lengths: Sequence[int]) -> Segments:
        return lengths if isinstance(lengths, Segments) else Segments(lengths)

    def starts(self, device: torch.device) -> Tensor:
        """Where each row starts, and one past the end: int32 [rows + 1]."""
        if getattr(self, "_device", None) != device:
            self._device = device
            starts = torch.tensor([0, *self], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            self._starts = starts.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else starts
        return self._starts


# Devices on which torch's own kernel takes all rows at once: "cuda", once that is measured.
OWN_KERNEL_ON: frozenset[str] = frozenset()


def own_kernel_fits(query: Tensor, shape: AttentionShape) -> bool:
    """Whether torch's own kernel can do it: 16 bits on a GPU, no cap, heads of a size it knows."""
    size = query.shape[-1]
    knows = query.itemsize == 2 and shape.softcap is None and size % 8 == 0 and size <= 256
    return knows and query.device.type in OWN_KERNEL_ON


def own_product(
    query: Tensor,  # [T, heads, d]
    key: Tensor,  # [T, kv_heads, d]
    value: Tensor,
    segments: list[int],
    shape: AttentionShape,
    dropout: float,
) -> Tensor:
    """Causal attention inside each segment by torch's own kernel, one call for all, [T, heads, d]."""
    starts, longest = Segments.of(segments).starts(query.device), max(segments)
    window = (None, None) if shape.window is None else (shape.window - 1, 0)
    return torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        starts,
        starts,
        longest,
        longest,
        dropout,
        True,
        False,
        scale=shape.scaling,
        window_size_left=window[0],
        window_size_right=window[1],
    )[0]


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
    ends, longest = Segments.of(segments).starts(query.device), max(segments)
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
