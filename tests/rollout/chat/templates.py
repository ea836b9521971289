"""Real chat templates, each with a byte tokenizer that has its markers; Mistral's and Kimi's formats in short."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from burnish.loop.build_agents import added_stop_ids
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.chat.tool_calls import TOOL_PARSERS

FOLDER = Path(next(iter(find_spec("trl").submodule_search_locations))) / "chat_templates"
WHEEL = sorted(path.stem for path in FOLDER.glob("*.jinja"))

# By the beginning of a template's name: the EOS tokens of the model's generation config, and the format of its calls.
MODELS = {
    "cohere": (["<|END_OF_TURN_TOKEN|>"], "hermes"),
    "deepseek": (["<｜end▁of▁sentence｜>"], "deepseek_v3"),
    "diffusion_gemma": (["<turn|>", "<eos>"], "gemma4"),
    "gemma4": (["<turn|>", "<eos>"], "gemma4"),
    "gemma": (["<end_of_turn>", "<eos>"], "hermes"),
    "glm4moe": (["<|endoftext|>", "<|user|>"], "glm"),
    "gptoss": (["<|return|>", "<|endoftext|>"], "gpt-oss"),
    "idefics3": (["<end_of_utterance>"], "hermes"),
    "kimi": (["[EOS]"], "kimi_k2"),
    "lfm2": (["<|im_end|>"], "lfm2"),
    "llama3": (["<|eot_id|>"], "llama3_json"),
    "llava_next": (["</s>"], "hermes"),
    "mistral": (["</s>"], "mistral"),
    "muse_glimmer": (["<|eot|>"], "hermes"),
    "nemotron": (["<|im_end|>"], "qwen3_coder"),
    "phi3": (["<|end|>", "<|endoftext|>"], "hermes"),
    "qwen2": (["<|im_end|>", "<|endoftext|>"], "hermes"),
    "qwen3_5": (["<|im_end|>", "<|endoftext|>"], "qwen3_coder"),
    "qwen3_6": (["<|im_end|>", "<|endoftext|>"], "qwen3_coder"),
    "qwen3_8": (["<|im_end|>", "<|endoftext|>"], "qwen3_coder"),
    "qwen3": (["<|im_end|>", "<|endoftext|>"], "hermes"),
    "smolvlm": (["<end_of_utterance>"], "hermes"),
}
MARKERS = re.compile(
    r'<\|"\|>|<\|[^|>\s"\']{1,40}\|?>|<[a-z_]+\|>|<(?:start|end)_of_\w+>|<｜[^｜>]{1,40}｜>|\[/?[A-Z_]{3,}\]'
)
# What the wheel does not have, reduced to the parts that a conversation with tools needs.
MISTRAL = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.index0 == ns.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}"
    '{% endif %}[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}'
    "[/TOOL_RESULTS]{% elif m.tool_calls %}"
)
MISTRAL_END = "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
OWN = {
    "mistral_v3": MISTRAL + "[TOOL_CALLS] [{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    '{{ raise_exception(\'ids have 9 characters\') }}{% endif %}{"name": "{{ c.function.name }}", "arguments": '
    '{{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]'
    "{{ eos_token }}" + MISTRAL_END,
    "mistral_v11": MISTRAL + "{{ m.content }}{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}"
    "[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}" + MISTRAL_END,
    "kimi_k2": "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_assistant|>assistant<|im_middle|>{{ m.content }}"
    "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}"
    "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>{% endif %}{% elif m.role == 'tool' %}<|im_system|>{{ m.name }}<|im_middle|>"
    "## Return of {{ m.tool_call_id }}\n{{ m.content }}{% else %}<|im_user|>user<|im_middle|>{{ m.content }}"
    "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
}
ALL = [*WHEEL, *OWN]

PROPERTIES = {
    "a": {"type": "integer", "description": "a number"},
    "ratio": {"type": "number", "description": "a number"},
    "text": {"type": "string", "description": "a text"},
    "flag": {"type": "boolean", "description": "yes or no"},
    "items": {"type": "array", "items": {"type": "string"}, "description": "a list"},
    "data": {"type": "object", "description": "an object"},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": []},
        },
    }
]


def source(name: str) -> str:
    return OWN[name] if name in OWN else (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def format_of(name: str) -> str:
    return next(found for start, (_, found) in MODELS.items() if name.startswith(start))


@cache
def parser_of(name: str):
    return TOOL_PARSERS[format_of(name)].load()(TOOLS)


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """One token per byte, and one per marker of the template."""
    text, parser = source(name), parser_of(name)
    eos = next(found for start, (found, _) in MODELS.items() if name.startswith(start))
    vocab = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    stops = [token for token in parser.stop_tokens if token in text]
    tokenizer.add_special_tokens(["<s>", *sorted({*MARKERS.findall(text), *eos, *stops})])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos[0], pad_token=eos[0], bos_token="<s>")
    fast.chat_template = text
    return fast


@cache
def template_of(name: str, tools: bool = True) -> ChatTemplate:
    """The template with the EOS tokens of its model and the stop tokens of its format."""
    tokenizer = tokenizer_of(name)
    eos = next(found for start, (found, _) in MODELS.items() if name.startswith(start))
    ids = [tokenizer.convert_tokens_to_ids(token) for token in eos]
    stops = added_stop_ids(parser_of(name), tokenizer, ids)
    return ChatTemplate(tokenizer, (*ids, *stops), TOOLS if tools else ())
