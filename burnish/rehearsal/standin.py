"""Stand-in models: tiny ones of the same family, with the model's own tokenizer if it is here, else one of bytes."""

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

from burnish.errors import UserError
from burnish.models.load import load_tokenizer, quiet_transformers
from burnish.rehearsal.families import Chat, Family, family_of_config, family_of_name

PAD = "<|pad|>"
LAYERS, EXPERTS = 2, 4
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
# Sizes of a config.json, whatever a family calls them, and what they become.
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
    """A folder with a tiny model and its tokenizer, and what it stands for."""

    path: Path
    family: Family
    own_config: bool  # shrunk from the model's own config.json
    own_tokenizer: bool
    own_template: bool

    def line(self, asked: str) -> str:
        """One line: what stands in for what."""
        source = "its own config.json, shrunk" if self.own_config else "by its name"
        if not self.family.known:
            source = "its family is not known here"
        words = "its own tokenizer" if self.own_tokenizer else "a tokenizer of bytes"
        template = "its own chat template" if self.own_template else "a chat template of that family's form"
        left_out = f", without {self.family.without}" if self.family.without else ""
        return (
            f"{asked}: a tiny {self.family.name} of {LAYERS} layers ({source}){left_out}, with {words} and {template}"
        )


def local_folder(name: str) -> Path | None:
    """Where a model lies here: a folder with a config.json, or the copy that the hub left. Nothing is fetched."""
    path = Path(name.removeprefix("file://")).expanduser()
    if (path / "config.json").is_file():
        return path
    if name.count("/") == 1 and not name.startswith(("/", ".", "~")):
        found = try_to_load_from_cache(name, "config.json")
        return Path(found).parent if isinstance(found, str) else None
    return None


def make_stand_in(
    asked: str,
    folder: Path,
    *,
    scores: bool = False,
    tokenizer_from: str | None = None,
    trust_remote_code: bool = False,
    policy: StandIn | None = None,
    seed: int = 0,
) -> StandIn:
    """A tiny model for `asked` in `folder`; `scores` makes a reward model of it. One that reads the tokens of another
    stand-in, the `policy`, has its tokenizer."""
    here = local_folder(asked)
    config = _own_config(here)
    family = family_of_config(config) if config is not None else family_of_name(asked)
    words_from = local_folder(tokenizer_from) if tokenizer_from else here
    tokenizer = _own_tokenizer(policy.path if policy is not None else words_from, trust_remote_code)
    own_tokenizer, own_template = tokenizer is not None, bool(tokenizer is not None and tokenizer.chat_template)
    if tokenizer is None:
        tokenizer = byte_tokenizer(family.chat)
    same = config is not None and config.get_text_config().model_type == family.name
    shrunk = tiny_config(family, tokenizer, config.get_text_config() if same else None)
    if scores:
        shrunk.num_labels = 1
        shrunk.mean, shrunk.std = 0.0, 1.0  # as OpenRLHF saves them, for reward_model.normalize
    torch.manual_seed(seed)
    maker = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    model = maker.from_config(shrunk)
    if not scores:
        model.generation_config = GenerationConfig(
            eos_token_id=shrunk.eos_token_id, pad_token_id=shrunk.pad_token_id, bos_token_id=shrunk.bos_token_id
        )
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if policy is not None:
        own_tokenizer, own_template = policy.own_tokenizer, policy.own_template
    return StandIn(folder, family, same, own_tokenizer, own_template)


def tiny_config(family: Family, tokenizer: PreTrainedTokenizerBase, own: PretrainedConfig | None) -> PretrainedConfig:
    """The family's config in a size for a CPU. From `own` all that is no size stays: windows, caps, RoPE, tying."""
    config = copy.deepcopy(own) if own is not None else AutoConfig.for_model(family.name)
    ratio = family.heads_per_kv
    if own is not None:
        ratio = max(
            1, own.num_attention_heads // (getattr(own, "num_key_value_heads", None) or own.num_attention_heads)
        )
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
        del config.quantization_config
    config.architectures = None
    config.dtype = torch.float32
    return config


def byte_tokenizer(chat: Chat) -> PreTrainedTokenizerFast:
    """One token per byte and the family's markers: any text can be written, and nothing is downloaded."""
    special = [PAD, *chat.markers]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=chat.end,
        pad_token=PAD,
        bos_token=chat.begin,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat.template
    return fast


def _own_config(folder: Path | None) -> PretrainedConfig | None:
    if folder is None:
        return None
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError):  # code of its own, or a family that this transformers does not know
        return None


def _own_tokenizer(folder: Path | None, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    if folder is None or not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return load_tokenizer(str(folder), trust_remote_code=trust_remote_code, key="tokenizer")
    except UserError:
        return None


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> int:
    """Every id that it can give."""
    return max([len(tokenizer), *(number + 1 for number in tokenizer.get_vocab().values())])


def describe(value: Any) -> str:
    """A model as the user named it, short."""
    text = str(value).rstrip("/")
    return text if len(text) <= 60 else "..." + text[-57:]
