"""The flags of OpenRLHF v0.9.2's train_ppo_ray, with their types and defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """One flag. `kind` is bool for a switch, which takes no value; nargs is a number of values, or "*"."""

    name: str  # as v0.9.2 writes it, without the dashes
    kind: type = str
    default: Any = None
    nargs: int | str = 1
    choices: tuple[str, ...] = ()
    secret: bool = False  # its value is never shown


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
    Flag("output_key"),  # of the seed; v0.9.2 has it for SFT only
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
    Flag("max_steps", int),  # of the seed
    *switches("use_dynamic_batch"),
    Flag("train_max_tokens_per_gpu", int, 16192),
    Flag("rollout_max_tokens_per_gpu", int),
    Flag("freezing_actor_steps", int, -1),
)
OPTIMISATION = (
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
    Flag("top_k", int, -1),  # of the seed
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
    Flag("wandb_run_name", default="ppo"),  # theirs adds the time of day
    Flag("use_tensorboard"),
)

SUBJECTS = {
    "models and data": MODEL_DATA,
    "placement": PLACEMENT,
    "DeepSpeed, precision, LoRA": DEEPSPEED,
    "batches": BATCHES,
    "optimisation": OPTIMISATION,
    "KL": KL,
    "rewards, credit, loss": CREDIT,
    "importance correction": CORRECTION,
    "generation": GENERATION,
    "checkpoints": CHECKPOINT,
    "logging": LOGGING,
}
PPO = {flag.name: flag for flags in SUBJECTS.values() for flag in flags}
