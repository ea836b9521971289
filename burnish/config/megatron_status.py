"""Megatron's keys: what of them waits, and what can have no effect here and why. The others act.

Megatron-Core itself is not used: `strategy: megatron` is the same backend with its layers shared out over tensor ranks.
"""

from __future__ import annotations

from burnish.config.names import Line
from burnish.config.pending import MEGATRON_ONLY, Pending

OVERRIDES = "*.megatron.override_transformer_config"


def _waiting(waits_for: str, *patterns: str) -> tuple[Pending, ...]:
    return tuple(Pending(one, waits_for, "without megatron", MEGATRON_ONLY) for one in patterns)


MEGATRON_PENDING: tuple[Pending, ...] = (
    *_waiting(
        "pipeline stages", "*.megatron.pipeline_model_parallel_size", "*.megatron.virtual_pipeline_model_parallel_size"
    ),
    *_waiting(
        "mixtures of experts",
        "*.megatron.expert_model_parallel_size",
        *(f"{OVERRIDES}.moe_{name}" for name in ("router_dtype", "router_load_balancing_type", "router_bias_*")),
        *(f"{OVERRIDES}.moe_{name}" for name in ("aux_loss_coeff", "z_loss_coeff")),
    ),
    *_waiting(
        "Megatron-Core itself",
        "*.megatron.override_mcore_model_config",
        "*.load_weight",
        "*.optim.optimizer",
        "*.optim.use_checkpoint_opt_param_scheduler",
        "*.optim.override_optimizer_config",
    ),
)

_HUB_FORMAT = Line(
    "weights are read from the model's folder as Hugging Face has them, and checkpoints suit any number of ranks",
    "权重始终按 Hugging Face 格式从模型目录读取，检查点适用于任意进程数",
)
_ONE_STAGE = Line("there is one pipeline stage", "只有一个流水线级")
_KERNELS = Line("it names a kernel of Megatron-Core, whose result is the same", "它指定 Megatron-Core 的算子，结果不变")
_EXPERT_KERNELS = Line("it says how experts are computed, not what", "它只决定专家如何计算，不改变结果")
_FROZEN = Line("nothing of it is taught", "该角色不训练")
_STATE = Line(
    "where the optimizer's state lies is said by megatron.optimizer_offload; it is float32",
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
_STAGE_FIELDS = (
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    # MindSpeed's words for the same
    *("num_layer_list", "num_layers_per_virtual_pipeline_stage", "noop_layers"),
)
_STATE_FIELDS = (
    *("optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"),
    "use_precision_aware_optimizer",
)

MEGATRON_INERT: dict[str, Line] = {
    "*.fsdp_config.strategy": Line("the role's own strategy decides", "由角色自身的 strategy 决定"),
    "*.megatron.grad_offload": Line("gradients are freed after every update", "梯度在每次更新后即释放"),
    "actor_rollout_ref.ref.megatron.optimizer_offload": _FROZEN,
    "reward_model.megatron.optimizer_offload": _FROZEN,
    "actor_rollout_ref.ref.megatron.override_transformer_config": _FROZEN,
    "reward_model.megatron.override_transformer_config": _FROZEN,
    "*.megatron.expert_tensor_parallel_size": Line(
        "experts are whole on every rank that has their layer", "每个进程都持有完整的专家"
    ),
    "*.megatron.sequence_parallel": Line(
        "it saves memory and changes no result: between matrices, tensor ranks hold the same activations",
        "它只省内存、不改变结果：矩阵之间，张量并行的各进程持有相同的激活值",
    ),
    "*.megatron.use_distributed_optimizer": Line(
        "FSDP2 always shares the optimizer's state over data ranks", "FSDP2 始终在数据并行的进程间切分优化器状态"
    ),
    "*.megatron.use_dist_checkpointing": _HUB_FORMAT,
    "*.megatron.dist_checkpointing_path": _HUB_FORMAT,
    "*.megatron.dist_checkpointing_prefix": _HUB_FORMAT,
    "*.megatron.use_mbridge": _HUB_FORMAT,
    "*.megatron.vanilla_mbridge": _HUB_FORMAT,
    "*.checkpoint.mbridge_config": _HUB_FORMAT,
    "*.megatron.seed": Line("every random number follows from trainer.seed", "所有随机数都由 trainer.seed 决定"),
    "*.megatron.override_ddp_config": Line(
        "FSDP2 sums gradients in place of Megatron's DDP; fsdp_config.mixed_precision.reduce_dtype says in what",
        "梯度由 FSDP2 而非 Megatron 的 DDP 汇总，类型由 fsdp_config.mixed_precision.reduce_dtype 决定",
    ),
    "*.megatron.override_ddp_config.*": Line("FSDP2 sums gradients in place of Megatron's DDP", "梯度由 FSDP2 汇总"),
    "*.megatron.forward_only": Line("the role decides", "由角色自身决定"),
    f"{OVERRIDES}.attention_backend": Line("model.attn_implementation decides", "由 model.attn_implementation 决定"),
    f"{OVERRIDES}.recompute_modules": Line(
        "selective recomputing is what attention's kernels do in any case", "选择性重算本就由注意力算子完成"
    ),
    f"{OVERRIDES}.context_parallel_algo": Line("heads are exchanged where they divide", "能整除时始终交换注意力头"),
    f"{OVERRIDES}.moe_tp_extend_ep": Line("experts are whole on every rank", "每个进程都持有完整的专家"),
    **{f"{OVERRIDES}.{name}": _KERNELS for name in _KERNEL_FIELDS},
    **{f"{OVERRIDES}.{name}": _EXPERT_KERNELS for name in _EXPERT_FIELDS},
    **{f"{OVERRIDES}.{name}": _ONE_STAGE for name in _STAGE_FIELDS},
    **{f"*.optim.override_optimizer_config.{name}": _STATE for name in _STATE_FIELDS},
    "*.optim.weight_decay_incr_style": Line(
        "the decay that it starts from and grows to is one number (weight_decay)",
        "起点与终点是同一个数（weight_decay）",
    ),
    "actor_rollout_ref.rollout.layer_name_map": Line(
        "weights are sent under the names Hugging Face gives them", "权重以 Hugging Face 的名称发送"
    ),
}

# Fields of Megatron's transformer config that are known: those above, and those that act (megatron.py reads them).
ACTING_FIELDS = ("recompute_granularity", "recompute_method", "recompute_num_layers")
