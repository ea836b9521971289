"""fsdp_config.* and megatron.*: parallelism, offloading and precision of a role's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, one_of, section, setting
from burnish.config.names import DTYPES, STRATEGIES


@dataclass
class WrapPolicyConfig:
    """Which modules become FSDP units."""

    min_num_params: int = at_least(0, 0)
    """Wrap every module with at least this many parameters; 0 wraps the model's layers."""

    transformer_layer_cls_to_wrap: list[str] = setting([], comma_separated=True)
    """Class names of the layers to wrap; empty uses the model's own list."""


@dataclass
class MixedPrecisionConfig:
    """dtypes of FSDP's mixed precision."""

    param_dtype: str | None = one_of(None, DTYPES, verl="bf16")
    """Compute dtype of forward and backward; null is bf16 on GPU and float32 on CPU."""

    reduce_dtype: str = one_of("fp32", DTYPES)
    """dtype of gradient reduction over ranks."""

    buffer_dtype: str = one_of("fp32", DTYPES)
    """dtype of buffers."""


@dataclass
class FsdpConfig:
    """FSDP: sharding, offloading, precision."""

    wrap_policy: WrapPolicyConfig = section(WrapPolicyConfig)
    """Which modules become FSDP units."""

    param_offload: bool = False
    """Keep the weights in CPU memory while this role is idle."""

    optimizer_offload: bool = False
    """Keep the optimizer state in CPU memory outside updates."""

    offload_policy: bool = False
    """FSDP2's CPU offload policy: weights, gradients and optimizer state in CPU memory during training."""

    reshard_after_forward: bool | int = True
    """Free gathered weights after the forward pass; an integer shards them over that many ranks instead."""

    fsdp_size: int = at_least(-1, -1)
    """Ranks in one sharding group; -1 shards over all."""

    forward_prefetch: bool = False
    """Gather the next layer's weights while the current one computes."""

    model_dtype: str = one_of("fp32", DTYPES)
    """dtype of the stored weights that the optimizer updates."""

    use_orig_params: bool = False
    """FSDP1's option to keep the original parameters."""

    mixed_precision: MixedPrecisionConfig = section(MixedPrecisionConfig)
    """dtypes of mixed precision."""

    forward_only: bool = False
    """Build the model for forward passes only."""

    strategy: str = one_of("fsdp", STRATEGIES)
    """Backend of this section in newer verl; the role's own strategy decides here."""


PIPELINE_SCHEDULES = ("1f1b", "gpipe")


@dataclass
class MegatronConfig:
    """Megatron-Core: parallel sizes, offloading, checkpoints."""

    param_offload: bool = False
    """Keep the weights in CPU memory while this role is idle."""

    grad_offload: bool = False
    """Keep the gradients in CPU memory while this role is idle."""

    optimizer_offload: bool = False
    """Keep the optimizer state in CPU memory outside updates."""

    tensor_model_parallel_size: int = at_least(1, 1)
    """Tensor parallelism: ranks that share the weight matrices."""

    expert_model_parallel_size: int = at_least(1, 1)
    """Expert parallelism: ranks that share the experts of an MoE model."""

    expert_tensor_parallel_size: int | None = at_least(None, 1)
    """Megatron: ranks that share the matrices of one expert; null means the tensor-parallel size. Here experts are
    whole, and expert_model_parallel_size x this many ranks hold different ones."""

    pipeline_model_parallel_size: int = at_least(1, 1)
    """Pipeline parallelism: ranks that hold different layers of the model."""

    virtual_pipeline_model_parallel_size: int | None = at_least(None, 1)
    """Chunks of layers on each of those ranks, for the interleaved schedule; null is one."""

    pipeline_schedule: str = one_of("1f1b", PIPELINE_SCHEDULES)
    """Order of the passes of a pipeline: 1f1b alternates forward and backward, gpipe runs all forward passes first."""

    context_parallel_size: int = at_least(1, 1)
    """Context parallelism: ranks that share one sequence."""

    sequence_parallel: bool = True
    """Shard activations between tensor-parallel layers along the sequence."""

    use_distributed_optimizer: bool = True
    """Shard the optimizer state over data-parallel ranks."""

    use_dist_checkpointing: bool = False
    """Load and save in Megatron's distributed checkpoint format."""

    dist_checkpointing_path: str | None = None
    """Folder of the distributed checkpoint."""

    dist_checkpointing_prefix: str = ""
    """Prefix of the names in the distributed checkpoint."""

    seed: int = 42
    """Seed of Megatron's own random state."""

    override_ddp_config: dict[str, Any] = setting({})
    """Further arguments of Megatron's DDP."""

    override_transformer_config: dict[str, Any] = setting(
        {
            "recompute_granularity": None,
            "recompute_modules": ["core_attn"],
            "recompute_method": None,
            "recompute_num_layers": None,
            "attention_backend": "flash",
        }
    )
    """Further fields of Megatron's transformer config, for instance recompute_granularity."""

    override_mcore_model_config: dict[str, Any] = setting({})
    """Further arguments of the Megatron model."""

    use_mbridge: bool = False
    """Convert weights to and from Hugging Face format with mbridge."""

    vanilla_mbridge: bool = True
    """Use mbridge instead of Megatron-Bridge."""

    forward_only: bool = False
    """Build the model for forward passes only."""

    dtype: str | None = one_of(None, DTYPES, verl="bfloat16")
    """Compute dtype of forward and backward; null uses fsdp_config.mixed_precision.param_dtype."""
