"""The registry of dialects and the protocol that each implements."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from burnish.dialects.invocation import Invocation
from burnish.dialects.report import Translation
from burnish.registry import Registry

DIALECTS = Registry("dialect", key="dialect")
DIALECTS.register_lazy("openrlhf", "burnish.dialects.openrlhf.dialect:OpenRLHF")
DIALECTS.register_lazy("mindspeed", "burnish.dialects.mindspeed.dialect:MindSpeed")
DIALECTS.register_lazy("verl", "burnish.dialects.verl.dialect:Verl")  # last: its section names are the least specific


class Dialect(Protocol):
    """The launch commands and config files of one system."""

    def knows_command(self, invocation: Invocation) -> bool:
        """Whether the program belongs to this system."""
        ...

    def knows_config(self, config: dict[str, Any]) -> bool:
        """Whether the parsed YAML is a config of this system."""
        ...

    def translate_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        """Translate a command. Relative paths, such as config folders, are resolved against `folder`."""
        ...

    def translate_config(
        self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()
    ) -> Translation:
        """Translate a parsed YAML. Entries of its `defaults:` list are resolved against `folder`."""
        ...


@runtime_checkable
class VersionedDialect(Protocol):
    """A dialect whose defaults depend on the version of its system."""

    def assume(self, text: str) -> None:
        """Use the defaults of one version, written as NAME==VERSION."""
        ...
