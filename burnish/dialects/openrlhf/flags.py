"""Flags of train_ppo_ray: v0.9.2's with types and defaults, earlier and later ones, and dotted names since v0.10.2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """One flag. `kind` is bool for a switch, which takes no value; `nargs` is a number of values, or "*"."""

    name: str  # in v0.9.2, without dashes
    kind: type = str
    default: Any = None
    nargs: int | str = 1
    choices: tuple[str, ...] = ()
    secret: bool = False  # its value is never printed


def switches(*names: str) -> Iterable[Flag]:
    return (Flag(name, bool, False, nargs=0) for name in names)


ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo")

MODEL_DATA = (
    Flag("pretrain"),
    Flag("reward_pretrain"),
    Flag("critic_pretrain"),
    Flag("value_head_prefix", default="score"),
    Flag("prompt_data"),
    Flag("prompt_data_probs"),
    Flag("prompt_split", default="train"),
    Flag("eval_dataset"),
    Flag("eval_split", default="train"),
    Flag("eval_temperature", float, 0.6),
    Flag("eval_n_samples_per_prompt", int, 4),
    Flag("input_key", default="input"),
    Flag("label_key"),
    Flag("output_key"),  # v0.9.2 has it for SFT only
    Flag("input_template"),
    *switches("apply_chat_template", "disable_fast_tokenizer", "use_ms"),
    Flag("max_samples", int, 100_000_000),
)
PLACEMENT = (
    *(Flag(f"{role}_num_nodes", int, 1) for role in ("actor", "critic", "ref", "reward")),
    *(Flag(f"{role}_num_gpus_per_node", int, 8) for role in ("actor", "critic", "ref", "reward")),
    Flag("vllm_num_engines", int),
    Flag("vllm_tensor_parallel_size", int, 1),
    Flag("vllm_gpu_memory_utilization", float, 0.95),
    Flag("vllm_sync_backend", default="nccl"),
    Flag("vllm_generate_batch_size", int),
    *switches("vllm_sync_with_ray", "enforce_eager", "enable_prefix_caching", "vllm_enable_sleep"),
    *switches("colocate_all_models", "colocate_actor_ref", "colocate_critic_reward"),
    *switches("async_train"),
    Flag("async_queue_size", int, 1),
)
DEEPSPEED = (
    Flag("zero_stage", int, 2),
    Flag("zpg", int, 1),
    Flag("ds_tensor_parallel_size", int, 1),
    Flag("ring_attn_size", int, 1),
    Flag("ring_head_stride", int, 1),
    Flag("param_dtype", default="bf16", choices=("bf16", "fp16", "fp32")),
    Flag("attn_implementation", default="flash_attention_2"),
    Flag("grad_accum_dtype"),
    Flag("local_rank", int, -1),
    *switches("gradient_checkpointing", "gradient_checkpointing_use_reentrant", "adam_offload", "overlap_comm"),
    *switches("deepspeed_enable_sleep", "deepcompile", "actor_init_on_gpu", "ref_reward_offload", "use_liger_kernel"),
    *switches("packing_samples", "load_in_4bit", "full_determinism", "perf"),
    Flag("lora_rank", int, 0),
    Flag("lora_alpha", int, 16),
    Flag("lora_dropout", float, 0.0),
    Flag("target_modules", default="all-linear", nargs="*"),
)
BATCHES = (
    Flag("train_batch_size", int, 128),
    Flag("rollout_batch_size", int, 1024),
    Flag("micro_train_batch_size", int, 4),
    Flag("micro_rollout_batch_size", int, 8),
    Flag("n_samples_per_prompt", int, 1),
    Flag("max_epochs", int, 1),
    Flag("num_episodes", int, 1),
    Flag("max_steps", int),  # not in v0.9.2
    *switches("use_dynamic_batch"),
    Flag("train_max_tokens_per_gpu", int, 16192),
    Flag("rollout_max_tokens_per_gpu", int),
    Flag("freezing_actor_steps", int, -1),
)
OPTIMIZATION = (
    Flag("actor_learning_rate", float, 1e-6),
    Flag("critic_learning_rate", float, 9e-6),
    Flag("lr_scheduler", default="cosine_with_min_lr"),
    Flag("lr_warmup_ratio", float, 0.03),
    Flag("adam_betas", float, (0.9, 0.95), nargs=2),
    Flag("l2", float, 0.0),
    Flag("max_norm", float, 1.0),
    Flag("seed", int, 42),
    *switches("enable_ema"),
    Flag("ema_beta", float, 0.992),
    Flag("aux_loss_coef", float, 0.0),
    Flag("ptx_coef", float, 0.05),
)
CREDIT = (
    Flag("advantage_estimator", default="gae", choices=ESTIMATORS),
    Flag("gamma", float, 1.0),
    Flag("lambd", float, 1.0),
    Flag("eps_clip", float, 0.2),
    Flag("eps_clip_low_high", float, nargs=2),
    Flag("dual_clip", float),
    Flag("value_clip", float, 0.5),
    Flag("entropy_loss_coef", float),
    Flag("policy_loss_type", default="ppo", choices=("ppo", "gspo")),
    *switches("no_advantage_std_norm", "normalize_reward"),
    Flag("reward_clip_range", float, (-10.0, 10.0), nargs=2),
    Flag("overlong_buffer_len", float),
    Flag("overlong_penalty_factor", float, 1.0),
    Flag("stop_properly_penalty_coef", float),
    *switches("dynamic_filtering"),
    Flag("dynamic_filtering_reward_range", float, (0.0, 1.0), nargs=2),
    Flag("remote_rm_url"),
    Flag("agent_func_path"),
)
KL = (
    Flag("init_kl_coef", float, 0.01),
    Flag("kl_target", float),
    Flag("kl_horizon", int, 10000),
    *switches("use_kl_loss"),
    Flag("kl_estimator", default="k1", choices=("k1", "k2", "k3")),
)
CORRECTION = (
    *switches("enable_vllm_is_correction", "use_icepop"),
    Flag("vllm_is_truncated_threshold", float, (0.5, 5.0), nargs=2),
)
GENERATION = (
    Flag("prompt_max_len", int, 1024),
    Flag("generate_max_len", int, 1024),
    Flag("max_len", int),
    Flag("temperature", float, 1.0),
    Flag("top_p", float, 1.0),
    Flag("top_k", int, -1),  # not in v0.9.2
)
CHECKPOINT = (
    Flag("save_path", default="./ckpt"),
    Flag("ckpt_path", default="./ckpt/checkpoints_ppo_ray"),
    Flag("save_steps", int, -1),
    Flag("eval_steps", int, -1),
    Flag("max_ckpt_num", int, 3),
    Flag("max_ckpt_mem", float, 1e8),
    *switches("save_hf_ckpt", "disable_ds_ckpt", "load_checkpoint", "use_ds_universal_ckpt", "save_value_network"),
)
LOGGING = (
    Flag("logging_steps", int, 1),
    Flag("use_wandb", secret=True),
    Flag("wandb_org"),
    Flag("wandb_group"),
    Flag("wandb_project", default="openrlhf_train_ppo"),
    Flag("wandb_run_name", default="ppo"),  # OpenRLHF appends the time
    Flag("use_tensorboard"),
)

TOPICS = {
    "models and data": MODEL_DATA,
    "placement": PLACEMENT,
    "DeepSpeed, precision, LoRA": DEEPSPEED,
    "batches": BATCHES,
    "optimization": OPTIMIZATION,
    "KL": KL,
    "rewards, advantages, loss": CREDIT,
    "importance-sampling correction": CORRECTION,
    "generation": GENERATION,
    "checkpoints": CHECKPOINT,
    "logging": LOGGING,
}
# v0.9.2's flags by name.
PPO = {flag.name: flag for flags in TOPICS.values() for flag in flags}

# Flags of later versions only. `critic_*`: later versions configure each role separately.
LATER = {
    flag.name: flag
    for flag in (
        Flag("vllm_is_correction_type", default="tis", choices=("tis", "icepop", "seq-mask-tis")),
        Flag("max_new_tokens", int),
        Flag("min_lr_ratio", float, 0.1),
        Flag("adam_eps", float, 1e-8),
        Flag("optim", default="adam", choices=("adam", "muon")),
        Flag("critic_lr_scheduler"),
        Flag("critic_lr_warmup_ratio", float),
        Flag("critic_min_lr_ratio", float),
        Flag("critic_adam_betas", float, nargs=2),
        Flag("critic_adam_eps", float),
        Flag("critic_l2", float),
        Flag("critic_max_norm", float),
        Flag("critic_optim", choices=("adam", "muon")),
        *(
            Flag(f"{role}muon_{name}", kind, default)
            for role in ("", "critic_")
            for name, kind, default in (("lr", float, 0.02), ("momentum", float, 0.95), ("ns_steps", int, 5))
        ),
        *switches("muon_nesterov", "muon_no_nesterov", "critic_muon_nesterov", "critic_muon_no_nesterov"),
        *switches("ref_offload", "reward_offload", "partial_rollout", "freeze_visual_encoder"),
        Flag("image_key", default="images"),
        Flag("max_images_per_prompt", int, 0),
        Flag("dataloader_num_workers", int, 0),
        Flag("best_metric_key", default=""),
        Flag("experts_implementation"),
        Flag("rollout_tasks_per_gpu", int, 32),
    )
}
# Flags of earlier versions.
EARLIER = {
    flag.name: flag
    for flag in (
        *switches("bf16", "flash_attn", "use_kl_estimator_k3", "disable_trace_cache", "torch_compile"),
        Flag("head_prefix"),
        Flag("pretrain_data"),
        Flag("pretrain_data_probs"),
        Flag("pretrain_split", default="train"),
    )
}
# Earlier flag -> flag and value in v0.9.2; None keeps the value.
FLAG_ALIASES: dict[str, tuple[str, Any]] = {
    "bf16": ("param_dtype", "bf16"),
    "flash_attn": ("attn_implementation", "flash_attention_2"),
    "use_kl_estimator_k3": ("kl_estimator", "k3"),
    "head_prefix": ("value_head_prefix", None),
}


def _under(section: str, names: str, prefix: str = "") -> dict[str, str]:
    """section.name -> prefix + name."""
    return {f"{section}.{name}": f"{prefix}{name}" for name in names.split()}


_ROLE_SIZES = "num_nodes num_gpus_per_node"
_OPTIMIZER = {
    "adam.betas": "adam_betas",
    "adam.eps": "adam_eps",
    "adam.weight_decay": "l2",
    "lr_scheduler": "lr_scheduler",
    "lr_warmup_ratio": "lr_warmup_ratio",
    "min_lr_ratio": "min_lr_ratio",
    "max_norm": "max_norm",
    "optim": "optim",
    **{f"muon.{name}": f"muon_{name}" for name in ("lr", "momentum", "ns_steps", "nesterov", "no_nesterov")},
}
DOTTED = {
    **{
        f"{role}.{name}": f"{role}_{name}"
        for role in ("actor", "critic", "ref", "reward")
        for name in _ROLE_SIZES.split()
    },
    "actor.model_name_or_path": "pretrain",
    "reward.model_name_or_path": "reward_pretrain",
    "critic.model_name_or_path": "critic_pretrain",
    "actor.adam.lr": "actor_learning_rate",
    "critic.adam.lr": "critic_learning_rate",
    **{f"actor.{dotted}": name for dotted, name in _OPTIMIZER.items()},
    **{f"critic.{dotted}": f"critic_{name}" for dotted, name in _OPTIMIZER.items()},
    "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "actor.gradient_checkpointing_reentrant": "gradient_checkpointing_use_reentrant",
    "actor.entropy_coef": "entropy_loss_coef",
    **_under("actor", "eps_clip eps_clip_low_high dual_clip policy_loss_type aux_loss_coef freeze_visual_encoder"),
    **_under("critic", "value_clip save_value_network"),
    "critic.freezing_steps": "freezing_actor_steps",
    "data.prompt_dataset": "prompt_data",
    "data.prompt_probs": "prompt_data_probs",
    **_under("data", "input_key label_key output_key input_template apply_chat_template max_samples prompt_split"),
    **_under("data", "max_len disable_fast_tokenizer dataloader_num_workers image_key max_images_per_prompt"),
    **_under("eval", "dataset split temperature n_samples_per_prompt steps", "eval_"),
    **_under("train", "max_epochs num_episodes colocate_actor_ref colocate_critic_reward agent_func_path"),
    **_under("train", "async_queue_size enable_ema ema_beta seed"),
    "train.batch_size": "train_batch_size",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.colocate_all": "colocate_all_models",
    "train.async_enable": "async_train",
    "train.partial_rollout_enable": "partial_rollout",
    "train.dynamic_batch_enable": "use_dynamic_batch",
    "train.max_tokens_per_gpu": "train_max_tokens_per_gpu",
    "train.full_determinism_enable": "full_determinism",
    "rollout.batch_size": "rollout_batch_size",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu",
    **_under("rollout", "n_samples_per_prompt temperature top_p top_k max_new_tokens vllm_generate_batch_size"),
    **_under(
        "vllm",
        "num_engines tensor_parallel_size gpu_memory_utilization sync_backend sync_with_ray enable_sleep",
        "vllm_",
    ),
    **_under("vllm", "enforce_eager enable_prefix_caching"),
    **_under("ds", "zero_stage zpg overlap_comm adam_offload param_dtype attn_implementation packing_samples"),
    **_under("ds", "load_in_4bit deepcompile use_liger_kernel grad_accum_dtype value_head_prefix ring_attn_size"),
    **_under("ds", "experts_implementation"),
    "ds.enable_sleep": "deepspeed_enable_sleep",
    "ds.tensor_parallel_size": "ds_tensor_parallel_size",
    "ds.ring_attn_head_stride": "ring_head_stride",
    "ds.use_universal_ckpt": "use_ds_universal_ckpt",
    **_under("ds.lora", "rank alpha dropout", "lora_"),
    "ds.lora.target_modules": "target_modules",
    **_under("ref", "offload", "ref_"),
    **_under("reward", "offload", "reward_"),
    "reward.remote_url": "remote_rm_url",
    "reward.normalize_enable": "normalize_reward",
    "reward.clip_range": "reward_clip_range",
    **_under("reward", "overlong_buffer_len overlong_penalty_factor stop_properly_penalty_coef"),
    "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.use_loss": "use_kl_loss",
    **_under("algo.kl", "target horizon estimator", "kl_"),
    "algo.advantage.estimator": "advantage_estimator",
    **_under("algo.advantage", "gamma lambd"),
    "algo.advantage.no_std_norm": "no_advantage_std_norm",
    "algo.advantage.is_correction_enable": "enable_vllm_is_correction",
    "algo.advantage.is_correction_threshold": "vllm_is_truncated_threshold",
    "algo.advantage.is_correction_type": "vllm_is_correction_type",
    "algo.dynamic_filtering_enable": "dynamic_filtering",
    "algo.dynamic_filtering_range": "dynamic_filtering_reward_range",
    "ckpt.output_dir": "save_path",
    "ckpt.path": "ckpt_path",
    "ckpt.load_enable": "load_checkpoint",
    "ckpt.save_hf": "save_hf_ckpt",
    "ckpt.disable_ds": "disable_ds_ckpt",
    "ckpt.max_num": "max_ckpt_num",
    "ckpt.max_mem": "max_ckpt_mem",
    **_under("ckpt", "save_steps best_metric_key"),
    "logger.logging_steps": "logging_steps",
    "logger.wandb.key": "use_wandb",
    **_under("logger.wandb", "org group project run_name", "wandb_"),
    "logger.tensorboard_dir": "use_tensorboard",
    "local_rank": "local_rank",
    "use_ms": "use_ms",
}
# Defaults that changed with the dotted names. Since then the critic's settings do not follow the policy's.
DOTTED_DEFAULTS: dict[str, Any] = {
    "micro_train_batch_size": 1,
    "micro_rollout_batch_size": 1,
    "max_len": 2048,
    "max_ckpt_mem": float("inf"),
    **{f"critic_{name}": PPO[name].default for name in ("lr_scheduler", "lr_warmup_ratio", "adam_betas", "max_norm")},
    "critic_l2": 0.0,
    "critic_min_lr_ratio": 0.1,
    "critic_adam_eps": 1e-8,
    "critic_optim": "adam",
}
# All flags by name.
ALL = {**PPO, **LATER, **EARLIER}
