"""Which way of sharing a sequence serves a model: by the number of its heads, before its weights are loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from transformers import PretrainedConfig

from burnish.errors import UserError
from burnish.models.sequence.ring import ring_attention
from burnish.models.sequence.ulysses import ulysses_attention

# Layers in which tokens meet in attention and nowhere else.
SHAREABLE_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Method:
    """A way to attend across slices."""

    name: str
    attend: Callable[..., Tensor]


ULYSSES = Method("Ulysses", ulysses_attention)
RING = Method("ring", ring_attention)


@dataclass(frozen=True)
class Choice:
    """The method for a model, and how to say so."""

    method: Method
    said: str


def choose_method(config: PretrainedConfig, size: int, key: str, tensor_size: int = 1) -> Choice:
    """Ulysses where the ranks divide the heads, else the ring; refuses what neither serves.

    `key` asks for `size` ranks; with tensor parallelism each has a part of the heads only.
    """
    config = config.get_text_config()
    heads = config.num_attention_heads // tensor_size
    kv_heads = max(1, (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) // tensor_size)
    other = sorted({*(getattr(config, "layer_types", None) or ())}.difference(SHAREABLE_LAYERS))
    if other:
        problem = f"layers of type {', '.join(other)} cannot share a sequence between ranks"
        raise UserError(problem, key=key, value=size, allowed="1", hint=f"{key}=1")
    if heads % size == 0:
        repeats = math.lcm(kv_heads, size) // kv_heads
        how = f", the {kv_heads} KV heads repeated {repeats} times" if repeats > 1 else ""
        return Choice(ULYSSES, f"{key}={size}: Ulysses, {heads // size} of {heads} heads on each rank{how}.")
    dropout = getattr(config, "attention_dropout", 0.0)
    if dropout:
        serve = [n for n in range(1, heads + 1) if heads % n == 0]
        raise UserError(
            f"{size} ranks do not divide {heads} heads ({kv_heads} KV heads), and the ring, which would do,"
            f" has no attention dropout (attention_dropout={dropout:g})",
            key=key,
            value=size,
            allowed=serve,
            hint=f"{key}={max(n for n in serve if n < size)}",
        )
    why = f"{size} ranks do not divide {heads} heads"
    return Choice(RING, f"{key}={size}: {why}, so keys and values travel between them (ring attention).")
