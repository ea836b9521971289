"""Traces of episodes: what a sample did and when, for rollout.trace.backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.log.jsonl import plain
from burnish.log.traces import Span, Traces
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion
from burnish.rollout.episode import Act, Prompt, Sampler, Watcher

if TYPE_CHECKING:
    from burnish.config.rollout import RolloutConfig
    from burnish.log.logger import RunInfo
    from burnish.reward.trajectories import ScoredTrajectory

Decode = Callable[[Sequence[int]], str]


@dataclass
class EpisodeTrace:
    """The spans of one sample."""

    span: Span
    decode: Decode | None  # of token2text

    def watch(self, sampler: Sampler) -> Sampler:
        return TracedSampler(sampler, self)

    @contextmanager
    def child(self, name: str, kind: Any, inputs: dict[str, Any] | None = None) -> Iterator[Span]:
        span = Span(name, kind, time.time(), inputs=inputs or {})
        self.span.children.append(span)
        try:
            yield span
        finally:
            span.end = time.time()

    def tokens(self, name: str, ids: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = {f"{name}_ids": list(ids)}
        return found if self.decode is None else found | {f"{name}_text": self.decode(ids)}

    def finish(self, rows: Sequence[ScoredTrajectory]) -> None:
        """The score and the turns, when the reward is known."""
        self.span.end = time.time()
        last = rows[-1]
        turns = [
            {"role": turn.role, "reward": turn.reward, "tool_calls": list(turn.tool_calls), "latency": turn.latency}
            for row in rows
            for turn in row.trajectory.turns
        ]
        self.span.outputs = {
            "response": last.text,
            "score": last.score.value,
            "finish_reason": last.trajectory.finish_reason,
            "problem": last.score.problem,
            "turns": plain(turns),
        }


class TracedSampler:
    """A Sampler that times the turns and acts of an episode."""

    def __init__(self, sampler: Sampler, trace: EpisodeTrace) -> None:
        self.sampler = sampler
        self.trace = trace

    @property
    def watches(self) -> bool:
        return self.sampler.watches

    async def generate(
        self, input: ModelInput, *, watch: tuple[frozenset[int], Watcher] | None = None, **sampling: Any
    ) -> Completion:
        with self.trace.child("generate", "generation", self.trace.tokens("prompt", input.ids)) as span:
            completion = await self.sampler.generate(input, watch=watch, **sampling)
            span.outputs = self.trace.tokens("response", completion.ids)
            span.outputs["finish_reason"] = completion.finish_reason
        return completion

    def budget(self, input: ModelInput) -> int:
        return self.sampler.budget(input)

    async def observe(
        self, act: Act, *, name: str = "", repeatable: bool = True, key: str | None = None
    ) -> dict[str, Any]:
        with self.trace.child("observe", "tool", {"tool": name} if name else {}) as span:
            value = await self.sampler.observe(act, name=name, repeatable=repeatable, key=key)
            span.outputs = plain(value)
        return value

    def waited(self) -> float:
        return self.sampler.waited()

    def fork(self, number: int, input: ModelInput, max_tokens: int | None = None) -> Sampler:
        return TracedSampler(self.sampler.fork(number, input, max_tokens), self.trace)


@dataclass
class EpisodeTracer:
    """Traces the first samples of every step."""

    traces: Traces
    decode: Decode | None = None
    max_samples: int | None = None
    _opened: list[EpisodeTrace] = field(default_factory=list)
    _attributes: dict[str, Any] = field(default_factory=dict)

    def begin(self, step: int, *, validate: bool = False) -> None:
        self._opened, self._attributes = [], {"step": step, "validate": validate}

    def open(self, prompt: Prompt) -> EpisodeTrace | None:
        """The trace of a sample that starts now; None beyond the limit."""
        if self.max_samples is not None and len(self._opened) >= self.max_samples:
            return None
        span = Span("episode", "episode", time.time(), attributes={"uid": prompt.uid, "sample": prompt.sample})
        span.attributes |= self._attributes
        span.inputs = {"messages": plain(prompt.row.get("raw_prompt", []))}
        self._opened.append(EpisodeTrace(span, self.decode))
        return self._opened[-1]

    def end(self) -> None:
        """Write the episodes that finished; others were canceled."""
        self.traces.write([trace.span for trace in self._opened if trace.span.end])
        self._opened = []

    def close(self) -> None:
        self.traces.close()


@contextmanager
def tracing(tracer: EpisodeTracer | None, step: int, *, validate: bool = False) -> Iterator[None]:
    """Episodes inside belong to this step; they are written at its end."""
    if tracer is None:
        yield
        return
    tracer.begin(step, validate=validate)
    yield
    tracer.end()


def build_tracer(
    rollout: RolloutConfig, run: RunInfo, decode: Decode, note: Callable[[str], None]
) -> EpisodeTracer | None:
    """None where rollout.trace.backend is null."""
    config = rollout.trace
    if config.backend is None:
        return None
    if rollout.over_sample_rate:
        key = "actor_rollout_ref.rollout.trace.backend"
        problem = "not supported with rollout.over_sample_rate, which scores samples when all are known"
        raise UserError(problem, key=key, value=config.backend, hint=f"{key}=null")
    traces = Traces(config.backend, run, note)
    return EpisodeTracer(traces, decode if config.token2text else None, config.max_samples_per_step_per_worker)
