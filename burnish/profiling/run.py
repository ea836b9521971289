"""RunProfiler: follows the steps of a run and the phases of its clock, and tells every profiled process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from burnish.profiling.plan import NO_PLAN, PHASES, ProfilePlan


class Target(Protocol):
    """The recordings of one process, or of a group of them."""

    def begin(self, step: str, recording: str) -> None: ...
    def end(self) -> list[str]: ...
    def enter(self, phase: str) -> None: ...
    def leave(self, phase: str) -> None: ...
    def pause(self) -> None: ...
    def close(self) -> None: ...


class Group(Protocol):
    """Worker processes (distributed.WorkerGroup)."""

    def submit(self, rank: int, method: str, *args: Any) -> Any: ...
    def gather(self, futures: list[Any]) -> list[Any]: ...


@dataclass(frozen=True)
class RemoteProfilers:
    """The profilers of some ranks of a group; each has a method `profile` that calls its ProcessProfiler."""

    group: Group
    ranks: Sequence[int]
    roles: frozenset[str]  # phases of other roles leave these processes alone

    def begin(self, step: str, recording: str) -> None:
        self._call("begin", step, recording)

    def end(self) -> list[str]:
        return [note for notes in self._call("end") for note in notes]

    def enter(self, phase: str) -> None:
        if PHASES.get(phase) in self.roles:
            self._call("enter", phase)

    def leave(self, phase: str) -> None:
        if PHASES.get(phase) in self.roles:
            self._call("leave", phase)

    def pause(self) -> None:
        self._call("pause")

    def close(self) -> None:
        """Workers close their own when they end."""

    def _call(self, method: str, *args: Any) -> list[Any]:
        return self.group.gather([self.group.submit(rank, "profile", method, *args) for rank in self.ranks])


@dataclass
class RunProfiler:
    """Does nothing outside of the profiled steps."""

    plan: ProfilePlan = NO_PLAN
    targets: Sequence[Target] = ()
    note: Callable[[str], None] = lambda text: None
    active: bool = field(default=False, init=False)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One training step. Its recordings end with it, or with the last of consecutive profiled steps."""
        if number not in self.plan.steps or not self.targets:
            yield
            return
        for target in self.targets:
            target.begin(f"step_{number}", self.plan.name_of(number))
        self.active = True
        try:
            yield
        finally:
            self.active = False
        if not self.plan.continues(number):
            for target in self.targets:
                for text in target.end():
                    self.note(text)
                target.pause()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One phase of the clock."""
        if not self.active:
            yield
            return
        for target in self.targets:
            target.enter(name)
        try:
            yield
        finally:
            for target in self.targets:
                target.leave(name)

    def close(self) -> None:
        for target in self.targets:
            target.close()


def remote_targets(plan: ProfilePlan, groups: Mapping[str, Any]) -> list[RemoteProfilers]:
    """One target per group of processes with profiled ranks. `groups`: by role, with a `size`."""
    roles_of: dict[int, tuple[Any, set[str]]] = {}
    for role, group in groups.items():
        roles_of.setdefault(id(group), (group, set()))[1].add(role)
    targets = []
    for group, roles in roles_of.values():
        ranks = plan.ranks(roles, group.size)
        if ranks:
            targets.append(RemoteProfilers(group, ranks, frozenset(roles)))
    return targets
