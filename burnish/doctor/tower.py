"""Tower: the vision part of a model, its parameter count, and the memory that its patches take.

A patch is one position of the tower; `merge` x `merge` patches become one token of the language model. The doctor does
not open pictures, so its plan takes every token of a prompt of full length as a picture's: an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.sizing import FLOAT32_BYTES as FLOAT

# Largest number of pixels that the family's processor gives one picture, unless its configuration says otherwise.
_MAX_PIXELS = {"qwen2_vl": 12845056, "qwen2_5_vl": 12845056, "qwen3_vl": 16777216, "qwen3_vl_moe": 16777216}
DYNAMIC = tuple(_MAX_PIXELS)  # families whose pictures take as many tokens as they have pixels
MAX_SIZE = 2**31  # of any dimension
TEMPORAL = 2  # frames per patch of the Qwen families


@dataclass(frozen=True)
class Tower:
    """Vision tower and projector."""

    family: str  # the model's model_type
    hidden: int
    intermediate: int
    layers: int
    heads: int
    patch: int  # pixels per side
    merge: int  # patches per side that become one token
    output: int  # hidden size of the language model
    num_positions: int = 0  # rows of its learned position embedding
    num_deepstack: int = 0  # further mergers, whose outputs enter layers of the language model
    pooled: bool = False  # has SigLIP's pooling head, which no feature passes

    @property
    def patches_per_token(self) -> int:
        return self.merge**2

    @property
    def max_pixels(self) -> int | None:
        """Of one picture; None where every picture has the same size, or is cut into tiles."""
        return _MAX_PIXELS.get(self.family)

    def tokens(self, num_pixels: int) -> int:
        """Tokens of a picture with this many pixels."""
        return max(1, num_pixels // (self.patch * self.merge) ** 2)

    @property
    def layer(self) -> int:
        """Parameters per layer."""
        h, gated = self.hidden, self.family == "qwen2_5_vl"
        attention = 4 * h * h + 4 * h
        if gated:
            return attention + 2 * h + 3 * h * self.intermediate + 2 * self.intermediate + h
        return attention + 4 * h + 2 * h * self.intermediate + self.intermediate + h

    @property
    def parameters(self) -> int:
        h = self.hidden
        embedding = 3 * self.patch**2 * h * (TEMPORAL if self.family in DYNAMIC else 1)
        has_bias = self.family not in ("qwen2_vl", "qwen2_5_vl")
        embedding += (h if has_bias else 0) + self.num_positions * h
        return embedding + self.layers * self.layer + self._projector

    @property
    def _projector(self) -> int:
        h, inner = self.hidden, self.hidden * self.patches_per_token
        if self.family in DYNAMIC:
            norm = h if self.family == "qwen2_5_vl" else 2 * h
            linear = inner * inner + inner + inner * self.output + self.output
            return norm + linear + self.num_deepstack * (2 * inner + linear)
        if self.family == "gemma3":  # the tower's last norm, the norm of its features, and a projection
            pooling = 4 * h * h + 7 * h + 2 * h * self.intermediate + self.intermediate + h
            return 2 * h + h + h * self.output + (pooling if self.pooled else 0)
        return 2 * h + inner * self.output

    def saved(self, num_tokens: int, weights: int, compute: int, *, recomputed: bool) -> int:
        """Bytes that training the tower saves for this many tokens of the language model."""
        per_layer = weights * self.hidden if recomputed else self._saved_by_layer(compute)
        live = self._saved_by_layer(compute) if recomputed else 0
        patches = num_tokens * self.patches_per_token
        return patches * (self.layers * per_layer + live) + self.temporaries(num_tokens, compute)

    def temporaries(self, num_tokens: int, compute: int) -> int:
        """Bytes alive at once in a forward pass: a layer's largest tensors, and the features."""
        patches = num_tokens * self.patches_per_token
        pixels = 3 * self.patch**2 * (TEMPORAL if self.family in DYNAMIC else 1) * FLOAT
        per_patch = pixels + compute * (6 * self.hidden + 2 * self.intermediate)
        return patches * per_patch + num_tokens * compute * self.output * (1 + self.num_deepstack)

    def _saved_by_layer(self, compute: int) -> int:
        """Bytes per patch: two norms, query, key, value and output of attention, and the MLP."""
        mlp = (3 if self.family == "qwen2_5_vl" else 2) * compute * self.intermediate
        return 2 * (FLOAT + compute) * self.hidden + 5 * compute * self.hidden + FLOAT * self.heads + mlp


def tower_of(config: Mapping[str, Any], output: int) -> Tower | None:
    """The tower of a Hugging Face config, whose language model has the hidden size `output`. None if it has none of a
    supported family."""
    vision, family = config.get("vision_config"), str(config.get("model_type"))
    if not isinstance(vision, Mapping) or family not in _DEFAULTS:
        return None
    values = {**_DEFAULTS[family], **{key: value for key, value in vision.items() if _is_size(value)}}
    # Qwen2-VL calls its output hidden_size, and its own size embed_dim.
    hidden = int(values["embed_dim"] if family == "qwen2_vl" else values["hidden_size"])
    intermediate = int(values["mlp_ratio"] * hidden if family == "qwen2_vl" else values["intermediate_size"])
    patch, merge = int(values["patch_size"]), int(values.get("spatial_merge_size", 1))
    side = int(values.get("image_size", 0)) // max(1, patch)
    if family in ("smolvlm", "idefics3"):
        merge = int(config.get("scale_factor") or 2)
    elif family == "gemma3":
        merge = max(1, round(side / max(1, int(config.get("mm_tokens_per_image") or 256)) ** 0.5))
    deepstack = vision.get("deepstack_visual_indexes", _DEEPSTACK if family in _WITH_DEEPSTACK else ())
    return Tower(
        family="qwen3_vl" if family in _WITH_DEEPSTACK else family,
        hidden=hidden,
        intermediate=intermediate,
        layers=int(values.get("depth") or values["num_hidden_layers"]),
        heads=int(values.get("num_heads") or values["num_attention_heads"]),
        patch=patch,
        merge=merge,
        output=output,
        num_positions=int(values.get("num_position_embeddings", side * side)),
        num_deepstack=len(deepstack) if isinstance(deepstack, (list, tuple)) else 0,
        pooled=family == "gemma3" and vision.get("vision_use_head", True) is not False,
    )


def _is_size(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= MAX_SIZE  # type: ignore[operator]


_WITH_DEEPSTACK, _DEEPSTACK = ("qwen3_vl", "qwen3_vl_moe"), (8, 16, 24)
_SIGLIP: dict[str, float] = {"patch_size": 16, "image_size": 224, "num_hidden_layers": 12, "num_attention_heads": 12}
_IDEFICS = {**_SIGLIP, "patch_size": 32, "hidden_size": 1152, "intermediate_size": 3072, "num_attention_heads": 16}
_QWEN: dict[str, float] = {"depth": 32, "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2}
_QWEN3 = {**_QWEN, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16}
_QWEN3 = {**_QWEN3, "num_position_embeddings": 2304}
# transformers' defaults, which a config.json may leave out.
_DEFAULTS: dict[str, dict[str, float]] = {
    "qwen2_vl": {**_QWEN, "embed_dim": 1280, "mlp_ratio": 4},
    "qwen2_5_vl": {**_QWEN, "hidden_size": 3584, "intermediate_size": 3420},
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "gemma3": {**_SIGLIP, "hidden_size": 768, "intermediate_size": 3072},
    "smolvlm": _IDEFICS,
    "idefics3": _IDEFICS,
}
