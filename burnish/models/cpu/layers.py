"""Parts of a decoder layer on a CPU in C (layers.c): products, norms, gates, rotations.

Products read weights that are laid out for them (a copy), and are the same for a row whatever the batch: they need no
padding to be invariant.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from torch import Tensor

from burnish.models.cpu.library import compiled

SHARE = 64  # as layers.c has it
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
    """The functions of layers.c over tensors, and the weights that they have laid out."""

    def __init__(self) -> None:
        self.library = compiled("layers")
        for name, arguments in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, None
        self.width = self.library.burnish_width()  # of a panel
        self.packed: dict[int, Tensor] = {}  # by the address of the weight

    def __deepcopy__(self, memo: dict[int, object]) -> Layers:
        """Copies of a model share the compiled library, which cannot be copied. Their weights have other addresses."""
        return self

    def forget(self) -> None:
        """The weights have changed, or go."""
        self.packed.clear()

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer."""
        width, depth = weight.shape
        flat = _rows(rows)
        output = flat.new_empty(len(flat), width)
        given = None if bias is None else bias.data_ptr()
        self.library.burnish_product(
            *(flat.data_ptr(), len(flat), flat.stride(0), self._panels(weight).data_ptr(), depth, given, width),
            output.data_ptr(),
        )
        return output.view(*rows.shape[:-1], width)

    def norm(self, rows: Tensor, weight: Tensor, offset: float, epsilon: float) -> Tensor:
        """Each row over its root mean square, times (offset + weight)."""
        flat = _rows(rows)
        output = flat.new_empty(flat.shape)
        self.library.burnish_norm(
            *(flat.data_ptr(), len(flat), flat.stride(0), flat.shape[1], weight.data_ptr(), offset, epsilon),
            output.data_ptr(),
        )
        return output.view(rows.shape)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up"""
        one, other = _rows(gate), _rows(up)
        output = one.new_empty(one.shape)
        self.library.burnish_gate(
            *(one.data_ptr(), one.stride(0), other.data_ptr(), other.stride(0), *one.shape), output.data_ptr()
        )
        return output.view(gate.shape)

    def rotate(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[1, heads, rows, size], each turned by the angles [1, rows, size] of its row."""
        return self._turned(self.library.burnish_rotate, heads, cosine, sine)

    def norm_backward(
        self, rows: Tensor, weight: Tensor, offset: float, epsilon: float, slope: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What `norm` hands back to its rows and to its weight."""
        flat, slope = _rows(rows), slope.contiguous()
        to_rows, sums = flat.new_empty(flat.shape), flat.new_empty(-(-len(flat) // SHARE), flat.shape[1])
        to_weight = weight.new_empty(weight.shape)
        self.library.burnish_norm_backward(
            *(flat.data_ptr(), len(flat), flat.stride(0), flat.shape[1], weight.data_ptr(), offset, epsilon),
            *(x.data_ptr() for x in (slope, to_rows, sums, to_weight)),
        )
        return to_rows.view(rows.shape), to_weight

    def gate_backward(self, gate: Tensor, up: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        one, other, slope = _rows(gate), _rows(up), slope.contiguous()
        made = one.new_empty(one.shape), one.new_empty(one.shape)
        self.library.burnish_gate_backward(
            *(one.data_ptr(), one.stride(0), other.data_ptr(), other.stride(0), *one.shape),
            *(x.data_ptr() for x in (slope, *made)),
        )
        return made[0].view(gate.shape), made[1].view(up.shape)

    def rotate_backward(self, slope: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return self._turned(self.library.burnish_rotate_backward, slope, cosine, sine)

    def _turned(self, function: Callable[..., None], heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        _, count, rows, size = heads.shape
        given = heads if heads.stride(3) == 1 else heads.contiguous()
        cosine, sine = cosine.contiguous(), sine.contiguous()
        output = given.new_empty(rows, count, size)
        function(
            *(given.data_ptr(), count, given.stride(1), rows, given.stride(2), size),
            *(cosine.data_ptr(), sine.data_ptr(), output.data_ptr()),
        )
        return output.transpose(0, 1)[None]

    def _panels(self, weight: Tensor) -> Tensor:
        """The weight as burnish_product reads it, made when it is first asked for."""
        panels = self.packed.get(weight.data_ptr())
        if panels is None:
            (width, depth), given = weight.shape, weight.contiguous()
            panels = weight.new_empty(-(-width // self.width) * self.width * depth)
            self.library.burnish_pack(given.data_ptr(), width, depth, panels.data_ptr())
            self.packed[weight.data_ptr()] = panels
        return panels


def _rows(tensor: Tensor) -> Tensor:
    """[..., size] -> [rows, size] whose rows are each in one piece."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()
