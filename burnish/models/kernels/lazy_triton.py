"""Import Triton when a kernel is first launched. No other file imports it.

A kernel file writes

    from burnish.models.kernels.lazy_triton import kernel, tl

    @kernel
    def add(x, y, BLOCK: tl.constexpr): ...

and launches `add[grid](...)`. Until then `tl` is None and `add` a plain function, so that importing the file needs no
Triton. With TRITON_INTERPRET=1 in the environment before Triton is loaded, kernels run on CPU tensors.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from burnish.errors import UserError, install_package

# Kernel files import this as `tl`; the first launch replaces it by triton.language in their globals.
tl: Any = None


class Kernel:
    """A function that Triton compiles at its first launch, together with the kernels it calls."""

    def __init__(self, function: Callable[..., None], unspecialized: Sequence[str]) -> None:
        self.function, self.unspecialized = function, unspecialized
        self.__doc__ = function.__doc__
        self._jitted: Any = None

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        return self.jitted()[grid]

    def jitted(self) -> Any:
        if self._jitted is None:
            triton, language = _triton()
            self._jitted = triton.jit(self.function, do_not_specialize=self.unspecialized)
            # Triton looks names up in the file's globals when it compiles, so they must be resolved by then.
            scope = self.function.__globals__
            scope["tl"] = language
            for name, value in list(scope.items()):
                if isinstance(value, Kernel):
                    scope[name] = value.jitted()
        return self._jitted


def kernel(function: Callable[..., None], unspecialized: Sequence[str] = ()) -> Kernel:
    """Mark a function as a Triton kernel, or as a part that kernels call.

    For arguments in `unspecialized` there is one program, and not others for 1 and for multiples of 16.
    """
    return Kernel(function, unspecialized)


def available() -> bool:
    """Whether Triton is installed."""
    try:
        _triton()
    except UserError:
        return False
    return True


@cache
def _triton() -> tuple[Any, Any]:
    try:
        import triton
        import triton.language as language
    except ImportError as missing:
        raise UserError("Triton is not installed", hint=install_package("triton")) from missing
    return triton, language


@contextlib.contextmanager
def ordered_products() -> Iterator[None]:
    """Triton's interpreter adds up every element of a tile's product in the order of its columns, as a GPU does.

    By itself it calls a BLAS library, where an element's last bits depend on its place in the tile, and which takes
    numbers of bfloat16 for integers. Slower; for tests of bits.
    """
    _triton()
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    original = builder.create_dot
    builder.create_dot = lambda self, a, b, total, *rest: _ordered_product(interpreter, a, b, total)
    try:
        yield
    finally:
        builder.create_dot = original


def _ordered_product(interpreter: Any, a: Any, b: Any, total: Any) -> Any:
    left, right = (_as_float32(interpreter, part) for part in (a, b))
    result = total.data.copy()
    for column in range(left.shape[1]):
        result += left[:, column, None] * right[column]
    return interpreter.TensorHandle(result, total.dtype.scalar)


def _as_float32(interpreter: Any, handle: Any) -> Any:
    if str(handle.dtype.scalar) == "bf16":  # kept as uint16: the upper half of a float32
        return (handle.data.astype("uint32") << 16).view("float32")
    return handle.data.astype("float32")
