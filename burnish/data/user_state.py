"""The state of a user's object as text, for a checkpoint's trainer.json."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch

from burnish.errors import UserError


def state_text(thing: Any, key: str) -> str | None:
    """The object's state_dict, which may hold tensors; None if it has none."""
    if not hasattr(thing, "state_dict"):
        return None
    content = io.BytesIO()
    try:
        torch.save(thing.state_dict(), content)
        torch.load(io.BytesIO(content.getvalue()), weights_only=True)  # fail now if it cannot be read back
    except Exception as error:  # the user's code may raise anything
        problem = f"the state_dict cannot be saved: {type(error).__name__}: {str(error).splitlines()[0]}"
        raise UserError(problem, key=key, allowed="tensors, numbers, text, and lists and dicts of them") from error
    return base64.b64encode(content.getvalue()).decode()


def load_state_text(thing: Any, text: str | None, key: str) -> bool:
    """Restore the object's state; returns whether there was one."""
    if text is None:
        return False
    if not hasattr(thing, "load_state_dict"):
        raise UserError("the class has a state_dict but no load_state_dict", key=key)
    thing.load_state_dict(torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True))
    return True
