"""`strategy: megatron`: translation of Megatron's keys to those of the FSDP2 backend, and their rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from burnish.config.adapters import wants_adapter
from burnish.config.engine import FsdpConfig
from burnish.config.megatron_status import BALANCING, BALANCING_LOSS, DROPOUT, OPTIMIZER_FIELDS
from burnish.config.optim import OptimConfig
from burnish.config.ranks import (
    num_role_ranks,
    pipeline_parallel_size,
    sequence_parallel_size,
    tensor_parallel_size,
    uses_megatron,
)
from burnish.config.root import TrainConfig
from burnish.config.sequence_rules import roles_in_use, wants_exact_kl
from burnish.config.values import written_as
from burnish.errors import UserError

# Keys of optim that only this strategy uses.
OPTIM_KEYS = (
    *("lr_warmup_init", "lr_decay_steps", "lr_decay_style", "min_lr"),
    *("lr_wsd_decay_style", "lr_wsd_decay_steps"),
)
# Megatron's ways to balance experts by a loss, which are scopes of aux_loss_coef too.
LOSSES = ("aux_loss", "seq_aux_loss")
BETAS = ("adam_beta1", "adam_beta2")  # of override_optimizer_config
OFFLOAD, FRACTION = "optimizer_cpu_offload", "optimizer_offload_fraction"
MEGATRON_MOMENTUM = {"sgd_momentum": 0.9}
MOMENTA = {"momentum", *MEGATRON_MOMENTUM}
ROUTERS = ("moe_config", "freeze_moe_router")  # the one entry of override_mcore_model_config that verl reads


@dataclass(frozen=True)
class MegatronRole:
    """A role that can use strategy=megatron: its section, and where its other settings are."""

    section: str
    config: Any
    fsdp_key: str
    fsdp: FsdpConfig
    model_key: str
    model: Any = None  # of trained roles only
    optim: OptimConfig | None = None


def megatron_roles(cfg: TrainConfig) -> list[MegatronRole]:
    actor, ref, critic, reward_model = (
        cfg.actor_rollout_ref.actor,
        cfg.actor_rollout_ref.ref,
        cfg.critic,
        cfg.reward_model,
    )
    policy = "actor_rollout_ref.model"
    return [
        MegatronRole(
            "actor_rollout_ref.actor",
            actor,
            "actor_rollout_ref.actor.fsdp_config",
            actor.fsdp_config,
            policy,
            cfg.actor_rollout_ref.model,
            actor.optim,
        ),
        MegatronRole("actor_rollout_ref.ref", ref, "actor_rollout_ref.ref.fsdp_config", ref.fsdp_config, policy),
        MegatronRole(
            "critic",
            critic,
            "critic.model.fsdp_config",
            critic.model.fsdp_config,
            "critic.model",
            critic.model,
            critic.optim,
        ),
        MegatronRole(
            "reward_model",
            reward_model,
            "reward_model.model.fsdp_config",
            reward_model.model.fsdp_config,
            "reward_model.model",
        ),
    ]


def apply_megatron(cfg: TrainConfig) -> Iterator[str]:
    """Translate Megatron's keys in place; a notice for each translation that changes a value."""
    in_use = dict(roles_in_use(cfg))
    for role in megatron_roles(cfg):
        if not uses_megatron(role.config):
            if role.optim is not None:
                _reset(role.optim)
            continue
        for key, target, name, value in _translations(role):
            if getattr(target, name) != value:
                setattr(target, name, value)
                if role.section in in_use:
                    yield f"{key} is interpreted as {_full_key(role, target, name)}={written_as(value)}."


def _reset(optim: OptimConfig) -> None:
    """Reset Megatron's optimizer keys, which have no effect with other strategies."""
    for field in dataclasses.fields(OptimConfig):
        if field.name in OPTIM_KEYS:
            setattr(optim, field.name, field.default)


def _translations(role: MegatronRole) -> Iterator[tuple[str, Any, str, Any]]:
    """(Megatron's key, target config, field name, value) of every key to translate."""
    megatron, key = role.config.megatron, f"{role.section}.megatron"
    yield f"{key}.context_parallel_size", role.config, "ulysses_sequence_parallel_size", megatron.context_parallel_size
    if megatron.param_offload:
        yield f"{key}.param_offload", role.fsdp, "param_offload", True
    if megatron.optimizer_offload and role.optim is not None:
        yield f"{key}.optimizer_offload", role.fsdp, "optimizer_offload", True
    if megatron.dtype is not None:
        yield f"{key}.dtype", role.fsdp.mixed_precision, "param_dtype", megatron.dtype
    if role.optim is not None:
        yield f"{role.section}.strategy=megatron", role.optim, "decay_matrices_only", True
        yield from _recompute(role, f"{key}.override_transformer_config")
        yield from _learning(role, f"{key}.override_transformer_config")
        yield from _optimizer(role, role.optim, f"{role.section}.{OPTIMIZER_FIELDS}")


def _recompute(role: MegatronRole, key: str) -> Iterator[tuple[str, Any, str, Any]]:
    fields = role.config.megatron.override_transformer_config
    if fields.get("recompute_granularity") != "full":
        return
    yield f"{key}.recompute_granularity", role.model, "enable_gradient_checkpointing", True
    for theirs, ours in (("recompute_method", "method"), ("recompute_num_layers", "num_layers")):
        if fields.get(theirs) is not None:
            yield f"{key}.{theirs}", role.model.recompute, ours, fields[theirs]


def _learning(role: MegatronRole, key: str) -> Iterator[tuple[str, Any, str, Any]]:
    fields = role.config.megatron.override_transformer_config
    if fields.get(DROPOUT) is not None:
        entries = {**role.model.override_config, DROPOUT: float(fields[DROPOUT])}
        yield f"{key}.{DROPOUT}", role.model, "override_config", entries
    if balances_by_loss(fields) and fields.get(BALANCING_LOSS):
        yield f"{key}.{BALANCING_LOSS}", role.config, "aux_loss_coef", float(fields[BALANCING_LOSS])
        yield f"{key}.{BALANCING}", role.config, "aux_loss_scope", fields[BALANCING]


def _optimizer(role: MegatronRole, optim: OptimConfig, key: str) -> Iterator[tuple[str, Any, str, Any]]:
    fields = optim.override_optimizer_config
    if any(fields.get(name) is not None for name in BETAS):
        betas = [optim.betas[index] if fields.get(name) is None else fields[name] for index, name in enumerate(BETAS)]
        yield f"{key}.{{{','.join(BETAS)}}}", optim, "betas", betas
    if fields.get("weight_decay") is not None:
        yield f"{key}.weight_decay", optim, "weight_decay", fields["weight_decay"]
    if fields.get(OFFLOAD) and fields.get(FRACTION, 1) != 0:
        yield f"{key}.{OFFLOAD}", role.fsdp, "optimizer_offload", True
    if optim.optimizer == "sgd" and not fields.keys() & MOMENTA:
        yield f"{role.section}.strategy=megatron", optim, "override_optimizer_config", {**fields, **MEGATRON_MOMENTUM}


def balances_by_loss(fields: Mapping[str, Any]) -> bool:
    """Whether Megatron's transformer config balances experts by a loss."""
    return fields.get(BALANCING) in LOSSES


def frozen_routers(section: str, role: Any) -> str | None:
    """The key that freezes the routers of this role's experts; None where they are trained."""
    inner, name = ROUTERS
    entries = role.megatron.override_mcore_model_config.get(inner) or {}
    freezes = uses_megatron(role) and entries.get(name)
    return f"{section}.megatron.override_mcore_model_config.{inner}.{name}" if freezes else None


def _full_key(role: MegatronRole, target: Any, name: str) -> str:
    sections = {
        id(role.config): role.section,
        id(role.fsdp): role.fsdp_key,
        id(role.fsdp.mixed_precision): f"{role.fsdp_key}.mixed_precision",
        id(role.optim): f"{role.section}.optim",
        id(role.model): role.model_key,
        id(getattr(role.model, "recompute", None)): f"{role.model_key}.recompute",
    }
    return f"{sections[id(target)]}.{name}"


def megatron_roles_in_use(cfg: TrainConfig) -> Iterator[MegatronRole]:
    """The roles of this run with strategy=megatron."""
    in_use = dict(roles_in_use(cfg))
    yield from (role for role in megatron_roles(cfg) if role.section in in_use and uses_megatron(role.config))


def parallel_sizes(cfg: TrainConfig) -> Iterator[UserError]:
    """Parallel sizes divide the number of ranks; tensor parallelism does not support DoRA."""
    for role in megatron_roles_in_use(cfg):
        total = num_role_ranks(cfg, role.config)
        tensor, context = tensor_parallel_size(role.config), sequence_parallel_size(role.config)
        stages = pipeline_parallel_size(role.config)
        key = f"{role.section}.megatron.tensor_model_parallel_size"
        if total % stages:
            yield _stages_do_not_divide(role, total, stages)
        elif total % (tensor * context * stages):
            others = context * stages
            valid = [size for size in range(1, total + 1) if total % (size * others) == 0]
            names, sizes = "tensor x context", f"{tensor} x {context}"
            if stages > 1:
                names, sizes = f"{names} x pipeline", f"{sizes} x {stages}"
            yield UserError(
                f"the {total} rank{'s' * (total > 1)} of this role cannot be divided into groups of {names} = {sizes}",
                key=key,
                value=tensor,
                allowed=valid or None,
                hint=f"{key}={max(valid)}" if valid else f"{role.section}.megatron.context_parallel_size=1",
            )
        if role.model is not None and tensor > 1 and wants_adapter(role.model) and role.model.lora.type == "dora":
            problem = f"tensor parallelism does not support DoRA ({role.model_key}.lora.type)"
            yield UserError(problem, key=key, value=tensor, hint=f"{key}=1, or {role.model_key}.lora.type=lora")


def _stages_do_not_divide(role: MegatronRole, total: int, stages: int) -> UserError:
    key = f"{role.section}.megatron.pipeline_model_parallel_size"
    valid = [size for size in range(1, total + 1) if total % size == 0]
    problem = f"the {total} rank{'s' * (total > 1)} of this role cannot be divided into {stages} pipeline stages"
    return UserError(
        problem, key=key, value=stages, allowed=valid, hint=f"{key}={max(n for n in valid if n <= stages)}"
    )


def exact_kl_sizes(cfg: TrainConfig) -> Iterator[UserError]:
    """The exact KL needs each sequence on the same ranks for policy and reference."""
    actor, ref = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.ref
    if not (wants_exact_kl(cfg) and (uses_megatron(actor) or uses_megatron(ref))):
        return
    for name, size in (
        ("tensor_model_parallel_size", tensor_parallel_size),
        ("context_parallel_size", sequence_parallel_size),
        ("pipeline_model_parallel_size", pipeline_parallel_size),
    ):
        if size(actor) != size(ref):
            key = f"actor_rollout_ref.ref.megatron.{name}"
            problem = (
                f"the exact KL needs equal parallel sizes of policy and reference, and the policy's is {size(actor)}"
            )
            yield UserError(problem, key=key, value=size(ref), allowed=[size(actor)], hint=f"{key}={size(actor)}")


def schedules(cfg: TrainConfig) -> Iterator[UserError]:
    """Megatron's and verl's schedule keys do not contradict each other."""
    for role in megatron_roles_in_use(cfg):
        if role.optim is None:
            continue
        optim, key = role.optim, f"{role.section}.optim"
        style, other = optim.lr_decay_style, optim.warmup_style
        if style != "constant" and other not in ("constant", style):
            problem = f"conflicts with {key}.warmup_style={other}"
            yield UserError(problem, key=f"{key}.lr_decay_style", value=style, hint=f"{key}.warmup_style=constant")
        if optim.min_lr and optim.min_lr_ratio and abs(optim.min_lr - optim.min_lr_ratio * optim.lr) > 1e-3 * optim.lr:
            problem = f"conflicts with {key}.min_lr_ratio={optim.min_lr_ratio:g} of {key}.lr={optim.lr:g}"
            yield UserError(problem, key=f"{key}.min_lr", value=optim.min_lr, hint=f"{key}.min_lr_ratio=0")
        for name in ("min_lr", "lr_warmup_init"):
            if getattr(optim, name) > optim.lr:
                problem = f"above the peak learning rate, {key}.lr={optim.lr:g}"
                value = getattr(optim, name)
                yield UserError(problem, key=f"{key}.{name}", value=value, allowed=f"0 to {optim.lr:g}")
        if style == "WSD" and optim.lr_wsd_decay_steps is None:
            problem = "the WSD schedule needs the length of its decay"
            yield UserError(problem, key=f"{key}.lr_wsd_decay_steps", hint=f"{key}.lr_wsd_decay_steps=100")


MEGATRON_RULES = (parallel_sizes, exact_kl_sizes, schedules)
