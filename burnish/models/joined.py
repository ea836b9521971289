"""Linear layers that read the same tensor, joined into one product: query, key and value; gate and up.

The modules and their parameters stay where they are; the parameters become parts of one tensor. A small product costs a
GPU as much as one three times as wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # input, weight, bias
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Joined:
    """The first member to be called computes for all; the others take their part if their input is the same tensor."""

    def __init__(self, members: list[nn.Linear], linear: Linear) -> None:
        self.members, self.linear = members, linear
        self.sizes = [member.out_features for member in members]
        self.weight = _one_tensor([member.weight for member in members])
        self.bias = None if members[0].bias is None else _one_tensor([member.bias for member in members])
        self.input: Tensor | None = None
        self.parts: tuple[Tensor, ...] = ()
        for number, member in enumerate(members):
            # Of its class, not of the module, is the other forward: torch.compile needs no program of its own for each.
            member.__class__ = JoinedLinear
            member.joined, member.number = self, number

    def product(self, number: int, given: Tensor) -> Tensor:
        if number == 0:
            self.input, self.parts = given, self.linear(given, self.weight, self.bias).split(self.sizes, dim=-1)
        if given is not self.input:
            return self.linear(given, self.members[number].weight, self.members[number].bias)
        part = self.parts[number]
        if number == len(self.sizes) - 1:
            self.input, self.parts = None, ()  # nothing outlives the layer
        return part

    def part(self) -> None:
        """The members are as they were; where their parameters are is for others to say."""
        for member in self.members:
            member.__class__ = nn.Linear
            del member.joined, member.number


class JoinedLinear(nn.Linear):
    """A member of a group."""

    joined: Joined
    number: int

    def forward(self, given: Tensor) -> Tensor:
        return self.joined.product(self.number, given)


def join_products(model: nn.Module, linear: Linear = F.linear) -> list[Joined]:
    """`linear` is how a product is computed."""
    return [Joined(members, linear) for module in model.modules() for members in _groups(module)]


def _groups(module: nn.Module) -> Iterator[list[nn.Linear]]:
    """Plain linear layers beside each other, all with a bias or none."""
    for names in GROUPS:
        members = [module._modules.get(name) for name in names]
        if all(type(member) is nn.Linear for member in members):
            inputs = {member.in_features for member in members}
            biased = {member.bias is not None for member in members}
            if len(inputs) == len(biased) == 1:
                yield members


@torch.no_grad()
def _one_tensor(parameters: list[nn.Parameter]) -> Tensor:
    """All rows in one tensor, of which each parameter is a part from here on."""
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(p) for p in parameters]), strict=True):
        parameter.data = part
    return whole
