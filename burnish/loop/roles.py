"""The roles of a run, each built from its section of the config: policy, critic, reference, engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.device import pick_dtype
from burnish.models.load import ModelSource, load_causal_lm, load_value_model
from burnish.models.parts import check_head
from burnish.rollout.engine import ENGINES, Engine, EngineOptions
from burnish.train.backend import Backend
from burnish.train.critic import Critic
from burnish.train.optim import Optimizer
from burnish.train.packing import Cut
from burnish.train.policy import Policy
from burnish.train.reference import Reference

if TYPE_CHECKING:
    from burnish.config import TrainConfig


def policy_source(cfg: TrainConfig) -> ModelSource:
    model = cfg.actor_rollout_ref.model
    if not model.path:
        raise UserError(
            "which model?",
            key="actor_rollout_ref.model.path",
            hint="actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
        )
    return ModelSource(
        path=model.path,
        tokenizer_path=model.tokenizer_path,
        override_config=dict(model.override_config),
        external_lib=tuple(model.external_lib),
        trust_remote_code=model.trust_remote_code,
    )


def build_policy(cfg: TrainConfig, source: ModelSource, device: torch.device, total_steps: int) -> Policy:
    actor, rollout = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout
    backend = _language_model(source, device)
    check_head(backend.model, segments=[4])
    if cfg.actor_rollout_ref.model.enable_gradient_checkpointing:
        backend.model.gradient_checkpointing_enable({"use_reentrant": False})
    updates = actor.ppo_epochs * -(-cfg.data.train_batch_size // actor.ppo_mini_batch_size)
    return Policy(
        backend,
        Optimizer(backend.model, actor.optim, total_steps, updates),
        actor,
        temperature=rollout.temperature,
        rows_per_prompt=rollout.n,
        max_response_length=rollout.response_length,
        read_cut=Cut.of(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
        ),
        seed=cfg.trainer.seed,
    )


def build_critic(cfg: TrainConfig, device: torch.device, total_steps: int) -> Critic:
    critic = cfg.critic
    source = ModelSource(
        path=critic.model.path,
        key="critic.model.path",
        override_config=dict(critic.model.override_config),
        external_lib=tuple(critic.model.external_lib),
        trust_remote_code=critic.model.trust_remote_code,
    )
    # Weights are kept in float32: an update of 1e-6 is lost in bfloat16.
    backend = Backend(load_value_model(source, torch.float32), device, pick_dtype(None, device, "critic.model.path"))
    if critic.model.enable_gradient_checkpointing:
        backend.model.gradient_checkpointing_enable({"use_reentrant": False})
    updates = critic.ppo_epochs * -(-cfg.data.train_batch_size // critic.ppo_mini_batch_size)
    return Critic(
        backend,
        Optimizer(backend.model, critic.optim, total_steps, updates),
        critic,
        rows_per_prompt=cfg.actor_rollout_ref.rollout.n,
        max_response_length=cfg.actor_rollout_ref.rollout.response_length,
        seed=cfg.trainer.seed,
    )


def build_reference(cfg: TrainConfig, source: ModelSource, device: torch.device) -> Reference:
    ref = cfg.actor_rollout_ref.ref
    cut = Cut.of(
        ref.log_prob_micro_batch_size_per_gpu, ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu
    )
    return Reference(_language_model(source, device), cfg.actor_rollout_ref.rollout.temperature, cut)


def build_engine(
    cfg: TrainConfig, source: ModelSource, device: torch.device, backend: Backend, tokenizer: Any
) -> Engine:
    rollout = cfg.actor_rollout_ref.rollout
    options = EngineOptions(
        model=source,
        dtype=pick_dtype(rollout.dtype, device, "actor_rollout_ref.rollout.dtype"),
        device=device,
        eos_ids=eos_ids(backend, tokenizer),
        max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        memory_share=rollout.gpu_memory_utilization,
        invariant=rollout.invariant,
        own_thread=device.type != "cpu",
    )
    return ENGINES[rollout.name].load()(options)


def eos_ids(backend: Backend, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a response: the generation config's, and the tokenizer's own."""
    configured = getattr(backend.model.generation_config, "eos_token_id", None)
    found = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [*found, tokenizer.eos_token_id] if token is not None}))


def _language_model(source: ModelSource, device: torch.device) -> Backend:
    # Weights are kept in float32: an update of 1e-6 is lost in bfloat16.
    return Backend(load_causal_lm(source, PACKED, torch.float32), device, pick_dtype(None, device, source.key))
