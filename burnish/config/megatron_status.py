"""Megatron's keys: which have no effect and why, and which values are refused. All others act.

Megatron-Core is not used: `strategy: megatron` selects the same FSDP2 backend, with tensor, pipeline and expert
parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.names import Line

OVERRIDES = "*.megatron.override_transformer_config"
OPTIMIZER_FIELDS = "optim.override_optimizer_config"
FROZEN_ROLES = ("actor_rollout_ref.ref", "reward_model")

ONE_STAGE = Line(
    "there is only one pipeline stage (megatron.pipeline_model_parallel_size)",
    "只有一个流水线级（megatron.pipeline_model_parallel_size）",
)
# Fields of Megatron's transformer config about stages: the layers on some of them, and what counts as a layer.
LAYER_FIELDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "num_layer_list")
COUNTED_FIELDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
# Fields about what a role learns.
RECOMPUTE_FIELDS = ("recompute_granularity", "recompute_method", "recompute_num_layers")
BALANCING, BALANCING_LOSS, DROPOUT = "moe_router_load_balancing_type", "moe_aux_loss_coeff", "attention_dropout"


@dataclass(frozen=True)
class RefusedField:
    """A field of Megatron's configs that is refused, except where its value changes nothing."""

    off: tuple[Any, ...]  # besides null
    why: str
    instead: str = "leave it out"  # * is the role's section

    def refuses(self, value: Any) -> bool:
        return value is not None and value not in self.off


# Sizes that are keys of the megatron section; Megatron's patches for Ascend need them among the fields, too.
SIZE_FIELDS = tuple(
    f"{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
)
_NUM_EACH = "+*.megatron.override_transformer_config.num_layer_list=[3,5] (the layers of each stage)"
REFUSED_STAGE_FIELDS = {
    "pipeline_model_parallel_layout": RefusedField((), "layouts as text are not read", _NUM_EACH),
    "noop_layers": RefusedField(([],), "no layers without effect are inserted", _NUM_EACH),
    "num_layers_per_virtual_pipeline_stage": RefusedField(
        (), "the number of chunks is set instead", "*.megatron.virtual_pipeline_model_parallel_size=2"
    ),
}
REFUSED_LEARNING_FIELDS = {
    "hidden_dropout": RefusedField((0,), "the model's classes have no dropout of hidden states"),
    "moe_z_loss_coeff": RefusedField((0,), "routers have no z-loss"),
    "moe_router_bias_update_rate": RefusedField((0,), "the bias of routers is not updated"),
}
REFUSED_FIELDS = {
    "fp8": RefusedField((False,), "training in 8 bits is not supported; megatron.dtype sets the compute dtype"),
    "mtp_num_layers": RefusedField((0,), "multi-token prediction is not supported"),
    "moe_expert_capacity_factor": RefusedField((), "every expert takes all tokens that are sent to it"),
    "moe_pad_expert_input_to_capacity": RefusedField((False,), "every expert takes all tokens that are sent to it"),
}
_FLOAT32 = RefusedField(("fp32", "float32", "torch.float32"), "the optimizer and its state are float32")
REFUSED_OPTIMIZER_FIELDS = {
    **{f"{name}_dtype": _FLOAT32 for name in ("main_grads", "main_params", "exp_avg", "exp_avg_sq")},
    "decoupled_weight_decay": RefusedField((True,), "the weight decay of adam is decoupled (AdamW)"),
    **{name: RefusedField((False,), "torch's optimizer is used without it") for name in ("amsgrad", "maximize")},
    "lr": RefusedField((), "the learning rate is a key of its own", "*.optim.lr=1e-6"),
}
STAGE_FIELDS = (*LAYER_FIELDS, *COUNTED_FIELDS, *REFUSED_STAGE_FIELDS)
LEARNING_FIELDS = (*RECOMPUTE_FIELDS, BALANCING, BALANCING_LOSS, DROPOUT, *REFUSED_LEARNING_FIELDS)

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
    "the optimizer state is float32, and moves to CPU memory as a whole (optimizer_cpu_offload)",
    "优化器状态为 float32，并整体移到 CPU 内存（optimizer_cpu_offload）",
)
_NO_RESULT = Line("it changes speed or memory, not results", "只影响速度或内存，不改变结果")
_ROUTER_DTYPE = Line(
    "routers score and choose experts in float32; their matrix product has the compute dtype",
    "路由以 float32 打分并选择专家，其矩阵乘法使用计算类型",
)
_KERNEL_FIELDS = (
    *("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion", "gradient_accumulation_fusion"),
    *("masked_softmax_fusion", "persist_layer_norm", "deallocate_pipeline_outputs", "use_flash_attn"),
    *("tp_comm_*", "cross_entropy_loss_fusion", "cross_entropy_fusion_impl", "distribute_saved_activations"),
    *("overlap_p2p_comm", "batch_p2p_comm", "variable_seq_lengths", "cp_comm_type"),
)
_EXPERT_FIELDS = (
    *("moe_grouped_gemm", "moe_permute_fusion", "moe_enable_deepep", "moe_token_dispatcher_type"),
    *("moe_shared_expert_overlap", "moe_router_fusion", "moe_deepep_num_sms", "overlap_moe_expert_parallel_comm"),
)
_STATE_FIELDS = ("optimizer_offload_fraction", "use_precision_aware_optimizer")
_SPEED_FIELDS = (
    *("overlap_*", "pin_cpu_*", "use_torch_optimizer_for_cpu_offload", "use_distributed_optimizer"),
    *("foreach", "fused", "capturable"),
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
    **{
        f"{role}.megatron.{name}": FROZEN
        for role in FROZEN_ROLES
        for name in (
            "override_mcore_model_config*",
            *(f"override_transformer_config.{field}" for field in LEARNING_FIELDS),
        )
    },
    f"{OVERRIDES}.moe_router_dtype": _ROUTER_DTYPE,
    f"{OVERRIDES}.attention_backend": Line("model.attn_implementation decides", "由 model.attn_implementation 决定"),
    f"{OVERRIDES}.recompute_modules": Line(
        "the attention kernels already recompute selectively", "注意力算子本就进行选择性重算"
    ),
    f"{OVERRIDES}.context_parallel_algo": Line(
        "attention heads are exchanged whenever their number is divisible", "注意力头数能整除时始终交换注意力头"
    ),
    **{f"{OVERRIDES}.{name}": Line(f"megatron.{name} decides", f"由 megatron.{name} 决定") for name in SIZE_FIELDS},
    f"{OVERRIDES}.moe_tp_extend_ep": Line("every rank holds whole experts", "每个进程都持有完整的专家"),
    **{f"{OVERRIDES}.{name}": _KERNELS for name in _KERNEL_FIELDS},
    **{f"{OVERRIDES}.{name}": _EXPERT_KERNELS for name in _EXPERT_FIELDS},
    **{f"*.{OPTIMIZER_FIELDS}.{name}": _STATE for name in _STATE_FIELDS},
    **{f"*.{OPTIMIZER_FIELDS}.{name}": _NO_RESULT for name in _SPEED_FIELDS},
    "*.optim.weight_decay_incr_style": Line(
        "weight decay is constant (weight_decay)",
        "权重衰减是常数（weight_decay）",
    ),
    "actor_rollout_ref.rollout.layer_name_map": Line(
        "weights are sent under their Hugging Face names", "权重以 Hugging Face 的名称发送"
    ),
}
