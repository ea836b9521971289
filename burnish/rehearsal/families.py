"""Which architecture family a model belongs to, and how its chat looks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chat:
    """How a family marks turns: the tokens it adds, the template, and which token ends an answer."""

    markers: tuple[str, ...]
    template: str
    end: str
    begin: str | None = None  # a token before everything


def _turns(before: str, after: str, answer: str, begin: str = "", roles: str = "message['role']") -> str:
    """A template that writes each message between two texts; {role} is its role."""
    head = before.replace("{role}", "' + " + roles + " + '")
    return (
        (f"{{{{ '{begin}' }}}}" if begin else "")
        + "{% for message in messages %}"
        + "{% set said = message['content'] if message['content'] is string else"
        + " (message['content'] or []) | map(attribute='text', default='') | join('') %}"
        + f"{{{{ '{head}' + said + '{after}' }}}}"
        + "{% endfor %}"
        + "{% if add_generation_prompt %}"
        + f"{{{{ '{answer}' }}}}"
        + "{% endif %}"
    )


_GEMMA_ROLE = "('model' if message['role'] == 'assistant' else 'user')"
CHATML = Chat(
    ("<|im_start|>", "<|im_end|>"),
    _turns("<|im_start|>{role}\\n", "<|im_end|>\\n", "<|im_start|>assistant\\n"),
    end="<|im_end|>",
)
LLAMA = Chat(
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    _turns(
        "<|start_header_id|>{role}<|end_header_id|>\\n\\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\\n\\n",
        begin="<|begin_of_text|>",
    ),
    end="<|eot_id|>",
    begin="<|begin_of_text|>",
)
MISTRAL = Chat(
    ("<s>", "</s>", "[INST]", "[/INST]"),
    "{{ '<s>' }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + '</s>' }}{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% endif %}{% endfor %}",
    end="</s>",
    begin="<s>",
)
GEMMA = Chat(
    ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    _turns(
        "<start_of_turn>{role}\\n",
        "<end_of_turn>\\n",
        "<start_of_turn>model\\n",
        begin="<bos>",
        roles=_GEMMA_ROLE,
    ),
    end="<end_of_turn>",
    begin="<bos>",
)

# Families that the built-in engine runs, by transformers' model_type, with their usual heads per key/value head.
FAMILIES: dict[str, tuple[Chat, int]] = {
    "qwen2": (CHATML, 7),
    "qwen3": (CHATML, 4),
    "qwen2_moe": (CHATML, 1),
    "qwen3_moe": (CHATML, 8),
    "llama": (LLAMA, 4),
    "mistral": (MISTRAL, 4),
    "mixtral": (MISTRAL, 4),
    "gemma": (GEMMA, 1),
    "gemma2": (GEMMA, 2),
    "gemma3_text": (GEMMA, 4),
}
NEAREST = "llama"  # for what is not known here

# Names of models -> family, and what the stand-in leaves out. The first that matches wins.
_NAMES: tuple[tuple[str, str, str], ...] = (
    (r"qwen-?3[-_.]?vl.*a\d+b", "qwen3_moe", "the vision part"),
    (r"qwen-?3[-_.]?(vl|omni)", "qwen3", "the vision part"),
    (r"qwen-?3[-_.]?(5|next)", "qwen3", "linear attention layers"),
    (r"qwen-?3.*a\d+b", "qwen3_moe", ""),
    (r"qwen-?3", "qwen3", ""),
    (r"qwen-?(2|2\.5|25|2_5)[-_.]?(vl|omni)", "qwen2", "the vision part"),
    (r"minicpm-?[ov]", "qwen2", "the vision and audio parts"),
    (r"qwen.*moe|qwen.*a2\.7b|qwen2.*a14b", "qwen2_moe", ""),
    (r"deepseek.*distill.*llama", "llama", ""),
    (r"qwen", "qwen2", ""),
    (r"mixtral", "mixtral", ""),
    (r"mistral|zephyr", "mistral", ""),
    (r"gemma-?3", "gemma3_text", "the vision part, if there is one"),
    (r"gemma-?2", "gemma2", ""),
    (r"gemma", "gemma", ""),
    (r"deepseek[-_]?(v[23]|r1)|moonlight|kimi|dsv[23]", NEAREST, "its latent attention and its experts"),
    (r"deepseek|llama|smollm|tulu|vicuna|yi-", "llama", ""),
    (r"gpt-?oss", NEAREST, "its attention sinks and its experts"),
    (r"glm.*v", NEAREST, "its own layers and the vision part"),
)
# model_type of a config.json -> the family that rehearses it, and what is left out.
_TYPES: dict[str, tuple[str, str]] = {
    "qwen2_vl": ("qwen2", "the vision part"),
    "qwen2_vl_text": ("qwen2", "the vision part"),
    "qwen2_5_vl": ("qwen2", "the vision part"),
    "qwen2_5_vl_text": ("qwen2", "the vision part"),
    "qwen3_vl": ("qwen3", "the vision part"),
    "qwen3_vl_text": ("qwen3", "the vision part"),
    "qwen3_vl_moe": ("qwen3_moe", "the vision part"),
    "qwen3_vl_moe_text": ("qwen3_moe", "the vision part"),
    "gemma3": ("gemma3_text", "the vision part"),
    "deepseek_v2": (NEAREST, "its latent attention and its experts"),
    "deepseek_v3": (NEAREST, "its latent attention and its experts"),
    "gpt_oss": (NEAREST, "its attention sinks and its experts"),
}


@dataclass(frozen=True)
class Family:
    """`name` is a model_type of FAMILIES; `without` says what of the real architecture it does not have."""

    name: str
    without: str = ""
    known: bool = True

    @property
    def chat(self) -> Chat:
        return FAMILIES[self.name][0]

    @property
    def heads_per_kv(self) -> int:
        return FAMILIES[self.name][1]


def family_of_name(name: str) -> Family:
    """By the name of a model, wherever it lies; the last parts of a path say most."""
    parts = name.strip("/").lower().split("/")
    for part in [parts[-1], "/".join(parts[-2:]), name.lower()]:
        for pattern, family, without in _NAMES:
            if re.search(pattern, part):
                return Family(family, without)
    return Family("qwen2", "", known=False)


def family_of_config(config: Any) -> Family:
    """By a Hugging Face config."""
    text = config.get_text_config()
    for kind in (text.model_type, config.model_type):
        if kind in FAMILIES:
            return Family(kind, "" if text is config else "the vision part")
        if kind in _TYPES:
            return Family(*_TYPES[kind])
    return Family(NEAREST, f"what is special about {config.model_type}", known=False)
