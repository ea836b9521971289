"""Pipeline schedules as plain data: in which order a rank runs the forward and backward passes of its layers.

A model of `size * virtual` stages runs on `size` ranks: stage s is chunk s // size of rank s % size. Every rank
computes the schedule of all ranks from the same three numbers, so that nothing has to be agreed on. `simulate` plays a
schedule: it proves that no rank waits forever, and counts bubbles, messages and activations kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"
SCHEDULES = ("1f1b", "gpipe")


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a rank's layers."""

    kind: str  # FORWARD or BACKWARD
    chunk: int
    micro_batch: int


Plan = Sequence[Sequence[Action]]  # the actions of each rank, in order


@dataclass(frozen=True)
class Shape:
    """What a schedule depends on."""

    size: int  # ranks
    virtual: int  # chunks of each rank
    num: int  # micro-batches

    def stage(self, rank: int, chunk: int) -> int:
        return chunk * self.size + rank

    @property
    def num_stages(self) -> int:
        return self.size * self.virtual


@cache
def forward_plan(shape: Shape) -> Plan:
    """Forward passes only, for inference."""
    return tuple(tuple(_forwards(shape)) for _ in range(shape.size))


@cache
def training_plan(name: str, shape: Shape) -> Plan:
    """Forward and backward passes by the schedule of this name."""
    return _PLANS[name](shape)


def _gpipe(shape: Shape) -> Plan:
    """All forward passes, then all backward passes (arXiv 1811.06965)."""
    return tuple((*_forwards(shape), *_backwards(shape)) for _ in range(shape.size))


def _one_forward_one_backward(shape: Shape) -> Plan:
    """1F1B, interleaved where ranks have several chunks (arXiv 2104.04473).

    With several chunks, a number of micro-batches that the ranks do not divide needs more forward passes ahead: each
    round adds as many as a group of micro-batches has, until no rank waits for another forever. With all of them ahead
    this is GPipe, which never does.
    """
    total = shape.num * shape.virtual
    for extra in range(0, total + shape.size, shape.size):
        plan = tuple(tuple(_alternating(shape, _num_ahead(shape, rank) + extra)) for rank in range(shape.size))
        if simulate(plan, shape).complete:
            return plan
    return _gpipe(shape)


_PLANS: dict[str, Callable[[Shape], Plan]] = {"1f1b": _one_forward_one_backward, "gpipe": _gpipe}


def _num_ahead(shape: Shape, rank: int) -> int:
    """Forward passes of a rank before its first pair of a forward and a backward pass."""
    behind = shape.size - rank - 1
    return behind if shape.virtual == 1 else 2 * behind + (shape.virtual - 1) * shape.size


def _alternating(shape: Shape, num_ahead: int) -> Iterator[Action]:
    forwards, backwards = list(_forwards(shape)), list(_backwards(shape))
    num_ahead = min(num_ahead, len(forwards))
    yield from forwards[:num_ahead]
    for forward, backward in zip(forwards[num_ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - num_ahead :]


def _forwards(shape: Shape) -> Iterator[Action]:
    """Micro-batches in groups as large as there are ranks: each group through one chunk after the other."""
    for start in range(0, shape.num, shape.size):
        for chunk in range(shape.virtual):
            yield from (Action(FORWARD, chunk, number) for number in _group(shape, start))


def _backwards(shape: Shape) -> Iterator[Action]:
    for start in range(0, shape.num, shape.size):
        for chunk in reversed(range(shape.virtual)):
            yield from (Action(BACKWARD, chunk, number) for number in _group(shape, start))


def _group(shape: Shape, start: int) -> range:
    return range(start, min(start + shape.size, shape.num))


@dataclass(frozen=True)
class Timeline:
    """A schedule as it was played, in units of time of one forward pass through one chunk."""

    complete: bool  # no rank waited forever
    length: int
    idle: tuple[int, ...]  # time in which a rank had nothing to do, the bubble
    most_kept: tuple[int, ...]  # forward passes whose activations a rank kept at the same time, at most
    num_messages: int  # hidden states and gradients that went from rank to rank


def simulate(plan: Plan, shape: Shape, backward_time: int = 2) -> Timeline:
    """Play a schedule: every rank runs its actions in order, each as soon as what it needs has arrived."""
    finished: dict[tuple[str, int, int], int] = {}  # (kind, stage, micro-batch) -> when
    clock, done, busy = [0] * shape.size, [0] * shape.size, [0] * shape.size
    kept, most_kept = [0] * shape.size, [0] * shape.size
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(plan):
            while done[rank] < len(actions):
                action = actions[done[rank]]
                stage = shape.stage(rank, action.chunk)
                needs = _needs(action, stage, shape)
                if any(need not in finished for need in needs):
                    break
                duration = 1 if action.kind == FORWARD else backward_time
                clock[rank] = max([clock[rank], *(finished[need] for need in needs)]) + duration
                finished[action.kind, stage, action.micro_batch] = clock[rank]
                busy[rank] += duration
                kept[rank] += 1 if action.kind == FORWARD else -1
                most_kept[rank] = max(most_kept[rank], kept[rank])
                done[rank] += 1
                moved = True
    length = max(clock)
    return Timeline(
        complete=all(number == len(actions) for number, actions in zip(done, plan, strict=True)),
        length=length,
        idle=tuple(length - time for time in busy),
        most_kept=tuple(most_kept),
        num_messages=sum(num_messages(actions, shape, rank) for rank, actions in enumerate(plan)),
    )


def _needs(action: Action, stage: int, shape: Shape) -> list[tuple[str, int, int]]:
    """What must be finished before an action."""
    if action.kind == FORWARD:
        return [(FORWARD, stage - 1, action.micro_batch)] if stage > 0 else []
    needs = [(FORWARD, stage, action.micro_batch)]
    return [*needs, (BACKWARD, stage + 1, action.micro_batch)] if stage < shape.num_stages - 1 else needs


def num_messages(actions: Sequence[Action], shape: Shape, rank: int) -> int:
    """Messages that a rank sends: hidden states to the next stage, gradients to the one before."""
    stages = [(action.kind, shape.stage(rank, action.chunk)) for action in actions]
    forward = sum(kind == FORWARD and stage < shape.num_stages - 1 for kind, stage in stages)
    return forward + sum(kind == BACKWARD and stage > 0 for kind, stage in stages)
