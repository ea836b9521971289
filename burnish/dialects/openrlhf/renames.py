"""Other names of v0.9.2's flags: those before it, those after it, and the dotted ones of v0.10.2 and later."""

from __future__ import annotations

from typing import Any

from burnish.dialects.openrlhf.flags import PPO, Flag, switches

# Flags that only later versions have, by the name used here. `critic_*`: later versions set each role by itself.
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
# Earlier flag -> the flag and value that v0.9.2 writes; None keeps the value.
SAME_AS: dict[str, tuple[str, Any]] = {
    "bf16": ("param_dtype", "bf16"),
    "flash_attn": ("attn_implementation", "flash_attention_2"),
    "use_kl_estimator_k3": ("kl_estimator", "k3"),
    "head_prefix": ("value_head_prefix", None),
}


def _under(section: str, names: str, prefix: str = "") -> dict[str, str]:
    """section.name -> prefix + name, for names that are otherwise the same."""
    return {f"{section}.{name}": f"{prefix}{name}" for name in names.split()}


_ROLES = "num_nodes num_gpus_per_node"
_LEARNING = {
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
    **{f"{role}.{name}": f"{role}_{name}" for role in ("actor", "critic", "ref", "reward") for name in _ROLES.split()},
    "actor.model_name_or_path": "pretrain",
    "reward.model_name_or_path": "reward_pretrain",
    "critic.model_name_or_path": "critic_pretrain",
    "actor.adam.lr": "actor_learning_rate",
    "critic.adam.lr": "critic_learning_rate",
    **{f"actor.{theirs}": name for theirs, name in _LEARNING.items()},
    **{f"critic.{theirs}": f"critic_{name}" for theirs, name in _LEARNING.items()},
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
# Defaults that changed with the dotted names. There the critic has its own, whatever the policy's are set to.
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
ALL = {**PPO, **LATER, **EARLIER}
