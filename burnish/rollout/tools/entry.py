"""ToolEntry: one tool of a YAML file, and how its settings are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit

from burnish.errors import UserError, nearest
from burnish.rollout.tools.isolated import LoadTemplate, Template
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import ToolLimits

OWN_TIMEOUT_MARGIN = 10.0  # seconds beyond the time that a user's tool allows itself


@dataclass(frozen=True)
class ToolEntry:
    """An entry of the list `tools`, with what its builder may need to know about the run."""

    class_name: str
    config: dict[str, Any]
    schema: dict[str, Any] | None  # normalized; None: the tool's own
    limits: Mapping[str, Any]
    mcp: Mapping[str, Any]
    where: str  # for errors: file and position
    key: str  # of the file
    folder: str = "."  # of the file
    allow_weak: bool = False  # sandbox.allow_weak
    load_template: LoadTemplate = Template  # for limits.isolate
    notices: list[str] = field(default_factory=list)  # for the start of the run

    def error(self, problem: str, name: str, value: object = None, **more: Any) -> UserError:
        return UserError(f"{self.where}: {problem}", key=name, value=value, **more)

    def option(self, name: str, default: Any) -> Any:
        """A setting of the tool's config, of the type of its default."""
        value = self.config.get(name)
        if value is None:
            return default
        if isinstance(default, str | bool | list):
            if not isinstance(value, type(default)):
                raise self.error(f"must be {_TYPE_NAMES[type(default)]}", f"config.{name}", value)
            return value
        return type(default)(self._number(f"config.{name}", value, whole=isinstance(default, int)))

    def url(self, name: str) -> str:
        """A setting that must be an http(s) address."""
        value = self.config.get(name)
        parts = urlsplit(value) if isinstance(value, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
            raise self.error(
                "the tool needs the address of its service",
                f"config.{name}",
                value,
                allowed="an http(s) URL",
                hint=f"config: {{{name}: 'http://127.0.0.1:8000/...'}}",
            )
        assert isinstance(value, str)
        return value

    def check_options(self, *known: str) -> None:
        """Report settings that this tool does not have."""
        for name in self.config:
            if name not in (*known, "type"):
                self.notices.append(
                    f"{self.where}: config.{name} has no effect; {self.class_name} has {', '.join(known)}"
                )

    def read_limits(self, **defaults: Any) -> ToolLimits:
        """`limits` of the entry; others are the tool's defaults."""
        known = [item.name for item in fields(ToolLimits)]
        values: dict[str, Any] = {}
        for name, value in self.limits.items():
            if name not in known:
                closest = nearest(str(name), known)
                hint = f"limits: {{{closest}: {value}}}" if closest else None
                raise self.error("no such limit", f"limits.{name}", value, allowed=known, hint=hint)
            values[name] = self._limit(name, value)
        return replace(ToolLimits(), **{**defaults, **values})

    def _limit(self, name: str, value: Any) -> Any:
        default = getattr(ToolLimits(), name)
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise self.error("must be true or false", f"limits.{name}", value)
            return value
        if value is None and default is None:
            return None
        whole = name in ("retries", "max_concurrency")
        number = self._number(f"limits.{name}", value, whole=whole, at_least=0 if name == "retries" else None)
        return int(number) if whole else number

    def _number(self, name: str, value: Any, *, whole: bool, at_least: float | None = None) -> float:
        """A positive number, or one that is at least this."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        fits = number > 0 if at_least is None else number >= at_least
        if not fits or not math.isfinite(number) or (whole and number != int(number)):
            kind = "whole number" if whole else "number"
            bound = "above 0" if at_least is None else f"of at least {at_least:g}"
            raise self.error(f"must be a {kind} {bound}", name, value)
        return number

    def with_own_timeout(self) -> ToolLimits:
        """Limits of a user's class: never less than the time that its config allows the tool itself."""
        seconds = [self.config.get(name) for name in ("timeout", "default_timeout")]
        own = [value for value in seconds if isinstance(value, int | float) and not isinstance(value, bool)]
        default = ToolLimits().timeout
        return self.read_limits(timeout=max([default, *(value + OWN_TIMEOUT_MARGIN for value in own)]))


_TYPE_NAMES = {str: "text", bool: "true or false", list: "a list"}


def read_entry(content: Any, where: str, key: str, folder: str, allow_weak: bool) -> ToolEntry:
    """An entry of the file, with its sections checked."""
    if not isinstance(content, Mapping) or not isinstance(content.get("class_name"), str):
        value = content.get("class_name") if isinstance(content, Mapping) else content
        raise UserError(f"{where} has no class_name", key="class_name", value=value, allowed=EXAMPLE)
    for name in ("config", "limits", "mcp"):
        if content.get(name) is not None and not isinstance(content[name], Mapping):
            raise UserError(f"{where}: must be a mapping", key=name, value=content[name], allowed=EXAMPLE)
    schema = content.get("tool_schema")
    return ToolEntry(
        content["class_name"],
        dict(content.get("config") or {}),
        None if schema is None else normalize_schema(schema, where),
        content.get("limits") or {},
        content.get("mcp") or {},
        where,
        key,
        folder,
        allow_weak,
    )


EXAMPLE = "{class_name: my_tools.Calculator, config: {type: native}, tool_schema: {...}}"
