"""The state of a user's own object as text, so that a checkpoint's trainer.json can hold it."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch

from burnish.errors import UserError


def state_text(thing: Any, key: str) -> str | None:
    """What its state_dict gives, tensors too; None where it has none."""
    if not hasattr(thing, "state_dict"):
        return None
    content = io.BytesIO()
    try:
        torch.save(thing.state_dict(), content)
        torch.load(io.BytesIO(content.getvalue()), weights_only=True)  # what cannot be read back is told now
    except Exception as error:  # the user's code may raise anything
        problem = f"its state_dict cannot be saved: {type(error).__name__}: {str(error).splitlines()[0]}"
        raise UserError(problem, key=key, allowed="tensors, numbers, text, and lists and dicts of them") from error
    return base64.b64encode(content.getvalue()).decode()


def load_state_text(thing: Any, text: str | None, key: str) -> bool:
    """Give it its state back; False where there is none to give."""
    if text is None:
        return False
    if not hasattr(thing, "load_state_dict"):
        raise UserError("it has a state_dict but no load_state_dict", key=key)
    thing.load_state_dict(torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True))
    return True
