"""Clock: seconds per phase of a step, and the throughput metrics derived from them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

# Phases with a per-token metric. Generation is per response token; the others process whole sequences.
PER_RESPONSE_TOKEN = ("gen",)
PER_TOKEN = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
MAX_SPANS = 1000  # that are kept until they are taken


@dataclass
class _Phase:
    seconds: float = 0.0
    depth: int = 0  # callers currently inside
    since: float = 0.0


class Clock:
    """Wall seconds spent in each named phase since the last `take`.

    >>> with clock("gen"):
    ...     batch = generate(prompts)
    >>> clock.take()
    {'timing_s/gen': 3.1}

    A phase that is entered concurrently (nested, or from several threads) is counted once: its seconds are those during
    which at least one caller was inside. Different phases may overlap.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._phases: dict[str, _Phase] = {}
        self._open: list[str] = []  # phases currently active, in the order they were entered
        self.failed_in: str | None = None  # the innermost phase in which an exception was raised
        self._spans: list[tuple[str, float, float]] = []  # phase, start, seconds, of phases that ended
        self.observe: Callable[[str], AbstractContextManager[None]] = lambda phase: nullcontext()  # entered with it
        self.in_turn: Callable[[], bool] = lambda: False  # whether no work may start before its phase is entered
        self.num_transitions = 0  # phases entered and left so far; the watchdog checks that it grows

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        with self.observe(phase):  # outside of the phase: writing a profile is no part of its seconds
            self._enter(phase)
            try:
                yield
                self.failed_in = None
            except BaseException:
                self.failed_in = self.failed_in or phase
                raise
            finally:
                self._leave(phase)

    def _enter(self, name: str) -> None:
        with self._lock:
            phase = self._phases.setdefault(name, _Phase())
            if phase.depth == 0:
                phase.since = self._now()
            phase.depth += 1
            self._open.append(name)
            self.num_transitions += 1

    def _leave(self, name: str) -> None:
        with self._lock:
            phase = self._phases[name]
            phase.depth -= 1
            self._open.reverse()  # of equal names, remove the one entered last
            self._open.remove(name)
            self._open.reverse()
            self.num_transitions += 1
            if phase.depth == 0:
                now = self._now()
                phase.seconds += now - phase.since
                if len(self._spans) < MAX_SPANS:
                    self._spans.append((name, phase.since, now - phase.since))

    def add(self, name: str, seconds: float) -> None:
        """Add seconds measured elsewhere, for example in another process."""
        with self._lock:
            self._phases.setdefault(name, _Phase()).seconds += seconds

    def active_phases(self) -> str:
        """The active phases, outermost first; "" between phases."""
        with self._lock:
            return ", ".join(dict.fromkeys(self._open))

    def take(self) -> dict[str, float]:
        """timing_s/<phase> since the last call; resets the clock.

        A phase that is still active reports its seconds so far; the remainder is reported by the next call.
        """
        with self._lock:
            now = self._now()
            timings = {}
            for name, phase in self._phases.items():
                running = now - phase.since if phase.depth else 0.0
                timings[f"timing_s/{name}"] = phase.seconds + running
            self._phases = {
                name: _Phase(depth=phase.depth, since=now) for name, phase in self._phases.items() if phase.depth
            }
            return timings

    def take_spans(self) -> list[tuple[str, float, float]]:
        """Phases that ended since the last call: name, start in seconds since 1970, seconds."""
        with self._lock:
            spans, self._spans = self._spans, []
            offset = time.time() - self._now()
            return [(name, start + offset, seconds) for name, start, seconds in spans]


def speed_metrics(
    timings: Mapping[str, float], *, prompt_tokens: int, response_tokens: int, num_devices: int = 1
) -> dict[str, float]:
    """timing_per_token_ms/<phase> and perf/* from `Clock.take()` and the number of tokens.

    perf/throughput is tokens per second per device over timing_s/step.
    """
    tokens = prompt_tokens + response_tokens
    per_phase = {name: response_tokens for name in PER_RESPONSE_TOKEN} | {name: tokens for name in PER_TOKEN}
    metrics = {"perf/total_num_tokens": float(tokens)}
    for name, count in per_phase.items():
        seconds = timings.get(f"timing_s/{name}")
        if seconds is not None and count > 0:
            metrics[f"timing_per_token_ms/{name}"] = seconds * 1000 / count
    step = timings.get("timing_s/step")
    if step is not None:
        metrics["perf/time_per_step"] = step
        if step > 0:
            metrics["perf/throughput"] = tokens / (step * num_devices)
    return metrics
