"""Conditions of a run under which some keys have no effect, or are supported: one function each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burnish.config.adapters import chooses_recompute, wants_adapter
from burnish.config.async_rules import is_async, step_counts_prompts, uses_queue
from burnish.config.device import computes_on_cpu
from burnish.config.jobs import EvalConfig, GenerateConfig
from burnish.config.megatron import balances_by_loss
from burnish.config.ranks import (
    engine_size,
    has_engine_pool,
    is_single_process,
    num_ranks,
    num_role_ranks,
    pipeline_parallel_size,
    uses_megatron,
)
from burnish.config.root import TrainConfig
from burnish.config.sft import SftConfig

Condition = Callable[[Any], bool]  # of the root config of a job

_EXTERNAL_ENGINES = ("vllm", "sglang")

# The roles that Megatron's keys can parallelize, by their section.
MEGATRON_ROLES: dict[str, Callable[[TrainConfig], Any]] = {
    "actor_rollout_ref.actor": lambda cfg: cfg.actor_rollout_ref.actor,
    "actor_rollout_ref.ref": lambda cfg: cfg.actor_rollout_ref.ref,
    "critic": lambda cfg: cfg.critic,
    "reward_model": lambda cfg: cfg.reward_model,
}


# devices and processes


def on_cpu(cfg: TrainConfig | SftConfig | GenerateConfig) -> bool:
    return computes_on_cpu(cfg.trainer.device)


def has_one_training_rank(cfg: TrainConfig) -> bool:
    return num_ranks(cfg) == 1


def reward_model_has_one_rank(cfg: TrainConfig) -> bool:
    return num_role_ranks(cfg, cfg.reward_model) == 1


def starts_no_processes(cfg: TrainConfig | SftConfig | GenerateConfig) -> bool:
    """One process trains or generates, and none on another node scores or runs tools."""
    return is_single_process(cfg) and not (cfg.ray_init.reward_nodes or cfg.ray_init.tool_nodes)


def serves_no_metrics(cfg: TrainConfig) -> bool:
    return cfg.trainer.metrics_port is None and without_prometheus(cfg)


def without_prometheus(cfg: TrainConfig) -> bool:
    return not cfg.actor_rollout_ref.rollout.prometheus.enable


def without_traces(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.rollout.trace.backend is None


def engines_share_devices(cfg: TrainConfig) -> bool:
    return not has_engine_pool(cfg)


def reward_model_shares_devices(cfg: TrainConfig) -> bool:
    return not cfg.reward_model.enable_resource_pool


def no_role_uses_megatron(cfg: TrainConfig) -> bool:
    return not any(uses_megatron(role(cfg)) for role in MEGATRON_ROLES.values())


def role_uses_megatron(section: str) -> Condition:
    role = MEGATRON_ROLES[section]

    def condition(cfg: TrainConfig) -> bool:
        return uses_megatron(role(cfg))

    return condition


def role_without_megatron(section: str) -> Condition:
    role = MEGATRON_ROLES[section]

    def condition(cfg: TrainConfig) -> bool:
        return not uses_megatron(role(cfg))

    return condition


def role_has_one_stage(section: str) -> Condition:
    role = MEGATRON_ROLES[section]

    def condition(cfg: TrainConfig) -> bool:
        return pipeline_parallel_size(role(cfg)) == 1

    return condition


def role_balances_without_loss(section: str) -> Condition:
    role = MEGATRON_ROLES[section]

    def condition(cfg: TrainConfig) -> bool:
        return not balances_by_loss(role(cfg).megatron.override_transformer_config)

    return condition


def uses_optimizer(section: str, name: str) -> Condition:
    role = MEGATRON_ROLES[section]

    def condition(cfg: TrainConfig) -> bool:
        return role(cfg).optim.optimizer == name

    return condition


# the engine


def _engine(cfg: TrainConfig | GenerateConfig) -> Any:
    """The engine's section, which is at another place in each job."""
    return cfg.actor_rollout_ref.rollout if isinstance(cfg, TrainConfig) else cfg.rollout


def uses_hf_engine(cfg: TrainConfig | GenerateConfig) -> bool:
    return _engine(cfg).name == "hf"


def without_builtin_engine(cfg: TrainConfig | GenerateConfig) -> bool:
    return _engine(cfg).name in ("hf", *_EXTERNAL_ENGINES)


def uses_device_loop(cfg: TrainConfig | GenerateConfig) -> bool:
    """The built-in engine decodes several tokens between two host syncs."""
    return not without_builtin_engine(cfg) and not on_cpu(cfg)


def without_device_loop(cfg: TrainConfig | GenerateConfig) -> bool:
    return not uses_device_loop(cfg)


def uses_invariant_loop(cfg: TrainConfig | GenerateConfig) -> bool:
    """With kernels whose bits do not depend on the number of rows."""
    return uses_device_loop(cfg) and _engine(cfg).invariant is True


def without_drafts(cfg: TrainConfig | GenerateConfig) -> bool:
    return not _engine(cfg).speculative.enable


def uses_vllm(cfg: TrainConfig | GenerateConfig) -> bool:
    return _engine(cfg).name == "vllm"


def without_vllm(cfg: TrainConfig | GenerateConfig) -> bool:
    return not uses_vllm(cfg)


def uses_vllm_on_cpu(cfg: TrainConfig | GenerateConfig) -> bool:
    return uses_vllm(cfg) and on_cpu(cfg)


def uses_sglang(cfg: TrainConfig | GenerateConfig) -> bool:
    return _engine(cfg).name == "sglang"


def without_sglang(cfg: TrainConfig | GenerateConfig) -> bool:
    return not uses_sglang(cfg)


def uses_running_sglang(cfg: TrainConfig | GenerateConfig) -> bool:
    """SGLang as a server that somebody else started."""
    return uses_sglang(cfg) and "base_url" in _engine(cfg).engine_kwargs.sglang


def starts_sglang_on_cpu(cfg: TrainConfig | GenerateConfig) -> bool:
    return uses_sglang(cfg) and not uses_running_sglang(cfg) and on_cpu(cfg)


def uses_builtin_engine(cfg: TrainConfig | GenerateConfig) -> bool:
    return _engine(cfg).name == "builtin"


def has_one_builtin_engine(cfg: TrainConfig | GenerateConfig) -> bool:
    """The built-in engine runs in the only process."""
    return uses_builtin_engine(cfg) and is_single_process(cfg)


def generates_over_ranks(cfg: TrainConfig | GenerateConfig) -> bool:
    return isinstance(cfg, GenerateConfig) and not is_single_process(cfg)


def has_builtin_tensor_ranks(cfg: TrainConfig | GenerateConfig) -> bool:
    return uses_builtin_engine(cfg) and isinstance(cfg, TrainConfig) and engine_size(cfg) > 1


def needs_vllm_server(cfg: TrainConfig | GenerateConfig) -> bool:
    """Only a server can use devices of several ranks, or run data-parallel engines."""
    shared = isinstance(cfg, TrainConfig) and engine_size(cfg) > 1
    return uses_vllm(cfg) and (shared or _engine(cfg).data_parallel_size > 1)


def uses_running_vllm(cfg: TrainConfig | GenerateConfig) -> bool:
    """vLLM as a server that somebody else started."""
    return uses_vllm(cfg) and "base_url" in _engine(cfg).engine_kwargs.vllm


def without_cuda_graphs(cfg: TrainConfig | GenerateConfig) -> bool:
    """transformers' generate captures none, the built-in engine none on a CPU."""
    return _engine(cfg).name not in _EXTERNAL_ENGINES and (uses_hf_engine(cfg) or on_cpu(cfg))


def shares_weights_in_process(cfg: TrainConfig) -> bool:
    """Weights reach the engine without being sent in buckets."""
    return engines_share_devices(cfg) and not uses_sglang(cfg)


def without_quantization(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.rollout.quantization is None


def generates_responses(cfg: TrainConfig) -> bool:
    return not cfg.actor_rollout_ref.rollout.skip_rollout


# asynchronous training


def is_synchronous(cfg: TrainConfig) -> bool:
    return not is_async(cfg)


def is_one_step_off(cfg: TrainConfig) -> bool:
    return is_async(cfg) and not uses_queue(cfg)


def recomputes_old_log_probs(cfg: TrainConfig) -> bool:
    return is_async(cfg) and not cfg.async_training.use_rollout_log_probs


def queue_counts_prompts(cfg: TrainConfig) -> bool:
    return uses_queue(cfg) and step_counts_prompts(cfg)


# rewards


def without_reward_model(cfg: TrainConfig) -> bool:
    return not cfg.reward_model.enable


def scores_without_engine(cfg: TrainConfig) -> bool:
    """No reward function of the user calls the reward model's engine."""
    return not cfg.reward_model.enable or cfg.custom_reward_function.path is None


def uses_custom_reward_model(cfg: TrainConfig) -> bool:
    return cfg.reward_model.model.custom_cls.path is not None


def without_reward_servers(cfg: TrainConfig | EvalConfig) -> bool:
    return all(url.endswith(".py") for url in cfg.reward.remote_url)


def scores_on_this_machine(cfg: EvalConfig) -> bool:
    return cfg.ray_init.reward_nodes == 0


def without_overlong_penalty(cfg: TrainConfig) -> bool:
    return not cfg.reward_model.overlong_buffer.enable


# the algorithm


def without_group_filter(cfg: TrainConfig) -> bool:
    return not cfg.algorithm.filter_groups.enable


def without_pf_ppo(cfg: TrainConfig) -> bool:
    return not cfg.algorithm.use_pf_ppo


def without_importance_weights(cfg: TrainConfig) -> bool:
    return cfg.algorithm.rollout_correction.rollout_is is None


def without_rejection_sampling(cfg: TrainConfig) -> bool:
    return not cfg.algorithm.rollout_correction.rollout_rs


# models


def reference_shares_policy(cfg: TrainConfig) -> bool:
    """Whether the reference is the policy with its adapters disabled, rather than a model of its own."""
    policy, ref = cfg.actor_rollout_ref, cfg.actor_rollout_ref.ref
    changed = ref.model.path or ref.model.override_config or ref.load_weight != policy.actor.load_weight
    return wants_adapter(policy.model) and not changed


def policy_without_adapter(cfg: TrainConfig) -> bool:
    return not wants_adapter(cfg.actor_rollout_ref.model)


def critic_without_adapter(cfg: TrainConfig) -> bool:
    return not wants_adapter(cfg.critic.model)


def sft_without_adapter(cfg: SftConfig) -> bool:
    return not wants_adapter(cfg.model)


def policy_without_checkpointing(cfg: TrainConfig) -> bool:
    return not cfg.actor_rollout_ref.model.enable_gradient_checkpointing


def critic_without_checkpointing(cfg: TrainConfig) -> bool:
    return not cfg.critic.model.enable_gradient_checkpointing


def policy_plans_recompute(cfg: TrainConfig) -> bool:
    return chooses_recompute(cfg.actor_rollout_ref.model)


def critic_plans_recompute(cfg: TrainConfig) -> bool:
    return chooses_recompute(cfg.critic.model)


def sft_plans_recompute(cfg: SftConfig) -> bool:
    return chooses_recompute(cfg.model)


def sft_profiles_no_step(cfg: SftConfig) -> bool:
    return not cfg.trainer.profile_steps


def sft_profiles_otherwise(cfg: SftConfig) -> bool:
    return cfg.profiler.tool != "torch"


def sft_without_checkpointing(cfg: SftConfig) -> bool:
    return not cfg.model.enable_gradient_checkpointing
