"""Matrix products, norms, gates and rotary embeddings on a CPU in C (layers.c).

Matrix products read a repacked copy of the weight. A row's result does not depend on the other rows of the batch, so
that invariant rollout needs no padding here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from burnish.models.cpu.library import compiled

SHARE = 64  # the constant of the same name in layers.c
POINTER, LONG, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
SIGNATURES = {
    "burnish_pack": (POINTER, LONG, LONG, POINTER),
    "burnish_product": (POINTER, LONG, LONG, POINTER, LONG, POINTER, LONG, POINTER),
    "burnish_norm": (POINTER, LONG, LONG, LONG, POINTER, FLOAT, FLOAT, POINTER),
    "burnish_gate": (POINTER, LONG, POINTER, LONG, LONG, LONG, POINTER),
    "burnish_rotate": (POINTER, LONG, LONG, LONG, LONG, LONG, POINTER, POINTER, POINTER),
    "burnish_norm_backward": (POINTER, LONG, LONG, LONG, POINTER, FLOAT, FLOAT, *[POINTER] * 4),
    "burnish_gate_backward": (POINTER, LONG, POINTER, LONG, LONG, LONG, *[POINTER] * 3),
    "burnish_rotate_backward": (POINTER, LONG, LONG, LONG, LONG, LONG, POINTER, POINTER, POINTER),
}


class Layers:
    """The functions of layers.c on tensors, and the repacked weights of the matrix products."""

    def __init__(self) -> None:
        self.library = compiled("layers")
        for name, arguments in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, None
        self.width = self.library.burnish_width()  # columns of a panel
        self.packed: dict[int, Tensor] = {}  # by the address of the original weight

    def __deepcopy__(self, memo: dict[int, object]) -> Layers:
        """Copies of a model share the compiled library, which cannot be copied. Their weights have other addresses."""
        return self

    def forget(self) -> None:
        """Drop repacked weights; call this after weights have changed."""
        self.packed.clear()

    def supports(self, *tensors: Tensor) -> bool:
        """float32 on a CPU. Under autocast a module may get another dtype."""
        return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer."""
        width, depth = weight.shape
        flat = _rows(rows)
        output = flat.new_empty(len(flat), width)
        bias_pointer = None if bias is None else bias.data_ptr()
        self.library.burnish_product(
            *(flat.data_ptr(), len(flat), flat.stride(0), self._panels(weight).data_ptr(), depth, bias_pointer, width),
            output.data_ptr(),
        )
        return output.view(*rows.shape[:-1], width)

    def norm(self, rows: Tensor, weight: Tensor, offset: float, eps: float) -> Tensor:
        """RMSNorm of each row, times (offset + weight)."""
        flat = _rows(rows)
        output = flat.new_empty(flat.shape)
        self.library.burnish_norm(
            *(flat.data_ptr(), len(flat), flat.stride(0), flat.shape[1], weight.data_ptr(), offset, eps),
            output.data_ptr(),
        )
        return output.view(rows.shape)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up"""
        gates, ups = _rows(gate), _rows(up)
        output = gates.new_empty(gates.shape)
        self.library.burnish_gate(
            *(gates.data_ptr(), gates.stride(0), ups.data_ptr(), ups.stride(0), *gates.shape), output.data_ptr()
        )
        return output.view(gate.shape)

    def rotate(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotary embedding of [1, heads, tokens, size] by the angles [1, tokens, size]."""
        return self._rotated(self.library.burnish_rotate, heads, cosine, sine)

    def norm_backward(
        self, rows: Tensor, weight: Tensor, offset: float, eps: float, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of `norm` with respect to the rows and the weight."""
        flat, grad = _rows(rows), grad.contiguous()
        grad_rows, sums = flat.new_empty(flat.shape), flat.new_empty(-(-len(flat) // SHARE), flat.shape[1])
        grad_weight = weight.new_empty(weight.shape)
        self.library.burnish_norm_backward(
            *(flat.data_ptr(), len(flat), flat.stride(0), flat.shape[1], weight.data_ptr(), offset, eps),
            *(x.data_ptr() for x in (grad, grad_rows, sums, grad_weight)),
        )
        return grad_rows.view(rows.shape), grad_weight

    def gate_backward(self, gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        gates, ups, grad = _rows(gate), _rows(up), grad.contiguous()
        grad_gate, grad_up = gates.new_empty(gates.shape), gates.new_empty(gates.shape)
        self.library.burnish_gate_backward(
            *(gates.data_ptr(), gates.stride(0), ups.data_ptr(), ups.stride(0), *gates.shape),
            *(x.data_ptr() for x in (grad, grad_gate, grad_up)),
        )
        return grad_gate.view(gate.shape), grad_up.view(up.shape)

    def rotate_backward(self, grad: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return self._rotated(self.library.burnish_rotate_backward, grad, cosine, sine)

    def _rotated(self, function: Callable[..., None], heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        _, num_heads, tokens, size = heads.shape
        heads = heads if heads.stride(3) == 1 else heads.contiguous()
        cosine, sine = cosine.contiguous(), sine.contiguous()
        output = heads.new_empty(tokens, num_heads, size)
        function(
            *(heads.data_ptr(), num_heads, heads.stride(1), tokens, heads.stride(2), size),
            *(cosine.data_ptr(), sine.data_ptr(), output.data_ptr()),
        )
        return output.transpose(0, 1)[None]

    def _panels(self, weight: Tensor) -> Tensor:
        """The weight in the layout of burnish_product, repacked on first use."""
        address = weight.data_ptr()
        panels = self.packed.get(address)
        if panels is None:
            (width, depth), weight = weight.shape, weight.contiguous()
            panels = weight.new_empty(-(-width // self.width) * self.width * depth)
            self.library.burnish_pack(weight.data_ptr(), width, depth, panels.data_ptr())
            self.packed[address] = panels
        return panels


def _rows(tensor: Tensor) -> Tensor:
    """[..., size] -> [rows, size] with contiguous rows."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()
