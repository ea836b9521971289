"""The dialects: who recognises a command or a YAML, and who reads it."""

from __future__ import annotations

from typing import Any, Protocol

from burnish.dialects.invocation import Invocation
from burnish.dialects.report import Translation
from burnish.registry import Registry

DIALECTS = Registry("dialect", key="dialect")
DIALECTS.register_lazy("openrlhf", "burnish.dialects.openrlhf.dialect:OpenRLHF")
DIALECTS.register_lazy("mindspeed", "burnish.dialects.mindspeed.dialect:MindSpeed")
DIALECTS.register_lazy("verl", "burnish.dialects.verl.dialect:Verl")  # last: its sections have the plainest names


class Dialect(Protocol):
    """One family of launch commands."""

    def knows_command(self, invocation: Invocation) -> bool:
        """Is this program one of ours?"""
        ...

    def knows_config(self, config: dict[str, Any]) -> bool:
        """Is this YAML one of ours?"""
        ...

    def read_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        """What it asks for. `folder` is where its relative paths (config folders) are looked up."""
        ...

    def read_config(self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()) -> Translation:
        """The same from a parsed YAML, whose `defaults:` are looked up in `folder`."""
        ...
