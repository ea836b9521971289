"""The roles of a run, each built from its section of the config: policy, critic, reference, engine."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from burnish.config.adapters import wants_adapter
from burnish.errors import UserError
from burnish.loop.backends import (
    frozen_language_model,
    head_kernel,
    optimizer_options,
    trained_language_model,
    trained_value_model,
)
from burnish.loop.correct import Correction
from burnish.loop.sampling import decoder
from burnish.models.device import pick_device, pick_dtype
from burnish.models.load import ModelSource, load_tokenizer
from burnish.rollout.engine import Engine, EngineOptions, check_engine, engine_row
from burnish.rollout.engines.supervised import Supervised
from burnish.training.backend import Backend
from burnish.training.critic import Critic
from burnish.training.optim import Optimizer
from burnish.training.packing import Cut
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext
from burnish.training.policy import Policy
from burnish.training.reference import Reference

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


def load_run_tokenizer(cfg: TrainConfig, source: ModelSource) -> Any:
    """data.tokenizer, or the policy's."""
    return load_tokenizer(
        cfg.data.tokenizer or source.tokenizer_path or source.checked_path(),
        trust_remote_code=cfg.data.trust_remote_code or source.trust_remote_code,
        key="data.tokenizer" if cfg.data.tokenizer else source.key,
        chat_template=cfg.actor_rollout_ref.model.custom_chat_template,
    )


def build_policy(
    cfg: TrainConfig,
    source: ModelSource,
    device: torch.device,
    total_steps: int,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Policy:
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
        head=head_kernel(model.fused_kernel_options.impl_backend, actor.use_torch_compile, device),
        compiled=actor.use_torch_compile,
        seed=cfg.trainer.seed,
        parallel=parallel,
    )
    updates = actor.ppo_epochs * -(-cfg.data.train_batch_size // actor.ppo_mini_batch_size)
    correction = Correction.of(cfg.algorithm.rollout_correction, actor.tis_imp_ratio_cap)
    return Policy(
        backend,
        Optimizer(backend.model, actor.optim, total_steps, updates, optimizer_options(actor.fsdp_config, backend)),
        actor,
        temperature=rollout.temperature,
        rows_per_prompt=rollout.n,
        max_response_length=rollout.response_length,
        inference_cut=Cut.of(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
        ),
        seed=cfg.trainer.seed,
        loss=correction.loss,
        old_column=correction.old_column,
    )


def critic_source(cfg: TrainConfig) -> ModelSource:
    model = cfg.critic.model
    return ModelSource(
        path=model.path,
        key="critic.model.path",
        override_config=dict(model.override_config),
        external_lib=tuple(model.external_lib),
        trust_remote_code=model.trust_remote_code,
        use_shm=model.use_shm,
    )


def build_critic(
    cfg: TrainConfig, device: torch.device, total_steps: int, parallel: ParallelContext = SINGLE_PROCESS
) -> Critic:
    critic, source = cfg.critic, critic_source(cfg)
    fsdp = critic.model.fsdp_config
    key = "critic.model.fsdp_config"
    backend = trained_value_model(source, critic.model, fsdp, key, device, seed=cfg.trainer.seed, parallel=parallel)
    updates = critic.ppo_epochs * -(-cfg.data.train_batch_size // critic.ppo_mini_batch_size)
    return Critic(
        backend,
        Optimizer(backend.model, critic.optim, total_steps, updates, optimizer_options(fsdp, backend)),
        critic,
        rows_per_prompt=cfg.actor_rollout_ref.rollout.n,
        max_response_length=cfg.actor_rollout_ref.rollout.response_length,
        seed=cfg.trainer.seed,
    )


def build_reference(
    cfg: TrainConfig,
    source: ModelSource,
    device: torch.device,
    policy: Policy,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Reference:
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
            head=head_kernel(model.fused_kernel_options.impl_backend, ref.use_torch_compile, device),
            compiled=ref.use_torch_compile,
            parallel=parallel,
        )
    policy.reference = Reference(backend, cfg.actor_rollout_ref.rollout.temperature, cut)
    return policy.reference


def build_engine(
    cfg: TrainConfig, source: ModelSource, device: torch.device, backend: Backend, tokenizer: Any
) -> Engine:
    rollout = cfg.actor_rollout_ref.rollout
    bucket = rollout.update_weights_bucket_megabytes
    generation = backend.model.generation_config
    return engine_of(rollout, source, device, generation, tokenizer, bucket_megabytes=bucket, beside=True)


def engine_of(
    rollout: SamplingConfig,
    source: ModelSource,
    device: torch.device,
    generation: Any,
    tokenizer: Any,
    section: str = "actor_rollout_ref.rollout",
    own_thread: bool | None = None,
    bucket_megabytes: int = 512,
    beside: bool = False,
) -> Engine:
    """The engine that a rollout section asks for; it awaits weights. `generation` is the model's generation config."""
    options = EngineOptions(
        model=source,
        dtype=pick_dtype(rollout.dtype, device, f"{section}.dtype"),
        device=device,
        eos_ids=eos_ids(generation, tokenizer),
        max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        memory_share=rollout.gpu_memory_utilization,
        invariant=rollout.invariant,
        own_thread=device.type != "cpu" if own_thread is None else own_thread,
        chunked_prefill=rollout.enable_chunked_prefill,
        prefix_caching=rollout.enable_prefix_caching,
        decode=decoder(tokenizer),
        eager=device.type == "cpu" if rollout.enforce_eager is None else rollout.enforce_eager,
        capture_sizes=rollout.cudagraph_capture_sizes,
        load_format=rollout.load_format,
        sleeps=rollout.free_cache_engine,
        beside=beside,
        tensor_parallel=rollout.tensor_model_parallel_size,
        data_parallel=rollout.data_parallel_size,
        expert_parallel=rollout.expert_parallel_size,
        pipeline_parallel=rollout.pipeline_model_parallel_size,
        bucket_megabytes=bucket_megabytes,
        extra=engine_kwargs(rollout),
        section=section,
    )
    row = engine_row(rollout.name, rollout.mode)
    make = partial(row.load(), options)
    return Supervised(make) if "out_of_process" in row.metadata else make()


def engine_kwargs(rollout: SamplingConfig) -> dict[str, Any]:
    """Of the engine that is chosen; those that are not here have none."""
    given = rollout.engine_kwargs
    return dict({"vllm": given.vllm, "sglang": given.sglang}.get(rollout.name, {}))


def check_engine_of(rollout: SamplingConfig, device: torch.device, section: str = "actor_rollout_ref.rollout") -> None:
    """Can this engine be had here, with these arguments?"""
    check_engine(engine_row(rollout.name, rollout.mode).load(), engine_kwargs(rollout), device, section)


def compared_dtype(cfg: TrainConfig) -> torch.dtype | None:
    """The engine's number format, in which its weights are compared with the policy's; None compares nothing."""
    rollout = cfg.actor_rollout_ref.rollout
    if not rollout.verify_weights:
        return None
    return pick_dtype(rollout.dtype, pick_device(cfg.trainer.device), "actor_rollout_ref.rollout.dtype")


def eos_ids(generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a response: the generation config's, and the tokenizer's own."""
    configured = getattr(generation, "eos_token_id", None)
    found = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [*found, tokenizer.eos_token_id] if token is not None}))
