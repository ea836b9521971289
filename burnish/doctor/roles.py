"""What one role's model holds on a GPU: weights, gradients, optimizer state, by the keys of its sections."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from burnish.config.adapters import ALL_LINEAR, AdapterSettings, TrainedModelConfig, adapter_of
from burnish.config.engine import FsdpConfig, MegatronConfig
from burnish.doctor.activations import FLOAT, PLAIN, Making, Width
from burnish.doctor.head import ON_GPU, HeadPlan
from burnish.doctor.shapes import Linear, Shape

WIDTHS = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "float": 4}
BLOCK = 64  # 4-bit weights share a scale in blocks of so many, and these scales one in blocks of SCALES
SCALES = 256
# Families whose layers the run compiles, written down here so that planning loads no torch; a test compares them.
COMPILED = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3", "olmo2"})


@dataclass(frozen=True)
class Spread:
    """Over how many ranks a model's numbers are divided."""

    weights: int = 1
    optimizer: int = 1
    tokens: int = 1  # ranks that share one sequence
    tensor: int = 1  # ranks that share one layer's matrices; embedding and head are whole on each of them

    def share(self, shape: Shape, number: int, parameters: int) -> int:
        """Bytes of one rank, of `number` for all `parameters` of a model."""
        if self.tensor == 1 or not parameters:
            return number // self.weights
        ends = max(0, parameters - _inside(shape))
        return number * ((parameters - ends) + ends * self.tensor) // (parameters * self.weights)

    @property
    def alone(self) -> bool:
        return self.weights == 1 and self.optimizer == 1


@dataclass(frozen=True)
class Role:
    """One model in its role. Bytes are of one rank."""

    name: str
    shape: Shape
    width: Width
    spread: Spread
    weights: int
    trained: int = 0  # parameters that are taught, on all ranks together
    gradients: int = 0
    optimizer: int = 0
    average: int = 0  # the moving average of the weights
    gathered: int = 0  # weights of a layer or two and of the ends, whole again for a moment
    head: bool = True  # a language head; else a number per token
    offload: bool = False  # the weights wait in CPU memory between this role's phases
    offload_optimizer: bool = False
    updates_on_cpu: bool = False
    recomputed: int = 0  # layers that are computed again in the backward pass
    group: int = 1  # and how many of these at once, of which only the first keeps its input
    activations_on_cpu: bool = False
    adapted: bool = False  # adapters are taught, the rest is frozen
    logits: HeadPlan = ON_GPU  # how the language head is computed
    making: Making = PLAIN  # and how the layers are

    @property
    def copies(self) -> bool:
        """Does one process convert its weights for the products, all of them in a forward pass?"""
        return self.width.mixed and self.spread.alone


def width_of(name: str | None, default: int) -> int:
    return default if name in (None, "auto") else WIDTHS.get(str(name), default)


def precision(fsdp: FsdpConfig, torch_dtype: str | None, on_cpu: bool) -> Width:
    """Bytes of kept weights and of products, as the run would choose them."""
    kept = width_of(torch_dtype or fsdp.model_dtype, FLOAT)
    compute = width_of(fsdp.mixed_precision.param_dtype, FLOAT if on_cpu else 2)
    return Width(kept, kept if compute == FLOAT else compute)


def making_of(shape: Shape, width: Width, *, on_cpu: bool, compiled: bool = False) -> Making:
    """Whether layers are compiled, where that was asked for, and attention is torch's flash kernel."""
    flash = not on_cpu and flash_fits(shape, width)
    return Making(compiled=compiled and not on_cpu and shape.family in COMPILED, flash=flash)


def flash_fits(shape: Shape, width: Width) -> bool:
    """16 bits, no cap, heads of a size that the kernel knows."""
    return width.compute == 2 and not shape.softcap and shape.head_dim % 8 == 0 and shape.head_dim <= 256


def spread_of(strategy: str, ranks: int, fsdp: FsdpConfig, megatron: MegatronConfig | None, sequence: int) -> Spread:
    """FSDP divides everything by its group; under Megatron's keys, tensor ranks divide the layers first."""
    tensor = 1
    if strategy == "megatron" and megatron is not None:
        tensor = min(ranks, megatron.tensor_model_parallel_size * megatron.pipeline_model_parallel_size)
        ranks, sequence = max(1, ranks // tensor), megatron.context_parallel_size
    group = ranks if fsdp.fsdp_size <= 0 else min(fsdp.fsdp_size, ranks)
    return Spread(group * tensor, group * tensor, min(sequence, ranks), tensor)


def taught(
    name: str,
    shape: Shape,
    model: TrainedModelConfig,
    fsdp: FsdpConfig,
    spread: Spread,
    *,
    key: str,
    on_cpu: bool,
    torch_dtype: str | None = None,
    head: bool = True,
    logits: HeadPlan = ON_GPU,
    average: bool = False,
    compiled: bool = False,
) -> Role:
    """A model that learns: all of it, or adapters over frozen weights. `compiled` is what was asked for."""
    width = precision(fsdp, torch_dtype, on_cpu)
    total = shape.parameters if head else value_parameters(shape)
    tensors = shape.tensors if head else shape.tensors - (not shape.tied) + 2
    settings = adapter_of(model, key)
    kept = weight_bytes(shape, width.kept, total, four_bit=model.load_in_4bit)
    gradient_width = optimizer_width = width.kept
    trained = total
    if settings is not None:
        trained, tensors = adapter_parameters(shape, settings)
        if not head:
            trained, tensors = trained + shape.hidden + 1, tensors + 2
        fragile = model.load_in_4bit or (torch_dtype or fsdp.model_dtype) in ("fp16", "float16", "half")
        own = width_of(settings.dtype, FLOAT if fragile else width.kept)
        kept, gradient_width, optimizer_width = kept + trained * own, own, own
        width = replace(width, adapters=own)
    offloads = not on_cpu
    return Role(
        name=name,
        shape=shape,
        width=width,
        spread=spread,
        weights=spread.share(shape, kept, total),
        trained=trained,
        gradients=spread.share(shape, trained * gradient_width, total),
        optimizer=spread.share(shape, 2 * trained * optimizer_width, total) + FLOAT * tensors,
        average=FLOAT * trained // spread.weights if average else 0,
        gathered=_gathered(shape, width, spread),
        head=head,
        offload=offloads and (fsdp.param_offload or fsdp.offload_policy),
        offload_optimizer=offloads and (fsdp.optimizer_offload or fsdp.offload_policy),
        updates_on_cpu=offloads and fsdp.offload_policy,
        recomputed=recomputed_layers(model, shape),
        group=(model.recompute.num_layers or 1) if model.recompute.method == "uniform" else 1,
        activations_on_cpu=offloads and model.enable_activation_offload,
        adapted=settings is not None,
        logits=logits,
        making=making_of(shape, width, on_cpu=on_cpu, compiled=compiled and spread.alone and not model.load_in_4bit),
    )


def frozen(
    name: str,
    shape: Shape,
    fsdp: FsdpConfig,
    spread: Spread,
    width: Width,
    *,
    on_cpu: bool,
    head: bool = True,
    logits: HeadPlan = ON_GPU,
    compiled: bool = False,
) -> Role:
    """A model that is only read."""
    total = shape.parameters if head else value_parameters(shape)
    return Role(
        name=name,
        shape=shape,
        width=width,
        spread=spread,
        weights=spread.share(shape, total * width.kept, total),
        gathered=_gathered(shape, width, spread),
        head=head,
        offload=not on_cpu and (fsdp.param_offload or fsdp.offload_policy),
        logits=logits,
        making=making_of(shape, width, on_cpu=on_cpu, compiled=compiled and spread.alone),
    )


def value_parameters(shape: Shape) -> int:
    """The backbone and a head of one number, with its bias."""
    return shape.backbone + shape.hidden + 1


def weight_bytes(shape: Shape, width: int, total: int, *, four_bit: bool) -> int:
    """Bytes of the weights; in four bits those of the layers' matrices."""
    if not four_bit:
        return total * width
    packed = [one.weights for one in (*shape.attention(), *shape.mlp())]
    layer = sum(four_bit_bytes(number) for number in packed)
    return (total - shape.layers * sum(packed)) * width + shape.layers * layer


def four_bit_bytes(number: int) -> int:
    """One matrix in nf4: half a byte each, a byte of scale per block, and four for every SCALES of these."""
    blocks = -(-number // BLOCK)
    return -(-number // 2) + blocks + FLOAT * -(-blocks // SCALES)


def adapter_parameters(shape: Shape, settings: AdapterSettings) -> tuple[int, int]:
    """Numbers and tensors of the adapters."""
    rank = settings.rank or _saved_rank(settings.adapter_path)
    chosen = [one for one in (*shape.attention(), *shape.mlp()) if _is_target(one, settings)]
    each = sum(rank * (one.inputs + one.outputs) + (one.outputs if settings.dora else 0) for one in chosen)
    return shape.layers * each, shape.layers * len(chosen) * (3 if settings.dora else 2)


def _is_target(one: Linear, settings: AdapterSettings) -> bool:
    wanted, unwanted = settings.target_modules, settings.exclude_modules
    return (wanted == ALL_LINEAR or _matches(one.name, wanted)) and not _matches(one.name, unwanted)


def _matches(name: str, modules: Any) -> bool:
    """Names are compared with the module's; a text is a regular expression on its path."""
    if modules is None:
        return False
    if not isinstance(modules, str):
        return name in modules
    part = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    return name == modules or re.fullmatch(modules, f"model.layers.0.{part}.{name}") is not None


def _saved_rank(path: str | None) -> int:
    file = Path(path or "").expanduser() / "adapter_config.json"
    return int(json.loads(file.read_text()).get("r", 16)) if path and file.is_file() else 16


def recomputed_layers(model: TrainedModelConfig, shape: Shape) -> int:
    """Layers that are computed again: all, or the first of Megatron's method `block`."""
    if not model.enable_gradient_checkpointing:
        return 0
    if model.recompute.method == "block" and model.recompute.num_layers is not None:
        return min(shape.layers, model.recompute.num_layers)
    return shape.layers


def _gathered(shape: Shape, width: Width, spread: Spread) -> int:
    """Two layers (tensor ranks gather their parts of them) and the ends of the model."""
    if spread.alone:
        return 0
    return width.compute * (2 * shape.layer // spread.tensor + shape.parameters - _inside(shape))


def _inside(shape: Shape) -> int:
    """Parameters inside layers; the ends of the model are one unit that stays whole."""
    return shape.layers * shape.layer
