"""Kernels for packed rows of different lengths: the one in torch itself, ours in C, those of the flash-attn library."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.models.flash import packed_product
from burnish.native import attention
from burnish.sizing import flash_attention_fits

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


class Segments:
    """Lengths of the rows of a packed stream, and where they start, which is sent to a device once for all layers.

    Not a list: torch.compile would make a program for each.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.longest = max(self.lengths, default=0)
        self.starts: Tensor | None = None  # int32 [rows + 1]; one past the end too

    def __iter__(self) -> Iterator[int]:
        return iter(self.lengths)

    @staticmethod
    def of(lengths: Segments | Sequence[int], device: torch.device) -> Segments:
        """Known on this device from here on."""
        found = lengths if isinstance(lengths, Segments) else Segments(lengths)
        if found.starts is None or found.starts.device.type != device.type:
            starts = torch.tensor([0, *found.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            found.starts = starts.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else starts
        return found


# Devices on which torch's own kernel takes all rows at once.
OWN_KERNEL_ON = frozenset({"cuda"})


def own_kernel_fits(query: Tensor, shape: AttentionShape, dropout: float) -> bool:
    """Whether torch's own kernel can do it: 16 bits on a GPU, no cap, heads of a size it knows, nothing dropped."""
    fits = flash_attention_fits(query.dtype.itemsize, query.shape[-1], shape.softcap is not None)
    return fits and not dropout and query.device.type in OWN_KERNEL_ON


def own_product(query: Tensor, key: Tensor, value: Tensor, segments: Segments, shape: AttentionShape) -> Tensor:
    """Causal attention inside each segment by torch's own kernel, one call for all; all [T, heads, d]."""
    return packed_product(query, key, value, segments.starts, segments.longest, shape.scaling, shape.window or 0)[0]


def in_c(query: Tensor, segments: Segments | Sequence[int], shape: AttentionShape, dropout: float) -> bool:
    """Whether the kernel in C can do it: 32 bits on a CPU, no cap, no window that hides anything, nothing dropped."""
    if not attention.fits(query) or shape.softcap is not None or dropout:
        return False
    return shape.window is None or max(segments, default=0) <= shape.window


def product_in_c(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments | Sequence[int], shape: AttentionShape
) -> Tensor:
    """Causal attention inside each segment by the kernel in C, one call for all; all [T, heads, d]."""
    rows = Segments.of(segments, query.device)
    return attention.packed_attention(query, key, value, rows.starts, rows.longest, shape.scaling)


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
    segments: Segments | Sequence[int],
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
    rows = Segments.of(segments, query.device)
    options: dict[str, Any] = {"causal": True, "softmax_scale": shape.scaling}
    if shape.window is not None:
        options["window_size"] = (shape.window - 1, 0)
    if shape.softcap is not None:
        options["softcap"] = shape.softcap
    if dropout:
        options["dropout_p"] = dropout
    function = importlib.import_module(LIBRARIES[number][0]).flash_attn_varlen_func
    found = function(query, key, value, rows.starts, rows.starts, rows.longest, rows.longest, **options)
    return found[0] if isinstance(found, tuple) else found
