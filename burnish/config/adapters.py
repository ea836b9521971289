"""LoRA keys: the flat lora_* keys and the newer lora.* section, merged into AdapterSettings."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Protocol

from burnish.config.fields import at_least, between, one_of, section, setting
from burnish.config.names import ATTENTIONS, DTYPES, RECOMPUTE_METHODS
from burnish.errors import UserError

INITS = ("xavier", "kaiming", "uniform", "normal", "zero")
SUPPORTED_INITS = ("xavier", "kaiming", "normal", "zero")  # uniform: libraries disagree on its range
ALL_LINEAR = "all-linear"
AUTO = "auto"  # the method of recomputation that the memory plan decides
DORA_BY_TYPE = {"lora": False, "canonical_lora": False, "vlm_lora": False, "dora": True}
# Megatron's names of linear modules, fused and split, and their Hugging Face names.
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
    """LoRA section of newer verl; equivalent to the flat lora_* keys."""

    type: str = one_of("lora", tuple(DORA_BY_TYPE))
    """Kind of adapter: lora, or dora (which also trains the norm of each weight row). canonical_lora and vlm_lora are
    the same as lora."""

    rank: int = at_least(0, 0)
    """Rank of the adapters; 0 disables them. Same as lora_rank."""

    alpha: float = at_least(32, 0)
    """Scale of the adapters: their output is multiplied by alpha / rank. Same as lora_alpha."""

    dropout: float = between(0.0, 0, 1)
    """Dropout before the adapters. Same as lora_dropout."""

    merge: bool = False
    """Send merged weights to the engine instead of the adapter."""

    target_modules: Any = setting(["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    """Modules that get an adapter, by Hugging Face's or Megatron's names. Same as target_modules."""

    exclude_modules: Any = None
    """Modules without an adapter. Same as exclude_modules."""

    lora_A_init_method: str | None = one_of(None, INITS, verl="xavier")
    """Initialization of the first adapter matrix; null uses peft's (kaiming)."""

    lora_B_init_method: str | None = one_of(None, INITS, verl="zero")
    """Initialization of the second adapter matrix; null is zero, so that the model starts unchanged."""

    dtype: str | None = one_of(None, DTYPES)
    """dtype of the adapters; null uses that of the stored weights, and float32 for 4-bit or float16 weights."""

    adapter_path: str | None = None
    """Adapter to start from. Same as lora_adapter_path."""


@dataclass
class RecomputeConfig:
    """Which layers gradient checkpointing recomputes, with the options of Megatron and MindSpeed."""

    method: str | None = one_of(None, RECOMPUTE_METHODS)
    """uniform: store only the input of each group of num_layers layers; block: recompute only the first num_layers
    layers; auto: like block, with the smallest num_layers that fits into the device's memory; null: recompute each
    layer by itself."""

    num_layers: int | None = at_least(None, 1)
    """Layers per group (uniform; null is 1), or layers to recompute (block; null is all)."""


@dataclass
class TrainedModelConfig:
    """Settings common to all trained models: adapters, memory, kernels."""

    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass instead of storing them: less memory, more time."""

    recompute: RecomputeConfig = section(RecomputeConfig)
    """Which layers gradient checkpointing recomputes."""

    enable_activation_offload: bool = False
    """Keep activations in CPU memory between forward and backward."""

    attn_implementation: str | None = one_of(None, ATTENTIONS)
    """Attention implementation in training; null uses override_config.attn_implementation, or sdpa if that is unset."""

    load_in_4bit: bool = False
    """Load the weights in 4 bits (nf4, double quantization), frozen; requires LoRA. The engine gets full weights."""

    lora_rank: int = at_least(0, 0)
    """Rank of LoRA adapters; 0 trains all weights."""

    lora_alpha: float = at_least(16, 0)
    """Scale of LoRA: the adapters' output is multiplied by lora_alpha / lora_rank."""

    lora_dropout: float = between(0.0, 0, 1)
    """Dropout before the LoRA adapters."""

    target_modules: Any = ALL_LINEAR
    """Modules that get a LoRA adapter: all-linear, a name, a list of names, or a regular expression."""

    exclude_modules: Any = None
    """Modules that get no LoRA adapter: a regular expression or a list of names, for instance '.*visual.*' (the vision
    tower of Qwen-VL)."""

    lora_adapter_path: str | None = None
    """Folder of a LoRA adapter (peft's format) to start from; its rank, alpha and modules take precedence."""

    lora: LoraConfig = section(LoraConfig)
    """LoRA section of newer verl; equivalent to the lora_* keys."""


@dataclass(frozen=True)
class AdapterSettings:
    """One adapter. `key` is the section that error messages name."""

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


def chooses_recompute(model: TrainedModelConfig) -> bool:
    """Whether the memory plan chooses which layers are recomputed."""
    return model.enable_gradient_checkpointing and model.recompute.method == AUTO


def wants_adapter(model: TrainedModelConfig) -> bool:
    """Whether an adapter is trained instead of the weights."""
    return bool(model.lora_rank or model.lora.rank or model.lora_adapter_path or model.lora.adapter_path)


def adapter_of(model: TrainedModelConfig, key: str) -> AdapterSettings | None:
    """The adapter that the section `key` configures, or None. Conflicting lora_* and lora.* keys are an error."""
    if not wants_adapter(model):
        return None
    lora = model.lora
    values = {name: _merged(model, key, flat, nested) for name, flat, nested in PAIRS}
    modules = {name: _hugging_face_names(values.pop(name), key) for name in ("target_modules", "exclude_modules")}
    for name in ("lora_A_init_method", "lora_B_init_method"):
        method = getattr(lora, name)
        if method is not None and method not in SUPPORTED_INITS:
            problem = "not supported: libraries disagree on its range"
            raise UserError(problem, key=f"{key}.lora.{name}", value=method, allowed=SUPPORTED_INITS)
    if lora.lora_A_init_method == "zero" and lora.lora_B_init_method in (None, "zero"):
        problem = "both adapter matrices would start at zero and never get a gradient"
        raise UserError(problem, key=f"{key}.lora.lora_A_init_method", value="zero", hint="leave it out")
    return AdapterSettings(
        key=key,
        dora=DORA_BY_TYPE[lora.type],
        dtype=lora.dtype,
        init_a=lora.lora_A_init_method,
        init_b=lora.lora_B_init_method,
        **modules,
        **values,
    )


def _merged(model: TrainedModelConfig, key: str, flat: str, nested: str) -> Any:
    """The value of a flat key or of its counterpart in the lora section, whichever is set."""
    flat_value, nested_value = getattr(model, flat), getattr(model.lora, nested)
    flat_set = flat_value != _default(TrainedModelConfig, flat)
    nested_set = nested_value != _default(LoraConfig, nested)
    if flat_set and nested_set and flat_value != nested_value:
        raise UserError(
            f"{key}.{flat} and {key}.lora.{nested} are the same setting, but have different values"
            f" ({flat_value!r} and {nested_value!r})",
            key=f"{key}.{flat}",
            hint=f"only {key}.{flat}={flat_value}",
        )
    use_nested = nested_set or (model.lora.rank > 0 and not flat_set and nested != "target_modules")
    return nested_value if use_nested else flat_value


def _default(cls: type, name: str) -> Any:
    field = next(field for field in fields(cls) if field.name == name)
    return field.default_factory() if callable(field.default_factory) else field.default


def _hugging_face_names(modules: Any, key: str) -> Any:
    """Module names of Hugging Face models; Megatron's are translated, or refused if they have no counterpart."""
    if modules is None or (isinstance(modules, str) and modules not in MEGATRON_MODULES):
        return modules
    if isinstance(modules, str):
        return list(MEGATRON_MODULES[modules])
    names: list[str] = []
    for name in modules if isinstance(modules, list) else [modules]:
        if not isinstance(name, str):
            raise UserError("not a module name", key=f"{key}.target_modules", value=name)
        if re.fullmatch(r"linear_\w+", name) and name not in MEGATRON_MODULES:
            problem = f"Megatron's {name!r} has no counterpart in Hugging Face models"
            raise UserError(problem, key=f"{key}.target_modules", value=modules, allowed=MEGATRON_MODULES)
        names += MEGATRON_MODULES.get(name, (name,))
    return names


class ModelWithOverrides(Protocol):
    """The model sections of policy and critic."""

    attn_implementation: str | None
    override_config: dict[str, Any]


def attention_of(model: ModelWithOverrides, key: str) -> tuple[str | None, str]:
    """The attention implementation and the key that sets it: the model's own, or one in its override_config."""
    overrides = dict(model.override_config)
    inner = overrides.get("model_config") or {}
    name, override = model.attn_implementation, inner.get("attn_implementation", overrides.get("attn_implementation"))
    if name is not None and override is not None and name != override:
        raise UserError(
            f"{key}.attn_implementation and override_config.attn_implementation have different values"
            f" ({name!r} and {override!r})",
            key=f"{key}.attn_implementation",
            hint=f"only {key}.attn_implementation={name}",
        )
    if name is not None or override is None:
        return name, f"{key}.attn_implementation"
    if override not in ATTENTIONS:
        where = f"{key}.override_config.attn_implementation"
        raise UserError("no such attention implementation", key=where, value=override, allowed=ATTENTIONS)
    return override, f"{key}.override_config.attn_implementation"
