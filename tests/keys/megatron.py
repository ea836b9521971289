"""Rows of strategy, of megatron.* and of what optim.* has for it, for every role that it can spread."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from burnish.models.parts import backbone
from burnish.training.backend import Backend

from . import memory, teaching
from .kit import Case
from .models_more import GAE, JUDGED, KL, SIXTEEN, moved
from .ranks import NUM_TOKENS, held, one_rank, run
from .roles import twice
from .row import Observe, Row, Text

ACTOR, REF, CRITIC, JUDGE = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic", "reward_model"
TENSOR_PARALLEL, SEQUENCE_PARALLEL = {"tokens": 1.0, "weights": 0.5}, {"tokens": 0.5, "weights": 1.0}
GIVEN: dict[str, tuple[Text, ...]] = {ACTOR: (), REF: KL, CRITIC: GAE, JUDGE: JUDGED}
ROLES = {ACTOR: "policy", REF: "reference", CRITIC: "critic", JUDGE: "reward_model"}


def share(role: str, backend: Backend) -> dict[str, float]:
    """The fraction of a layer's query weights, and of a sequence's tokens, that a rank of two computes with."""
    attention = backbone(backend.model).layers[0].self_attn
    found: dict[str, float] = {}

    def look(module: torch.nn.Module, inputs: tuple, options: dict) -> None:
        hidden = inputs[0] if inputs else options["hidden_states"]
        weight = module.q_proj.weight
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        found.update(tokens=hidden.shape[-2] / NUM_TOKENS, weights=local.numel() / weight.numel())

    attention.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad():
        run(role, backend)
    return found


@cache
def sharing(section: str) -> Observe:
    return held(ROLES[section], share)


def size_rows(section: str, given: tuple[Text, ...]) -> list[Row]:
    spread = (*given, f"{section}.strategy=megatron", "trainer.n_gpus_per_node=2")
    see, sizes = sharing(section), f"{section}.megatron"
    return [
        Row(f"{sizes}.tensor_model_parallel_size", "2", see, spread, expected=TENSOR_PARALLEL),
        Row(f"{sizes}.context_parallel_size", "2", see, spread, expected=SEQUENCE_PARALLEL),
    ]


@cache
def position(section: str) -> Observe:
    """The role's place: stages, chunks, schedule, layers of the first stage, ranks that share experts and weights."""

    def observe(case: Case) -> Any:
        config = attrgetter(section)(case.cfg)
        fsdp = config.fsdp_config if hasattr(config, "fsdp_config") else config.model.fsdp_config
        with one_rank(case) as worker:
            parallel = worker._parallel(section, config, fsdp)
            stages = parallel.stages
            experts = 1 if parallel.experts is None else parallel.experts.size()
            return stages.size, stages.virtual, stages.schedule, stages.num_first, experts, parallel.mesh.size()

    return observe


def layers_held(role: str, backend: Backend) -> int:
    """Layers with weights of a rank of two."""
    return sum(any(True for _ in layer.parameters()) for layer in backbone(backend.model).layers)


def stage_rows(section: str, given: tuple[Text, ...]) -> list[Row]:
    spread = (*given, f"{section}.strategy=megatron", "trainer.n_gpus_per_node=2")
    see, key = position(section), f"{section}.megatron"
    experts = (*spread, f"{key}.tensor_model_parallel_size=2", f"{key}.expert_model_parallel_size=2")
    without = {"refused_without": True}  # four ranks would hold different experts
    staged = (*spread, f"{key}.pipeline_model_parallel_size=2")
    # The judge of these tests has one layer.
    size = (see, (2, 1, "1f1b", None, 1, 1)) if section == JUDGE else (held(ROLES[section], layers_held), 1)
    fields = "{num_layers_in_first_pipeline_stage:1}"
    rows = [
        Row(f"{key}.pipeline_model_parallel_size", "2", size[0], spread, expected=size[1]),
        Row(f"{key}.virtual_pipeline_model_parallel_size", "2", see, staged, expected=(2, 2, "1f1b", None, 1, 1)),
        Row(f"{key}.pipeline_schedule", "gpipe", see, staged, expected=(2, 1, "gpipe", None, 1, 1)),
        Row(f"{key}.expert_model_parallel_size", "2", see, spread, expected=(1, 1, "1f1b", None, 2, 2)),
        Row(f"{key}.expert_tensor_parallel_size", "1", see, experts, expected=(1, 1, "1f1b", None, 1, 1), **without),
    ]
    if section in (REF, JUDGE):
        rows.append(Row(f"{key}.override_transformer_config", fields, see, staged, expected=(2, 1, "1f1b", 1, 1, 1)))
    return rows


def memory_rows(section: str, role: str, given: tuple[Text, ...], taught: bool) -> list[Row]:
    chosen = (*given, f"{section}.strategy=megatron")
    see, key = memory.moves(role), f"{section}.megatron"
    rows = [
        Row(f"{key}.param_offload", "true", see, chosen, expected=moved(weights=1 + taught)),
        Row(f"{key}.dtype", "bf16", memory.compute_dtype(role), chosen, expected=SIXTEEN),
    ]
    if taught:
        rows.append(Row(f"{key}.optimizer_offload", "true", see, chosen, expected=moved(state=1)))
    return rows


def recompute_row(section: str, model: str, role: str, given: tuple[Text, ...]) -> Row:
    kept = (*given, f"{section}.strategy=megatron", f"{model}.enable_gradient_checkpointing=false")
    key = f"{section}.megatron.override_transformer_config"
    return Row(key, "{recompute_granularity:full}", teaching.layer_passes(role), kept, expected=2)


def optim_rows(section: str, role: str, given: tuple[Text, ...]) -> list[Row]:
    rates, optim = teaching.rates(role), f"{section}.optim"
    flat = (*given, f"{optim}.lr=0.01", "trainer.total_training_steps=6", f"{section}.ppo_epochs=2")
    spread = (*flat, f"{section}.strategy=megatron")
    linear = (*spread, f"{optim}.lr_decay_style=linear")
    rising = (*spread, f"{optim}.lr_warmup_steps=2")
    ending = (*spread, f"{optim}.lr_decay_style=WSD", f"{optim}.lr_wsd_decay_steps=2")
    falling = twice(*((6 - step) / 600 for step in range(6)))
    return [
        Row(f"{section}.strategy", "megatron", rates, (*flat, f"{optim}.lr_decay_style=linear"), expected=falling),
        Row(f"{optim}.lr_decay_style", "linear", rates, spread, expected=falling),
        Row(f"{optim}.lr_decay_steps", "2", rates, linear, expected=twice(0.01, 0.005, 0.0, 0.0, 0.0, 0.0)),
        Row(f"{optim}.min_lr", "0.004", rates, linear, expected=twice(0.01, 0.009, 0.008, 0.007, 0.006, 0.005)),
        Row(f"{optim}.lr_warmup_init", "0.002", rates, rising, expected=twice(0.006, *[0.01] * 5)),
        Row(f"{optim}.lr_wsd_decay_style", "linear", rates, ending, expected=twice(*[0.01] * 5, 0.005)),
        Row(f"{optim}.lr_wsd_decay_steps", "4", rates, (*ending, f"{optim}.lr_wsd_decay_style=linear")),
    ]


def strategy_row(section: str, role: str, given: tuple[Text, ...]) -> Row:
    """Of a role that is only read: its keys of memory are read."""
    asked = (*given, f"{section}.megatron.param_offload=true")
    return Row(f"{section}.strategy", "megatron", memory.moves(role), asked, expected=moved(weights=1))


ROWS = [
    *(row for section, given in GIVEN.items() for row in stage_rows(section, given)),
    *size_rows(ACTOR, ()),
    *size_rows(REF, KL),
    *size_rows(CRITIC, GAE),
    *size_rows(JUDGE, JUDGED),
    *memory_rows(ACTOR, "policy", (), taught=True),
    *memory_rows(CRITIC, "critic", GAE, taught=True),
    *memory_rows(REF, "reference", KL, taught=False),
    *memory_rows(JUDGE, "judge", JUDGED, taught=False),
    recompute_row(ACTOR, "actor_rollout_ref.model", "policy", ()),
    recompute_row(CRITIC, "critic.model", "critic", GAE),
    *optim_rows(ACTOR, "policy", ()),
    *optim_rows(CRITIC, "critic", GAE),
    strategy_row(REF, "reference", KL),
    strategy_row(JUDGE, "judge", JUDGED),
]
