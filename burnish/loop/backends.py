"""A role's backend from its sections of the config: weights, adapters, number formats, memory, kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from burnish.config.adapters import adapter_of, attention_of
from burnish.models.attention import packed_function
from burnish.models.compiled import can_compile, compile_layers, use_cpu_kernels
from burnish.models.device import pick_dtype
from burnish.models.fourbit import disable_inference_kernels, four_bits
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.liger import apply_liger, check_liger
from burnish.models.load import ModelSource, load_causal_lm, load_value_model
from burnish.models.logits import TORCH, LogitKernel
from burnish.models.lora import Adapters, adapter_dtype, add_adapters
from burnish.models.parts import check_head
from burnish.models.recompute import enable_recompute
from burnish.seeding import derive_seed
from burnish.training.backend import Backend, BackendOptions
from burnish.training.offload import has_own_memory
from burnish.training.optim import OptimizerOptions
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext
from burnish.training.sharding import Sharding

if TYPE_CHECKING:
    from burnish.config.adapters import TrainedModelConfig
    from burnish.config.engine import FsdpConfig

VALUE_HEAD = "score"


@dataclass(frozen=True)
class Precision:
    """What the weights are kept in, what products are computed in, and what buffers (RoPE's frequencies) are in."""

    kept: torch.dtype
    compute: torch.dtype
    buffers: torch.dtype

    @staticmethod
    def of(fsdp: FsdpConfig, key: str, device: torch.device, torch_dtype: str | None = None) -> Precision:
        """`torch_dtype` is the policy's other way to say model_dtype."""
        mixed = fsdp.mixed_precision
        kept = pick_dtype(torch_dtype or fsdp.model_dtype, device, f"{key}.model_dtype")
        compute = pick_dtype(mixed.param_dtype, device, f"{key}.mixed_precision.param_dtype")
        return Precision(
            kept=kept,
            # Nothing is won by computing in more bits than are kept.
            compute=kept if compute == torch.float32 else compute,
            buffers=pick_dtype(mixed.buffer_dtype, device, f"{key}.mixed_precision.buffer_dtype"),
        )


def check_kernels(models: dict[str, TrainedModelConfig], liger: bool, device: torch.device) -> None:
    """Refuse before anything is loaded what this device or this installation cannot do."""
    for key, model in models.items():
        asked, where = attention_of(model, key)
        packed_function(asked, device, where)
    if liger:
        check_liger(device, "actor_rollout_ref.model.use_liger")


def trained_language_model(
    source: ModelSource,
    model: TrainedModelConfig,
    fsdp: FsdpConfig,
    fsdp_key: str,
    device: torch.device,
    *,
    torch_dtype: str | None,
    liger: bool,
    head: LogitKernel = TORCH,
    compiled: bool = False,
    seed: int,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    """The policy's model: loaded, checked, adapted, ready to be taught."""
    key = source.key.rpartition(".")[0]
    precision = Precision.of(fsdp, fsdp_key, device, torch_dtype)
    made = _load(load_causal_lm, source, model, key, precision, device)
    if liger:
        apply_liger(made)
    adapters = _adapt(made, model, key, device, seed=seed)
    if compiled and not liger and not model.load_in_4bit:
        _compile(made, key, device, parallel, precision.compute)
    return _checked(
        _finish(made, adapters, model, key, precision, fsdp, fsdp_key, device, head=head, parallel=parallel)
    )


def trained_value_model(
    source: ModelSource,
    model: TrainedModelConfig,
    fsdp: FsdpConfig,
    fsdp_key: str,
    device: torch.device,
    *,
    seed: int,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    """The critic's model; with adapters its value head is trained whole beside them."""
    key = source.key.rpartition(".")[0]
    precision = Precision.of(fsdp, fsdp_key, device)
    made = _load(_load_values, source, model, key, precision, device)
    adapters = _adapt(made, model, key, device, heads=(VALUE_HEAD,), seed=seed)
    return _finish(made, adapters, model, key, precision, fsdp, fsdp_key, device, parallel=parallel)


def frozen_language_model(
    source: ModelSource,
    model: TrainedModelConfig,
    fsdp: FsdpConfig,
    fsdp_key: str,
    device: torch.device,
    *,
    torch_dtype: str | None,
    head: LogitKernel = TORCH,
    compiled: bool = False,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    """The reference's model: only read."""
    precision = Precision.of(fsdp, fsdp_key, device, torch_dtype)
    key = source.key.rpartition(".")[0]
    asked, where = attention_of(model, key)
    made = load_causal_lm(source, packed_function(asked, device, where), precision.kept)
    _cast_buffers(made, precision.buffers)
    if compiled:
        _compile(made, key, device, parallel, precision.compute)
    options = BackendOptions(
        offload=wants_offload(fsdp, device, parallel), head=head, sharding=sharding(fsdp, fsdp_key, device)
    )
    return _checked(Backend(made, device, precision.compute, options=options, parallel=parallel))


def head_kernel(name: str, compiled: bool, device: torch.device) -> LogitKernel:
    """What computes log-probs from logits; on a CPU it is plain torch."""
    return HEAD_KERNELS[name](compiled) if has_own_memory(device) else TORCH


def wants_offload(fsdp: FsdpConfig, device: torch.device, parallel: ParallelContext = SINGLE_PROCESS) -> bool:
    """Do the weights wait in CPU memory between phases? On one device offload_policy asks for that too."""
    return has_own_memory(device) and (fsdp.param_offload or (fsdp.offload_policy and parallel.alone))


def sharding(fsdp: FsdpConfig, key: str, device: torch.device) -> Sharding:
    """How several ranks hold the model together."""
    return Sharding(
        reshard_after_forward=fsdp.reshard_after_forward,
        offload=fsdp.offload_policy,
        prefetch=fsdp.forward_prefetch,
        reduce_dtype=pick_dtype(fsdp.mixed_precision.reduce_dtype, device, f"{key}.mixed_precision.reduce_dtype"),
        min_num_params=fsdp.wrap_policy.min_num_params,
        layer_classes=tuple(fsdp.wrap_policy.transformer_layer_cls_to_wrap),
        key=key,
        tensor_key=f"{key.removesuffix('.fsdp_config').removesuffix('.model')}.megatron.tensor_model_parallel_size",
    )


def optimizer_options(fsdp: FsdpConfig, backend: Backend) -> OptimizerOptions:
    """offload_policy keeps state and updates on the CPU; optimizer_offload only parks the state there.

    Shards that live on the CPU have their state beside them already.
    """
    offloads = has_own_memory(backend.device)
    sharded = not backend.parallel.alone
    return OptimizerOptions(
        device=None if sharded and fsdp.offload_policy else backend.device,
        offload=offloads and fsdp.optimizer_offload and not fsdp.offload_policy,
        on_cpu=offloads and fsdp.offload_policy and not sharded,
        scale_loss=backend.compute_dtype == torch.float16,
    )


def _load(
    load: Callable[..., PreTrainedModel],
    source: ModelSource,
    model: TrainedModelConfig,
    key: str,
    precision: Precision,
    device: torch.device,
) -> PreTrainedModel:
    asked, where = attention_of(model, key)
    how: dict[str, Any] = {}
    if model.load_in_4bit:
        how["quantization_config"] = four_bits(precision.compute, ("lm_head", VALUE_HEAD), key)
        how["device_map"] = {"": str(device)}
    made = disable_inference_kernels(load(source, packed_function(asked, device, where), precision.kept, **how))
    _cast_buffers(made, precision.buffers)
    return made


def _load_values(source: ModelSource, attn: str, dtype: torch.dtype, **how: Any) -> PreTrainedModel:
    return load_value_model(source, dtype, attn, **how)


def _adapt(
    made: PreTrainedModel,
    model: TrainedModelConfig,
    key: str,
    device: torch.device,
    *,
    heads: tuple[str, ...] = (),
    seed: int,
) -> Adapters | None:
    settings = adapter_of(model, key)
    if settings is None:
        return None
    asked = None if settings.dtype is None else pick_dtype(settings.dtype, device, f"{key}.lora.dtype")
    dtype = adapter_dtype(made, asked)
    return add_adapters(made, settings, dtype=dtype, heads=heads, seed=derive_seed(seed, "adapters", key))


def _compile(
    made: PreTrainedModel, key: str, device: torch.device, parallel: ParallelContext, compute: torch.dtype
) -> None:
    """Its layers, where that is known to work: on one GPU, in families whose layers are one program each.

    On a CPU the compiler takes longer than it saves; parts of the layers are there in C.
    """
    if parallel.alone and can_compile(made, device):
        compile_layers(made, key)
    elif parallel.alone and device.type == "cpu" and compute == torch.float32:
        use_cpu_kernels(made)


def _finish(
    made: PreTrainedModel,
    adapters: Adapters | None,
    model: TrainedModelConfig,
    key: str,
    precision: Precision,
    fsdp: FsdpConfig,
    fsdp_key: str,
    device: torch.device,
    *,
    head: LogitKernel = TORCH,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    if model.enable_gradient_checkpointing:
        enable_recompute(made, model.recompute.method, model.recompute.num_layers, key)
    own = has_own_memory(device)
    options = BackendOptions(
        offload=wants_offload(fsdp, device, parallel),
        activations_on_cpu=own and model.enable_activation_offload,
        head=head,
        sharding=sharding(fsdp, fsdp_key, device),
    )
    return Backend(made, device, precision.compute, adapters=adapters, options=options, parallel=parallel)


def _checked(backend: Backend) -> Backend:
    """Where and as it will be computed: some kernels know no other device or format."""
    # Nothing is compiled for the few tokens of this look.
    with backend.at_work(), backend.autocast(), torch.compiler.set_stance("force_eager"):
        backend.within(lambda: check_head(backend.model, segments=[4]))
    return backend


def _cast_buffers(model: PreTrainedModel, dtype: torch.dtype) -> None:
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)
