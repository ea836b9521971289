"""A role's backend from its sections of the config: weights, adapters, dtypes, memory, kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from burnish.config.adapters import adapter_of, attention_of
from burnish.errors import UserError
from burnish.models.attention import packed_function
from burnish.models.compiled import can_compile, compile_layers, use_cpu_kernels
from burnish.models.device import pick_dtype
from burnish.models.flash import check_shared_keys
from burnish.models.fourbit import disable_inference_kernels, four_bits
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.invariant.head import InvariantHead
from burnish.models.invariant.modules import use_invariant_modules
from burnish.models.liger import apply_liger, check_liger, check_liger_model
from burnish.models.load import ModelSource, load_causal_lm, load_config, load_value_model
from burnish.models.logits import TORCH, LogitKernel
from burnish.models.lora import Adapters, adapter_dtype, add_adapters
from burnish.models.parts import check_head
from burnish.models.recompute import decoder_layers, enable_recompute
from burnish.models.routing import freeze_routers
from burnish.models.varlen import TORCH_KERNEL_ON
from burnish.models.vision.family import freeze_vision_tower, vision_family, vision_modules
from burnish.models.wide import NARROW
from burnish.seeding import derive_seed
from burnish.training.backend import (
    ANY_EXPERTS,
    Backend,
    BackendOptions,
    ExpertOptions,
    FsdpOptions,
    create_backend,
)
from burnish.training.backends.module import ModuleBackend
from burnish.training.offload import has_own_memory
from burnish.training.optim import OptimizerOptions
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext
from burnish.training.stages import layer_ranges

if TYPE_CHECKING:
    from burnish.config.adapters import TrainedModelConfig
    from burnish.config.engine import FsdpConfig

VALUE_HEAD = "score"


@dataclass(frozen=True)
class Precision:
    """Dtypes of the weights, of matrix products, and of buffers (RoPE's frequencies)."""

    weights: torch.dtype
    compute: torch.dtype
    buffers: torch.dtype

    @staticmethod
    def of(fsdp: FsdpConfig, key: str, device: torch.device, torch_dtype: str | None = None) -> Precision:
        """`torch_dtype` is the policy's alias of model_dtype."""
        mixed = fsdp.mixed_precision
        weights = pick_dtype(torch_dtype or fsdp.model_dtype, device, f"{key}.model_dtype")
        compute = pick_dtype(mixed.param_dtype, device, f"{key}.mixed_precision.param_dtype")
        return Precision(
            weights=weights,
            # Computing in more bits than the weights have gains nothing.
            compute=weights if compute == torch.float32 else compute,
            buffers=pick_dtype(mixed.buffer_dtype, device, f"{key}.mixed_precision.buffer_dtype"),
        )


def check_kernels(models: dict[str, TrainedModelConfig], liger: bool, device: torch.device) -> None:
    """Raise, before anything is loaded, for kernels that this device or installation does not support."""
    for key, model in models.items():
        _attention(model, key, device)
    if liger:
        check_liger(device, "actor_rollout_ref.model.use_liger")


def _attention(model: TrainedModelConfig, key: str, device: torch.device) -> str:
    """The name of the attention implementation; raises where the device does not support it."""
    name, attention_key = attention_of(cast(Any, model), key)  # all of them have override_config
    return packed_function(name, device, attention_key)


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
    share_prompts: str | None = None,
    freeze_tower: str | None = None,
    freeze_router: str | None = None,
    experts: ExpertOptions = ANY_EXPERTS,
    invariant: bool = False,
    seed: int,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    """The policy's model, loaded, adapted and checked. `freeze_*` are the keys that freeze parts of it, `share_prompts`
    is the key that has equal prompts computed once (None: they are not). `invariant`: with the kernels of an invariant
    engine, for a model that has them (loop/invariant.py)."""
    key = source.key.rpartition(".")[0]
    precision = Precision.of(fsdp, fsdp_key, device, torch_dtype)
    if liger:
        check_liger_model(load_config(source), f"{key}.use_liger")
    check_shared_prompts(source, share_prompts, device, precision.compute)
    network = _load(load_causal_lm, source, model, key, precision, device)
    if freeze_tower is not None:
        freeze_vision_tower(network, freeze_tower)
    if freeze_router is not None:
        freeze_routers(network, freeze_router)
    if liger:
        apply_liger(network)
    adapters = _adapt(network, model, key, device, frozen=vision_modules(network) if freeze_tower else {}, seed=seed)
    if invariant:
        use_invariant_modules(network, precision.compute)
        head = InvariantHead(head)
    elif compiled and not liger and not model.load_in_4bit:
        use_faster_layers(network, key, device, parallel, precision.compute)
    return _checked(
        _finish(
            *(network, adapters, model, key, precision, fsdp, fsdp_key, device),
            head=head,
            experts=experts,
            share_prompts=share_prompts is not None,
            parallel=parallel,
        )
    )


def trained_value_model(
    source: ModelSource,
    model: TrainedModelConfig,
    fsdp: FsdpConfig,
    fsdp_key: str,
    device: torch.device,
    *,
    compiled: bool = False,
    share_prompts: str | None = None,
    freeze_router: str | None = None,
    seed: int,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    """The critic's model; with adapters, its value head is trained in full beside them."""
    key = source.key.rpartition(".")[0]
    precision = Precision.of(fsdp, fsdp_key, device)
    check_shared_prompts(source, share_prompts, device, precision.compute)
    network = _load(_load_values, source, model, key, precision, device)
    if freeze_router is not None:
        freeze_routers(network, freeze_router)
    adapters = _adapt(network, model, key, device, heads=(VALUE_HEAD,), seed=seed)
    if compiled and not model.load_in_4bit:
        use_faster_layers(network, key, device, parallel, precision.compute)
    sharing = share_prompts is not None
    return _finish(
        *(network, adapters, model, key, precision, fsdp, fsdp_key, device), share_prompts=sharing, parallel=parallel
    )


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
    share_prompts: str | None = None,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    """The reference's model, for inference only."""
    precision = Precision.of(fsdp, fsdp_key, device, torch_dtype)
    check_shared_prompts(source, share_prompts, device, precision.compute)
    key = source.key.rpartition(".")[0]
    network = load_causal_lm(source, _attention(model, key, device), precision.weights)
    _cast_buffers(network, precision.buffers)
    if compiled:
        use_faster_layers(network, key, device, parallel, precision.compute)
    options = BackendOptions(
        offload=wants_offload(fsdp, device, parallel),
        head=head,
        fsdp=fsdp_options(fsdp, fsdp_key, device),
        share_prompts=share_prompts is not None,
    )
    return _checked(create_backend(network, device, precision.compute, options=options, parallel=parallel))


def check_shared_prompts(source: ModelSource, key: str | None, device: torch.device, compute: torch.dtype) -> None:
    """Raise where a prompt cannot be computed once for several responses; `key` asks for that, None does not."""
    if key is None:
        return
    family = vision_family(load_config(source))
    if family is not None and family.sees_whole_images:
        problem = "the tokens of this model's images see each other, which is not supported for shared prompts"
        raise UserError(problem, key=key, value=True, hint=f"{key}=false")
    if device.type in TORCH_KERNEL_ON and compute in NARROW:
        try:
            check_shared_keys(device, compute)
        except AssertionError as error:
            problem = "torch's attention kernel on this device does not compute what shared prompts need"
            raise UserError(problem, key=key, value=True, hint=f"{key}=false") from error


def head_kernel(name: str, compiled: bool, device: torch.device) -> LogitKernel:
    """The kernel that computes log-probs from logits; on a CPU always plain torch."""
    return HEAD_KERNELS[name](compiled) if has_own_memory(device) else TORCH


def wants_offload(fsdp: FsdpConfig, device: torch.device, parallel: ParallelContext = SINGLE_PROCESS) -> bool:
    """Whether weights wait in CPU memory between phases. In one process offload_policy asks for that too."""
    return has_own_memory(device) and (fsdp.param_offload or (fsdp.offload_policy and not parallel.is_distributed))


def fsdp_options(fsdp: FsdpConfig, key: str, device: torch.device) -> FsdpOptions:
    """How ranks shard the model."""
    megatron = f"{key.removesuffix('.fsdp_config').removesuffix('.model')}.megatron"
    return FsdpOptions(
        reshard_after_forward=fsdp.reshard_after_forward,
        offload=fsdp.offload_policy,
        prefetch=fsdp.forward_prefetch,
        reduce_dtype=pick_dtype(fsdp.mixed_precision.reduce_dtype, device, f"{key}.mixed_precision.reduce_dtype"),
        min_num_params=fsdp.wrap_policy.min_num_params,
        layer_classes=tuple(fsdp.wrap_policy.transformer_layer_cls_to_wrap),
        key=key,
        tensor_key=f"{megatron}.tensor_model_parallel_size",
        expert_key=f"{megatron}.expert_model_parallel_size",
    )


def optimizer_options(fsdp: FsdpConfig, backend: Backend) -> OptimizerOptions:
    """offload_policy keeps state and updates on the CPU; optimizer_offload only keeps the state there between updates.

    Shards that live on the CPU have their state beside them already.
    """
    offloads = has_own_memory(backend.device)
    sharded = backend.parallel.is_distributed
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
    options: dict[str, Any] = {}
    if model.load_in_4bit:
        options["quantization_config"] = four_bits(precision.compute, ("lm_head", VALUE_HEAD), key)
        options["device_map"] = {"": str(device)}
    network = disable_inference_kernels(load(source, _attention(model, key, device), precision.weights, **options))
    _cast_buffers(network, precision.buffers)
    return network


def _load_values(source: ModelSource, attn: str, dtype: torch.dtype, **options: Any) -> PreTrainedModel:
    return load_value_model(source, dtype, attn, **options)


def _adapt(
    network: PreTrainedModel,
    model: TrainedModelConfig,
    key: str,
    device: torch.device,
    *,
    heads: tuple[str, ...] = (),
    frozen: Mapping[str, nn.Module] = MappingProxyType({}),
    seed: int,
) -> Adapters | None:
    settings = adapter_of(model, key)
    if settings is None:
        return None
    requested = None if settings.dtype is None else pick_dtype(settings.dtype, device, f"{key}.lora.dtype")
    dtype = adapter_dtype(network, requested)
    seed = derive_seed(seed, "adapters", key)
    return add_adapters(network, settings, dtype=dtype, heads=heads, frozen=frozen, seed=seed)


def use_faster_layers(
    network: PreTrainedModel, key: str, device: torch.device, parallel: ParallelContext, compute: torch.dtype
) -> None:
    """Compile the layers where that is known to work: on one GPU, in families without graph breaks in a layer.

    On a CPU compiling takes longer than it saves; C kernels replace parts of the layers instead.
    """
    if parallel.is_distributed:
        return
    if can_compile(network, device):
        compile_layers(network, key)
    elif device.type == "cpu" and compute == torch.float32:
        use_cpu_kernels(network)


def _finish(
    network: PreTrainedModel,
    adapters: Adapters | None,
    model: TrainedModelConfig,
    key: str,
    precision: Precision,
    fsdp: FsdpConfig,
    fsdp_key: str,
    device: torch.device,
    *,
    head: LogitKernel = TORCH,
    experts: ExpertOptions = ANY_EXPERTS,
    share_prompts: bool = False,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Backend:
    if model.enable_gradient_checkpointing:
        recompute, stages = model.recompute, parallel.stages
        parts = layer_ranges(len(decoder_layers(network, key)), stages) if stages.size > 1 else None
        enable_recompute(network, recompute.method, recompute.num_layers, key, parts)
    offloads = has_own_memory(device)
    options = BackendOptions(
        offload=wants_offload(fsdp, device, parallel),
        activations_on_cpu=offloads and model.enable_activation_offload,
        head=head,
        fsdp=fsdp_options(fsdp, fsdp_key, device),
        experts=experts,
        share_prompts=share_prompts,
    )
    return create_backend(network, device, precision.compute, adapters=adapters, options=options, parallel=parallel)


def _checked(backend: Backend) -> Backend:
    """Check the head on the device and in the dtype of the run: some kernels support no other."""
    assert isinstance(backend, ModuleBackend)
    # Eager: nothing is worth compiling for a few tokens.
    with backend.on_device(), backend.autocast(), torch.compiler.set_stance("force_eager"):
        backend.check(lambda model, **given: check_head(model, segments=[4], **given))
    return backend


def _cast_buffers(model: PreTrainedModel, dtype: torch.dtype) -> None:
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)
