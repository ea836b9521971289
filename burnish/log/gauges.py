"""GaugeLogger: the newest value of every metric as gauges of a cluster, whose dashboard draws them (Ray's)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from burnish.log.prometheus import legal_name

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo


class Gauge(Protocol):
    def set(self, value: float) -> None: ...


MakeGauge = Callable[[str, str, dict[str, str]], Gauge]  # from a name, a description and labels


class GaugeLogger:
    """Names are those of the /metrics endpoint."""

    def __init__(self, make_gauge: MakeGauge) -> None:
        self._make_gauge = make_gauge
        self._gauges: dict[str, Gauge] = {}
        self._labels: dict[str, str] = {}

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        self._labels = {"project": run.project, "run": run.name}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in {**metrics, "step": float(step)}.items():
            known = legal_name(name)
            if known not in self._gauges:
                self._gauges[known] = self._make_gauge(known, name, self._labels)
            self._gauges[known].set(value)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A dashboard of gauges has no tables."""

    def note(self, text: str) -> None:
        """Nor notes."""

    def close(self) -> None:
        """Gauges end with the process."""
