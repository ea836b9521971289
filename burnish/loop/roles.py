"""The roles of a run, each built from its section of the config: policy, critic, reference, engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from burnish.config.adapters import wants_adapter
from burnish.errors import UserError
from burnish.loop.backends import (
    frozen_language_model,
    optimizer_options,
    trained_language_model,
    trained_value_model,
)
from burnish.loop.correct import Correction
from burnish.loop.sampling import decoder
from burnish.models.device import pick_dtype
from burnish.models.load import ModelSource
from burnish.rollout.engine import ENGINES, Engine, EngineOptions
from burnish.train.backend import Backend
from burnish.train.critic import Critic
from burnish.train.optim import Optimizer
from burnish.train.packing import Cut
from burnish.train.policy import Policy
from burnish.train.reference import Reference

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.config.rollout import SamplingConfig


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
        config_path=model.hf_config_path,
        use_shm=model.use_shm,
    )


def reference_source(cfg: TrainConfig, source: ModelSource) -> ModelSource:
    """The policy's model, or what actor_rollout_ref.ref.model changes about it."""
    own = cfg.actor_rollout_ref.ref.model
    if not own.path:
        own_config = {**source.override_config, **own.override_config}
        return dataclasses.replace(
            source, override_config=own_config, external_lib=(*source.external_lib, *own.external_lib)
        )
    return ModelSource(
        path=own.path,
        key="actor_rollout_ref.ref.model.path",
        override_config=dict(own.override_config),
        external_lib=(*source.external_lib, *own.external_lib),
        trust_remote_code=own.trust_remote_code,
    )


def shares_the_policy(cfg: TrainConfig) -> bool:
    """Is the reference the policy with its adapters off, rather than a model of its own?"""
    own = cfg.actor_rollout_ref.ref.model
    return wants_adapter(cfg.actor_rollout_ref.model) and not (own.path or own.override_config)


def build_policy(cfg: TrainConfig, source: ModelSource, device: torch.device, total_steps: int) -> Policy:
    actor, rollout = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout
    model = cfg.actor_rollout_ref.model
    backend = trained_language_model(
        source,
        model,
        actor.fsdp_config,
        "actor_rollout_ref.actor.fsdp_config",
        device,
        torch_dtype=model.torch_dtype,
        liger=model.use_liger,
        compile_head=actor.use_torch_compile,
        seed=cfg.trainer.seed,
    )
    updates = actor.ppo_epochs * -(-cfg.data.train_batch_size // actor.ppo_mini_batch_size)
    correction = Correction.of(cfg)
    return Policy(
        backend,
        Optimizer(backend.model, actor.optim, total_steps, updates, optimizer_options(actor.fsdp_config, backend)),
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
        loss=correction.loss,
        old_column=correction.old_column,
    )


def build_critic(cfg: TrainConfig, device: torch.device, total_steps: int) -> Critic:
    critic = cfg.critic
    source = ModelSource(
        path=critic.model.path,
        key="critic.model.path",
        override_config=dict(critic.model.override_config),
        external_lib=tuple(critic.model.external_lib),
        trust_remote_code=critic.model.trust_remote_code,
        use_shm=critic.model.use_shm,
    )
    fsdp = critic.model.fsdp_config
    key = "critic.model.fsdp_config"
    backend = trained_value_model(source, critic.model, fsdp, key, device, seed=cfg.trainer.seed)
    updates = critic.ppo_epochs * -(-cfg.data.train_batch_size // critic.ppo_mini_batch_size)
    return Critic(
        backend,
        Optimizer(backend.model, critic.optim, total_steps, updates, optimizer_options(fsdp, backend)),
        critic,
        rows_per_prompt=cfg.actor_rollout_ref.rollout.n,
        max_response_length=cfg.actor_rollout_ref.rollout.response_length,
        seed=cfg.trainer.seed,
    )


def build_reference(cfg: TrainConfig, source: ModelSource, device: torch.device, policy: Policy) -> Reference:
    """Also handed to the policy, which asks it while it is taught where the KL is the exact one."""
    ref, model = cfg.actor_rollout_ref.ref, cfg.actor_rollout_ref.model
    cut = Cut.of(
        ref.log_prob_micro_batch_size_per_gpu, ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu
    )
    backend = policy.backend
    if not shares_the_policy(cfg):
        backend = frozen_language_model(
            reference_source(cfg, source),
            model,
            ref.fsdp_config,
            "actor_rollout_ref.ref.fsdp_config",
            device,
            torch_dtype=model.torch_dtype,
            compile_head=ref.use_torch_compile,
        )
    policy.reference = Reference(backend, cfg.actor_rollout_ref.rollout.temperature, cut)
    return policy.reference


def build_engine(
    cfg: TrainConfig, source: ModelSource, device: torch.device, backend: Backend, tokenizer: Any
) -> Engine:
    return engine_of(cfg.actor_rollout_ref.rollout, source, device, backend.model, tokenizer)


def engine_of(
    rollout: SamplingConfig,
    source: ModelSource,
    device: torch.device,
    model: Any,
    tokenizer: Any,
    section: str = "actor_rollout_ref.rollout",
) -> Engine:
    """The engine that a rollout section asks for; it awaits the weights of `model`."""
    options = EngineOptions(
        model=source,
        dtype=pick_dtype(rollout.dtype, device, f"{section}.dtype"),
        device=device,
        eos_ids=eos_ids(model, tokenizer),
        max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        memory_share=rollout.gpu_memory_utilization,
        invariant=rollout.invariant,
        own_thread=device.type != "cpu",
        chunked_prefill=rollout.enable_chunked_prefill,
        prefix_caching=rollout.enable_prefix_caching,
        decode=decoder(tokenizer),
    )
    return ENGINES[rollout.name].load()(options)


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a response: the generation config's, and the tokenizer's own."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    found = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [*found, tokenizer.eos_token_id] if token is not None}))
