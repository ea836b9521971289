"""Which adapter a model gets: the flat lora_* keys and the newer lora.* section, read as one."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from burnish.config.fields import at_least, between, one_of, section, setting
from burnish.config.names import ATTENTIONS, DTYPES, RECOMPUTE_METHODS
from burnish.errors import UserError

INITS = ("xavier", "kaiming", "uniform", "normal", "zero")
SETTLED_INITS = ("xavier", "kaiming", "normal", "zero")  # uniform has as many ranges as libraries
ALL_LINEAR = "all-linear"
DORA_BY_TYPE = {"lora": False, "canonical_lora": False, "dora": True}
# Megatron's names of linear modules, fused and split, and what Hugging Face models call them.
MEGATRON_MODULES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
    "linear_fc2": ("down_proj",),
}


@dataclass
class LoraConfig:
    """LoRA as newer verl writes it: another form of the flat lora_* keys."""

    type: str = one_of("lora", ("lora", "vlm_lora", "canonical_lora", "dora"))
    """Kind of adapter: lora, or dora (which learns the length of each weight row too). canonical_lora is lora here."""

    rank: int = at_least(0, 0)
    """Rank of the adapters; 0 is off. The same as lora_rank."""

    alpha: float = at_least(32, 0)
    """Scale of the adapters: their output is multiplied by alpha / rank. The same as lora_alpha."""

    dropout: float = between(0.0, 0, 1)
    """Dropout before the adapters. The same as lora_dropout."""

    merge: bool = False
    """Send merged weights to the engine instead of the adapter."""

    target_modules: Any = setting(["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    """Modules that get an adapter, by Hugging Face's or Megatron's names. The same as target_modules."""

    exclude_modules: Any = None
    """Modules that get none. The same as exclude_modules."""

    lora_A_init_method: str | None = one_of(None, INITS, verl="xavier")
    """How the first adapter matrix starts; null is peft's own way (kaiming)."""

    lora_B_init_method: str | None = one_of(None, INITS, verl="zero")
    """How the second adapter matrix starts; null is zero, so that the model starts unchanged."""

    dtype: str | None = one_of(None, DTYPES)
    """dtype of the adapters; null means that of the kept weights, and float32 over 4-bit or float16 ones."""

    adapter_path: str | None = None
    """Adapter to start from. The same as lora_adapter_path."""


@dataclass
class RecomputeConfig:
    """Which layers gradient checkpointing computes again, as Megatron and MindSpeed write it."""

    method: str | None = one_of(None, RECOMPUTE_METHODS)
    """uniform: groups of num_layers layers are kept as one; block: only the first num_layers; null: each layer."""

    num_layers: int | None = at_least(None, 1)
    """Layers of a group (uniform; null is 1), or layers to compute again (block; null is all)."""


@dataclass
class TrainedModelConfig:
    """What the policy's and the critic's model have in common: adapters, memory, kernels."""

    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass instead of keeping them: less memory, more time."""

    recompute: RecomputeConfig = section(RecomputeConfig)
    """Which layers gradient checkpointing computes again."""

    enable_activation_offload: bool = False
    """Keep activations in CPU memory between forward and backward."""

    attn_implementation: str | None = one_of(None, ATTENTIONS)
    """Kernel of the attention product in training; null takes override_config.attn_implementation, or else sdpa."""

    load_in_4bit: bool = False
    """Load the weights in 4 bits (nf4, double quantisation), frozen; needs LoRA. The engine gets full weights."""

    lora_rank: int = at_least(0, 0)
    """Rank of LoRA adapters; 0 trains all weights."""

    lora_alpha: float = at_least(16, 0)
    """Scale of LoRA: the adapters' output is multiplied by lora_alpha / lora_rank."""

    lora_dropout: float = between(0.0, 0, 1)
    """Dropout before the LoRA adapters."""

    target_modules: Any = ALL_LINEAR
    """Modules that get a LoRA adapter: all-linear, a name, a list of names, or a regular expression."""

    exclude_modules: Any = None
    """Modules that get no LoRA adapter: a regular expression or a list of names."""

    lora_adapter_path: str | None = None
    """Folder of a LoRA adapter (peft's format) to start from; its rank, alpha and modules hold."""

    lora: LoraConfig = section(LoraConfig)
    """The lora_* keys as newer verl writes them."""


@dataclass(frozen=True)
class AdapterSettings:
    """One adapter, whichever keys asked for it. `key` is the section to name in errors."""

    key: str
    rank: int
    alpha: float
    dropout: float
    target_modules: Any
    exclude_modules: Any
    adapter_path: str | None
    dora: bool
    dtype: str | None
    init_a: str | None
    init_b: str | None


# (name in AdapterSettings, flat key, key of the lora section)
PAIRS = (
    ("rank", "lora_rank", "rank"),
    ("alpha", "lora_alpha", "alpha"),
    ("dropout", "lora_dropout", "dropout"),
    ("target_modules", "target_modules", "target_modules"),
    ("exclude_modules", "exclude_modules", "exclude_modules"),
    ("adapter_path", "lora_adapter_path", "adapter_path"),
)


def wants_adapter(model: TrainedModelConfig) -> bool:
    """Is an adapter trained instead of the weights?"""
    return bool(model.lora_rank or model.lora.rank or model.lora_adapter_path or model.lora.adapter_path)


def adapter_of(model: TrainedModelConfig, key: str) -> AdapterSettings | None:
    """The adapter that the section `key` asks for, or None; two forms that disagree are an error."""
    if not wants_adapter(model):
        return None
    lora = model.lora
    if lora.type not in DORA_BY_TYPE:
        problem = "adapters of vision models are not there"
        raise UserError(problem, key=f"{key}.lora.type", value=lora.type, allowed=DORA_BY_TYPE)
    chosen = {name: _one_of_two(model, key, flat, nested) for name, flat, nested in PAIRS}
    modules = {name: _hugging_face_names(chosen.pop(name), key) for name in ("target_modules", "exclude_modules")}
    for name in ("lora_A_init_method", "lora_B_init_method"):
        asked = getattr(lora, name)
        if asked is not None and asked not in SETTLED_INITS:
            problem = "has no settled meaning"
            raise UserError(problem, key=f"{key}.lora.{name}", value=asked, allowed=SETTLED_INITS)
    if lora.lora_A_init_method == "zero" and lora.lora_B_init_method in (None, "zero"):
        problem = "both adapter matrices would start at zero, and never get a gradient"
        raise UserError(problem, key=f"{key}.lora.lora_A_init_method", value="zero", hint="leave it out")
    return AdapterSettings(
        key=key,
        dora=DORA_BY_TYPE[lora.type],
        dtype=lora.dtype,
        init_a=lora.lora_A_init_method,
        init_b=lora.lora_B_init_method,
        **modules,
        **chosen,
    )


def _one_of_two(model: TrainedModelConfig, key: str, flat: str, nested: str) -> Any:
    """The value of a flat key or of its twin in the section, whichever was set."""
    one, other = getattr(model, flat), getattr(model.lora, nested)
    one_set, other_set = one != _default(TrainedModelConfig, flat), other != _default(LoraConfig, nested)
    if one_set and other_set and one != other:
        raise UserError(
            f"{key}.{flat} and {key}.lora.{nested} are the same setting, but set differently ({one!r} and {other!r})",
            key=f"{key}.{flat}",
            hint=f"only {key}.{flat}={one}",
        )
    in_section = other_set or (model.lora.rank > 0 and not one_set and nested != "target_modules")
    return other if in_section else one


def _default(cls: type, name: str) -> Any:
    field = next(field for field in fields(cls) if field.name == name)
    return field.default_factory() if callable(field.default_factory) else field.default


def _hugging_face_names(modules: Any, key: str) -> Any:
    """Lists by the names of Hugging Face models; Megatron's are translated, those without a twin refused."""
    if modules is None or (isinstance(modules, str) and modules not in MEGATRON_MODULES):
        return modules
    if isinstance(modules, str):
        return list(MEGATRON_MODULES[modules])
    found: list[str] = []
    for name in modules:
        if not isinstance(name, str):
            raise UserError("is no name of a module", key=f"{key}.target_modules", value=name)
        if re.fullmatch(r"linear_\w+", name) and name not in MEGATRON_MODULES:
            problem = f"Megatron's {name!r} has no twin in Hugging Face models"
            raise UserError(problem, key=f"{key}.target_modules", value=modules, allowed=MEGATRON_MODULES)
        found += MEGATRON_MODULES.get(name, (name,))
    return found


def asked_attention(model: TrainedModelConfig, key: str) -> tuple[str | None, str]:
    """The attention product that was asked for, and the key that did: the model's own or its override_config."""
    overrides = dict(model.override_config)
    inner = overrides.get("model_config") or {}
    own, override = model.attn_implementation, inner.get("attn_implementation", overrides.get("attn_implementation"))
    if own is not None and override is not None and own != override:
        raise UserError(
            f"{key}.attn_implementation and override_config.attn_implementation are set differently"
            f" ({own!r} and {override!r})",
            key=f"{key}.attn_implementation",
            hint=f"only {key}.attn_implementation={own}",
        )
    if own is not None or override is None:
        return own, f"{key}.attn_implementation"
    if override not in ATTENTIONS:
        where = f"{key}.override_config.attn_implementation"
        raise UserError("no such attention", key=where, value=override, allowed=ATTENTIONS)
    return override, f"{key}.override_config.attn_implementation"
