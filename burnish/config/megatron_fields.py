"""Rules for Megatron's overrides: fields of its transformer config, model and optimizer are known, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.config.megatron import (
    BETAS,
    FRACTION,
    LOSSES,
    MEGATRON_MOMENTUM,
    MOMENTA,
    OFFLOAD,
    ROUTERS,
    MegatronRole,
    balances_by_loss,
    megatron_roles,
    megatron_roles_in_use,
)
from burnish.config.megatron_status import (
    BALANCING,
    BALANCING_LOSS,
    DROPOUT,
    LEARNING_FIELDS,
    MEGATRON_INERT,
    OPTIMIZER_FIELDS,
    OVERRIDES,
    REFUSED_FIELDS,
    REFUSED_LEARNING_FIELDS,
    REFUSED_OPTIMIZER_FIELDS,
    REFUSED_STAGE_FIELDS,
    SIZE_FIELDS,
    STAGE_FIELDS,
    RefusedField,
)
from burnish.config.optim import ARGUMENTS
from burnish.config.ranks import pipeline_parallel_size, uses_megatron
from burnish.config.root import TrainConfig
from burnish.config.sequence_rules import roles_in_use
from burnish.errors import UserError

GRANULARITIES = (None, "full", "selective")
NO_LOSS = (None, "none")  # ways to balance experts without a loss
MEGATRON_ARGUMENTS = {*BETAS, "adam_eps", *MEGATRON_MOMENTUM, "weight_decay", OFFLOAD}
NUMBERS = {*BETAS, "adam_eps", "eps", *MOMENTA, "weight_decay", FRACTION}


def transformer_fields(cfg: TrainConfig) -> Iterator[UserError]:
    """Unknown fields of Megatron's transformer config are errors, since they may change results."""
    known = re.compile("|".join(_field_patterns()))
    for role in megatron_roles_in_use(cfg):
        key = f"{role.section}.megatron.override_transformer_config"
        fields, refused = role.config.megatron.override_transformer_config, _refused_fields(role)
        for name, value in fields.items():
            if name in refused and refused[name].refuses(value):
                yield _refusal(refused[name], role, f"{key}.{name}", value)
            elif not known.fullmatch(name):
                problem = "not supported: a field of Megatron's model code, which Burnish does not use"
                section = f"{role.model_key}.override_config"
                hint = f"leave it out; fields of the model's own config go into {section}"
                yield UserError(problem, key=f"{key}.{name}", value=value, hint=hint)
            elif name in SIZE_FIELDS and value != (size := getattr(role.config.megatron, name)):
                problem = f"differs from {role.section}.megatron.{name}={size}, which decides"
                yield UserError(
                    problem, key=f"{key}.{name}", value=value, hint=f"{role.section}.megatron.{name}={value}"
                )
        if role.optim is not None:
            yield from _learning_fields(role, fields, key)


def _refusal(field: RefusedField, role: MegatronRole, key: str, value: Any) -> UserError:
    return UserError(field.why, key=key, value=value, hint=field.instead.replace("*", role.section))


def _refused_fields(role: MegatronRole) -> dict[str, RefusedField]:
    staged = REFUSED_STAGE_FIELDS if pipeline_parallel_size(role.config) > 1 else {}
    return {**REFUSED_FIELDS, **staged, **(REFUSED_LEARNING_FIELDS if role.optim is not None else {})}


def _learning_fields(role: MegatronRole, fields: Mapping[str, Any], key: str) -> Iterator[UserError]:
    granularity, balancing, dropout = fields.get("recompute_granularity"), fields.get(BALANCING), fields.get(DROPOUT)
    if granularity not in GRANULARITIES:
        where = f"{key}.recompute_granularity"
        yield UserError("no such granularity", key=where, value=granularity, allowed=["full", "selective", "null"])
    if dropout is not None and not (_is_number(dropout) and 0 <= dropout < 1):
        yield UserError("not a probability", key=f"{key}.{DROPOUT}", value=dropout, allowed=">= 0 and < 1")
    if balancing not in (*NO_LOSS, *LOSSES):
        allowed = ["none", *LOSSES]
        yield UserError("no such way to balance experts", key=f"{key}.{BALANCING}", value=balancing, allowed=allowed)
    elif balances_by_loss(fields) and not hasattr(role.config, "aux_loss_coef"):
        problem, hint = "only the policy's experts are balanced by a loss", f"{key}.{BALANCING}=none"
        yield UserError(problem, key=f"{key}.{BALANCING}", value=balancing, hint=hint)
    elif balances_by_loss(fields) and not _is_number(fields.get(BALANCING_LOSS)):
        problem, hint = f"{BALANCING}={balancing} needs the weight of the loss", f"+{key}.{BALANCING_LOSS}=0.001"
        yield UserError(problem, key=f"{key}.{BALANCING_LOSS}", value=fields.get(BALANCING_LOSS), hint=hint)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def model_fields(cfg: TrainConfig) -> Iterator[UserError]:
    """The one known entry of override_mcore_model_config freezes routers."""
    section, name = ROUTERS
    for role in megatron_roles_in_use(cfg):
        if role.optim is None:
            continue
        key = f"{role.section}.megatron.override_mcore_model_config"
        entries = role.config.megatron.override_mcore_model_config
        inner = entries.get(section)
        unknown = {f"{key}.{other}": value for other, value in entries.items() if other != section}
        if isinstance(inner, Mapping):
            unknown |= {f"{key}.{section}.{other}": value for other, value in inner.items() if other != name}
        elif inner is not None:
            unknown[f"{key}.{section}"] = inner
        for where, value in unknown.items():
            problem = "not supported: an argument of Megatron's model code, which Burnish does not use"
            yield UserError(problem, key=where, value=value, allowed=[f"{section}.{name}"], hint="leave it out")


def _field_patterns() -> Iterator[str]:
    yield from (*STAGE_FIELDS, *LEARNING_FIELDS, *REFUSED_FIELDS)
    yield from _fields_after(OVERRIDES.removeprefix("*") + ".")


def optimizer_fields(cfg: TrainConfig) -> Iterator[UserError]:
    """Arguments of the optimizer are known, and have valid values."""
    in_use = dict(roles_in_use(cfg))
    for role in megatron_roles(cfg):
        if role.section not in in_use or role.optim is None:
            continue
        fields = role.optim.override_optimizer_config
        if fields.get("nesterov") and not (uses_megatron(role.config) or fields.get("momentum")):
            key = f"{role.section}.{OPTIMIZER_FIELDS}"
            yield UserError("needs a momentum", key=f"{key}.nesterov", value=True, hint=f"+{key}.momentum=0.9")
        for name, value in fields.items():
            key = f"{role.section}.{OPTIMIZER_FIELDS}.{name}"
            refused = REFUSED_OPTIMIZER_FIELDS.get(name)
            if refused is not None and refused.refuses(value):
                yield _refusal(refused, role, key, value)
            elif refused is None and not _is_known(name, uses_megatron(role.config)):
                names = ["eps", "momentum", "nesterov"]
                yield UserError("no such argument of the optimizer", key=key, value=value, allowed=names)
            elif name in NUMBERS and not _is_number(value):
                yield UserError("not a number of at least 0", key=key, value=value)


def _is_known(name: str, megatron: bool) -> bool:
    """Whether it is an argument of torch's optimizers, or with strategy=megatron one of Megatron's."""
    acting = {entry for names in ARGUMENTS.values() for entry in names} - (set() if megatron else MEGATRON_ARGUMENTS)
    inert = re.compile("|".join(_fields_after(f".{OPTIMIZER_FIELDS}.")))
    return name in acting or inert.fullmatch(name) is not None or (megatron and name in MEGATRON_ARGUMENTS)


def _fields_after(section: str) -> Iterator[str]:
    """The fields of a section that have no effect, as regular expressions."""
    for pattern in MEGATRON_INERT:
        before, found, field = pattern.partition(section)
        if before and found:
            yield field.replace("*", ".*")


MEGATRON_FIELD_RULES = (transformer_fields, model_fields, optimizer_fields)
