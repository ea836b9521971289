"""Linear layers whose weights are rounded to 8 bits (float8_e4m3fn) with float32 scales. Inference only.

A scale belongs to each block of 128 x 128 weights, or to each matrix; the blocks at the edges are smaller. Inputs are
not rounded (W8A16): products of few rows are as slow as reading their weights is, and rounded activations would move
the policy's probabilities further. Weights arrive unrounded, and each layer rounds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.errors import UserError
from burnish.models.fused.linear import FusedLinear, Product, share_parts
from burnish.models.kernels import fp8_product as kernels
from burnish.models.recompute import decoder_layers
from burnish.models.routing import num_experts
from burnish.models.tensor_slices import RowParallelLinear, Sum
from burnish.sizing import FP8_BLOCK

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
FP8_CAPABILITY = (8, 9)  # the first compute capability with float8_e4m3fn
# input, weight, scales, the row of `scales` for each row of the weight, bias
Fp8Product = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


def check_fp8(device: torch.device, key: str, otherwise: str) -> None:
    """Triton converts to and from 8 bits where the GPU has an instruction for it: Ada, Hopper and newer ones."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        hint = f"{key}={otherwise}"
        raise UserError("this GPU has no 8-bit floating point", key=key, value="fp8", allowed=otherwise, hint=hint)


def round_to_fp8(weight: Tensor, by_block: bool) -> tuple[Tensor, Tensor]:
    """Values in 8 bits, and the scales to multiply them by, [row blocks, column blocks] in float32.

    The largest weight of a block becomes the largest number of the format. Where a weight is not finite, its block is
    not a number.
    """
    rows, columns = weight.shape
    height, width = (FP8_BLOCK, FP8_BLOCK) if by_block else (rows, columns)
    padded = weight.new_zeros(rows + -rows % height, columns + -columns % width, dtype=torch.float32)
    padded[:rows, :columns] = weight  # the only copy in float32: in-place from here on
    blocks = padded.view(len(padded) // height, height, -1, width)
    peaks = torch.maximum(blocks.amax((1, 3)), -blocks.amin((1, 3)))
    scales = torch.where(peaks == 0, 1.0, peaks / FP8_MAX)
    blocks.div_(scales[:, None, :, None]).clamp_(-FP8_MAX, FP8_MAX)
    return padded[:rows, :columns].to(FP8, memory_format=torch.contiguous_format), scales


def dequantize(weight: Tensor, scales: Tensor, scale_rows: Tensor) -> Tensor:
    """The numbers that rounded weights stand for, in float32."""
    columns = weight.shape[1]
    width = FP8_BLOCK if scales.shape[1] > 1 else columns
    return weight.float() * scales[scale_rows].repeat_interleave(width, 1)[:, :columns]


def torch_product(product: Product) -> Fp8Product:
    """The reference: `product` with weights that are dequantized each time, in float32."""

    def dequantized_product(
        input: Tensor, weight: Tensor, scales: Tensor, scale_rows: Tensor, bias: Tensor | None
    ) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            wide = dequantize(weight, scales, scale_rows)
            output = product(input.float(), wide, None if bias is None else bias.float())
        return output.to(input.dtype)

    return dequantized_product


@torch.library.custom_op("burnish::fp8_product", mutates_args=())  # opaque for torch.compile
def triton_product(input: Tensor, weight: Tensor, scales: Tensor, scale_rows: Tensor, bias: Tensor | None) -> Tensor:
    """The same in Triton, which converts tiles of the weights as it reads them."""
    output = kernels.fp8_product(input.reshape(-1, input.shape[-1]), weight, scales, scale_rows, bias)
    return output.view(*input.shape[:-1], len(weight))


@triton_product.register_fake
def _triton_product_fake(input: Tensor, weight: Tensor, *rest: object) -> Tensor:
    return input.new_empty(*input.shape[:-1], weight.shape[0])


class Fp8Linear(nn.Linear):
    """A linear layer with rounded weights, which `load` sets. Inputs and outputs are in `dtype`."""

    total: Sum | None = None  # over tensor-parallel ranks, of which each has some of the inputs
    product: Fp8Product
    by_block: bool
    dtype: torch.dtype
    scales: Tensor
    scale_rows: Tensor

    @classmethod
    def from_module(cls, linear: nn.Linear, by_block: bool, product: Fp8Product) -> Fp8Linear:
        module = cls.__new__(cls)  # nn.Linear.__init__ would allocate and initialize new parameters
        nn.Module.__init__(module)
        share_parts(linear, module)
        weight = linear.weight
        rows, columns = weight.shape
        module.dtype, module.by_block, module.product = weight.dtype, by_block, product
        module.weight = nn.Parameter(torch.empty_like(weight, dtype=FP8), requires_grad=False)
        size = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)) if by_block else (1, 1)
        scales = torch.ones(size, dtype=torch.float32, device=weight.device)
        scale_rows = torch.arange(rows, dtype=torch.int32, device=weight.device) // (FP8_BLOCK if by_block else rows)
        module.register_buffer("scales", scales, persistent=False)
        module.register_buffer("scale_rows", scale_rows, persistent=False)
        return module

    def forward(self, input: Tensor) -> Tensor:
        weight, total = (self.weight, self.scales, self.scale_rows), self.total
        if total is None:
            return self.product(input.to(self.dtype), *weight, self.bias)
        output = total(self.product(input.to(self.dtype), *weight, None))
        return output if self.bias is None else output + self.bias

    @torch.no_grad()
    def load(self, weight: Tensor) -> None:
        """Round a new weight into the tensors that are here, which keep their addresses."""
        values, scales = self._rounded(weight)
        self.weight.copy_(values)
        self.scales.copy_(scales)

    def checked_bytes(self, weight: Tensor | None = None) -> Tensor:
        """What a checksum covers: the layer's values and scales, or those that `load(weight)` would set."""
        parts = (self.weight.detach(), self.scales) if weight is None else self._rounded(weight)
        return torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts])

    def _rounded(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """By way of `dtype`, so that it does not matter in which the weight has traveled."""
        return round_to_fp8(weight.to(self.scales.device, self.dtype), self.by_block)


class FusedFp8Linear(FusedLinear):
    """Several of them in one product; each keeps the scales of its own matrix."""

    def __init__(self, layers: Sequence[Fp8Linear]) -> None:
        super().__init__(layers, layers[0].product)
        self.dtype = layers[0].dtype
        scales, firsts, rows = torch.cat([layer.scales for layer in layers]), [], 0
        for layer, part in zip(layers, scales.split([len(layer.scales) for layer in layers]), strict=True):
            layer.scales = part  # a view, into which the layer rounds
            firsts.append(rows)
            rows += len(part)
        scale_rows = [layer.scale_rows + first for layer, first in zip(layers, firsts, strict=True)]
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("scale_rows", torch.cat(scale_rows), persistent=False)

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        weight = (self.weight, self.get_buffer("scales"), self.get_buffer("scale_rows"))
        return self.product(input.to(self.dtype), *weight, self.bias).split(self.sizes, dim=-1)


def fuse_fp8(layers: Sequence[nn.Module]) -> FusedFp8Linear | None:
    """None where not all of several layers are rounded, with equal inputs and with or without biases."""
    rounded = [layer for layer in layers if isinstance(layer, Fp8Linear) and layer.total is None]
    kinds = {(layer.in_features, layer.bias is None, layer.by_block) for layer in rounded}
    return FusedFp8Linear(rounded) if len(rounded) == len(layers) > 1 and len(kinds) == 1 else None


def use_fp8_layers(model: PreTrainedModel, by_block: bool, product: Fp8Product, key: str) -> str | None:
    """Replace the linear layers of the decoder layers; returns what a run should report about weights that stay.

    Embeddings, the head, norms, routers and vision towers stay as they are. `key` is the config key for error messages.
    """
    layers = decoder_layers(model, key)
    gates = {1, num_experts(model.config)} if num_experts(model.config) else set()  # numbers of outputs
    for parent in list(layers.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.Linear) or type(child) not in (nn.Linear, RowParallelLinear):
                continue
            if child.out_features not in gates:
                setattr(parent, name, Fp8Linear.from_module(child, by_block, product))
    if not fp8_layers(layers):
        problem = f"the decoder layers of {type(model).__name__} have no linear layers to round"
        raise UserError(problem, key=key, value="fp8", hint=f"{key}=null")
    if any(parameter.dim() == 3 for parameter in layers.parameters()):
        return f"{key}: the weights of experts stay in {model.dtype}; only the linear layers beside them have 8 bits"
    return None


def fp8_layers(model: nn.Module) -> dict[str, Fp8Linear]:
    """The rounded layers, by the names of their weights."""
    return {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
