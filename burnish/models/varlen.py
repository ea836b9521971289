"""Attention kernels for packed sequences of different lengths: torch's own, ours in C, and the flash-attn library's."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnish.errors import UserError, install_package
from burnish.models.cpu import attention
from burnish.models.flash import packed_product
from burnish.sizing import flash_attention_fits

if TYPE_CHECKING:
    from burnish.models.kernels.invariant import Spans

# Major version of flash-attn -> (module with flash_attn_varlen_func, its package; None: built from its repository).
LIBRARIES = {
    2: ("flash_attn", "flash-attn --no-build-isolation"),
    3: ("flash_attn_interface", None),
}


@dataclass(frozen=True)
class AttentionShape:
    """Parameters of one layer's attention."""

    scaling: float
    window: int | None = None
    softcap: float | None = None


class Block(NamedTuple):
    """Tokens start..end of a packed stream see each other in both directions. Their sequence begins at `sequence`."""

    sequence: int
    start: int
    end: int


class Segments:
    """Lengths of the sequences of a packed stream, and their offsets, copied to the device once for all layers.

    Not a list, because torch.compile would specialize on its values. `blocks` are ranges of tokens, in any sequence,
    that see each other in both directions (images of Gemma 3).
    """

    def __init__(self, lengths: Sequence[int], blocks: Sequence[Block] = ()) -> None:
        self.lengths = list(lengths)
        self.blocks = tuple(blocks)
        self.longest = max(self.lengths, default=0)
        self.starts: Tensor | None = None  # int32 [rows + 1]: offsets, and the end
        self.spans: dict[int, Spans] = {}  # for the invariant kernels, by the query heads that share a key/value head

    def __iter__(self) -> Iterator[int]:
        return iter(self.lengths)

    def padded(self, padding: int) -> Segments:
        """With one more sequence."""
        return Segments([*self.lengths, padding], self.blocks)

    @staticmethod
    def of(lengths: Segments | Sequence[int], device: torch.device) -> Segments:
        """Segments with offsets on this device."""
        segments = lengths if isinstance(lengths, Segments) else Segments(lengths)
        if segments.starts is None or segments.starts.device.type != device.type:
            starts = torch.tensor([0, *segments.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            segments.starts = starts.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else starts
        return segments


# Devices on which torch's own kernel takes all sequences at once.
TORCH_KERNEL_ON = frozenset({"cuda"})


def torch_kernel_applies(query: Tensor, shape: AttentionShape, dropout: float) -> bool:
    """Whether torch's own kernel applies: 16 bits on a GPU, no soft cap, a supported head size, no dropout."""
    fits = flash_attention_fits(query.dtype.itemsize, query.shape[-1], shape.softcap is not None)
    return fits and not dropout and query.device.type in TORCH_KERNEL_ON


def torch_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, shape: AttentionShape) -> Tensor:
    """Causal attention inside each segment by torch's own kernel, one call for all; tensors are [T, heads, d]."""
    lengths, window = (segments.starts, segments.longest), shape.window or 0
    return packed_product(query, key, value, *lengths, shape.scaling, window, True)[0]  # causal


def c_kernel_applies(query: Tensor, segments: Segments | Sequence[int], shape: AttentionShape, dropout: float) -> bool:
    """Whether the C kernel applies: float32 on a CPU, no soft cap, no effective window, no dropout."""
    if not attention.is_supported(query) or shape.softcap is not None or dropout:
        return False
    return shape.window is None or max(segments, default=0) <= shape.window


def c_attention(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments | Sequence[int], shape: AttentionShape
) -> Tensor:
    """Causal attention inside each segment by the C kernel, one call for all; tensors are [T, heads, d]."""
    rows = Segments.of(segments, query.device)
    assert rows.starts is not None  # set by `Segments.of`
    return attention.packed_attention(query, key, value, rows.starts, rows.longest, shape.scaling)


def check_varlen(number: int, device: torch.device, key: str, value: str) -> None:
    """Refuse flash-attn where it cannot run, before a model is loaded."""
    if device.type != "cuda":
        raise UserError("flash-attn runs on NVIDIA GPUs only", key=key, value=value, hint=f"{key}=sdpa")
    name, package = LIBRARIES[number]
    try:
        importlib.import_module(name)
    except ImportError as error:
        source = f"install flash-attn {number} from the `hopper` folder of its repository"
        problem = f"the {name} library is not installed: {install_package(package) if package else source}"
        raise UserError(problem, key=key, value=value, hint=f"{key}=sdpa") from error


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
            "flash-attn supports 16-bit dtypes only",
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
    output = function(query, key, value, rows.starts, rows.starts, rows.longest, rows.longest, **options)
    return output[0] if isinstance(output, tuple) else output
