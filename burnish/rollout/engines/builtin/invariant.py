"""Invariant mode: the bits of a response do not depend on the rest of the batch.

A matrix product of 7 rows and one of 256 rows may run different code in the CPU's library and so differ in the last bit
of the same row. In invariant mode every product has the same number of rows: the token stream is padded to a multiple
of TILE, and each linear layer works tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from burnish.models.parts import modules_outside

TILE = 32


def can_be_invariant(model: nn.Module, skip: Iterable[nn.Module] = ()) -> bool:
    """Whether all products outside of `skip` are those of linear layers. Experts multiply as many rows as are routed
    to them."""
    modules = list(modules_outside(model, skip))
    known = {id(module.weight) for module in modules if isinstance(module, nn.Linear | nn.Embedding)}
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    return all(parameter.dim() < 2 or id(parameter) in known for parameter in parameters)


def tiled_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer, one tile of rows at a time."""
    flat = rows.reshape(-1, rows.shape[-1]).to(weight.dtype)  # the residual stream may be wider than the weights
    count = flat.shape[0]
    if count % TILE:
        raise ValueError(f"{count} rows are not a multiple of {TILE}")
    output, transposed = flat.new_empty(count, weight.shape[0]), weight.t()
    tiles, targets = (part.view(-1, TILE, part.shape[1]).unbind() for part in (flat, output))
    for tile, target in zip(tiles, targets, strict=True):
        if bias is None:
            torch.mm(tile, transposed, out=target)
        else:
            torch.addmm(bias, tile, transposed, out=target)
    return output.view(*rows.shape[:-1], -1)


def padding(rows: int, multiple: int) -> int:
    """How many rows to append to reach a multiple."""
    return -rows % multiple
