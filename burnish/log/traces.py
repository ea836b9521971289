"""Traces of conversations: spans of episodes, turns, tool calls and rewards, and the registry of their backends."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from burnish.errors import UserError, install_extra
from burnish.log.tracker_thread import TrackerThread
from burnish.redact import redact_text
from burnish.registry import Registry

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo

KEY = "actor_rollout_ref.rollout.trace.backend"
TRACE_BACKENDS = Registry("trace backend", key=KEY)
# `library` must be installed, by the extra of the same name unless `extra` names another.
TRACE_BACKENDS.register_lazy("mlflow", "burnish.log.mlflow:MlflowTraces", library="mlflow")
TRACE_BACKENDS.register_lazy("trackio", "burnish.log.trackio:TrackioTraces", library="trackio")
TRACE_BACKENDS.register_lazy("weave", "burnish.log.weave:WeaveTraces", library="weave")
TRACE_BACKENDS.register_lazy(
    "opentelemetry", "burnish.log.opentelemetry:OpenTelemetryTraces", library="opentelemetry.sdk", extra="opentelemetry"
)
# Arize and Phoenix take OpenTelemetry's protocol.
TRACE_BACKENDS.register_lazy(
    "arize", "burnish.log.opentelemetry:OpenTelemetryTraces", library="opentelemetry.sdk", extra="opentelemetry"
)


@dataclass
class Span:
    """Something that took time. Times are seconds since the epoch; inputs and outputs are what JSON can hold."""

    name: str
    kind: Literal["episode", "generation", "tool", "reward"]
    start: float
    end: float = 0.0
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict)
    children: list[Span] = field(default_factory=list)


class TraceBackend(Protocol):
    """Receives finished episodes."""

    def start(self, run: RunInfo) -> None: ...

    def write(self, episodes: Sequence[Span]) -> None: ...

    def close(self) -> None: ...


class Traces:
    """A backend in its own thread. If it fails or hangs, this is reported once and the run continues without it."""

    def __init__(self, name: str, run: RunInfo, note: Callable[[str], None]) -> None:
        entry = TRACE_BACKENDS[name]
        library = entry.metadata["library"]
        if _is_missing(library):
            problem = f"the library {library.partition('.')[0]} is not installed"
            raise UserError(problem, key=KEY, value=name, hint=install_extra(entry.metadata.get("extra", library)))
        self.name = name
        self.note = note
        self.failed = False
        self._thread = TrackerThread(entry.load()())
        try:
            self._thread.call("start", run)
        except Exception as error:
            problem = redact_text(f"cannot start: {type(error).__name__}: {error}")
            raise UserError(problem, key=KEY, value=name, hint=f"{KEY}=null") from error

    def write(self, episodes: Sequence[Span]) -> None:
        if episodes:
            self._call("write", episodes)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        if self.failed:
            return
        try:
            self._thread.call(method, *arguments)
        except Exception as error:
            self.failed = True
            self.note(f"traces: {self.name} failed in {method}: {type(error).__name__}: {error}. No more are written")


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _is_missing(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is None
    except ModuleNotFoundError:  # of a package in a package that is missing
        return True
