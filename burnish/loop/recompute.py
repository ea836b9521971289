"""recompute.method=auto: the memory plan chooses how many layers are recomputed, before a model is loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from burnish.config.adapters import TrainedModelConfig, chooses_recompute
from burnish.config.memory_fixes import changed
from burnish.config.model_rules import trained_models
from burnish.doctor.machine import cuda_devices, total_memory
from burnish.doctor.memory import Plan, Shapes, sft_plan, train_plan
from burnish.doctor.shapes import Shape, shape_of
from burnish.errors import UserError
from burnish.loop.build_reward_model import reward_model_source
from burnish.loop.pools import wants_critic, wants_reference, wants_reward_model
from burnish.loop.roles import critic_source, reference_source
from burnish.models.load import ModelSource, load_config

if TYPE_CHECKING:
    from burnish.config import SftConfig, TrainConfig

# Sections of trained models -> their roles in the memory plan.
ROLES = {"actor_rollout_ref.model": "policy", "critic.model": "critic"}
SFT_SECTION, SFT_ROLE = "model", "model"


def plan_recompute(cfg: TrainConfig, source: ModelSource, device: torch.device) -> tuple[TrainConfig, list[str]]:
    """The config with `recompute.num_layers` of every trained model that leaves it to the plan, and a notice for each.

    The ranks get this config, so that all of them recompute the same layers.
    """
    if not any(chooses_recompute(model) for _, model in trained_models(cfg)):
        return cfg, []
    cfg = copy.deepcopy(cfg)
    models = {ROLES[key]: (key, model) for key, model in trained_models(cfg) if chooses_recompute(model)}
    on_device = changed(cfg, (("trainer.device", device.type),))  # `auto` does not say which
    capacity = memory_per_rank(device, cfg.trainer.n_gpus_per_node)
    return cfg, _choose(models, capacity, lambda memory: train_plan(on_device, _shapes(cfg, source), memory))


def plan_sft_recompute(cfg: SftConfig, source: ModelSource, device: torch.device) -> tuple[SftConfig, list[str]]:
    """The same for `burnish sft`."""
    if not chooses_recompute(cfg.model):
        return cfg, []
    cfg, on_device = copy.deepcopy(cfg), copy.deepcopy(cfg)
    on_device.trainer.device = device.type
    capacity = memory_per_rank(device, cfg.trainer.n_gpus_per_node)
    return cfg, _choose(
        {SFT_ROLE: (SFT_SECTION, cfg.model)}, capacity, lambda memory: sft_plan(on_device, _shape(source), memory)
    )


def _choose(
    models: Mapping[str, tuple[str, TrainedModelConfig]], capacity: int | None, plan_of: Callable[[int], Plan]
) -> list[str]:
    """Set num_layers of models, given by role with their sections; null is all layers, where there is no plan."""
    plan, problem = None, "the memory of this device is not known"
    if capacity is not None:
        try:
            plan = plan_of(capacity)
        except UserError as error:
            problem = error.problem
    notices = []
    for role, (key, model) in models.items():
        setting = f"{key}.recompute.method=auto"
        if plan is None:
            model.recompute.num_layers = None
            notices.append(f"{setting}: recomputes all layers ({problem})")
            continue
        choice = plan.recompute[role]
        model.recompute.num_layers = None if choice.is_all else choice.per_stage
        estimated = "" if plan.exact else " (estimated: the plan does not know this model's family)"
        notices.append(f"{setting}: {choice.text}{estimated}")
    return notices


def _shapes(cfg: TrainConfig, source: ModelSource) -> Shapes:
    return Shapes(
        policy=_shape(source),
        reference=_shape(reference_source(cfg, source)) if wants_reference(cfg) else None,
        critic=_shape(critic_source(cfg)) if wants_critic(cfg) else None,
        reward_model=_shape(reward_model_source(cfg)) if wants_reward_model(cfg) else None,
    )


def _shape(source: ModelSource) -> Shape:
    return shape_of(load_config(source).to_dict())


def memory_per_rank(device: torch.device, num_ranks: int) -> int | None:
    """Bytes for each of this machine's ranks, on the smallest of their devices; None where the driver does not say."""
    if device.type == "cpu":
        return total_memory() // max(1, num_ranks)
    first = device.index or 0
    devices = cuda_devices()[first : first + num_ranks] if device.type == "cuda" else []
    return min((each.memory for each in devices), default=None)
