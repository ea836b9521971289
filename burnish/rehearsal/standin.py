"""Stand-in models: tiny models of the same family, with the real tokenizer if it is local, else a byte tokenizer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from burnish.config.vision_names import SUPPORTED_TYPES, names_vision, unsupported_family, vision_type
from burnish.demo.tiny_vision import TINY_FAMILIES, make_vision_model
from burnish.errors import UserError
from burnish.models.load import check_model_files, load_tokenizer, quiet_transformers
from burnish.rehearsal.families import Chat, Family, family_of_config, family_of_name
from burnish.storage import model_folder

PAD = "<|pad|>"
# A text with every byte that UTF-8 can have.
_HIGH = (*range(0x1000, 0xD000, 0x1000), 0xE000, 0xF000, *range(2**16, 17 * 2**16, 2**18))
ALL_BYTES = "".join(map(chr, (*range(0x800), *_HIGH)))
LAYERS, EXPERTS = 2, 4
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
# Sizes that every config.json gets, under the names that families use.
_TINY: dict[str, int] = {
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "max_window_layers": LAYERS,
}


@dataclass(frozen=True)
class StandIn:
    """A folder with a tiny model and its tokenizer, and which parts of it are the real model's."""

    path: Path
    family: Family
    real_config: bool  # scaled down from the model's config.json
    real_tokenizer: bool
    real_template: bool
    sees: bool = False  # a vision model, of a family of burnish.demo.tiny_vision

    def line(self, name: str) -> str:
        """The report's line on the model `name`."""
        source = "from its config.json" if self.real_config else "by its name"
        if not self.family.known:
            source = "unknown family"
        tokenizer = "its own tokenizer" if self.real_tokenizer else "a byte tokenizer"
        template = "its own chat template" if self.real_template else "a chat template like the family's"
        if self.sees:
            tokenizer = "a byte tokenizer and a processor for small pictures"
        missing = f", without {self.family.missing}" if self.family.missing else ""
        model = f"a tiny {self.family.name} with {LAYERS} layers ({source}){missing}"
        return f"{name}: {model}, {tokenizer} and {template}"


def local_folder(name: str) -> Path | None:
    """The local folder of a model: one with a config.json, or the hub's cache. Nothing is downloaded."""
    path = Path(name.removeprefix("file://")).expanduser()
    path = model_folder(path) or path
    if (path / "config.json").is_file():
        return path
    if name.count("/") == 1 and not name.startswith(("/", ".", "~")):
        cached = try_to_load_from_cache(name, "config.json")
        return Path(cached).parent if isinstance(cached, str) else None
    return None


def make_stand_in(
    name: str,
    folder: Path,
    *,
    reward_model: bool = False,
    tokenizer_from: str | None = None,
    trust_remote_code: bool = False,
    policy: StandIn | None = None,
    seed: int = 0,
) -> StandIn:
    """Write a tiny model for `name` to `folder`. It shares the tokenizer of `policy`, another stand-in, if given."""
    local = local_folder(name)
    config = _load_config(local)
    seeing = _vision_family(name, config)
    if seeing is not None and not reward_model:
        return _vision_stand_in(seeing, folder, real_config=config is not None, seed=seed)
    family = family_of_config(config) if config is not None else family_of_name(name)
    tokenizer_folder = local_folder(tokenizer_from) if tokenizer_from else local
    tokenizer = _load_tokenizer(policy.path if policy is not None else tokenizer_folder, trust_remote_code)
    real_tokenizer, real_template = tokenizer is not None, bool(tokenizer is not None and tokenizer.chat_template)
    if tokenizer is None:
        tokenizer = byte_tokenizer(family.chat)
    text_config = None if config is None else config.get_text_config()
    real_config = text_config is not None and text_config.model_type == family.name
    tiny = tiny_config(family, tokenizer, text_config if real_config else None)
    if reward_model:
        tiny.num_labels = 1
        tiny.mean, tiny.std = 0.0, 1.0  # OpenRLHF's names, for reward_model.normalize
    torch.manual_seed(seed)
    model_class = AutoModelForSequenceClassification if reward_model else AutoModelForCausalLM
    model = model_class.from_config(tiny, trust_remote_code=False)
    if not reward_model:
        model.generation_config = GenerationConfig(
            eos_token_id=tiny.eos_token_id, pad_token_id=tiny.pad_token_id, bos_token_id=tiny.bos_token_id
        )
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if policy is not None:
        real_tokenizer, real_template = policy.real_tokenizer, policy.real_template
    return StandIn(folder, family, real_config, real_tokenizer, real_template)


def _vision_family(name: str, config: PretrainedConfig | None) -> Family | None:
    """The family of a model with a vision tower; None for a text model. The config decides where there is one."""
    if config is not None:
        kind = config.model_type if config.model_type in SUPPORTED_TYPES else None
    else:
        kind = vision_type(name)
    if kind in TINY_FAMILIES:
        return Family(kind)
    if kind is not None:  # qwen3_vl_moe
        return Family(kind.removesuffix("_moe"), "the experts")
    is_generic = config is None and names_vision(name) and unsupported_family(name) is None
    return Family("qwen2_5_vl", known=False) if is_generic else None


def _vision_stand_in(family: Family, folder: Path, *, real_config: bool, seed: int) -> StandIn:
    """A tiny model of the family with its processor, whose tokens are bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    make_vision_model(folder, family.name, characters=ALL_BYTES, seed=seed)
    return StandIn(folder, family, real_config, real_tokenizer=False, real_template=False, sees=True)


def tiny_config(family: Family, tokenizer: PreTrainedTokenizerBase, real: PretrainedConfig | None) -> PretrainedConfig:
    """A config small enough for a CPU. Everything in `real` but its sizes stays: windows, softcaps, RoPE, tying."""
    config = copy.deepcopy(real) if real is not None else AutoConfig.for_model(family.name)
    ratio = family.heads_per_kv
    if real is not None:
        kv_heads = getattr(real, "num_key_value_heads", None) or real.num_attention_heads
        ratio = max(1, real.num_attention_heads // kv_heads)
    kv_heads = 2 if ratio <= 2 else 1
    heads = min(ratio, 8) * kv_heads
    head_dim = 16 if heads <= 4 else 8
    sizes = {**_TINY, "hidden_size": heads * head_dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    sizes |= {"head_dim": head_dim, "query_pre_attn_scalar": head_dim, "vocab_size": _vocabulary(tokenizer)}
    for name, size in sizes.items():
        if hasattr(config, name):
            setattr(config, name, size)
    if getattr(config, "num_experts_per_tok", None):
        config.num_experts_per_tok = min(config.num_experts_per_tok, 2)
    if getattr(config, "mlp_only_layers", None):
        config.mlp_only_layers = []
    if getattr(config, "layer_types", None):
        kinds = list(dict.fromkeys(config.layer_types))
        config.layer_types = [kinds[layer % len(kinds)] for layer in range(LAYERS)]
    config.bos_token_id = tokenizer.bos_token_id
    config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    if getattr(config, "quantization_config", None) is not None:
        delattr(config, "quantization_config")
    config.architectures = None
    if hasattr(config, "auto_map"):  # names the model's own code
        delattr(config, "auto_map")
    config.dtype = torch.float32
    return config


def byte_tokenizer(chat: Chat) -> PreTrainedTokenizerFast:
    """One token per byte, and the family's special tokens: encodes any text without a download."""
    special = [PAD, *chat.special_tokens]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=chat.eos,
        pad_token=PAD,
        bos_token=chat.bos,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat.template
    return fast


def _load_config(folder: Path | None) -> PretrainedConfig | None:
    if folder is None:
        return None
    try:
        check_model_files(folder, "model")
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception:  # remote code, an odd file, or an architecture that this transformers does not support
        return None


def _load_tokenizer(folder: Path | None, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    if folder is None or not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return load_tokenizer(str(folder), trust_remote_code=trust_remote_code, key="tokenizer")
    except UserError:
        return None


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> int:
    """The vocabulary size that covers every token id."""
    return max([len(tokenizer), *(number + 1 for number in tokenizer.get_vocab().values())])


def shortened(value: Any) -> str:
    """The user's name of a model, without the beginning of a long path."""
    text = str(value).rstrip("/")
    return text if len(text) <= 60 else "..." + text[-57:]
