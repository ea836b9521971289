"""Tensor parallelism: each rank holds some attention heads and some of the MLP's intermediate columns.

Attention and MLP are column-parallel in and row-parallel out, so a layer costs two all-reduces in each direction. Of a
mixture of experts, each rank holds whole experts (`expert_parallel`).
Embedding, norms and head are replicated: the fused head processes a few tokens and the whole vocabulary at a time, and
a sharded vocabulary would need an all-reduce for each of its chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.autocast import in_autocast_dtype
from burnish.models.parts import backbone
from burnish.models.routing import is_router, num_experts


@dataclass(frozen=True)
class Block:
    """How to parallelize one kind of module, by the names of its submodules."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    # One for all columns, so that the backward pass has one all-reduce; None: each column for itself.
    inputs: PrepareModuleInput | None
    norms: tuple[str, ...] = ()  # over head_dim, shared by all heads
    whole: tuple[str, ...] = ()  # matrices that every rank holds
    shared: tuple[str, ...] = ()  # those of them with outputs that all heads use as they are

    def matches(self, module: nn.Module) -> bool:
        names = (*self.columns, *self.rows, *self.whole)
        return all(type(without_adapter(getattr(module, name, None))) is nn.Linear for name in names)

    def plan(self, module: nn.Module) -> dict[str, ParallelStyle]:
        """The parallel style of each submodule."""
        plan: dict[str, ParallelStyle] = {
            **{name: LocalHeadsNorm() for name in self.norms if hasattr(module, name)},
            **{name: SharedKey() for name in self.shared},
        }
        for name in self.columns:
            plan |= _columns_with_adapter(name, getattr(module, name))
        for name in self.rows:
            plan |= _rows_with_adapter(name, getattr(module, name))
        return plan


def without_adapter(module: Any) -> Any:
    """The linear layer inside a LoRA layer, or the module itself."""
    return getattr(module, "base_layer", module)


def _columns_with_adapter(name: str, module: nn.Module) -> dict[str, ParallelStyle]:
    """Of an adapter's matrices, the first is whole on every rank, and the second has the columns of the layer's."""
    plan: dict[str, ParallelStyle] = {}
    for part, _ in _adapter_matrices(module, "lora_A"):
        plan[f"{name}.{part}"] = WholeInput()
    for part, _ in _adapter_matrices(module, "lora_B"):
        plan[f"{name}.{part}"] = ColwiseParallel()
    return {name if not plan else f"{name}.base_layer": ColwiseParallel(), **plan}


def _rows_with_adapter(name: str, module: nn.Module) -> dict[str, ParallelStyle]:
    """Of an adapter's matrices, the first has the rows of the layer's, and the second is whole on every rank."""
    plan: dict[str, ParallelStyle] = {
        f"{name}.{part}": RowwiseParallel() for part, _ in _adapter_matrices(module, "lora_A")
    }
    return {name if not plan else f"{name}.base_layer": RowwiseParallel(), **plan}


def _adapter_matrices(module: nn.Module, kind: str) -> Iterator[tuple[str, nn.Module]]:
    for adapter, matrix in getattr(module, kind, nn.ModuleDict()).items():
        yield f"{kind}.{adapter}", matrix


# transformers passes a layer's input to the attention by keyword, to the MLP by position.
BLOCKS = (
    Block(
        columns=("q_proj", "k_proj", "v_proj"),
        rows=("o_proj",),
        inputs=PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Replicate()},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        norms=("q_norm", "k_norm"),
    ),
    # DeepSeek's latent attention, with latent queries and without.
    Block(
        columns=("q_b_proj", "kv_b_proj"),
        rows=("o_proj",),
        inputs=None,
        whole=("q_a_proj", "kv_a_proj_with_mqa"),
        shared=("kv_a_proj_with_mqa",),
    ),
    Block(
        columns=("q_proj", "kv_b_proj"),
        rows=("o_proj",),
        inputs=None,
        whole=("kv_a_proj_with_mqa",),
        shared=("kv_a_proj_with_mqa",),
    ),
    Block(
        columns=("gate_proj", "up_proj"),
        rows=("down_proj",),
        inputs=PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
    ),
)


def apply_tp(model: PreTrainedModel, mesh: DeviceMesh, key: str) -> PreTrainedModel:
    """Shard the layers' matrices over a one-dimensional mesh; before, every rank holds the same full model.

    To be called before FSDP, which shards the rest over the data dimension. `key` sets the size, for error messages.
    """
    if mesh.size() == 1:
        return model
    check_sizes(model.config, mesh.size(), key)
    _check_adapters(model, key, mesh.size())
    for number, layer in enumerate(layers_of(model, key)):
        blocks = list(_blocks(layer))
        _check_covered(layer, blocks, f"layer {number} of {type(model).__name__}", key, mesh.size())
        for module, block in blocks:
            # Without a source rank nothing is broadcast: each rank slices its own copy.
            for name in block.shared:
                getattr(module, name).latent_width = module.kv_lora_rank
            parallelize_module(module, mesh, block.plan(module), src_data_rank=None)
            if block.inputs is not None:
                module.register_forward_pre_hook(_in_compute_dtype, with_kwargs=True)
                parallelize_module(module, mesh, block.inputs)
    return model


def check_sizes(config: PretrainedConfig, size: int, key: str) -> None:
    """Raise, before any weight is loaded, where the model does not divide by the number of ranks."""
    config = config.get_text_config()
    if size == 1:
        return
    parts = {
        "attention heads": config.num_attention_heads,
        "key-value heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        **_columns(config),
    }
    if any(count % size for count in parts.values()):
        divisor = math.gcd(*parts.values())
        sizes = [number for number in range(1, divisor + 1) if divisor % number == 0]
        counts = ", ".join(f"{count} {name}" for name, count in parts.items())
        problem = f"the model's {counts} do not divide evenly over {size} ranks"
        raise UserError(problem, key=key, value=size, allowed=sizes, hint=f"{key}={_nearest(sizes, size)}")


def _columns(config: Any) -> dict[str, int]:
    """What is divided beside the heads: columns of the MLPs, and whole experts of a mixture."""
    experts = num_experts(config)
    if not experts:
        return {"intermediate columns": config.intermediate_size}
    found = {"experts": experts}
    shared = getattr(config, "n_shared_experts", None) or 0
    if shared:
        found["columns of shared experts"] = shared * config.moe_intermediate_size
    dense = getattr(config, "mlp_only_layers", None) or getattr(config, "first_k_dense_replace", 0)
    if dense or (getattr(config, "decoder_sparse_step", 1) or 1) > 1:
        found["intermediate columns"] = config.intermediate_size
    return found


def _nearest(sizes: list[int], size: int) -> int:
    """The largest supported size up to `size`."""
    return max(other for other in sizes if other <= size)


def layers_of(model: PreTrainedModel, key: str) -> nn.ModuleList:
    layers = getattr(backbone(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UserError(f"{type(model).__name__} has no list of layers", key=key, hint=f"{key}=1")
    return layers


def _blocks(layer: nn.Module) -> Iterator[tuple[nn.Module, Block]]:
    """The modules of a layer to parallelize."""
    for module in layer.modules():
        yield from ((module, block) for block in BLOCKS if block.matches(module))


def _check_covered(layer: nn.Module, blocks: list[tuple[nn.Module, Block]], where: str, key: str, size: int) -> None:
    """Check that every matrix of a layer is sharded, and that norms are per head."""
    names = [(module, (*block.columns, *block.rows, *block.whole)) for module, block in blocks]
    planned = {part for module, parts in names for name in parts for part in getattr(module, name).modules()}
    # Routers are whole on every rank; experts are divided by `expert_parallel`.
    left = [
        name
        for name, module in layer.named_modules()
        if _has_matrix(module) and module not in planned and not is_router(module) and not _is_experts(module)
    ]
    if left:
        problem = f"{where} has matrices that no plan covers: {', '.join(left)}"
        raise UserError(problem, key=key, value=size, hint=f"{key}=1")
    for module, block in blocks:
        for norm in (getattr(module, name) for name in block.norms if hasattr(module, name)):
            if any(weight.shape != (module.head_dim,) for weight in norm.parameters()):
                problem = f"{where} normalizes over all heads, of which a rank has only some"
                raise UserError(problem, key=key, value=size, hint=f"{key}=1")


def _check_adapters(model: nn.Module, key: str, size: int) -> None:
    """DoRA needs the norms of whole rows, of which a rank may have a part."""
    check_adapted_experts(model, key, size)
    for name, module in model.named_modules():
        if getattr(module, "lora_magnitude_vector", None):
            problem = f"{name} has an adapter of type dora, which needs its whole matrix"
            raise UserError(problem, key=key, value=size, hint=f"{key}=1, or lora.type=lora in the model's section")


def check_adapted_experts(model: nn.Module, key: str, size: int) -> None:
    """Raise where experts that ranks divide have adapters, which peft makes for all experts as one."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "parameter_name"):
            problem = f"{name} has adapters on a mixture's experts, which the ranks divide"
            hint = f"{key}=1, or target_modules=[q_proj,k_proj,v_proj,o_proj] in the model's section"
            raise UserError(problem, key=key, value=size, hint=hint)


def _has_matrix(module: nn.Module) -> bool:
    return any(weight.dim() > 1 for weight in module.parameters(recurse=False))


def _is_experts(module: nn.Module) -> bool:
    return any(weight.dim() == 3 for weight in module.parameters(recurse=False))


def _in_compute_dtype(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Cast the hidden states once, before they are shared, so that their gradients are all-reduced in that dtype."""
    if args:
        return (*in_autocast_dtype(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": next(in_autocast_dtype(kwargs["hidden_states"]))}


class WholeInput(ParallelStyle):
    """A matrix that every rank holds, between an input that they share and columns: its gradient is whole on every
    rank. So is its input's, which is summed over ranks with those of columns: each rank gives a part of it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(_with_local_input)
        return module


def _with_local_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    (tensor,) = args
    if not isinstance(tensor, DTensor):
        return args
    return (DividedGradient.apply(tensor.to_local(grad_placements=[Partial()]), tensor.device_mesh.size()),)


class DividedGradient(torch.autograd.Function):
    """Identity whose gradient is divided by a number."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, number: int) -> Tensor:
        ctx.number = number
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.number, None


class LocalHeadsNorm(ParallelStyle):
    """A per-head norm with a replicated weight. A rank's heads give only part of its gradient, so it is all-reduced."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.forward = partial(_forward_with_summed_gradients, module, module.forward, device_mesh.get_group())
        return module


class SharedKey(ParallelStyle):
    """The key part that all heads share, the last outputs of a matrix that every rank holds. A rank's heads give only
    part of its gradient. The other outputs go through columns, which sum theirs."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_hook(partial(_with_summed_key, device_mesh.get_group()))
        return module


def _with_summed_key(group: distributed.ProcessGroup, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
    width = output.shape[-1] - module.latent_width  # pyright: ignore[reportOperatorIssue]
    latent, key = output.split([output.shape[-1] - width, width], dim=-1)
    return torch.cat([latent, SummedGradient.apply(key, group)], dim=-1)


def _forward_with_summed_gradients(
    module: nn.Module, forward: Callable[..., Tensor], group: distributed.ProcessGroup, *args: Any, **named: Any
) -> Tensor:
    """The module's forward, with weights whose gradients are all-reduced."""
    parameters = dict(module._parameters)
    module._parameters.update({name: SummedGradient.apply(weight, group) for name, weight in parameters.items()})
    try:
        return forward(*args, **named)
    finally:
        module._parameters.update(parameters)


class SummedGradient(torch.autograd.Function):
    """Identity whose gradient is summed over a group."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: distributed.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        total = total.clone() if total is gradient else total
        distributed.all_reduce(total, group=ctx.group)
        return total.to(gradient.dtype), None


class SummedOutput(torch.autograd.Function):
    """Sum over a group, whose ranks all go on with the whole: each gets the whole gradient of its part."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: distributed.ProcessGroup) -> Tensor:
        total = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        total = total.clone() if total is tensor else total
        distributed.all_reduce(total, group=group)
        return total.to(tensor.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
