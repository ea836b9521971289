"""Waits: where a run on a GPU would make the host wait for the device, found on a CPU.

Every tensor that descends from the model, or was sent, counts as on the device; everything else as on the host.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import burnish.batch
from burnish.training import critic, packing, policy, sft, transfer

# Their results have a size, or are numbers, that only the device knows.
ANSWERS = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "equal", "bincount"}


class Waits(TorchDispatchMode):
    """`found` has a line for every wait: what was asked, and from which line of the package."""

    def __init__(self, on_device: Iterable[Tensor]) -> None:
        super().__init__()
        self.device: dict[int, Any] = {}
        self.found: list[str] = []
        for tensor in on_device:
            self.mark(tensor)

    def mark(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.device:
            self.device[storage._cdata] = weakref.finalize(storage, self.device.pop, storage._cdata, None)
        return tensor

    def has(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata in self.device

    def wait(self, what: str) -> None:
        lines = [f"{one.filename}:{one.lineno}" for one in traceback.extract_stack() if "/burnish/" in one.filename]
        self.found.append(f"{what} at {lines[-1] if lines else '?'}")

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        inside = any(self.has(tensor) for tensor in tree_iter((args, kwargs)))
        name = function._schema.name.removeprefix("aten::")
        if inside and (name in ANSWERS or (name.startswith("index") and _by_mask(args))):
            self.wait(name)
        made = function(*args, **kwargs)
        if inside:
            for tensor in tree_iter(made):
                if isinstance(tensor, Tensor):
                    self.mark(tensor)
        return made


def _by_mask(args: tuple) -> bool:
    return any(isinstance(tensor, Tensor) and tensor.dtype == torch.bool for tensor in tree_iter(args[1:]))


@contextlib.contextmanager
def watched(on_device: Iterable[Tensor]) -> Iterator[Waits]:
    """Inside, moving between the two memories is seen too: a plain `.to(device)` waits, a pinned one does not."""
    waits = Waits(on_device)
    real_to, real_tolist, real_numpy = Tensor.to, Tensor.tolist, Tensor.numpy

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target = kwargs.get("device", args[0] if args else None)
        among_hosts = sys._getframe(1).f_code.co_filename == burnish.batch.__file__  # columns lie on the host
        moves = isinstance(target, str | torch.device) or waits.has(target)
        if among_hosts or waits.has(tensor) or not moves or kwargs.get("non_blocking", False):
            return real_to(tensor, *args, **kwargs)
        waits.wait("to(device)")
        return waits.mark(real_to(tensor, *args, **kwargs).clone())

    def asks(real: Callable, name: str) -> Callable:
        def ask(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if waits.has(tensor):
                waits.wait(name)
            return real(tensor, *args, **kwargs)

        return ask

    def cpu(tensor: Tensor) -> Tensor:
        if not waits.has(tensor):
            return tensor
        waits.wait("cpu()")
        return _on_host(tensor)

    def all_to_host(leaves: list[Any]) -> list[Any]:
        if any(map(waits.has, leaves)):
            waits.wait("to_host")
        return [_on_host(leaf) if waits.has(leaf) else leaf for leaf in leaves]

    with pytest.MonkeyPatch.context() as patch:
        for module in (critic, packing, policy, sft):
            patch.setattr(module, "to_device", lambda tensor, device: waits.mark(tensor.clone()))
        patch.setattr(transfer, "_all_to_host", all_to_host)
        patch.setattr(Tensor, "to", to)
        patch.setattr(Tensor, "cpu", cpu)
        patch.setattr(Tensor, "tolist", asks(real_tolist, "tolist()"))
        patch.setattr(Tensor, "numpy", asks(real_numpy, "numpy()"))
        with waits:
            yield waits


def _on_host(tensor: Tensor) -> Tensor:
    """A copy that no longer descends from the device."""
    with torch._C._DisableTorchDispatch():
        return tensor.detach().clone()
