"""Invariant mode: a response's bits do not depend on what else is in the batch.

A matrix product of 7 rows and one of 256 rows may use different code in the CPU's library, and so differ in the last
bit of the same row. In invariant mode every product has the same number of rows: the token stream is padded to a
multiple of TILE, and each linear layer works tile by tile.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

TILE = 64


def make_invariant(model: nn.Module) -> None:
    """Let every linear layer of this instance work in tiles of a fixed number of rows."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = _tiled(module)


def can_be_invariant(model: nn.Module) -> bool:
    """Are all products those of linear layers? Experts multiply as many rows as were sent to them."""
    known = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)}
    return all(parameter.dim() < 2 or id(parameter) in known for parameter in model.parameters())


def _tiled(linear: nn.Linear):  # noqa: ANN202
    def forward(rows: Tensor) -> Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        if len(flat) % TILE:
            raise ValueError(f"{len(flat)} rows are no multiple of {TILE}")
        output = flat.new_empty(len(flat), linear.out_features)
        weight = linear.weight.t()
        for tile, place in zip(flat.split(TILE), output.split(TILE), strict=True):
            if linear.bias is None:
                torch.mm(tile, weight, out=place)
            else:
                torch.addmm(linear.bias, tile, weight, out=place)
        return output.view(*rows.shape[:-1], -1)

    return forward


def padding(rows: int, invariant: bool) -> int:
    """How many rows to append so that the stream is a whole number of tiles."""
    return -rows % TILE if invariant else 0
