"""A reward model made by hand: the more often a character stands in its input, the higher its score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from burnish.demo.tiny import PAD

HIDDEN, HEADS = 16, 2


def make_reward_model(folder: Path, tokenizer: Any, likes: str = "7", **config: Any) -> Path:
    """Attention without preferences averages over all tokens how much each is liked; the head reads that average."""
    torch.manual_seed(0)
    model = Qwen2ForSequenceClassification(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            intermediate_size=HIDDEN,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=512,
            pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
            num_labels=1,
            **config,
        )
    )
    layer = model.model.layers[0]
    with torch.no_grad():
        for module in (layer.self_attn, layer.mlp, model.score, model.model.embed_tokens):
            for parameter in module.parameters():
                parameter.zero_()
        model.model.embed_tokens.weight[:, 1] = 4.0  # so that all tokens are about as long, and norms change little
        model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids(likes), 0] = 1.0
        layer.self_attn.v_proj.weight[0, 0] = 1.0
        layer.self_attn.o_proj.weight[2, 0] = 1.0
        model.score.weight[0, 2] = 10.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
