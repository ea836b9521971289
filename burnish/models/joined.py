"""Fuse linear layers with the same input into one matrix product: query, key and value; gate and up.

Modules and parameters stay in place; the parameters become views of one tensor. A small product costs a GPU as much as
one three times as wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.models.parts import modules_outside

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # input, weight, bias
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Joined:
    """The first member to be called computes for all; the others return their part if they get the same input."""

    def __init__(self, members: list[nn.Linear], linear: Linear) -> None:
        self.members, self.linear = members, linear
        self.sizes = [member.out_features for member in members]
        self.weight = _one_tensor([member.weight for member in members])
        self.bias = None if members[0].bias is None else _one_tensor([member.bias for member in members])
        self.input: Tensor | None = None
        self.parts: tuple[Tensor, ...] = ()
        for number, member in enumerate(members):
            # A forward on the class instead of the instance, so that torch.compile shares one graph between layers.
            member.__class__ = JoinedLinear
            joined = cast("JoinedLinear", member)
            joined.joined, joined.number = self, number

    def product(self, number: int, input: Tensor) -> Tensor:
        if number == 0:
            self.input, self.parts = input, self.linear(input, self.weight, self.bias).split(self.sizes, dim=-1)
        if input is not self.input:
            return self.linear(input, self.members[number].weight, self.members[number].bias)
        part = self.parts[number]
        if number == len(self.sizes) - 1:
            self.input, self.parts = None, ()  # release activations with the last member
        return part

    def part(self) -> None:
        """Turn members back into plain linear layers; their parameters stay views of one tensor."""
        for member in self.members:
            member.__class__ = nn.Linear
            del member.joined, member.number


class JoinedLinear(nn.Linear):
    """A linear layer of a fused group."""

    joined: Joined
    number: int

    def forward(self, input: Tensor) -> Tensor:
        return self.joined.product(self.number, input)


def join_products(model: nn.Module, linear: Linear = F.linear, skip: Iterable[nn.Module] = ()) -> list[Joined]:
    """Fuse all groups of the model outside of `skip`; `linear` computes a product."""
    return [Joined(members, linear) for module in modules_outside(model, skip) for members in _groups(module)]


def _groups(module: nn.Module) -> Iterator[list[nn.Linear]]:
    """Groups of plain linear layers of one module, all with a bias or all without."""
    for names in GROUPS:
        found = [module._modules.get(name) for name in names]
        members = [member for member in found if type(member) is nn.Linear]
        if len(members) == len(names):
            inputs = {member.in_features for member in members}
            biased = {member.bias is not None for member in members}
            if len(inputs) == len(biased) == 1:
                yield members


@torch.no_grad()
def _one_tensor(parameters: Sequence[Tensor]) -> Tensor:
    """Concatenate the parameters; each becomes a view of the result."""
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(p) for p in parameters]), strict=True):
        parameter.data = part
    return whole
