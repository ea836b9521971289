"""Expert parallelism: each rank holds some experts of every mixture, and tokens go to the ranks of their experts.

transformers keeps a layer's experts in one module of two weights, `gate_up_proj` and `down_proj`, whose first dimension
counts the experts. Here that dimension is sharded over a mesh, so that names, checkpoints and gradient norms are those
of DTensors. Ranks of a group see different tokens: an all-to-all brings each token to its experts and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.router_totals import EXPERTS

WEIGHTS = ("gate_up_proj", "down_proj")


def check_experts(config: PretrainedConfig, size: int, key: str) -> None:
    """Raise, before any weight is loaded, where the model's experts do not divide over the ranks."""
    config = config.get_text_config()
    if size == 1:
        return
    number = next((count for name in EXPERTS if (count := getattr(config, name, None) or 0) > 1), 1)
    if number == 1:
        raise UserError("the model has no experts", key=key, value=size, hint=f"{key}=1")
    if number % size:
        sizes = [other for other in range(1, number + 1) if number % other == 0]
        hint = f"{key}={max(other for other in sizes if other <= size)}"
        problem = f"the model's {number} experts do not divide evenly over {size} ranks"
        raise UserError(problem, key=key, value=size, allowed=sizes, hint=hint)


def apply_ep(model: PreTrainedModel, mesh: DeviceMesh, key: str) -> list[nn.Module]:
    """Shard the experts over a one-dimensional mesh; returns their modules, which FSDP has to shard on their own.

    Before, every rank holds the same full model.
    """
    check_experts(model.config, mesh.size(), key)
    modules = list(_experts_of(model, key))
    for module in modules:
        for name in WEIGHTS:
            _shard_weight(module, name, mesh)
        count = cast(Any, module).num_experts // mesh.size()
        module.num_experts = count  # pyright: ignore[reportAttributeAccessIssue]
        module.forward = partial(_forward, module, module.forward, mesh.get_group(), count)
    return modules


def _experts_of(model: PreTrainedModel, key: str) -> Iterator[nn.Module]:
    for name, module in model.named_modules():
        weights = dict(module.named_parameters(recurse=False))
        if not any(weight.ndim == 3 for weight in weights.values()):
            continue
        if set(weights) != set(WEIGHTS) or not isinstance(getattr(module, "num_experts", None), int):
            problem = f"{name} of {type(model).__name__} holds its experts as {', '.join(sorted(weights))}, not as"
            raise UserError(f"{problem} {' and '.join(WEIGHTS)}", key=key, hint=f"{key}=1")
        yield module


def _shard_weight(module: nn.Module, name: str, mesh: DeviceMesh) -> None:
    whole = module.get_parameter(name)
    local = whole.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
    sharded = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    module.register_parameter(name, nn.Parameter(sharded, requires_grad=whole.requires_grad))


def fsdp_dimension(weight: nn.Parameter, num_ranks: int) -> Shard:
    """Over which dimension FSDP shards experts: not over that of the experts, which may be fewer than ranks."""
    assert isinstance(weight, DTensor)
    return Shard(1) if weight.to_local().shape[1] % num_ranks == 0 else Shard(0)


def _forward(
    module: nn.Module,
    forward: Callable[..., Tensor],
    group: ProcessGroup,
    num_local: int,
    hidden_states: Tensor,  # [T, hidden]
    top_k_index: Tensor,  # [T, k]
    top_k_weights: Tensor,  # [T, k]
) -> Tensor:
    """What the module computes with all experts: every expert's rank computes the outputs of the tokens sent there."""
    num_tokens, num_chosen = top_k_index.shape
    order = torch.argsort(top_k_index.reshape(-1), stable=True)  # by expert, hence by rank
    sent = torch.bincount(top_k_index.reshape(-1), minlength=num_local * group.size()).view(group.size(), num_local)
    got = torch.empty_like(sent)  # [source rank, local expert]
    distributed.all_to_all_single(got, sent, group=group)
    splits = sent.sum(1).tolist(), got.sum(1).tolist()
    tokens = _AllToAll.apply(hidden_states[order // num_chosen], *splits, group)
    local = torch.arange(num_local, device=got.device).repeat(group.size())
    experts = torch.repeat_interleave(local, got.reshape(-1))
    computed = _local_experts(module, forward, group.size(), tokens, experts)
    returned = _AllToAll.apply(computed, splits[1], splits[0], group)
    outputs = torch.empty_like(returned).index_copy(0, order, returned).view(num_tokens, num_chosen, -1)
    return (outputs * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)


def _local_experts(
    module: nn.Module, forward: Callable[..., Tensor], num_ranks: int, tokens: Tensor, experts: Tensor
) -> Tensor:
    """The module's own forward on this rank's experts, one expert per token."""
    parameters = dict(module._parameters)
    local = {name: _local_weight(cast(Tensor, weight), num_ranks) for name, weight in parameters.items()}
    module._parameters.update(cast(Any, local))
    try:
        if len(tokens):
            return forward(tokens, experts[:, None], torch.ones_like(tokens[:, :1]))
    finally:
        module._parameters.update(parameters)
    # No token came. Yet the result depends on tokens and weights, so that the backward pass of this rank takes part in
    # the same collectives as that of others.
    return tokens + sum(weight[:1, :1, :1].sum() * 0 for weight in local.values())


def _local_weight(weight: Tensor, num_ranks: int) -> Tensor:
    """FSDP averages gradients over the ranks that hold the same experts, which are fewer than the ranks of a loss."""
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    return _ScaledGradient.apply(local, 1 / num_ranks)


class _AllToAll(torch.autograd.Function):
    """Rows to other ranks; gradients come back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], got: list[int], group: ProcessGroup) -> Tensor:
        ctx.splits, ctx.group = (sent, got), group
        return _exchange(rows, sent, got, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        sent, got = ctx.splits
        return _exchange(gradient, got, sent, ctx.group), None, None, None


def _exchange(rows: Tensor, sent: list[int], got: list[int], group: ProcessGroup) -> Tensor:
    result = rows.new_empty((sum(got), *rows.shape[1:]))
    distributed.all_to_all_single(result, rows.contiguous(), got, sent, group=group)
    return result


class _ScaledGradient(torch.autograd.Function):
    """Identity whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
