"""Qwen2.5 model shapes with random weights, and their FLOP counts."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

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
    """A model of this shape with packed attention."""
    attention.register()
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM._from_config(config_of(shape), attn_implementation=attention.PACKED, dtype=dtype)
    return model


def head_dim(config: PretrainedConfig) -> int:
    """Size of one attention head; Qwen3, Gemma and others set it independently of hidden_size."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def matmul_parameters(config: PretrainedConfig) -> int:
    """Weights in matrix products of a dense decoder: projections, gated MLP and LM head; not the embedding lookup."""
    hidden, dim = config.hidden_size, head_dim(config)
    # Query and output projections, key and value projections, gate, up and down.
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    layer = hidden * dim * heads + 3 * hidden * config.intermediate_size
    return config.num_hidden_layers * layer + config.vocab_size * hidden


def update_flops(config: PretrainedConfig, lengths: list[int], adapter_parameters: int | None = None) -> float:
    """FLOPs of one update on sequences of these lengths, without recomputation.

    6 per matmul weight and token; with LoRA 4, plus 6 per adapter weight. Causal attention covers half of all pairs.
    """
    tokens = sum(lengths)
    weights = matmul_parameters(config)
    products = 6 * weights if adapter_parameters is None else 4 * weights + 6 * adapter_parameters
    pairs = sum(length * length for length in lengths) / 2
    # QK and PV: 2 FLOPs each per pair and channel in the forward pass, twice that in the backward pass.
    channels = config.num_attention_heads * head_dim(config)
    attention_flops = 3 * 4 * pairs * channels * config.num_hidden_layers
    return tokens * products + attention_flops
