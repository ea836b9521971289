"""A tiny random Qwen2 model and a character tokenizer, created without downloads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from burnish.models.load import quiet_transformers

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'][0] }} {{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a {% endif %}"
)


def make_tokenizer(characters: str, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """One token per character and word plus the chat markers. The template abbreviates a role to its first letter.

    Byte-level like Qwen's, so that loaders that expect a Qwen2 tokenizer for a Qwen2 model accept it.
    """
    alphabet = [symbol for symbol, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(characters)]
    tokens = [PAD, START, END, *sorted(set("".join(alphabet) + "usaĠ"))]  # Ġ is the space
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, START, END])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    *,
    hidden: int,
    layers: int,
    seed: int,
    rope_theta: float = 10_000.0,
) -> Qwen2ForCausalLM:
    """Create a random Qwen2 model and save it with its tokenizer."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=cast("int", tokenizer.convert_tokens_to_ids(PAD)),
    )
    model = Qwen2ForCausalLM(config)
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def prompt_ids(tokenizer: Any, question: str) -> list[int]:
    """Token ids of the rendered question, with a generation prompt."""
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
