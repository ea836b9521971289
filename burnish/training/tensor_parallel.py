"""Tensor parallelism: ranks that share one layer's matrices, each with some of its heads and of its inner columns.

Attention and MLP go column by column in and row by row out, so a layer costs two sums over the ranks in each direction.
Embedding, norms and head are whole on every rank: the fused head takes a few tokens and the whole vocabulary at a time,
and a part of the vocabulary would need a sum over ranks for each of its chunks.
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
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.parts import backbone

# What a mixture calls the number of its experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Block:
    """A module by its parts: matrices whose outputs are shared out, then matrices whose inputs are."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    inputs: PrepareModuleInput  # one conversion for all columns: the backward pass sums over ranks once, not for each
    norms: tuple[str, ...] = ()  # of one head's width, the same for every head

    def fits(self, module: nn.Module) -> bool:
        return all(type(getattr(module, name, None)) is nn.Linear for name in (*self.columns, *self.rows))

    def plan(self, module: nn.Module) -> dict[str, ParallelStyle]:
        """How each part of the module is shared out."""
        return {
            **{name: ColwiseParallel() for name in self.columns},
            **{name: RowwiseParallel() for name in self.rows},
            **{name: OwnHeads() for name in self.norms if hasattr(module, name)},
        }


# transformers hands a layer's input to the attention by name, and to the MLP by position.
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
    Block(
        columns=("gate_proj", "up_proj"),
        rows=("down_proj",),
        inputs=PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
    ),
)


def apply_tp(model: PreTrainedModel, mesh: DeviceMesh, key: str) -> PreTrainedModel:
    """Share the layers' matrices out over the ranks of a mesh of one dimension; every rank holds the same model before.

    Comes before FSDP, which then shards what is left over the data dimension. `key` is that of the size, for errors.
    """
    if mesh.size() == 1:
        return model
    check_sizes(model.config, mesh.size(), key)
    for number, layer in enumerate(layers_of(model, key)):
        blocks = list(_blocks(layer))
        _check_covered(layer, blocks, f"layer {number} of {type(model).__name__}", key, mesh.size())
        for module, block in blocks:
            # Without a source rank nothing is sent: each rank cuts its part out of what it has.
            parallelize_module(module, mesh, block.plan(module), src_data_rank=None)
            parallelize_module(module, mesh, block.inputs)
    return model


def check_sizes(config: PretrainedConfig, size: int, key: str) -> None:
    """Refuse, before any weight is read, what so many ranks cannot share evenly."""
    config = config.get_text_config()
    if size == 1:
        return
    if any((getattr(config, name, None) or 0) > 1 for name in EXPERTS):
        problem = "the experts of a mixture are not shared out over ranks yet"
        raise UserError(problem, key=key, value=size, hint=f"{key}=1")
    parts = {
        "attention heads": config.num_attention_heads,
        "key-value heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "inner columns": config.intermediate_size,
    }
    if any(count % size for count in parts.values()):
        shared = math.gcd(*parts.values())
        sizes = [number for number in range(1, shared + 1) if shared % number == 0]
        counts = ", ".join(f"{count} {name}" for name, count in parts.items())
        problem = f"the model's {counts} do not share out evenly over {size} ranks"
        raise UserError(problem, key=key, value=size, allowed=sizes, hint=f"{key}={_nearest(sizes, size)}")


def _nearest(sizes: list[int], size: int) -> int:
    """The largest size that works and is not above the one asked for."""
    return max(one for one in sizes if one <= size)


def layers_of(model: PreTrainedModel, key: str) -> nn.ModuleList:
    layers = getattr(backbone(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UserError(f"the layers of {type(model).__name__} cannot be told apart", key=key, hint=f"{key}=1")
    return layers


def _blocks(layer: nn.Module) -> Iterator[tuple[nn.Module, Block]]:
    """The modules of a layer that are shared out, each with how."""
    for module in layer.modules():
        yield from ((module, block) for block in BLOCKS if block.fits(module))


def _check_covered(layer: nn.Module, blocks: list[tuple[nn.Module, Block]], where: str, key: str, size: int) -> None:
    """Every matrix of a layer is shared out, and every norm among the heads is of one head."""
    planned = {getattr(module, name) for module, block in blocks for name in (*block.columns, *block.rows)}
    left = [name for name, module in layer.named_modules() if _has_matrix(module) and module not in planned]
    if left:
        problem = f"{where} has matrices that no plan knows how to share out: {', '.join(left)}"
        raise UserError(problem, key=key, value=size, hint=f"{key}=1")
    for module, block in blocks:
        for norm in (getattr(module, name) for name in block.norms if hasattr(module, name)):
            if any(weight.shape != (module.head_dim,) for weight in norm.parameters()):
                problem = f"{where} norms all heads together, which ranks with some of the heads cannot"
                raise UserError(problem, key=key, value=size, hint=f"{key}=1")


def _has_matrix(module: nn.Module) -> bool:
    return any(weight.dim() > 1 for weight in module.parameters(recurse=False))


class OwnHeads(ParallelStyle):
    """A norm of each head's values. Its weight is whole on every rank, but the rank's heads teach it only their part:
    so its gradient is summed over the ranks, and is the same on all of them, like that of every whole weight."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.forward = partial(_forward_with_summed_gradients, module, module.forward, device_mesh.get_group())
        return module


def _forward_with_summed_gradients(
    module: nn.Module, forward: Callable[..., Tensor], group: distributed.ProcessGroup, *args: Any, **named: Any
) -> Tensor:
    """The module's own forward, with a view of each weight whose gradient is summed on its way back."""
    kept = dict(module._parameters)
    module._parameters.update({name: _SummedGradient.apply(weight, group) for name, weight in kept.items()})
    try:
        return forward(*args, **named)
    finally:
        module._parameters.update(kept)


class _SummedGradient(torch.autograd.Function):
    """The same tensor; its gradient is the sum over a group."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: distributed.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.float()
        total = total.clone() if total is gradient else total
        distributed.all_reduce(total, group=ctx.group)
        return total.to(gradient.dtype), None
