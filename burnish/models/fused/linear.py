"""One matrix product for linear layers with the same input (query, key and value; gate and up). Inference only.

A small product costs a GPU as much as one three times as wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # input, weight, bias


class ProductLinear(nn.Linear):
    """A linear layer by a given product, such as one whose rows do not depend on the rest of the batch."""

    product: Product

    @classmethod
    def from_module(cls, linear: nn.Linear, product: Product) -> ProductLinear:
        module = cls.__new__(cls)  # nn.Linear.__init__ would allocate and initialize new parameters
        nn.Module.__init__(module)
        share_parts(linear, module)
        module.product = product
        return module

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input, self.weight, self.bias)


class FusedLinear(nn.Module):
    """Several linear layers in one product; returns the output of each.

    The layers stay submodules of their parent, with parameters that are views of `weight` and `bias`. New weights are
    copied into these parameters; moving or replacing the parameters would separate them from the product.
    """

    def __init__(self, layers: Sequence[nn.Linear], product: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layers = list(layers)  # in a list, so that they are not registered a second time
        self.product = product
        self.sizes = [layer.out_features for layer in layers]
        # Not parameters or buffers: these would repeat the layers' in the state dict.
        self.weight = torch.cat([layer.weight.detach() for layer in layers])
        self.bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
        self._set_views()

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        return self.product(input, self.weight, self.bias).split(self.sizes, dim=-1)

    def release(self) -> None:
        """Drop the weights, when the parameters have been released as well."""
        self.weight = self.weight.new_empty(0)
        self.bias = None if self.bias is None else self.bias.new_empty(0)

    def allocate(self) -> None:
        """Undo `release`: give the layers parameters again, with any content."""
        if self.weight.numel() == 0:
            self.weight = self.weight.new_empty(sum(self.sizes), self.layers[0].in_features)
            self.bias = None if self.bias is None else self.bias.new_empty(sum(self.sizes))
            self._set_views()

    def _set_views(self) -> None:
        for layer, weight in zip(self.layers, self.weight.split(self.sizes), strict=True):
            layer.weight.data = weight
        if self.bias is not None:
            for layer, bias in zip(self.layers, self.bias.split(self.sizes), strict=True):
                layer.bias.data = bias


def fuse(layers: Sequence[nn.Module], product: Product | None) -> FusedLinear | None:
    """None without a product, for a single layer, and for others than plain linear layers (such as adapted ones)."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear) and type(layer) in (nn.Linear, ProductLinear)]
    kinds = {(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in linear}
    if product is None or not len(linear) == len(layers) > 1 or len(kinds) > 1:
        return None
    return FusedLinear(linear, product)


def share_parts(source: nn.Module, target: nn.Module) -> None:
    """Give `target` the parameters, buffers, submodules and public attributes of `source`, in the same order.

    Attributes matter beyond the forward pass: attention functions read `layer_idx` and `is_causal`, peft `in_features`.
    """
    for name, value in vars(source).items():
        if not name.startswith("_"):
            setattr(target, name, value)
    for name, parameter in source._parameters.items():
        target.register_parameter(name, parameter)
    for name, buffer in source._buffers.items():
        target.register_buffer(name, buffer, persistent=name not in source._non_persistent_buffers_set)
    for name, module in source._modules.items():
        target.add_module(name, module)
