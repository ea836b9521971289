"""Rules for models: adapters, dtypes, attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.config.adapters import adapter_of, attention_of, wants_adapter
from burnish.config.engine import FsdpConfig
from burnish.config.names import VALUE_ADVANTAGES
from burnish.config.root import TrainConfig
from burnish.errors import UserError

MODEL = "actor_rollout_ref.model"
CRITIC = "critic.model"
FLOAT16 = ("fp16", "float16")
SAME_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def trained_models(cfg: TrainConfig) -> Iterator[tuple[str, Any]]:
    """(section, its config) of every model that is trained."""
    yield MODEL, cfg.actor_rollout_ref.model
    if cfg.critic.enable or (cfg.critic.enable is None and cfg.algorithm.adv_estimator in VALUE_ADVANTAGES):
        yield CRITIC, cfg.critic.model


def adapters(cfg: TrainConfig) -> Iterator[UserError]:
    """Both forms of the LoRA keys agree, and 4-bit weights require LoRA."""
    for key, model in trained_models(cfg):
        try:
            adapter_of(model, key)
        except UserError as error:
            yield error
        if model.load_in_4bit and not wants_adapter(model):
            yield UserError(
                "4-bit weights cannot be trained without LoRA adapters",
                key=f"{key}.load_in_4bit",
                value=True,
                hint=f"{key}.lora_rank=16",
            )


def random_weights(cfg: TrainConfig) -> Iterator[UserError]:
    """Weights in 4 bits are those of a folder."""
    for key, model in trained_models(cfg):
        section = "actor_rollout_ref.actor" if key == MODEL else "critic"
        role = cfg.actor_rollout_ref.actor if key == MODEL else cfg.critic
        if model.load_in_4bit and not role.load_weight:
            problem = f"random weights cannot be in 4 bits ({key}.load_in_4bit)"
            name = f"{section}.load_weight"
            yield UserError(problem, key=name, value=False, hint=f"{name}=true, or {key}.load_in_4bit=false")


def attention(cfg: TrainConfig) -> Iterator[UserError]:
    for key, model in trained_models(cfg):
        try:
            attention_of(model, key)
        except UserError as error:
            yield error


def dtypes(cfg: TrainConfig) -> Iterator[UserError]:
    """torch_dtype and model_dtype agree; float16 weights are too coarse to update."""
    torch_dtype = cfg.actor_rollout_ref.model.torch_dtype
    fsdp = cfg.actor_rollout_ref.actor.fsdp_config
    stored, default = _canonical(fsdp.model_dtype), FsdpConfig().model_dtype
    if torch_dtype is not None and stored not in (_canonical(default), _canonical(torch_dtype)):
        yield UserError(
            f"{MODEL}.torch_dtype and actor.fsdp_config.model_dtype have different values"
            f" ({torch_dtype!r} and {fsdp.model_dtype!r})",
            key=f"{MODEL}.torch_dtype",
            value=torch_dtype,
            hint=f"only {MODEL}.torch_dtype={torch_dtype}",
        )
    model_dtypes = {
        MODEL: (torch_dtype or fsdp.model_dtype, "actor_rollout_ref.actor.fsdp_config"),
        CRITIC: (cfg.critic.model.fsdp_config.model_dtype, f"{CRITIC}.fsdp_config"),
    }
    for key, model in trained_models(cfg):
        name, where = model_dtypes[key]
        mixed = fsdp.mixed_precision if key == MODEL else cfg.critic.model.fsdp_config.mixed_precision
        if _canonical(mixed.param_dtype) == "float32" and _canonical(name) != "float32":
            yield UserError(
                f"weights stored in {name} cannot be computed with in float32",
                key=f"{where}.mixed_precision.param_dtype",
                value=mixed.param_dtype,
                hint=f"{where}.mixed_precision.param_dtype={name}",
            )
        if name in FLOAT16 and not wants_adapter(model):
            yield UserError(
                "weights stored in float16 lose small updates; store float32 and compute in float16",
                key=f"{where}.model_dtype",
                value=name,
                allowed="fp32, bf16",
                hint=f"{where}.model_dtype=fp32 {where}.mixed_precision.param_dtype=fp16",
            )


def _canonical(dtype: str | None) -> str | None:
    return dtype and SAME_DTYPE.get(dtype, dtype)


MODEL_RULES = (adapters, random_weights, attention, dtypes)
