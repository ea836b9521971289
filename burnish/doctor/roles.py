"""Memory of one role's model on a GPU: weights, gradients and optimizer state, from the role's config sections."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from burnish.config.adapters import (
    ALL_LINEAR,
    AdapterSettings,
    TrainedModelConfig,
    adapter_of,
    chooses_recompute,
)
from burnish.config.engine import FsdpConfig, MegatronConfig
from burnish.doctor.activations import EAGER, Itemsize, LayerKernels
from burnish.doctor.head import ON_GPU, HeadPlan
from burnish.doctor.shapes import Linear, Shape
from burnish.doctor.stages import ONE_STAGE, Stages
from burnish.sizing import COMPILED_FAMILIES, DTYPE_NAMES, default_dtype, dtype_bytes, flash_attention_fits
from burnish.sizing import FLOAT32_BYTES as FLOAT
from burnish.untrusted import read_json_object

NF4_BLOCK = 64  # 4-bit weights per scale, by bitsandbytes' default
NF4_SCALE_BLOCK = 256  # scales per second-level scale
SAVED_RANK = 16  # of a saved adapter whose adapter_config.json is not here


@dataclass(frozen=True)
class Shards:
    """How many ranks divide a model's tensors."""

    weights: int = 1
    optimizer: int = 1
    tokens: int = 1  # ranks that share one sequence
    tensor: int = 1  # ranks that share one layer's matrices; each holds embedding and head whole

    def share(self, shape: Shape, num_bytes: int, num_parameters: int) -> int:
        """Bytes on one rank, of `num_bytes` for all `num_parameters` of the model."""
        if self.tensor == 1 or not num_parameters:
            return num_bytes // self.weights
        outside = max(0, num_parameters - _inside_layers(shape))
        inside = num_parameters - outside
        return num_bytes * (inside + outside * self.tensor) // (num_parameters * self.weights)

    @property
    def unsharded(self) -> bool:
        return self.weights == 1 and self.optimizer == 1


@dataclass(frozen=True)
class Role:
    """One model in its role. Bytes are those of one rank."""

    name: str
    shape: Shape
    itemsize: Itemsize
    shards: Shards
    weights: int
    num_trained: int = 0  # trained parameters, over all ranks
    gradients: int = 0
    optimizer: int = 0
    ema: int = 0  # the moving average of the weights
    gathered: int = 0  # unsharded weights of the layers in use, and of embedding and head
    head: bool = True  # a language-model head; else one value per token
    offload: bool = False  # weights are in CPU memory between this role's phases
    offload_optimizer: bool = False
    updates_on_cpu: bool = False
    stages: Stages = ONE_STAGE
    num_recomputed: int = 0  # layers with activation checkpointing
    recompute_group: int = 1  # layers per checkpoint
    chooses_recompute: bool = False  # the plan lowers num_recomputed as far as the memory allows
    activations_on_cpu: bool = False
    has_adapters: bool = False  # only adapters are trained
    logits: HeadPlan = ON_GPU
    kernels: LayerKernels = EAGER
    trains_tower: bool = False  # a gradient goes through the vision tower

    @property
    def casts_weights(self) -> bool:
        """Whether autocast copies the weights to the compute dtype. FSDP gathers them in it instead."""
        return self.itemsize.mixed and self.shards.unsharded


def itemsize_of(name: str | None, default: int) -> int:
    """Bytes per element of a named dtype; the default for null, `auto` and unknown names."""
    return dtype_bytes(name) if name in DTYPE_NAMES else default


def default_itemsize(on_cpu: bool) -> int:
    return dtype_bytes(default_dtype(on_cpu))


def precision(fsdp: FsdpConfig, torch_dtype: str | None, on_cpu: bool) -> Itemsize:
    """Bytes per element of weights and matrix products, as the run would choose them."""
    weights = itemsize_of(torch_dtype or fsdp.model_dtype, FLOAT)
    compute = itemsize_of(fsdp.mixed_precision.param_dtype, default_itemsize(on_cpu))
    return Itemsize(weights, weights if compute == FLOAT else compute)


def layer_kernels(shape: Shape, itemsize: Itemsize, *, on_cpu: bool, compiled: bool = False) -> LayerKernels:
    """Which kernels the layers use; `compiled` is whether the config asks for torch.compile."""
    flash = not on_cpu and flash_attention_fits(itemsize.compute, shape.head_dim, shape.softcap)
    return LayerKernels(compiled=compiled and not on_cpu and shape.family in COMPILED_FAMILIES, flash=flash)


def shards_of(strategy: str, ranks: int, fsdp: FsdpConfig, megatron: MegatronConfig | None, sequence: int) -> Shards:
    """FSDP divides everything by its group; with Megatron's keys, tensor ranks divide the layers first."""
    tensor = 1
    if strategy == "megatron" and megatron is not None:
        tensor = min(ranks, megatron.tensor_model_parallel_size * megatron.pipeline_model_parallel_size)
        ranks, sequence = max(1, ranks // tensor), megatron.context_parallel_size
    group = ranks if fsdp.fsdp_size <= 0 else min(fsdp.fsdp_size, ranks)
    return Shards(group * tensor, group * tensor, min(sequence, ranks), tensor)


def trained_role(
    name: str,
    shape: Shape,
    model: TrainedModelConfig,
    fsdp: FsdpConfig,
    shards: Shards,
    *,
    key: str,
    on_cpu: bool,
    torch_dtype: str | None = None,
    head: bool = True,
    logits: HeadPlan = ON_GPU,
    ema: bool = False,
    compiled: bool = False,
    frozen_tower: bool = False,
    stages: Stages | None = None,
) -> Role:
    """A trained model: all of it, all but its vision tower, or adapters on frozen weights."""
    itemsize = precision(fsdp, torch_dtype, on_cpu)
    stages = stages or Stages((shape.layers,))
    num_parameters = shape.all_parameters if head else value_parameters(shape)
    num_tensors = shape.tensors if head else shape.tensors - (not shape.tied) + 2
    settings = adapter_of(model, key)
    weights = weight_bytes(shape, itemsize.weights, num_parameters, four_bit=model.load_in_4bit)
    num_trained, trained_itemsize = num_parameters, itemsize.weights
    if frozen_tower and shape.tower is not None:
        num_trained -= shape.tower.parameters
    if settings is not None:
        num_trained, num_tensors = adapter_parameters(shape, settings)
        if not head:
            num_trained, num_tensors = num_trained + shape.hidden + 1, num_tensors + 2
        # Small updates are lost in float16, and 4-bit weights have no floating-point dtype.
        needs_float32 = model.load_in_4bit or (torch_dtype or fsdp.model_dtype) in ("fp16", "float16", "half")
        trained_itemsize = itemsize_of(settings.dtype, FLOAT if needs_float32 else itemsize.weights)
        weights += num_trained * trained_itemsize
        itemsize = replace(itemsize, adapters=trained_itemsize)
    trained_bytes = num_trained * trained_itemsize
    offloads = not on_cpu
    return Role(
        name=name,
        shape=shape,
        itemsize=itemsize,
        shards=shards,
        weights=shards.share(shape, weights, num_parameters),
        num_trained=num_trained,
        gradients=shards.share(shape, trained_bytes, num_parameters),
        # AdamW: two moments per parameter, and a float32 step count per tensor
        optimizer=shards.share(shape, 2 * trained_bytes, num_parameters) + FLOAT * num_tensors,
        ema=FLOAT * num_trained // shards.weights if ema else 0,
        gathered=_gathered(shape, itemsize, shards),
        head=head,
        offload=offloads and (fsdp.param_offload or fsdp.offload_policy),
        offload_optimizer=offloads and (fsdp.optimizer_offload or fsdp.offload_policy),
        updates_on_cpu=offloads and fsdp.offload_policy,
        stages=stages,
        num_recomputed=recomputed_layers(model, stages),
        recompute_group=(model.recompute.num_layers or 1) if model.recompute.method == "uniform" else 1,
        chooses_recompute=chooses_recompute(model),
        activations_on_cpu=offloads and model.enable_activation_offload,
        has_adapters=settings is not None,
        logits=logits,
        kernels=layer_kernels(
            shape, itemsize, on_cpu=on_cpu, compiled=compiled and shards.unsharded and not model.load_in_4bit
        ),
        trains_tower=settings is None and not frozen_tower,
    )


def frozen_role(
    name: str,
    shape: Shape,
    fsdp: FsdpConfig,
    shards: Shards,
    itemsize: Itemsize,
    *,
    on_cpu: bool,
    head: bool = True,
    logits: HeadPlan = ON_GPU,
    compiled: bool = False,
) -> Role:
    """A model that only runs forward passes."""
    num_parameters = shape.all_parameters if head else value_parameters(shape)
    return Role(
        name=name,
        shape=shape,
        itemsize=itemsize,
        shards=shards,
        weights=shards.share(shape, num_parameters * itemsize.weights, num_parameters),
        gathered=_gathered(shape, itemsize, shards),
        head=head,
        offload=not on_cpu and (fsdp.param_offload or fsdp.offload_policy),
        logits=logits,
        kernels=layer_kernels(shape, itemsize, on_cpu=on_cpu, compiled=compiled and shards.unsharded),
    )


def value_parameters(shape: Shape) -> int:
    """Of the backbone, and of a head with one output and a bias."""
    return shape.backbone + shape.hidden + 1 + (0 if shape.tower is None else shape.tower.parameters)


def weight_bytes(shape: Shape, itemsize: int, num_parameters: int, *, four_bit: bool) -> int:
    """Bytes of the weights; `four_bit` quantizes the layers' matrices."""
    if not four_bit:
        return num_parameters * itemsize
    quantized = [linear.weights for linear in (*shape.attention(), *shape.mlp())]
    layer = sum(four_bit_bytes(size) for size in quantized)
    return (num_parameters - shape.layers * sum(quantized)) * itemsize + shape.layers * layer


def four_bit_bytes(num_weights: int) -> int:
    """One matrix in nf4 with double quantization: half a byte per weight, a one-byte scale per block, and a float32
    per block of scales."""
    blocks = -(-num_weights // NF4_BLOCK)
    return -(-num_weights // 2) + blocks + FLOAT * -(-blocks // NF4_SCALE_BLOCK)


def adapter_parameters(shape: Shape, settings: AdapterSettings) -> tuple[int, int]:
    """Parameters and tensors of the adapters."""
    rank = settings.rank or _saved_rank(settings.adapter_path)
    targets = [linear for linear in (*shape.attention(), *shape.mlp()) if _is_target(linear, settings)]
    per_layer = sum(
        rank * (linear.inputs + linear.outputs) + (linear.outputs if settings.dora else 0) for linear in targets
    )
    return shape.layers * per_layer, shape.layers * len(targets) * (3 if settings.dora else 2)


def _is_target(linear: Linear, settings: AdapterSettings) -> bool:
    targets, excluded = settings.target_modules, settings.exclude_modules
    return (targets == ALL_LINEAR or _matches(linear.name, targets)) and not _matches(linear.name, excluded)


def _matches(name: str, modules: Any) -> bool:
    """peft's rule: a list holds module names; a string is a regular expression on the module's path."""
    if modules is None:
        return False
    if not isinstance(modules, str):
        return name in modules
    parent = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    return name == modules or re.fullmatch(modules, f"model.layers.0.{parent}.{name}") is not None


def _saved_rank(path: str | None) -> int:
    file = Path(path or "").expanduser() / "adapter_config.json"
    rank = read_json_object(file).get("r", SAVED_RANK) if path and file.is_file() else SAVED_RANK
    return rank if type(rank) is int and 0 < rank < 2**20 else SAVED_RANK


def recomputed_layers(model: TrainedModelConfig, stages: Stages) -> int:
    """Layers with activation checkpointing: all, or the first ones of each stage with Megatron's method `block`."""
    if not model.enable_gradient_checkpointing:
        return 0
    if model.recompute.method == "block" and model.recompute.num_layers is not None:
        return stages.num_recomputed(model.recompute.num_layers)
    return sum(stages.layers)


def _gathered(shape: Shape, itemsize: Itemsize, shards: Shards) -> int:
    """Two layers (tensor ranks gather only their part of them), and the parameters outside layers."""
    if shards.unsharded:
        return 0
    return itemsize.compute * (2 * shape.layer // shards.tensor + shape.all_parameters - _inside_layers(shape))


def _inside_layers(shape: Shape) -> int:
    return shape.layers * shape.layer
