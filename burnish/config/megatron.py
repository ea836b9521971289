"""`strategy: megatron`: what Megatron's keys mean for the one backend there is, and the rules about them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from burnish.config.adapters import wants_adapter
from burnish.config.engine import FsdpConfig
from burnish.config.megatron_status import ACTING_FIELDS, MEGATRON_INERT, MEGATRON_PENDING, OVERRIDES
from burnish.config.optim import OptimConfig
from burnish.config.ranks import num_role_ranks, sequence_parallel_size, tensor_parallel_size, uses_megatron
from burnish.config.root import TrainConfig
from burnish.config.sequence_rules import roles_in_use, wants_exact_kl
from burnish.config.values import written_as
from burnish.errors import UserError

# Keys of optim that only this strategy reads.
OPTIM_KEYS = (
    *("lr_warmup_init", "lr_decay_steps", "lr_decay_style", "min_lr"),
    *("lr_wsd_decay_style", "lr_wsd_decay_steps"),
)
GRANULARITIES = (None, "full", "selective")


@dataclass(frozen=True)
class Spread:
    """One role that can be spread as Megatron does it: its section, and where its other settings are."""

    key: str
    role: Any
    fsdp_key: str
    fsdp: FsdpConfig
    model_key: str
    model: Any = None  # of a role that is taught
    optim: OptimConfig | None = None


def spread_roles(cfg: TrainConfig) -> list[Spread]:
    actor, ref, critic, judge = (
        cfg.actor_rollout_ref.actor,
        cfg.actor_rollout_ref.ref,
        cfg.critic,
        cfg.reward_model,
    )
    policy = "actor_rollout_ref.model"
    return [
        Spread(
            "actor_rollout_ref.actor",
            actor,
            "actor_rollout_ref.actor.fsdp_config",
            actor.fsdp_config,
            policy,
            cfg.actor_rollout_ref.model,
            actor.optim,
        ),
        Spread("actor_rollout_ref.ref", ref, "actor_rollout_ref.ref.fsdp_config", ref.fsdp_config, policy),
        Spread(
            "critic",
            critic,
            "critic.model.fsdp_config",
            critic.model.fsdp_config,
            "critic.model",
            critic.model,
            critic.optim,
        ),
        Spread("reward_model", judge, "reward_model.model.fsdp_config", judge.model.fsdp_config, "reward_model.model"),
    ]


def read_megatron(cfg: TrainConfig) -> Iterator[str]:
    """Say Megatron's keys in the words that the rooms read; a line for each that changes something."""
    there = dict(roles_in_use(cfg))
    for one in spread_roles(cfg):
        if not uses_megatron(one.role):
            if one.optim is not None:
                _forget(one.optim)
            continue
        for key, home, name, value in _translated(one):
            if getattr(home, name) != value:
                setattr(home, name, value)
                if one.key in there:
                    yield f"{key} is read as {_full_name(one, home, name)}={written_as(value)}."


def _forget(optim: OptimConfig) -> None:
    """Keys of another strategy are as if they had not been written."""
    for field in dataclasses.fields(OptimConfig):
        if field.name in OPTIM_KEYS:
            setattr(optim, field.name, field.default)


def _translated(one: Spread) -> Iterator[tuple[str, Any, str, Any]]:
    """(what was written, where it belongs: the section, the name and the value)."""
    sizes, key = one.role.megatron, f"{one.key}.megatron"
    yield f"{key}.context_parallel_size", one.role, "ulysses_sequence_parallel_size", sizes.context_parallel_size
    if sizes.param_offload:
        yield f"{key}.param_offload", one.fsdp, "param_offload", True
    if sizes.optimizer_offload and one.optim is not None:
        yield f"{key}.optimizer_offload", one.fsdp, "optimizer_offload", True
    if sizes.dtype is not None:
        yield f"{key}.dtype", one.fsdp.mixed_precision, "param_dtype", sizes.dtype
    if one.optim is not None:
        yield f"{one.key}.strategy=megatron", one.optim, "decay_matrices_only", True
        yield from _recompute(one, f"{key}.override_transformer_config")


def _recompute(one: Spread, key: str) -> Iterator[tuple[str, Any, str, Any]]:
    asked = one.role.megatron.override_transformer_config
    if asked.get("recompute_granularity") != "full":
        return
    yield f"{key}.recompute_granularity", one.model, "enable_gradient_checkpointing", True
    for theirs, ours in (("recompute_method", "method"), ("recompute_num_layers", "num_layers")):
        if asked.get(theirs) is not None:
            yield f"{key}.{theirs}", one.model.recompute, ours, asked[theirs]


def _full_name(one: Spread, home: Any, name: str) -> str:
    homes = {
        id(one.role): one.key,
        id(one.fsdp): one.fsdp_key,
        id(one.fsdp.mixed_precision): f"{one.fsdp_key}.mixed_precision",
        id(one.optim): f"{one.key}.optim",
        id(one.model): one.model_key,
        id(getattr(one.model, "recompute", None)): f"{one.model_key}.recompute",
    }
    return f"{homes[id(home)]}.{name}"


def _in_use(cfg: TrainConfig) -> Iterator[Spread]:
    """The roles of this run that are spread as Megatron does it."""
    there = dict(roles_in_use(cfg))
    yield from (one for one in spread_roles(cfg) if one.key in there and uses_megatron(one.role))


def parallel_sizes(cfg: TrainConfig) -> Iterator[UserError]:
    """Ranks divide into groups that hold one copy of a model; adapters are not shared out."""
    for one in _in_use(cfg):
        total = num_role_ranks(cfg, one.role)
        tensor, context = tensor_parallel_size(one.role), sequence_parallel_size(one.role)
        key = f"{one.key}.megatron.tensor_model_parallel_size"
        if total % (tensor * context):
            fitting = [size for size in range(1, total + 1) if total % (size * context) == 0]
            yield UserError(
                f"the {total} rank{'s' * (total > 1)} of this role do not divide into groups of"
                f" tensor x context = {tensor} x {context}",
                key=key,
                value=tensor,
                allowed=fitting or None,
                hint=f"{key}={max(fitting)}" if fitting else f"{one.key}.megatron.context_parallel_size=1",
            )
        if one.model is not None and tensor > 1 and wants_adapter(one.model):
            problem = f"the LoRA adapters of {one.model_key} are not shared out over tensor ranks"
            yield UserError(problem, key=key, value=tensor, hint=f"{key}=1, or {one.model_key}.lora_rank=0")


def exact_kl_sizes(cfg: TrainConfig) -> Iterator[UserError]:
    """The exact KL compares policy and reference row by row, so that both must be on the same ranks."""
    actor, ref = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.ref
    if not (wants_exact_kl(cfg) and (uses_megatron(actor) or uses_megatron(ref))):
        return
    for name, size in (
        ("tensor_model_parallel_size", tensor_parallel_size),
        ("context_parallel_size", sequence_parallel_size),
    ):
        if size(actor) != size(ref):
            key = f"actor_rollout_ref.ref.megatron.{name}"
            problem = (
                f"the exact KL needs policy and reference on the same ranks, and the policy's size is {size(actor)}"
            )
            yield UserError(problem, key=key, value=size(ref), allowed=[size(actor)], hint=f"{key}={size(actor)}")


def schedules(cfg: TrainConfig) -> Iterator[UserError]:
    """One schedule and one floor; Megatron's words and verl's do not contradict each other."""
    for one in _in_use(cfg):
        if one.optim is None:
            continue
        optim, key = one.optim, f"{one.key}.optim"
        style, other = optim.lr_decay_style, optim.warmup_style
        if style != "constant" and other not in ("constant", style):
            problem = f"says another schedule than {key}.warmup_style={other}"
            yield UserError(problem, key=f"{key}.lr_decay_style", value=style, hint=f"{key}.warmup_style=constant")
        if optim.min_lr and optim.min_lr_ratio and abs(optim.min_lr - optim.min_lr_ratio * optim.lr) > 1e-3 * optim.lr:
            problem = f"says another floor than {key}.min_lr_ratio={optim.min_lr_ratio:g} of {key}.lr={optim.lr:g}"
            yield UserError(problem, key=f"{key}.min_lr", value=optim.min_lr, hint=f"{key}.min_lr_ratio=0")
        for name in ("min_lr", "lr_warmup_init"):
            if getattr(optim, name) > optim.lr:
                problem = f"is above the peak, {key}.lr={optim.lr:g}"
                value = getattr(optim, name)
                yield UserError(problem, key=f"{key}.{name}", value=value, allowed=f"0 to {optim.lr:g}")
        if style == "WSD" and optim.lr_wsd_decay_steps is None:
            problem = "warm-up, stable, decay needs to know how long the decay is"
            yield UserError(problem, key=f"{key}.lr_wsd_decay_steps", hint=f"{key}.lr_wsd_decay_steps=100")


def transformer_fields(cfg: TrainConfig) -> Iterator[UserError]:
    """Fields of Megatron's transformer config are known here, or refused: they may change what is computed."""
    known = re.compile("|".join(_field_patterns()))
    for one in _in_use(cfg):
        key, asked = f"{one.key}.megatron.override_transformer_config", one.role.megatron.override_transformer_config
        for name, value in asked.items():
            if not known.fullmatch(name):
                problem = "is a field of Megatron's own model code, which Burnish does not run"
                yield UserError(problem, key=f"{key}.{name}", value=value, hint="leave it out")
        granularity = asked.get("recompute_granularity")
        if granularity not in GRANULARITIES:
            where = f"{key}.recompute_granularity"
            yield UserError("no such granularity", key=where, value=granularity, allowed=["full", "selective", "null"])


def _field_patterns() -> Iterator[str]:
    yield from ACTING_FIELDS
    for pattern in [*MEGATRON_INERT, *(row.pattern for row in MEGATRON_PENDING)]:
        if pattern.startswith(f"{OVERRIDES}."):
            yield pattern.removeprefix(f"{OVERRIDES}.").replace("*", ".*")


MEGATRON_RULES = (parallel_sizes, exact_kl_sizes, schedules, transformer_fields)
