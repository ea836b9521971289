"""Rules for pipeline stages and expert parallelism (`strategy: megatron`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.config.megatron import MegatronRole, megatron_roles_in_use
from burnish.config.megatron_status import COUNTED_FIELDS, LAYER_FIELDS
from burnish.config.model_rules import trained_models
from burnish.config.ranks import (
    expert_parallel_size,
    num_ranks,
    num_role_ranks,
    pipeline_parallel_size,
    tensor_parallel_size,
    virtual_pipeline_size,
)
from burnish.config.root import TrainConfig
from burnish.errors import UserError

FIRST, LAST, EACH = LAYER_FIELDS
LAYERS = "at least 1"


def layers_per_stage(role: Any) -> tuple[int | None, int | None, tuple[int, ...] | None]:
    """Layers on the first rank, on the last, and on each rank; None where they are not given."""
    fields = role.megatron.override_transformer_config
    each = fields.get(EACH)
    numbers = each.split(",") if isinstance(each, str) else each
    return fields.get(FIRST), fields.get(LAST), None if not numbers else tuple(int(number) for number in numbers)


def counted_parts(role: Any) -> tuple[bool, bool]:
    """Whether the embedding and the head count as layers where layers are divided over stages."""
    embedding, loss = (bool(role.megatron.override_transformer_config.get(name)) for name in COUNTED_FIELDS)
    return embedding, loss


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_counts(value: Any) -> bool:
    numbers = [int(n) if n.strip().isdecimal() else 0 for n in value.split(",")] if isinstance(value, str) else value
    return isinstance(numbers, list) and len(numbers) > 0 and all(map(_is_count, numbers))


def stage_fields(cfg: TrainConfig) -> Iterator[UserError]:
    """Numbers of layers are numbers, and do not contradict each other."""
    for role in _staged(cfg):
        key, fields = f"{role.section}.megatron.override_transformer_config", role.config.megatron
        fields = fields.override_transformer_config
        for name in (FIRST, LAST):
            if fields.get(name) is not None and not _is_count(fields[name]):
                yield UserError("not a number of layers", key=f"{key}.{name}", value=fields[name], allowed=LAYERS)
        for name in COUNTED_FIELDS:
            if fields.get(name) not in (None, True, False):
                yield UserError("not true or false", key=f"{key}.{name}", value=fields[name], allowed="true, false")
            elif fields.get(name) and any(fields.get(layers) for layers in LAYER_FIELDS):
                problem = f"conflicts with {FIRST}, {LAST} and {EACH}, which give the layers of stages"
                yield UserError(problem, key=f"{key}.{name}", value=True, hint="leave one of them out")
        if not fields.get(EACH):
            continue
        if not _is_counts(fields[EACH]):
            hint = f"+{key}.{EACH}=[3,5]"
            yield UserError("not a list of numbers of layers", key=f"{key}.{EACH}", value=fields[EACH], hint=hint)
        for name in (FIRST, LAST):
            if fields.get(name) is not None:
                problem = f"conflicts with {EACH}, which gives the layers of every stage"
                yield UserError(problem, key=f"{key}.{name}", value=fields[name], hint="leave one of them out")


def stage_combinations(cfg: TrainConfig) -> Iterator[UserError]:
    """What pipeline stages do not combine with."""
    for role in _staged(cfg):
        key = f"{role.section}.megatron"
        if virtual_pipeline_size(role.config) > 1 and role.config.megatron.pipeline_schedule != "1f1b":
            name = role.config.megatron.pipeline_schedule
            problem = f"{name} is not interleaved (virtual_pipeline_model_parallel_size)"
            yield UserError(problem, key=f"{key}.pipeline_schedule", value=name, hint=f"{key}.pipeline_schedule=1f1b")


def recomputed_groups(cfg: TrainConfig) -> Iterator[UserError]:
    """FSDP gathers the weights of one layer at a time, so that ranks cannot recompute several as one."""
    for key, model in trained_models(cfg):
        recompute = model.recompute
        groups = recompute.method == "uniform" and (recompute.num_layers or 1) > 1
        if num_ranks(cfg) > 1 and model.enable_gradient_checkpointing and groups:
            problem = "several ranks cannot recompute groups of layers: FSDP gathers weights layer by layer"
            where = f"{key}.recompute.num_layers"
            yield UserError(problem, key=where, value=recompute.num_layers, allowed=[1], hint=f"{where}=1")


def expert_sizes(cfg: TrainConfig) -> Iterator[UserError]:
    """Expert-parallel ranks are some of those that share one copy of the weights."""
    for role in megatron_roles_in_use(cfg):
        experts, megatron = expert_parallel_size(role.config), f"{role.section}.megatron"
        key, given = f"{megatron}.expert_model_parallel_size", role.config.megatron
        tensor = given.tensor_model_parallel_size
        each = given.expert_tensor_parallel_size or tensor
        holders = given.expert_model_parallel_size * each
        if holders > 1 and holders % tensor and tensor % holders:
            problem = f"{given.expert_model_parallel_size} x {each} ranks with different experts"
            problem += f" cannot be divided into groups of the {tensor} tensor-parallel ranks"
            name = f"{megatron}.expert_tensor_parallel_size"
            yield UserError(problem, key=name, value=each, allowed=[1, tensor], hint=f"{name}={tensor}")
            continue
        if experts == 1:
            continue
        total = num_role_ranks(cfg, role.config) // tensor_parallel_size(role.config)
        ranks = total // pipeline_parallel_size(role.config)
        ranks = ranks if role.fsdp.fsdp_size <= 0 else min(ranks, role.fsdp.fsdp_size)
        if ranks < 1 or ranks % experts:
            valid = [size for size in range(1, ranks + 1) if ranks % size == 0]
            copies = f"the {ranks} ranks that share one copy of a stage's weights"
            hint = f"{key}={max((size for size in valid if size <= experts), default=1)}"
            problem = f"{copies} cannot be divided into groups of {experts}"
            yield UserError(problem, key=key, value=experts, allowed=valid or None, hint=hint)


def _staged(cfg: TrainConfig) -> Iterator[MegatronRole]:
    yield from (role for role in megatron_roles_in_use(cfg) if pipeline_parallel_size(role.config) > 1)


STAGE_RULES = (stage_fields, stage_combinations, recomputed_groups, expert_sizes)
