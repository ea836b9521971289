"""ProcessProfiler: the recordings of one process that holds one or more roles."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.profiling.plan import PHASES, UPDATES, ProfilePlan, RoleProfile
from burnish.profiling.tools import PROFILERS, Profiler
from burnish.storage import disk_full

if TYPE_CHECKING:
    import torch


class Recorder:
    """One tool: it records whole steps, or phase by phase if one of its roles is discrete."""

    def __init__(self, profiler: Profiler, profiles: Sequence[RoleProfile], rank: int) -> None:
        self.profiler = profiler
        self.profiles = list(profiles)
        self.rank = rank
        self.discrete = any(profile.discrete for profile in profiles)
        self.owner: object = None  # what started the running recording
        self._paths: list[Path] = []

    def whole_step(self) -> list[RoleProfile]:
        """The roles of a recording of the step: those with a range of mini-batches have recordings of their own."""
        return [] if self.discrete else [p for p in self.profiles if not p.has_mini_batch_range]

    def of_phase(self, phase: str) -> list[RoleProfile]:
        if not self.discrete:
            return []
        role = PHASES.get(phase)
        return [
            p for p in self.profiles if p.role == role and not (p.has_mini_batch_range and phase in UPDATES.values())
        ]

    def start(self, owner: object, profiles: Sequence[RoleProfile], folder: str, name: str = "") -> None:
        """Start a recording, unless one runs that contains it."""
        if self.owner is not None or not profiles:
            return
        by_folder: dict[Path, list[str]] = {}
        for profile in profiles:
            by_folder.setdefault(profile.folder, []).append(profile.role)
        prefix = f"{name}." if name else ""
        self._paths = [
            parent / folder / f"{prefix}{'+'.join(roles)}.rank_{self.rank}" for parent, roles in by_folder.items()
        ]
        self.profiler.start(profiles)
        self.owner = owner

    def stop(self, owner: object) -> list[str]:
        """End the recording that `owner` started, if any; returns what to tell the user."""
        if self.owner is None or self.owner != owner:
            return []
        self.owner = None
        try:
            return [f"profile: {file}" for file in self.profiler.stop(self._paths)]
        except OSError as error:
            return [f"{disk_full(error)}cannot write the profile {self._paths[0]}: {error}"]


class ProcessProfiler:
    """Starts and stops recordings with the steps, phases and mini-batches of a run. Profiled steps only call it."""

    def __init__(self, plan: ProfilePlan, rank: int, device: torch.device) -> None:
        self.recorders = [
            Recorder(PROFILERS[tool].load()(device), profiles, rank) for tool, profiles in plan.tools().items()
        ]
        self.step = ""
        self._lock = threading.RLock()
        self._labels: dict[tuple[int, str], list[list[AbstractContextManager[object]]]] = {}
        self._notes: list[str] = []

    def begin(self, step: str, recording: str) -> None:
        """A profiled step starts: `step` names the folder of its phases, `recording` that of one of whole steps."""
        with self._lock:
            self.step = step
            for recorder in self.recorders:
                recorder.start("step", recorder.whole_step(), recording)

    def end(self) -> list[str]:
        """End them. Returns notes for the user: the files that were written since the last call."""
        with self._lock:
            self._stop("step")
            notes, self._notes = self._notes, []
            return notes

    def enter(self, phase: str) -> None:
        key = (threading.get_ident(), phase)
        with self._lock:
            for recorder in self.recorders:
                recorder.start(key, recorder.of_phase(phase), self.step, phase)
            labels = [recorder.profiler.label(phase) for recorder in self.recorders if recorder.owner is not None]
            self._labels.setdefault(key, []).append(labels)
        for label in labels:
            label.__enter__()

    def leave(self, phase: str) -> None:
        key = (threading.get_ident(), phase)
        with self._lock:
            opened = self._labels.get(key)
            labels = opened.pop() if opened else []  # entered before the profiled step
        for label in reversed(labels):
            label.__exit__(None, None, None)
        with self._lock:
            if not opened:
                self._stop(key)

    def mini_batch(self, role: str, number: int | None) -> None:
        """Mini-batch `number` of the role's update starts; None: the update is over."""
        with self._lock:
            for recorder in self.recorders:
                ranged = [p for p in recorder.profiles if p.role == role and p.has_mini_batch_range]
                if not self.step or not ranged:
                    continue
                if number is not None and ranged[0].records(number):
                    recorder.start(("mini-batches", role), ranged, self.step, f"{UPDATES[role]}.mini_batches")
                else:
                    self._notes += recorder.stop(("mini-batches", role))

    def pause(self) -> None:
        """The next step is not profiled."""
        with self._lock:
            self.step = ""

    def close(self) -> None:
        """End whatever is recorded: the run ends."""
        with self._lock:
            for recorder in self.recorders:
                recorder.stop(recorder.owner)

    def _stop(self, owner: object) -> None:
        for recorder in self.recorders:
            self._notes += recorder.stop(owner)
