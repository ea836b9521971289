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

    Sequences may share tokens, those of a prompt. `lengths` then counts the tokens that are computed for a sequence,
    its last ones, and `keys` (index in the stream) all that they attend to, sequence by sequence: `key_lengths` each.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        blocks: Sequence[Block] = (),
        *,
        keys: Tensor | None = None,
        key_lengths: Sequence[int] | None = None,
    ) -> None:
        self.lengths = list(lengths)
        self.blocks = tuple(blocks)
        self.keys = keys
        self.key_lengths = self.lengths if key_lengths is None else list(key_lengths)
        self.longest, self.longest_keys = (max(counts, default=0) for counts in (self.lengths, self.key_lengths))
        self.starts: Tensor | None = None  # int32 [rows + 1]: offsets, and the end
        self.key_starts: Tensor | None = None
        self.spans: dict[int, Spans] = {}  # for the invariant kernels, by the query heads that share a key/value head

    def __iter__(self) -> Iterator[int]:
        return iter(self.lengths)

    def padded(self, padding: int) -> Segments:
        """With one more sequence."""
        assert self.keys is None  # sequence-parallel ranks do not share prompts
        return Segments([*self.lengths, padding], self.blocks)

    def offsets(self) -> tuple[Tensor, Tensor, int, int]:
        """Offsets of queries and keys, and the largest number of each; after `of`."""
        assert self.starts is not None and self.key_starts is not None
        return self.starts, self.key_starts, self.longest, self.longest_keys

    def shared(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Keys and values [rows, heads, T, d] of the stream -> those of every sequence, one after the other."""
        if self.keys is None:
            return tensors
        # By way of float32, in which the gradients of a prompt are then added up over its responses.
        wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
        chosen = (tensor.index_select(2, self.keys) for tensor in wide)
        return [tensor.to(like.dtype) for tensor, like in zip(chosen, tensors, strict=True)]

    @staticmethod
    def of(lengths: Segments | Sequence[int], device: torch.device) -> Segments:
        """Segments with offsets on this device."""
        segments = lengths if isinstance(lengths, Segments) else Segments(lengths)
        if segments.starts is None or segments.starts.device.type != device.type:
            segments.starts = segments.key_starts = _on_device(_offsets(segments.lengths), device)
            if segments.keys is not None:
                segments.key_starts = _on_device(_offsets(segments.key_lengths), device)
                segments.keys = _on_device(segments.keys, device)
        return segments


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def _on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy that the host does not wait for."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


# Devices on which torch's own kernel takes all sequences at once.
TORCH_KERNEL_ON = frozenset({"cuda"})


def torch_kernel_applies(query: Tensor, shape: AttentionShape, dropout: float) -> bool:
    """Whether torch's own kernel applies: 16 bits on a GPU, no soft cap, a supported head size, no dropout."""
    fits = flash_attention_fits(query.dtype.itemsize, query.shape[-1], shape.softcap is not None)
    return fits and not dropout and query.device.type in TORCH_KERNEL_ON


def torch_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, shape: AttentionShape) -> Tensor:
    """Causal attention inside each segment by torch's own kernel, one call for all; tensors are [T, heads, d]."""
    return packed_product(query, key, value, *segments.offsets(), shape.scaling, shape.window or 0, True)[0]  # causal


def c_kernel_applies(query: Tensor, segments: Segments | Sequence[int], shape: AttentionShape, dropout: float) -> bool:
    """Whether the C kernel applies: float32 on a CPU, no soft cap, no effective window, no dropout."""
    if not attention.is_supported(query) or shape.softcap is not None or dropout:
        return False
    return shape.window is None or _longest_keys(segments) <= shape.window


def _longest_keys(segments: Segments | Sequence[int]) -> int:
    return segments.longest_keys if isinstance(segments, Segments) else max(segments, default=0)


def c_attention(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments | Sequence[int], shape: AttentionShape
) -> Tensor:
    """Causal attention inside each segment by the C kernel, one call for all; tensors are [T, heads, d]."""
    starts, key_starts, _, longest = Segments.of(segments, query.device).offsets()
    return attention.packed_attention(query, key, value, starts, key_starts, longest, shape.scaling)


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
    offsets = Segments.of(segments, query.device).offsets()
    options: dict[str, Any] = {"causal": True, "softmax_scale": shape.scaling}
    if shape.window is not None:
        options["window_size"] = (shape.window - 1, 0)
    if shape.softcap is not None:
        options["softcap"] = shape.softcap
    if dropout:
        options["dropout_p"] = dropout
    function = importlib.import_module(LIBRARIES[number][0]).flash_attn_varlen_func
    output = function(query, key, value, *offsets, **options)
    return output[0] if isinstance(output, tuple) else output
