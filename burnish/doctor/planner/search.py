"""Search: the fastest layouts that fit, and why others were rejected."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.config import Loaded, Overrides, TrainConfig, load
from burnish.config.ranks import ENGINE_SIZES
from burnish.config.rules import check_rules
from burnish.config.sequence_rules import NAME as CONTEXT_SIZE
from burnish.config.values import written_as
from burnish.doctor.engine import engine_plan
from burnish.doctor.gpus import Cluster
from burnish.doctor.memory import Phase, Plan, Shapes, train_plan
from burnish.doctor.planner.calibration import Calibration
from burnish.doctor.planner.layout import (
    ENGINE_SIZE,
    OFFLOADS,
    ONE_STEP_OFF,
    SYNC,
    Layout,
    applied,
    divides_engine,
    divisors,
    indivisible,
    placements,
    settings,
)
from burnish.doctor.planner.timing import StepTime, Workload, step_time
from burnish.doctor.recompute import SAFE_SHARE
from burnish.errors import UserError
from burnish.sizing import GIB

MICRO_BATCHES = (4096, 8192, 16_384, 32_768, 65_536)  # tokens on a rank
LONG = 8192  # tokens of a sequence from which ranks may share one
MAX_STAGES, MAX_CONTEXT = 16, 8
NUM_BEST = 3
REFUSED, DOES_NOT_FIT = "the config refuses it", "does not fit"
FULL, CROWDED = 0.9, 0.4  # of a GPU, which an engine's weights may take, and from which it may have twice as many GPUs
CLOSE = 1.01  # times the fastest step, which the model cannot tell apart
# The plan itself decides these, whatever the run says.
HARDWARE = frozenset({"trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node"})


@dataclass
class Candidate:
    """A layout with its memory and its step time."""

    layout: Layout
    plan: Plan
    time: StepTime
    overrides: list[str] = field(default_factory=list)

    def rank(self) -> tuple[float, float]:
        """Order of preference: by the step, and, where phases that overlap hide each other, by all of them."""
        return round(self.time.step, 6), sum(self.time.phases.values())

    def to_json(self) -> dict[str, Any]:
        worst = self.plan.worst
        return {
            "layout": self.layout.text(),
            **self.time.to_json(),
            "memory": {"phase": worst.name, "bytes": worst.bytes, "capacity": self.plan.capacity},
            "sequences_at_once": None if self.plan.concurrency is None else self.plan.concurrency.at_once,
            "overrides": self.overrides,
        }


@dataclass
class Rejection:
    """Layouts that are not proposed for one reason."""

    reason: str
    count: int = 0
    example: str = ""

    def text(self) -> str:
        layouts = f"{self.count:,} layout{'s' * (self.count != 1)}"
        return f"{layouts}: {self.reason}{f' ({self.example})' if self.example else ''}"


@dataclass
class Found:
    """The result of a search."""

    cluster: Cluster
    work: Workload
    best: list[Candidate]
    slower: list[str]
    rejected: list[Rejection]
    num_tried: int

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster.text(),
            "best": [candidate.to_json() for candidate in self.best],
            "slower": self.slower,
            "rejected": [{"reason": one.reason, "layouts": one.count, "example": one.example} for one in self.rejected],
            "layouts_tried": self.num_tried,
        }


@dataclass(frozen=True)
class Base:
    """The run to plan: its config as the user wrote it, and what may not be changed."""

    cfg: TrainConfig
    overrides: Overrides
    shapes: Shapes
    pinned: dict[str, Any]  # keys that the user set

    @staticmethod
    def of(overrides: Overrides, shapes_of: Callable[[Loaded], Shapes], *, pins: bool) -> Base:
        """With `pins`, the search keeps what the overrides say of layouts."""
        loaded = load(overrides, check=False)
        values = {key: setting.value for key, setting in loaded.settings.items()}
        return Base(loaded.cfg, overrides, shapes_of(loaded), values if pins else {})


def layouts(cluster: Cluster, base: Base, work: Workload, capacity: int) -> Iterator[Layout]:
    """All combinations of sizes and placements, before anything is known of their memory and time."""
    shape = base.shapes.policy
    contexts = divisors(MAX_CONTEXT, MAX_CONTEXT) if work.length >= LONG else [1]
    for machines, per_machine, engine_machines, engine_per_machine in placements(cluster):
        ranks = machines * per_machine
        place = Layout(machines, per_machine, engine_machines=engine_machines, engine_per_machine=engine_per_machine)
        place = replace(place, mode=ONE_STEP_OFF if place.is_apart else SYNC)
        engines = engine_sizes(base, capacity, engine_per_machine or per_machine, place)
        tensors = [1] if shape.experts else divisors(per_machine, per_machine)
        experts = divisors(per_machine, per_machine) if shape.experts else [1]
        for engine, tensor, context in itertools.product(engines, tensors, contexts):
            for pipeline in divisors(ranks // tensor, MAX_STAGES):
                for virtual, expert in itertools.product((1, 2) if pipeline > 1 else (1,), experts):
                    sizes = replace(place, engine_tensor=engine, tensor=tensor, context=context, pipeline=pipeline)
                    yield from _sharded(replace(sizes, virtual=virtual, expert=expert))


def engine_sizes(base: Base, capacity: int, per_machine: int, place: Layout) -> list[int]:
    """GPUs of an engine: as few as hold the weights, and twice as many where these take most of the memory."""
    rollout, shape = base.cfg.actor_rollout_ref.rollout, base.shapes.policy
    if ENGINE_SIZE in base.pinned:
        return [rollout.tensor_model_parallel_size]
    possible = [size for size in divisors(per_machine, per_machine) if divides_engine(size, shape)]
    if rollout.name not in ENGINE_SIZES or place.num_gpus == 1:
        return [1]
    shares = {
        size: engine_plan(
            replace(rollout, tensor_model_parallel_size=size), shape, place.num_gpus, on_cpu=False
        ).weights
        / capacity
        for size in possible
    }
    enough = [size for size in possible if shares[size] < FULL] or possible[-1:]
    return enough[: 2 if shares[enough[0]] > CROWDED else 1]


def _sharded(layout: Layout) -> Iterator[Layout]:
    """Weights sharded over all ranks, over those of a machine, or whole on every rank."""
    yield layout
    within = max(1, layout.per_machine // layout.tensor)
    for size in sorted({within, 1}, reverse=True):
        if size < layout.stage_ranks:
            yield replace(layout, fsdp_size=size)


def micro_batch_sizes(layout: Layout, work: Workload) -> list[int]:
    """Tokens on a rank, ascending, that hold a sequence."""
    longest = int(-(-work.length // layout.context))
    return [size for size in MICRO_BATCHES if size >= longest] or [longest]


class Search:
    """Plans memory and time of every candidate, and remembers why candidates were rejected."""

    def __init__(self, cluster: Cluster, base: Base, calibration: Calibration, capacity: int) -> None:
        self.cluster, self.base, self.calibration, self.capacity = cluster, base, calibration, capacity
        self.work = Workload.of(base.cfg)
        self.rejected: dict[str, Rejection] = {}
        self.smallest: dict[str, int] = {}
        self.num_tried = 0

    def run(self) -> Found:
        tried = layouts(self.cluster, self.base, self.work, self.capacity)
        kinds = [found for layout in tried if (found := self._best_of(layout))]
        kinds.sort(key=Candidate.rank)
        best: list[Candidate] = []
        for candidate in kinds:
            if len(best) < NUM_BEST and (loaded := self._loaded(candidate)) is not None:
                best.append(loaded)
        slower = _slower(best, kinds) if best else []
        rejected = sorted(self.rejected.values(), key=lambda rejection: -rejection.count)
        return Found(self.cluster, self.work, best, slower, rejected, self.num_tried)

    def _best_of(self, layout: Layout) -> Candidate | None:
        """The fastest variant of a layout that fits."""
        problem = indivisible(layout, self.base.shapes.policy) or self._refused(layout)
        if problem is not None:
            self._reject(problem)
            return None
        found: list[Candidate] = []
        tried = False
        for recompute in (True, False):
            sizes = list(micro_batch_sizes(layout, self.work))
            for number, tokens in enumerate(sizes):
                self.num_tried += 1
                variant = replace(layout, micro_batch_tokens=tokens, recompute=recompute)
                allowed, contradiction = self._allowed(variant)
                if not allowed:
                    self._reject(contradiction)
                    continue
                tried = True
                candidate = self._fitting(allowed)
                if candidate is None:
                    self.num_tried += len(sizes) - number - 1
                    break  # larger micro-batches need more
                found.append(candidate)
            if recompute and tried and not found:
                break  # nothing needs less
        return min(found, key=Candidate.rank, default=None)

    def _refused(self, layout: Layout) -> str | None:
        """What the config's own rules, or the user's settings, have against a layout."""
        errors, _ = check_rules(applied(layout, self.base.cfg), "train", ("data.train_files",))
        known = {error.text() for error in check_rules(self.base.cfg, "train", ("data.train_files",))[0]}
        new = [error for error in errors if error.text() not in known]
        if new:
            return f"{REFUSED}: {new[0].problem}"
        return None

    def _contradicts(self, layout: Layout) -> str | None:
        decided = settings(layout, self.base.cfg)
        # With Megatron's keys another key sets the same size.
        decided |= {key: layout.context for key in self.base.pinned if key.endswith(f".{CONTEXT_SIZE}")}
        for key, value in decided.items():
            if key in self.base.pinned and key not in HARDWARE and self.base.pinned[key] != value:
                return f"you set {key}={written_as(self.base.pinned[key])}"
        return None

    def _allowed(self, variant: Layout) -> tuple[list[Layout], str]:
        """The variant with less and more offloading, as far as the user's settings allow; and what forbids the rest."""
        found, contradiction = [], ""
        for offload in OFFLOADS:
            layout = replace(variant, offload=offload)
            problem = self._contradicts(layout)
            found += [layout] if problem is None else []
            contradiction = contradiction or problem or ""
        return found, contradiction

    def _fitting(self, allowed: list[Layout]) -> Candidate | None:
        """The first of these that fits."""
        plan = None
        for layout in allowed:
            candidate = self._candidate(layout, applied(layout, self.base.cfg))
            plan = candidate.plan
            if not self._too_big(plan) and (plan.concurrency is None or plan.concurrency.held > 0):
                return candidate
        assert plan is not None
        worst = max(self._too_big(plan) or [plan.phases[0]], key=lambda phase: phase.bytes)
        reason = f"{DOES_NOT_FIT}: {worst.name}"
        least = self.smallest[reason] = min(self.smallest.get(reason, worst.bytes), worst.bytes)
        self._reject(
            reason,
            f"at least {least / GIB:.1f} GiB; {SAFE_SHARE:.0%} of a GPU are {SAFE_SHARE * self.capacity / GIB:.1f}",
        )
        return None

    def _too_big(self, plan: Plan) -> list[Phase]:
        return [phase for phase in plan.phases if phase.bytes > SAFE_SHARE * self.capacity]

    def _candidate(self, layout: Layout, cfg: TrainConfig) -> Candidate:
        plan = train_plan(cfg, self.base.shapes, self.capacity)
        at_once = max(1, plan.concurrency.at_once) if plan.concurrency is not None else 1
        time = step_time(cfg, self.base.shapes, layout, self.cluster, at_once, self.calibration, self.work)
        return Candidate(layout, plan, time)

    def _loaded(self, candidate: Candidate) -> Candidate | None:
        """The candidate as the overrides that are printed give it, loaded with all checks; None if they are refused."""
        overrides = changed_settings(candidate.layout, self.base.cfg)
        words = [*_as_list(self.base.overrides), *overrides]
        try:
            loaded = load(words, given=("data.train_files", "actor_rollout_ref.model.path"))
        except UserError as error:
            self._reject(f"{REFUSED}: {error.text().splitlines()[0]}")
            return None
        again = self._candidate(candidate.layout, loaded.cfg)
        return replace(again, overrides=overrides)

    def _reject(self, reason: str, example: str = "") -> None:
        # Reasons that differ in numbers only are one.
        rejection = self.rejected.setdefault(re.sub(r"[0-9][0-9,]*", "N", reason), Rejection(reason))
        rejection.count += 1
        rejection.example = example or rejection.example


def _as_list(overrides: Overrides) -> list[Any]:
    return [overrides] if isinstance(overrides, str) or not isinstance(overrides, Sequence) else list(overrides)


def changed_settings(layout: Layout, cfg: TrainConfig) -> list[str]:
    """The overrides to paste: settings of the layout that the run does not have yet."""
    found = []
    for key, value in settings(layout, cfg).items():
        current: Any = cfg
        for name in key.split("."):
            current = getattr(current, name)
        if current != value or key in ("trainer.nnodes", "trainer.n_gpus_per_node"):
            found.append(f"{key}={written_as(value)}")
    return found


# Kinds of layouts, to say what each costs: (name, whether a layout is of that kind)
KINDS: tuple[tuple[str, Callable[[Layout], bool]], ...] = (
    ("tensor parallelism", lambda layout: layout.tensor > 1),
    ("pipeline stages", lambda layout: layout.pipeline > 1),
    ("context parallelism", lambda layout: layout.context > 1),
    ("expert parallelism", lambda layout: layout.expert > 1),
    ("weights sharded over all ranks", lambda layout: layout.shard == layout.ranks > 1),
    ("weights sharded within a machine", lambda layout: 1 < layout.shard < layout.ranks),
    ("whole weights on every rank", lambda layout: layout.shard == 1 < layout.ranks),
    ("engines on the ranks' GPUs", lambda layout: not layout.is_apart),
    ("engines on GPUs of their own", lambda layout: layout.is_apart),
)


def _slower(best: list[Candidate], kinds: list[Candidate]) -> list[str]:
    """A line for each kind of layout that is not among the best: by how much it is slower, and where."""
    fastest = best[0]
    lines: list[str] = []
    for name, belongs in KINDS:
        if any(belongs(candidate.layout) for candidate in best):
            continue
        other = next((candidate for candidate in kinds if belongs(candidate.layout)), None)
        if other is not None:
            ratio = other.time.step / fastest.time.step
            much = f"{ratio:.2f} x slower" if ratio > CLOSE else "no faster"
            lines.append(f"{name}: {much} at best, because of {_difference(other, fastest)}")
    return lines


def _difference(other: Candidate, best: Candidate) -> str:
    """The phase that costs most of the difference, and the communication that grew most."""
    slow, fast = other.time, best.time
    if best.layout.mode != SYNC and other.layout.mode == SYNC:
        return "rollout and training taking turns"
    more = {phase: seconds - fast.phases.get(phase, 0.0) for phase, seconds in slow.phases.items()}
    phase = max(more, key=lambda name: more[name])
    text = f"{phase} ({more[phase]:+.1f} s)"
    grown = {kind: seconds - fast.communication.get(kind, 0.0) for kind, seconds in slow.communication.items()}
    kind = max(grown, key=lambda name: grown[name], default=None)
    if kind is not None and grown[kind] > 0.1 * max(more[phase], 1e-9):
        text += f", with {grown[kind]:.1f} s more of {kind}"
    if slow.bubble > fast.bubble + 0.05:
        text += f" and bubbles of {slow.bubble:.0%}"
    return text
