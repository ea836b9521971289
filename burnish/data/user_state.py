"""The state of a user's object for a checkpoint's trainer.json: JSON, with tensors as base64 of safetensors."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from burnish.errors import UserError
from burnish.json_values import from_json, to_json

TENSOR = "$tensor"
State = str | dict[str, Any] | None


def pack_state(thing: Any, key: str) -> dict[str, Any] | None:
    """The object's state_dict, which may hold tensors; None if it has none."""
    if not hasattr(thing, "state_dict"):
        return None
    tensors: dict[str, torch.Tensor] = {}

    def other(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a {type(value).__name__} is among its values")
        tensors[str(len(tensors))] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {TENSOR: str(len(tensors) - 1)}

    try:
        values = to_json(thing.state_dict(), other)
        packed = {"values": values, "tensors": base64.b64encode(save(tensors)).decode()}
        unpack_state(packed)  # fail now if it cannot be read back
    except Exception as error:  # the user's code may raise anything
        problem = f"the state_dict cannot be saved: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise UserError(problem, key=key, allowed="tensors, numbers, text, and lists and dicts of them") from error
    return packed


def unpack_state(state: dict[str, Any]) -> Any:
    """What `pack_state` packed. Raises anything if it is no such state."""
    tensors = load(base64.b64decode(state["tensors"]))

    def other(mark: str, content: Any) -> torch.Tensor:
        if mark != TENSOR:
            raise ValueError(f"unknown kind of value: {mark}")
        return tensors[content]

    return from_json(state["values"], other)


def restore_state(thing: Any, state: State, key: str) -> bool:
    """Restore the object's state; returns whether there was one."""
    if state is None:
        return False
    if not hasattr(thing, "load_state_dict"):
        raise UserError("the class has a state_dict but no load_state_dict", key=key)
    try:
        # Earlier versions saved base64 of torch's format.
        values = _unpack_legacy(state) if isinstance(state, str) else unpack_state(state)
    except (ValueError, TypeError, KeyError, RuntimeError, SafetensorError, RecursionError) as error:
        raise UserError(f"the state in the checkpoint cannot be read: {error}", key=key) from error
    thing.load_state_dict(values)
    return True


def _unpack_legacy(text: str) -> Any:
    try:
        return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    except Exception as error:  # unpickling may raise anything
        raise ValueError((str(error).splitlines() or [type(error).__name__])[0]) from error
