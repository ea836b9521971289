"""Choose the sequence-parallel method for a model from its number of heads, before its weights are loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor
from transformers import PretrainedConfig

from burnish.errors import UserError
from burnish.models.sequence.ring import ring_attention
from burnish.models.sequence.spans import PARTS
from burnish.models.sequence.ulysses import ulysses_attention
from burnish.models.vision.family import vision_family

# Layers in which only attention mixes tokens.
SHAREABLE_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Method:
    """A sequence-parallel attention."""

    name: str
    attend: Callable[..., Tensor]
    parts: int  # of a stream that is cut into equal ones, for each rank (`spans.spans_of`)
    inner: int = 1  # neighboring ranks that divide the heads, where `attend` is that of the others


ULYSSES = Method("Ulysses", ulysses_attention, 1)
RING = Method("ring", ring_attention, PARTS)


@dataclass(frozen=True)
class Choice:
    """The method for a model, and the notice that explains it."""

    method: Method
    notice: str


def choose_method(config: PretrainedConfig, size: int, key: str, tensor_size: int = 1) -> Choice:
    """Ulysses if the number of ranks divides the number of heads, ring attention if they have no common divisor, else
    Ulysses inside of a ring; refuses what none supports.

    `key` sets `size` ranks; with tensor parallelism each rank has only a part of the heads.
    """
    family = vision_family(config, key)
    config = config.get_text_config()
    heads = config.num_attention_heads // tensor_size
    kv_heads = max(1, (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) // tensor_size)
    unsupported = sorted({*(getattr(config, "layer_types", None) or ())}.difference(SHAREABLE_LAYERS))
    if unsupported:
        problem = f"sequence parallelism does not support layers of type {', '.join(unsupported)}"
        raise UserError(problem, key=key, value=size, allowed="1", hint=f"{key}=1")
    if heads % size == 0:
        repeats = math.lcm(kv_heads, size) // kv_heads
        how = f", the {kv_heads} KV heads repeated {repeats} times" if repeats > 1 else ""
        return Choice(ULYSSES, f"{key}={size}: Ulysses, {heads // size} of {heads} heads on each rank{how}.")
    dropout = getattr(config, "attention_dropout", 0.0)
    whole = family is not None and family.sees_whole_images
    if dropout or whole:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        lacking = f"attention dropout (attention_dropout={dropout:g})" if dropout else "images seen as a whole"
        raise UserError(
            f"{heads} heads ({kv_heads} KV heads) are not divisible by {size} ranks, and ring attention"
            f" does not support {lacking}",
            key=key,
            value=size,
            allowed=divisors,
            hint=f"{key}={max(n for n in divisors if n < size)}",
        )
    why = f"because {heads} heads are not divisible by {size} ranks"
    inner = math.gcd(heads, size)
    if inner == 1:
        return Choice(RING, f"{key}={size}: ring attention, {why}.")
    how = f"Ulysses over {inner} ranks, {heads // inner} heads on each, inside of ring attention over {size // inner}"
    return Choice(replace(RING, name="Ulysses and ring", inner=inner), f"{key}={size}: {how}, {why}.")
