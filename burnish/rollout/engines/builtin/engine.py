"""BuiltinEngine: continuous batching around the Hugging Face class. One thread owns model, cache and sequences."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Capabilities, Completion, EngineOptions, Request, check_requests
from burnish.rollout.engines.builtin.decode_plan import LOOP_DEVICES, check_arguments, uses_device_loop
from burnish.rollout.engines.builtin.penalties import PenaltyState
from burnish.rollout.engines.builtin.scheduler import Decoder, Scheduler
from burnish.rollout.engines.builtin.sequence import SequenceState
from burnish.rollout.engines.builtin.step_decode import StepDecoder
from burnish.rollout.engines.builtin.worker import CallerThread, DrivenFuture, EngineThread
from burnish.rollout.engines.digests import digests_of

LOAD, CLOSE = "load", "close"  # commands to followers, besides the methods that run on all ranks


class BuiltinEngine:
    """The engine protocol around a Scheduler. Methods are executed by the engine's thread, between two steps."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.group = options.tensor_group
        self.decoder = make_decoder(options)
        self.runner = self.decoder.runner
        self.scheduler = Scheduler(options, self.decoder)
        self.capabilities = Capabilities(
            "token",
            self.runner.invariant,
            score=True,
            abort=True,
            sleep=True,
            digests=True,
            sessions=True,
            watch=True,
            drafts=self.decoder.drafts,
            remarks=self.decoder.remarks,
        )
        self.paused = self.asleep = False
        self._worker = EngineThread(self._is_idle, self._step) if options.own_thread else CallerThread()

    @property
    def version(self) -> int:
        return self.scheduler.version

    @property
    def waiting(self) -> deque[SequenceState]:
        return self.scheduler.waiting

    @property
    def running(self) -> list[SequenceState]:
        return self.scheduler.running

    @staticmethod
    def check(extra: Mapping[str, Any], device: torch.device, section: str) -> None:
        """Refuse arguments (engine_kwargs.builtin) before a model is loaded."""
        check_arguments(extra, section)

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options, self.runner.media_kinds)
        self._check_budget(requests)
        new_future = Future if self.options.own_thread else partial(DrivenFuture, self.step)
        eos_ids = self.scheduler.eos_ids
        sequences = [
            SequenceState(
                request,
                new_future(),
                PenaltyState.of(request, eos_ids),
                offset=self.runner.positions.offset(request.input),
            )
            for request in requests
        ]
        for sequence in sequences:
            sequence.future.set_running_or_notify_cancel()  # from here on only `abort` ends it early
        self._worker.post(lambda: self.scheduler.enqueue(sequences))
        return [sequence.future for sequence in sequences]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        chosen = set(futures)
        self._worker.do(lambda: self.scheduler.abort(chosen))

    def end_session(self, session: str) -> None:
        self._worker.post(lambda: self.scheduler.end_session(session))

    def expect_return(self, session: str, seconds: float) -> None:
        self._worker.post(lambda: self.scheduler.blocks.expect_return(session, seconds))

    def pause(self) -> None:
        self._worker.do(self._pause)

    def resume(self) -> None:
        self._worker.do(lambda: setattr(self, "paused", False))

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._worker.do(lambda: self._load(stream, version))

    def digests(self) -> dict[str, Tensor]:
        return self._worker.do(lambda: digests_of(self.runner.model))

    def local_weight(self, name: str, whole: Tensor) -> Tensor:
        return self.runner.local_weight(name, whole)

    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        return self._worker.do(lambda: self.runner.score(rows, temperature))

    def sleep(self, level: int = 1) -> None:
        self._worker.do(lambda: self._sleep(level))

    def wake(self) -> None:
        self._worker.do(self._wake)

    def stats(self) -> dict[str, float]:
        def take() -> dict[str, float]:
            counts = dict(self.scheduler.counts)
            self.scheduler.counts = defaultdict(int)
            return counts

        return self._worker.do(take)

    def memory(self) -> dict[str, list[Tensor]]:
        """The tensors it holds, by purpose."""
        cache = self.scheduler.blocks.cache
        pools = [] if cache is None else [*cache.keys, *cache.values]
        return {"weights": list(self.runner.model.parameters()), "cache": pools}

    def step(self) -> bool:
        if self.options.own_thread or self._is_idle():
            return False
        self._worker.do(self._step)
        return True

    def close(self) -> None:
        self._worker.close()
        self.scheduler.fail(RuntimeError("the engine was closed"))
        if self.group is not None:
            with contextlib.suppress(RuntimeError):  # the other ranks are gone
                self.group.send(CLOSE)
            self.group.ended = True

    def _check_budget(self, requests: Sequence[Request]) -> None:
        """Without chunked prefill a prompt must fit into one pass."""
        longest = max((len(request.input) for request in requests), default=0)
        if longest > self.options.max_num_batched_tokens and not self.options.chunked_prefill:
            raise UserError(
                f"a prompt of {longest} tokens does not fit into one engine step",
                key="actor_rollout_ref.rollout.max_num_batched_tokens",
                value=self.options.max_num_batched_tokens,
                hint="actor_rollout_ref.rollout.enable_chunked_prefill=true, to split it over several steps",
            )

    # executed by the engine's thread

    def _is_idle(self) -> bool:
        return self.paused or self.asleep or not self.scheduler.has_work

    def _step(self) -> None:
        started = time.perf_counter()
        try:
            self.scheduler.step()
        except Exception as error:  # without this, callers would wait forever for the futures of a broken engine
            self.scheduler.fail(error)
        self.scheduler.counts["seconds"] += time.perf_counter() - started

    def _pause(self) -> None:
        self.decoder.flush(self.scheduler)
        self.paused = True

    def _load(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.decoder.flush(self.scheduler)
        if self.group is not None:
            self.group.send(LOAD)
        self.runner.load_weights(stream)
        self.scheduler.new_weights(version)

    def _sleep(self, level: int) -> None:
        if self.scheduler.has_work:
            raise RuntimeError("the engine cannot sleep while requests are in flight")
        self.scheduler.close_cache()
        if level >= 2:
            self.decoder.release_weights()
        self.asleep = True
        self.scheduler.counts["sleeps"] += 1

    def _wake(self) -> None:
        self.asleep = False
        self.decoder.wake()


def make_decoder(options: EngineOptions) -> Decoder:
    if not uses_device_loop(options):
        if options.invariant and options.device.type in LOOP_DEVICES:
            options = replace(options, drafts=None)  # as in the device loop, where other models decode
        return StepDecoder(options)
    from burnish.rollout.engines.builtin.graph_decode import GraphDecoder

    return GraphDecoder(options)
