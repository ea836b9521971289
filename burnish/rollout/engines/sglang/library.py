"""The only file that imports SGLang. It runs in the environment that has it (see rollout/engines/environment.py)."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from typing import Any


def description() -> dict[str, Any]:
    from sglang.srt.server_args import ServerArgs

    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {"version": version, "arguments": [field.name for field in dataclasses.fields(ServerArgs)], "device": None}
