"""Qwen2.5's shapes with random weights, made on the device: what the benchmarks train."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from burnish.models import attention

SHAPES = {
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=320, tie_word_embeddings=True),
    "0.5B": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                 num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True),
    "1.5B": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                 num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True),
    "3B": dict(hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
               num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True),
    "7B": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
               num_key_value_heads=4, vocab_size=152_064, tie_word_embeddings=False),
}  # fmt: skip


def config_of(shape: str) -> Qwen2Config:
    return Qwen2Config(**SHAPES[shape], max_position_embeddings=32_768, rope_theta=1e6)


def make(shape: str, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """The model, with packed attention."""
    attention.register()
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM._from_config(config_of(shape), attn_implementation=attention.PACKED, dtype=dtype)
    return model


def matmul_parameters(shape: str) -> int:
    """Weights that take part in a product, the head once; the embedding's lookup is none."""
    config = config_of(shape)
    size, kv = config.hidden_size, config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    layer = 2 * size * size + 2 * size * kv + 3 * size * config.intermediate_size
    return config.num_hidden_layers * layer + config.vocab_size * size


def update_flops(shape: str, lengths: list[int], adapter_parameters: int | None = None) -> float:
    """Of one update over rows of these lengths, nothing computed twice: 6 per weight and token, or with adapters 4 and
    6 per adapter weight; attention over half of all pairs."""
    config = config_of(shape)
    tokens = sum(lengths)
    number = matmul_parameters(shape)
    products = 6 * number if adapter_parameters is None else 4 * number + 6 * adapter_parameters
    pairs = sum(length * length for length in lengths) / 2
    # Two products of 2 operations per pair and entry in the forward pass, twice that in the backward pass.
    attention_flops = 3 * 4 * pairs * config.hidden_size * config.num_hidden_layers
    return tokens * products + attention_flops
