"""Tensor parallelism of an engine's model: each rank holds some attention heads and some columns of the MLPs.

A layer's first matrices become narrower linear layers, and its last ones sum their outputs over the ranks. Embedding,
norms, routers, head and vision towers are whole on every rank. Where there are fewer key-value heads than ranks,
several ranks hold the same one. Weights arrive whole; a `Slice` says which part of one a rank keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.fused.linear import Product
from burnish.models.parts import backbone
from burnish.models.routing import is_router, num_experts
from burnish.models.tensor_group import TensorGroup

Sum = Callable[[Tensor], Tensor]  # over the ranks
EXPERTS = {"gate_up_proj", "down_proj"}  # [experts, 2 x columns, hidden] and [experts, hidden, columns]


@dataclass(frozen=True)
class Slice:
    """The part of a weight that a rank holds: ranges of one dimension, one after the other."""

    dim: int
    size: int  # of the whole weight
    ranges: tuple[tuple[int, int], ...]  # (start, length)

    def of(self, whole: Tensor) -> Tensor:
        if whole.dim() <= self.dim or whole.shape[self.dim] != self.size:
            raise ValueError(f"dimension {self.dim} of {list(whole.shape)} is not {self.size}")
        parts = [whole.narrow(self.dim, start, length) for start, length in self.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)


Slices = Mapping[str, Slice]  # by the name of the weight; others are whole


def part_of(slices: Slices, name: str, whole: Tensor) -> Tensor:
    """What a rank holds of a weight."""
    return slices[name].of(whole) if name in slices else whole


class RowParallelLinear(nn.Linear):
    """A linear layer of this rank's inputs, summed over the ranks."""

    total: Sum
    product: Product = staticmethod(F.linear)

    def forward(self, input: Tensor) -> Tensor:
        output = self.total(self.product(input, self.weight, None))
        return output if self.bias is None else output + self.bias


@dataclass(frozen=True)
class Block:
    """One kind of module, by the names of its linear layers."""

    columns: tuple[str, ...]
    rows: str
    shared: tuple[str, ...] = ()  # columns of key-value heads
    whole: tuple[str, ...] = ()  # layers that every rank holds

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.columns, *self.shared, *self.whole, self.rows)

    def matches(self, module: nn.Module) -> bool:
        return all(type(getattr(module, name, None)) is nn.Linear for name in self.names)


ATTENTION = Block(("q_proj",), "o_proj", shared=("k_proj", "v_proj"))
# DeepSeek's latent attention, with latent queries and without.
LATENT = Block(("q_b_proj", "kv_b_proj"), "o_proj", whole=("q_a_proj", "kv_a_proj_with_mqa"))
LATENT_KEYS = Block(("q_proj", "kv_b_proj"), "o_proj", whole=("kv_a_proj_with_mqa",))
MLP = Block(("gate_proj", "up_proj"), "down_proj")
BLOCKS = (ATTENTION, LATENT, LATENT_KEYS, MLP)
WHOLE = ("shared_expert_gate",)  # of Qwen2-MoE: one number for each token


def check_sizes(config: PretrainedConfig, size: int, key: str) -> None:
    """Raise, before any weight is loaded, where the model does not divide by the number of ranks."""
    text: Any = config.get_text_config()
    counts = {"attention heads": text.num_attention_heads, **_columns(text)}
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads

    def fits(number: int) -> bool:
        return not any(count % number for count in counts.values()) and (
            kv_heads % number == 0 or number % kv_heads == 0
        )

    if not fits(size):
        sizes = [number for number in range(1, text.num_attention_heads + 1) if fits(number)]
        whole = {**counts, "key-value heads": kv_heads}
        problem = f"the model's {', '.join(f'{n} {name}' for name, n in whole.items())} do not divide over {size} ranks"
        hint = f"{key}={max(number for number in sizes if number <= size)}"
        raise UserError(problem, key=key, value=size, allowed=sizes, hint=hint)


def _columns(config: Any) -> dict[str, int]:
    if not num_experts(config):
        return {"intermediate columns": config.intermediate_size}
    names = ("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size")
    sizes = {name: getattr(config, name, None) for name in names}
    return {f"columns ({name})": size for name, size in sizes.items() if size}


def local_heads(heads: int, kv_heads: int, size: int) -> tuple[int, int]:
    """Query and key-value heads of each rank."""
    return heads // size, max(1, kv_heads // size)


def shard_model(model: PreTrainedModel, group: TensorGroup, total: Sum, key: str) -> dict[str, Slice]:
    """Keep this rank's part of every layer; returns which part of each weight that is.

    `key` is the config key that sets the number of ranks, for error messages.
    """
    layers = getattr(backbone(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UserError(f"{type(model).__name__} has no list of layers", key=key, hint=f"{key}=1")
    sharding = _Sharding(model, group, total, key)
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    for layer in layers:
        sharding.shard_layer(layer, names)
    return sharding.slices


class _Sharding:
    def __init__(self, model: PreTrainedModel, group: TensorGroup, total: Sum, key: str) -> None:
        config: Any = model.config.get_text_config()
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.model, self.group, self.total, self.key = type(model).__name__, group, total, key
        self.slices: dict[str, Slice] = {}

    def shard_layer(self, layer: nn.Module, names: Mapping[nn.Module, str]) -> None:
        covered: set[nn.Module] = set()
        blocks = [(module, block) for module in layer.modules() for block in BLOCKS if block.matches(module)]
        experts = [module for module in layer.modules() if _is_experts(module)]
        for module, block in blocks:
            covered |= {getattr(module, name) for name in block.names}
        for module in layer.modules():
            if module not in covered and module not in experts and not is_router(module):
                self._check_whole(module, names[module])
        for module, block in blocks:
            self._check_heads(module, block, names[module])
            for path, name in ((f"{names[module]}.{name}", name) for name in block.names if name not in block.whole):
                units = None if block is MLP else self.kv_heads if name in block.shared else self.heads
                self._shard_linear(module, name, path, units, is_row=name == block.rows)
        for module in experts:
            self._shard_experts(module, names[module])

    def _check_whole(self, module: nn.Module, name: str) -> None:
        if any(weight.dim() > 1 for weight in module.parameters(recurse=False)) and not name.endswith(WHOLE):
            self._refuse(f"{name} of {self.model} is a matrix that cannot be divided over ranks")

    def _check_heads(self, module: nn.Module, block: Block, name: str) -> None:
        """Refuse parameters of single heads, and norms over all heads."""
        if block is MLP:
            return
        if module._parameters:
            self._refuse(f"{name} of {self.model} has parameters of its heads: {', '.join(module._parameters)}")
        norms = [child for part, child in module.named_children() if part not in block.names]
        if block is ATTENTION and any(
            weight.shape != (module.head_dim,) for norm in norms for weight in norm.parameters()
        ):
            self._refuse(f"{name} of {self.model} normalizes over all heads, of which a rank has only some")

    def _refuse(self, problem: str) -> None:
        raise UserError(problem, key=self.key, value=self.group.size, hint=f"{self.key}=1")

    def _shard_linear(self, module: nn.Module, name: str, path: str, units: int | None, *, is_row: bool) -> None:
        """`units`: the heads that a dimension consists of; None: it can be cut anywhere."""
        linear: nn.Linear = getattr(module, name)
        size = linear.in_features if is_row else linear.out_features
        part = Slice(int(is_row), size, (self._range(size, units or size),))
        self._keep(linear, "weight", path, part)
        if not is_row:
            linear.out_features = linear.weight.shape[0]
            if linear.bias is not None:
                self._keep(linear, "bias", path, part)
            return
        row = RowParallelLinear(linear.weight.shape[1], linear.out_features, linear.bias is not None, device="meta")
        row.total, row.weight, row.bias = self.total, linear.weight, linear.bias
        setattr(module, name, row)

    def _shard_experts(self, module: nn.Module, path: str) -> None:
        gate_up, down = module.get_parameter("gate_up_proj"), module.get_parameter("down_proj")
        columns = down.shape[2]
        if gate_up.shape[1:] != (2 * columns, down.shape[1]):
            self._refuse(f"{path} of {self.model} holds its experts transposed")
        start, length = self._range(columns, columns)
        ranges = ((start, length), (columns + start, length))
        self._keep(module, "gate_up_proj", path, Slice(1, 2 * columns, ranges))
        self._keep(module, "down_proj", path, Slice(2, columns, ((start, length),)))
        module.register_forward_hook(partial(_sum_output, self.total))

    def _range(self, size: int, units: int) -> tuple[int, int]:
        """Start and length of this rank's part of a dimension of so many units."""
        unit, (rank, ranks) = size // units, (self.group.rank, self.group.size)
        if units < ranks:
            return rank * units // ranks * unit, unit
        return units // ranks * rank * unit, units // ranks * unit

    def _keep(self, module: nn.Module, name: str, path: str, part: Slice) -> None:
        whole = module.get_parameter(name)
        local = part.of(whole.detach()).clone(memory_format=torch.contiguous_format)
        module.register_parameter(name, nn.Parameter(local, requires_grad=False))
        self.slices[f"{path}.{name}"] = part


def _is_experts(module: nn.Module) -> bool:
    return set(module._parameters) == EXPERTS and all(weight.dim() == 3 for weight in module.parameters(recurse=False))


def _sum_output(total: Sum, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    return total(output)


def row_parallel_layers(model: nn.Module) -> Iterator[RowParallelLinear]:
    return (module for module in model.modules() if isinstance(module, RowParallelLinear))
