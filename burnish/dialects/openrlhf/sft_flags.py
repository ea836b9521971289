"""Flags of train_sft: v0.9.2's, earlier and later ones, and dotted names since v0.10.2."""

from __future__ import annotations

from burnish.dialects.openrlhf.flags import DOTTED, EARLIER, LATER, PPO, Flag, switches

SHARED = [
    "pretrain",
    "input_key",
    "output_key",
    "apply_chat_template",
    "disable_fast_tokenizer",
    "use_ms",
    "eval_dataset",
    "eval_split",
    "eval_steps",
    "zero_stage",
    "zpg",
    "ds_tensor_parallel_size",
    "ring_attn_size",
    "ring_head_stride",
    "param_dtype",
    "attn_implementation",
    "grad_accum_dtype",
    "local_rank",
    "gradient_checkpointing",
    "gradient_checkpointing_use_reentrant",
    "adam_offload",
    "overlap_comm",
    "deepcompile",
    "use_liger_kernel",
    "packing_samples",
    "load_in_4bit",
    "full_determinism",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "train_batch_size",
    "lr_scheduler",
    "lr_warmup_ratio",
    "adam_betas",
    "l2",
    "max_norm",
    "seed",
    "aux_loss_coef",
    "save_path",
    "save_steps",
    "max_ckpt_num",
    "max_ckpt_mem",
    "save_hf_ckpt",
    "disable_ds_ckpt",
    "load_checkpoint",
    "use_ds_universal_ckpt",
    "logging_steps",
    "use_wandb",
    "wandb_org",
    "wandb_group",
    "use_tensorboard",
]
SFT_ONLY = (
    Flag("dataset"),
    Flag("dataset_probs"),
    Flag("dataset_split", default="train"),
    Flag("input_template", default="User: {}\nAssistant: "),
    Flag("tokenizer_chat_template"),
    Flag("max_samples", int, 1_000_000),
    Flag("max_len", int, 2048),
    Flag("micro_train_batch_size", int, 8),
    Flag("max_epochs", int, 2),
    Flag("learning_rate", float, 5e-6),
    Flag("ckpt_path", default="./ckpt/checkpoints_sft"),
    Flag("wandb_project", default="openrlhf_train_sft"),
    Flag("wandb_run_name", default="sft"),  # OpenRLHF appends the time
    *switches("multiturn", "pretrain_mode"),
)
LATER_NAMES = ("min_lr_ratio", "adam_eps", "optim", "dataloader_num_workers", "experts_implementation")
MUON = tuple(f"muon_{name}" for name in ("lr", "momentum", "ns_steps", "nesterov", "no_nesterov"))
EARLIER_NAMES = ("bf16", "flash_attn", "torch_compile", "disable_trace_cache")

SFT_EARLIER = {**{name: name for name in EARLIER_NAMES}, "train_split": "dataset_split"}
SFT = {**{name: PPO[name] for name in SHARED}, **{flag.name: flag for flag in SFT_ONLY}}
SFT_ALL = {
    **SFT,
    **{name: LATER[name] for name in (*LATER_NAMES, *MUON)},
    **{name: EARLIER[name] for name in EARLIER_NAMES},
}
SFT_DOTTED = {
    **{spelling: name for spelling, name in DOTTED.items() if name in SFT_ALL and not spelling.startswith("actor.")},
    "model.model_name_or_path": "pretrain",
    "model.gradient_checkpointing_enable": "gradient_checkpointing",
    "model.gradient_checkpointing_reentrant": "gradient_checkpointing_use_reentrant",
    "model.pretrain_mode_enable": "pretrain_mode",
    "model.aux_loss_coef": "aux_loss_coef",
    "adam.lr": "learning_rate",
    "adam.betas": "adam_betas",
    "adam.eps": "adam_eps",
    "adam.weight_decay": "l2",
    "optim": "optim",
    "min_lr_ratio": "min_lr_ratio",
    **{f"muon.{name.removeprefix('muon_')}": name for name in MUON},
    **{f"data.{name}": name for name in ("dataset", "dataset_probs", "dataset_split", "multiturn")},
    **{f"data.{name}": name for name in ("input_template", "tokenizer_chat_template", "max_samples", "max_len")},
}
