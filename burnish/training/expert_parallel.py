"""Expert parallelism: each rank holds some experts of every mixture, and tokens go to the ranks of their experts.

transformers keeps a layer's experts in one module of two weights, `gate_up_proj` and `down_proj`, whose first dimension
counts the experts. Here that dimension is sharded over a mesh, so that names, checkpoints and gradient norms are those
of DTensors. Ranks of a group see different tokens: an all-to-all brings each token to its experts and back. Tensor
ranks see the same tokens: each computes the outputs of its own experts, and an all-reduce adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.autocast import in_autocast_dtype
from burnish.models.routing import num_experts
from burnish.training.parallel import ParallelContext
from burnish.training.tensor_parallel import SummedGradient, SummedOutput, check_adapted_experts

WEIGHTS = ("gate_up_proj", "down_proj")


def check_experts(config: PretrainedConfig, size: int, key: str, tensor_size: int = 1) -> None:
    """Raise, before any weight is loaded, where the model's experts do not divide over the ranks.

    With tensor parallelism, `tensor_size` tensor ranks share the experts of each expert-parallel rank.
    """
    if size == 1:
        return
    number = num_experts(config)
    if not number:
        raise UserError("the model has no experts", key=key, value=size, hint=f"{key}=1")
    if number % (size * tensor_size):
        sizes = [other for other in range(1, number + 1) if number % (other * tensor_size) == 0] or [1]
        hint = f"{key}={max((other for other in sizes if other <= size), default=1)}"
        ranks = f"{size} ranks" if tensor_size == 1 else f"{size} x {tensor_size} tensor ranks"
        problem = f"the model's {number} experts do not divide evenly over {ranks}"
        raise UserError(problem, key=key, value=size, allowed=sizes, hint=hint)


@dataclass(frozen=True)
class Holders:
    """The ranks that hold different experts: expert-parallel ranks, which see different tokens, tensor-parallel ranks,
    which see the same, or both. Expert e is on rank e // (experts of a rank), tensor ranks innermost."""

    mesh: DeviceMesh  # (expert, tensor), (expert,) or (tensor,)
    exchange: ProcessGroup | None = None  # that of expert-parallel ranks
    tensor: ProcessGroup | None = None

    @property
    def num_exchanging(self) -> int:
        return 1 if self.exchange is None else self.exchange.size()

    @property
    def num_tensor(self) -> int:
        return 1 if self.tensor is None else self.tensor.size()


def holders_of(parallel: ParallelContext) -> Holders | None:
    """Who holds the experts of a mixture in this layout; None: every rank has all."""
    mesh = parallel.expert_holders
    if mesh is None:
        return None
    exchange = None if parallel.experts is None else parallel.experts.get_group()
    return Holders(mesh, exchange, None if parallel.tensor is None else parallel.tensor.get_group())


def apply_ep(model: PreTrainedModel, holders: Holders, key: str) -> list[nn.Module]:
    """Shard the experts over their holders; returns their modules, which FSDP has to shard on their own.

    Before, every rank holds the same full model.
    """
    check_experts(model.config, holders.num_exchanging, key, holders.num_tensor)
    check_adapted_experts(model, key, holders.mesh.size())
    modules = list(_experts_of(model, key))
    for module in modules:
        for name in WEIGHTS:
            _shard_weight(module, name, holders.mesh)
        count = cast(Any, module).num_experts // holders.mesh.size()
        module.num_experts = count  # pyright: ignore[reportAttributeAccessIssue]
        module.forward = partial(_forward, module, module.forward, holders, count)
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
    local = whole.detach()
    for dimension in range(mesh.ndim):
        local = local.chunk(mesh.size(dimension))[mesh.get_local_rank(dimension)]
    sharded = DTensor.from_local(local.clone(), mesh, [Shard(0)] * mesh.ndim, run_check=False)
    module.register_parameter(name, nn.Parameter(sharded, requires_grad=whole.requires_grad))


def fsdp_dimension(weight: nn.Parameter, num_ranks: int) -> Shard:
    """Over which dimension FSDP shards experts: not over that of the experts, which may be fewer than ranks."""
    assert isinstance(weight, DTensor)
    return Shard(1) if weight.to_local().shape[1] % num_ranks == 0 else Shard(0)


def _forward(
    module: nn.Module,
    forward: Callable[..., Tensor],
    holders: Holders,
    num_local: int,
    hidden_states: Tensor,  # [T, hidden]
    top_k_index: Tensor,  # [T, k]
    top_k_weights: Tensor,  # [T, k]
) -> Tensor:
    """What the module computes with all experts: every expert's rank computes the outputs of the tokens sent there."""
    dtype, tensor = hidden_states.dtype, holders.tensor
    (hidden_states,) = in_autocast_dtype(hidden_states)  # communicate in the dtype of the computation
    if tensor is not None:  # each tensor rank computes a part of the outputs, and gets a part of the gradients
        hidden_states = SummedGradient.apply(hidden_states, tensor)
        top_k_weights = SummedGradient.apply(top_k_weights, tensor)
    num_tokens, num_chosen = top_k_index.shape
    expert = top_k_index.reshape(-1)
    order = torch.argsort(expert, stable=True)  # by expert, hence by rank
    if tensor is not None:
        order = order[expert[order] // num_local % tensor.size() == tensor.rank()]
    computed = _exchanged(module, forward, holders, num_local, hidden_states[order // num_chosen], expert[order])
    outputs = torch.zeros((num_tokens * num_chosen, *computed.shape[1:]), dtype=computed.dtype, device=computed.device)
    outputs = outputs.index_copy(0, order, computed).view(num_tokens, num_chosen, -1)
    total = (outputs * top_k_weights[..., None]).sum(1)
    return (total if tensor is None else SummedOutput.apply(total, tensor)).to(dtype)


def _exchanged(
    module: nn.Module,
    forward: Callable[..., Tensor],
    holders: Holders,
    num_local: int,
    tokens: Tensor,  # [N, hidden], in the order of their experts
    expert: Tensor,  # [N], of those that this tensor rank and its peers hold
) -> Tensor:
    """Each token's output of its expert, which may be on another expert-parallel rank."""
    group, size = holders.exchange, holders.num_exchanging
    place = expert // (num_local * holders.num_tensor) * num_local + expert % num_local  # [rank, local expert]
    if group is None:
        return _local_experts(module, forward, 1, tokens, place)
    sent = torch.bincount(place, minlength=num_local * size).view(size, num_local)
    got = torch.empty_like(sent)  # [source rank, local expert]
    distributed.all_to_all_single(got, sent, group=group)
    splits = sent.sum(1).tolist(), got.sum(1).tolist()
    tokens = _AllToAll.apply(tokens, *splits, group)
    local = torch.arange(num_local, device=got.device).repeat(size)
    computed = _local_experts(module, forward, size, tokens, torch.repeat_interleave(local, got.reshape(-1)))
    return _AllToAll.apply(computed, splits[1], splits[0], group)


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
