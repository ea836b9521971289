"""The architecture family of a model, by its name or config, and its chat format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chat:
    """A family's chat format: its special tokens and its template."""

    special_tokens: tuple[str, ...]
    template: str
    eos: str  # ends an assistant turn
    bos: str | None = None


def _template(before: str, after: str, answer: str, bos: str = "", roles: str = "message['role']") -> str:
    """A template that writes `before` and `after` around each message; {role} is the message's role."""
    head = before.replace("{role}", "' + " + roles + " + '")
    return (
        (f"{{{{ '{bos}' }}}}" if bos else "")
        + "{% for message in messages %}"
        + "{% set text = message['content'] if message['content'] is string else"
        + " (message['content'] or []) | map(attribute='text', default='') | join('') %}"
        + f"{{{{ '{head}' + text + '{after}' }}}}"
        + "{% endfor %}"
        + "{% if add_generation_prompt %}"
        + f"{{{{ '{answer}' }}}}"
        + "{% endif %}"
    )


_GEMMA_ROLE = "('model' if message['role'] == 'assistant' else 'user')"
CHATML = Chat(
    ("<|im_start|>", "<|im_end|>"),
    _template("<|im_start|>{role}\\n", "<|im_end|>\\n", "<|im_start|>assistant\\n"),
    eos="<|im_end|>",
)
LLAMA = Chat(
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    _template(
        "<|start_header_id|>{role}<|end_header_id|>\\n\\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\\n\\n",
        bos="<|begin_of_text|>",
    ),
    eos="<|eot_id|>",
    bos="<|begin_of_text|>",
)
MISTRAL = Chat(
    ("<s>", "</s>", "[INST]", "[/INST]"),
    "{{ '<s>' }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + '</s>' }}{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% endif %}{% endfor %}",
    eos="</s>",
    bos="<s>",
)
GEMMA = Chat(
    ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    _template(
        "<start_of_turn>{role}\\n",
        "<end_of_turn>\\n",
        "<start_of_turn>model\\n",
        bos="<bos>",
        roles=_GEMMA_ROLE,
    ),
    eos="<end_of_turn>",
    bos="<bos>",
)

# Families that the built-in engine supports, by transformers' model_type: chat format, usual heads per key/value head.
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
FALLBACK = "llama"  # for architectures without a family above

# Pattern of a model's name -> family, and what of the real architecture the stand-in lacks. The first match wins.
_NAMES: tuple[tuple[str, str, str], ...] = (
    (r"qwen-?3[-_.]?omni", "qwen3", "the vision tower"),
    (r"qwen-?3[-_.]?(5|next)", "qwen3", "linear attention layers"),
    (r"qwen-?3.*a\d+b", "qwen3_moe", ""),
    (r"qwen-?3", "qwen3", ""),
    (r"qwen-?(2|2\.5|25|2_5)[-_.]?omni", "qwen2", "the vision tower"),
    (r"minicpm-?[ov]", "qwen2", "the vision and audio towers"),
    (r"qwen.*moe|qwen.*a2\.7b|qwen2.*a14b", "qwen2_moe", ""),
    (r"deepseek.*distill.*llama", "llama", ""),
    (r"qwen", "qwen2", ""),
    (r"mixtral", "mixtral", ""),
    (r"mistral|zephyr", "mistral", ""),
    (r"gemma-?3", "gemma3_text", ""),
    (r"gemma-?2", "gemma2", ""),
    (r"gemma", "gemma", ""),
    (r"deepseek[-_]?(v[23]|r1)|moonlight|kimi|dsv[23]", FALLBACK, "latent attention and experts"),
    (r"deepseek|llama|smollm|tulu|vicuna|yi-", "llama", ""),
    (r"gpt-?oss", FALLBACK, "attention sinks and experts"),
    (r"glm.*v", FALLBACK, "its own layers and the vision tower"),
)
# model_type of a config.json -> family of the stand-in, and what it lacks.
_TYPES: dict[str, tuple[str, str]] = {
    "qwen2_vl": ("qwen2", "the vision tower"),
    "qwen2_vl_text": ("qwen2", "the vision tower"),
    "qwen2_5_vl": ("qwen2", "the vision tower"),
    "qwen2_5_vl_text": ("qwen2", "the vision tower"),
    "qwen3_vl": ("qwen3", "the vision tower"),
    "qwen3_vl_text": ("qwen3", "the vision tower"),
    "qwen3_vl_moe": ("qwen3_moe", "the vision tower"),
    "qwen3_vl_moe_text": ("qwen3_moe", "the vision tower"),
    "gemma3": ("gemma3_text", "the vision tower"),
    "deepseek_v2": (FALLBACK, "latent attention and experts"),
    "deepseek_v3": (FALLBACK, "latent attention and experts"),
    "gpt_oss": (FALLBACK, "attention sinks and experts"),
}


@dataclass(frozen=True)
class Family:
    """The family of a stand-in."""

    name: str  # a model_type of FAMILIES
    missing: str = ""  # what of the real architecture it lacks
    known: bool = True

    @property
    def chat(self) -> Chat:
        return FAMILIES[self.name][0]

    @property
    def heads_per_kv(self) -> int:
        return FAMILIES[self.name][1]


def family_of_name(name: str) -> Family:
    """The family by a model's name or path; the last component is tried first."""
    parts = name.strip("/").lower().split("/")
    for part in [parts[-1], "/".join(parts[-2:]), name.lower()]:
        for pattern, family, missing in _NAMES:
            if re.search(pattern, part):
                return Family(family, missing)
    return Family("qwen2", "", known=False)


def family_of_config(config: Any) -> Family:
    """The family by a Hugging Face config."""
    text = config.get_text_config()
    for model_type in (text.model_type, config.model_type):
        if model_type in FAMILIES:
            return Family(model_type, "" if text is config else "the vision tower")
        if model_type in _TYPES:
            return Family(*_TYPES[model_type])
    return Family(FALLBACK, f"the architecture of {config.model_type}", known=False)
