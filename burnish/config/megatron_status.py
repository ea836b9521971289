"""Megatron's keys: which are not supported yet, and which have no effect and why. All others act.

Megatron-Core is not used: `strategy: megatron` selects the same FSDP2 backend, with tensor, pipeline and expert
parallelism.
"""

from __future__ import annotations

from burnish.config.conditions import MEGATRON_ROLES, no_role_uses_megatron, role_has_one_stage
from burnish.config.names import Line
from burnish.config.pending import MEGATRON_CORE, MEGATRON_ONLY, MOE_OPTIONS, PIPELINE_LAYOUTS, Pending

OVERRIDES = "*.megatron.override_transformer_config"


def _pending(feature: Line, *patterns: str) -> tuple[Pending, ...]:
    return tuple(Pending(pattern, feature, no_role_uses_megatron, MEGATRON_ONLY) for pattern in patterns)


ONE_STAGE = Line(
    "there is only one pipeline stage (megatron.pipeline_model_parallel_size)",
    "只有一个流水线级（megatron.pipeline_model_parallel_size）",
)
# Fields of Megatron's transformer config about stages. The first are supported, the others are with one stage only.
STAGE_FIELDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "num_layer_list")
_OTHER_STAGE_FIELDS = (
    *("pipeline_model_parallel_layout", "account_for_embedding_in_pipeline_split"),
    *("account_for_loss_in_pipeline_split", "num_layers_per_virtual_pipeline_stage", "noop_layers"),
)

MEGATRON_PENDING: tuple[Pending, ...] = (
    *(
        Pending(
            f"{section}.megatron.override_transformer_config.{name}",
            PIPELINE_LAYOUTS,
            role_has_one_stage(section),
            ONE_STAGE,
        )
        for section in MEGATRON_ROLES
        for name in _OTHER_STAGE_FIELDS
    ),
    *_pending(
        MOE_OPTIONS,
        *(f"{OVERRIDES}.moe_{name}" for name in ("router_dtype", "router_load_balancing_type", "router_bias_*")),
        *(f"{OVERRIDES}.moe_{name}" for name in ("aux_loss_coeff", "z_loss_coeff")),
    ),
    *_pending(
        MEGATRON_CORE,
        "*.megatron.override_mcore_model_config",
        "*.load_weight",
        "*.optim.optimizer",
        "*.optim.use_checkpoint_opt_param_scheduler",
        "*.optim.override_optimizer_config",
    ),
)

_HUB_FORMAT = Line(
    "weights are always read in Hugging Face format, and checkpoints can be loaded with any number of ranks",
    "权重始终按 Hugging Face 格式从模型目录读取，检查点适用于任意进程数",
)
_KERNELS = Line(
    "it selects a Megatron-Core kernel and does not change results", "它选择 Megatron-Core 的算子，不改变结果"
)
_EXPERT_KERNELS = Line(
    "it selects how experts are computed and does not change results", "它只决定专家如何计算，不改变结果"
)
FROZEN = Line("this role is not trained", "该角色不训练")
_STATE = Line(
    "the optimizer state is float32, and megatron.optimizer_offload decides where it is stored",
    "优化器状态的位置由 megatron.optimizer_offload 决定，其类型为 float32",
)
_KERNEL_FIELDS = (
    *("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion", "gradient_accumulation_fusion"),
    *("masked_softmax_fusion", "persist_layer_norm", "deallocate_pipeline_outputs", "use_flash_attn"),
    *("tp_comm_overlap", "cross_entropy_loss_fusion", "cross_entropy_fusion_impl"),
)
_EXPERT_FIELDS = (
    *("moe_grouped_gemm", "moe_permute_fusion", "moe_enable_deepep", "moe_token_dispatcher_type"),
    *("moe_shared_expert_overlap", "moe_router_fusion"),
)
_STATE_FIELDS = (
    *("optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"),
    "use_precision_aware_optimizer",
)

MEGATRON_INERT: dict[str, Line] = {
    "*.fsdp_config.strategy": Line("the role's own strategy decides", "由角色自身的 strategy 决定"),
    "*.megatron.grad_offload": Line("gradients are freed after every update", "梯度在每次更新后即释放"),
    "actor_rollout_ref.ref.megatron.optimizer_offload": FROZEN,
    "reward_model.megatron.optimizer_offload": FROZEN,
    "*.megatron.sequence_parallel": Line(
        "activations between tensor-parallel layers are replicated; results are the same",
        "张量并行层之间的激活值在各进程上重复保存；结果不变",
    ),
    "*.megatron.use_distributed_optimizer": Line(
        "FSDP2 always shards the optimizer state over data-parallel ranks", "FSDP2 始终在数据并行的进程间切分优化器状态"
    ),
    "*.megatron.use_dist_checkpointing": _HUB_FORMAT,
    "*.megatron.dist_checkpointing_path": _HUB_FORMAT,
    "*.megatron.dist_checkpointing_prefix": _HUB_FORMAT,
    "*.megatron.use_mbridge": _HUB_FORMAT,
    "*.megatron.vanilla_mbridge": _HUB_FORMAT,
    "*.checkpoint.mbridge_config": _HUB_FORMAT,
    "*.megatron.seed": Line("all random numbers derive from trainer.seed", "所有随机数都由 trainer.seed 决定"),
    "*.megatron.override_ddp_config": Line(
        "FSDP2 reduces gradients instead of Megatron's DDP; fsdp_config.mixed_precision.reduce_dtype sets the dtype",
        "梯度由 FSDP2 而非 Megatron 的 DDP 归约，类型由 fsdp_config.mixed_precision.reduce_dtype 决定",
    ),
    "*.megatron.override_ddp_config.*": Line("FSDP2 reduces gradients instead of Megatron's DDP", "梯度由 FSDP2 归约"),
    "*.megatron.forward_only": Line("the role decides whether it is trained", "由角色自身决定是否训练"),
    f"{OVERRIDES}.attention_backend": Line("model.attn_implementation decides", "由 model.attn_implementation 决定"),
    f"{OVERRIDES}.recompute_modules": Line(
        "the attention kernels already recompute selectively", "注意力算子本就进行选择性重算"
    ),
    f"{OVERRIDES}.context_parallel_algo": Line(
        "attention heads are exchanged whenever their number is divisible", "注意力头数能整除时始终交换注意力头"
    ),
    f"{OVERRIDES}.moe_tp_extend_ep": Line("every rank holds whole experts", "每个进程都持有完整的专家"),
    **{f"{OVERRIDES}.{name}": _KERNELS for name in _KERNEL_FIELDS},
    **{f"{OVERRIDES}.{name}": _EXPERT_KERNELS for name in _EXPERT_FIELDS},
    **{f"*.optim.override_optimizer_config.{name}": _STATE for name in _STATE_FIELDS},
    "*.optim.weight_decay_incr_style": Line(
        "weight decay is constant (weight_decay)",
        "权重衰减是常数（weight_decay）",
    ),
    "actor_rollout_ref.rollout.layer_name_map": Line(
        "weights are sent under their Hugging Face names", "权重以 Hugging Face 的名称发送"
    ),
}

# Known fields of Megatron's transformer config: those above, and these, which act (megatron.py).
ACTING_FIELDS = ("recompute_granularity", "recompute_method", "recompute_num_layers", *STAGE_FIELDS)
