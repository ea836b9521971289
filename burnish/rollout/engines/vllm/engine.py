"""VllmEngine: vLLM in this process; we call its scheduler step by step."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.errors import UserError, raise_all
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Capabilities, Completion, EngineOptions, Request, check_requests, token_rows
from burnish.rollout.engines.builtin.sequence import SequenceState
from burnish.rollout.engines.builtin.worker import CallerThread, DrivenFuture, EngineThread
from burnish.rollout.engines.checkpoint_stream import CheckedStream, Weights, write_files
from burnish.rollout.engines.vllm import library
from burnish.rollout.engines.vllm.arguments import (
    check_kwargs,
    engine_arguments,
    model_folder,
    refusals,
    sampling_fields,
)
from burnish.rollout.engines.vllm.library import Core, StepOutput
from burnish.rollout.engines.vllm.media import expanded_otherwise, kinds_of, with_placeholders
from burnish.rollout.stop import Finish, finish

if TYPE_CHECKING:
    from burnish.rollout.engines.vllm.remote import RemoteCore


class VllmEngine:
    """Methods are executed by the engine's thread, between two steps."""

    refusals = staticmethod(refusals)

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.eos_ids = tuple(options.eos_ids)
        self.weights = Weights(options.model)
        self.version = 0
        self.waiting: list[SequenceState] = []
        self.running: dict[str, SequenceState] = {}  # by the name that vLLM knows it by
        self.paused = self.asleep = self.weights_awake = self.closed = False
        self.counts: defaultdict[str, float] = defaultdict(int)
        self._names = map(str, itertools.count())
        self._scores: dict[str, list[float] | None] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="burnish-vllm-"))
        self._worker = EngineThread(self._is_idle, self._step) if options.own_thread else CallerThread()
        try:
            self.core: Core | RemoteCore = self._worker.do(self._start)
        except BaseException:
            self._worker.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        can_sleep = options.device.type != "cpu" and options.sleeps
        self.media_kinds = kinds_of(options.model) if isinstance(self.core, Core) else frozenset()
        self.capabilities = Capabilities(
            "request",
            invariant=False,
            score=True,
            abort=True,
            sleep=can_sleep,
            reads_sources=bool(self.media_kinds),
        )

    @staticmethod
    def check(extra: Mapping[str, Any], device: torch.device, section: str) -> None:
        """Check, before a model is loaded, that vLLM is installed, for this device, and knows these arguments."""
        if "python" in extra:
            key = f"{section}.engine_kwargs.vllm.python"
            problem = "vLLM of another environment cannot run in this process, only as a server"
            raise UserError(problem, key=key, value=extra["python"], hint=f"{section}.mode=async")
        library.check_installed(section)
        library.check_device(device, section)
        check_kwargs(extra, library.known_arguments(), section, library.version())

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options, self.media_kinds)
        for sampling in {request.sampling for request in requests}:
            raise_all(list(self.refusals(sampling, self.options.section)))
        new_future = Future if self.options.own_thread else partial(DrivenFuture, self.step)
        sequences = [SequenceState(request, new_future()) for request in requests]
        for sequence in sequences:
            sequence.future.set_running_or_notify_cancel()  # from here on only `abort` ends it early
        self._worker.post(lambda: self.waiting.extend(sequences))
        return [sequence.future for sequence in sequences]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        chosen = set(futures)
        self._worker.do(lambda: self._abort(chosen))

    def end_session(self, session: str) -> None:
        """vLLM's prefix cache keeps what later turns share, and evicts it by itself."""

    def expect_return(self, session: str, seconds: float) -> None:
        """Sessions are ignored."""

    def pause(self) -> None:
        self._worker.do(self._pause)

    def resume(self) -> None:
        self._worker.do(self._resume)

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._worker.do(lambda: self._load(stream, version))

    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        return self._worker.do(lambda: self._score(token_rows(rows), temperature))

    def sleep(self, level: int = 1) -> None:
        self._worker.do(lambda: self._sleep(level))

    def wake(self) -> None:
        self._worker.do(self._wake)

    def stats(self) -> dict[str, float]:
        def take() -> dict[str, float]:
            counts = dict(self.counts)
            self.counts = defaultdict(int)
            return counts

        return self._worker.do(take)

    def step(self) -> bool:
        if self.options.own_thread or self._is_idle():
            return False
        self._worker.do(self._step)
        return True

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._worker.do(self._stop)
        self._worker.close()

    # executed by the engine's thread

    def _start(self) -> Core | RemoteCore:
        options = self.options
        self.check(options.extra, options.device, options.section)
        if options.device.type == "cpu" and self.weights.has_experts:
            problem = "mixture-of-experts models are not supported yet by vLLM on a CPU: it ignores new expert weights"
            key = f"{options.section}.name"
            raise UserError(problem, key=key, value="vllm", hint=f"{key}=builtin")
        return self._make_core()

    def _make_core(self) -> Core | RemoteCore:
        """Without async scheduling, so that no step is in flight when new weights are loaded."""
        options = self.options
        known = library.known_arguments() if kinds_of(options.model) else ()
        arguments = {"async_scheduling": False} | engine_arguments(options, known) | launched_with(options)
        return Core(arguments | {"model": model_folder(options.model, self._folder)}, options.section)

    def _stop(self) -> None:
        self._fail(RuntimeError("the engine was closed"))
        self.core.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_idle(self) -> bool:
        return self.paused or self.asleep or not (self.waiting or self.running)

    def _step(self) -> None:
        """Submit waiting requests, then run one step."""
        started = time.perf_counter()
        try:
            self._admit()
            self._step_core()
        except Exception as error:  # without this, callers would wait forever
            self._fail(error)
        self.counts["seconds"] += time.perf_counter() - started

    def _fail(self, error: Exception) -> None:
        sequences = [*self.running.values(), *self.waiting]
        self.core.abort(list(self.running))
        self.running, self.waiting = {}, []
        for sequence in sequences:
            sequence.future.set_exception(error)

    def _admit(self) -> None:
        waiting, self.waiting = self.waiting, []
        for sequence in waiting:
            request, name = sequence.request, next(self._names)
            try:
                self._check_ids(request.input.ids)
                fields = sampling_fields(request, self.eos_ids)
                ids, images = with_placeholders(request.input)
                self.core.add(name, ids, fields, request.sampling.bad_words, request.priority, images)
            except Exception as error:  # vLLM refused this request; the others go on
                sequence.future.set_exception(error)
            else:
                self.running[name] = sequence

    def _check_ids(self, ids: Sequence[int]) -> None:
        """vLLM does not check them without a tokenizer, and would read beyond the embeddings."""
        invalid = [token for token in ids if not 0 <= token < self.weights.vocabulary]
        if invalid:
            raise ValueError(f"token {invalid[0]} is outside the model's vocabulary of {self.weights.vocabulary}")

    def _step_core(self) -> None:
        if not (self.running or self._scores):
            return
        outputs = self.core.step()
        self.counts["decode_steps"] += bool(outputs)
        self._process(outputs)

    def _process(self, outputs: list[StepOutput]) -> None:
        ended = [output.name for output in outputs if self._process_one(output) and not output.finished]
        if ended:
            self.core.abort(ended)

    def _process_one(self, output: StepOutput) -> bool:
        """Append new tokens to their sequence; True if vLLM need not continue it."""
        name = output.name
        if output.error is not None and name in self.running:
            self.running.pop(name).future.set_exception(output.error)
            return True
        if name in self._scores:
            if output.error is not None:
                raise output.error
            self._scores[name] = output.prompt_log_probs or self._scores[name]
            return True
        sequence = self.running.get(name)
        if sequence is None:
            return True
        shown, theirs = sequence.request.input, output.prompt_ids
        if shown.media and not sequence.tokens and theirs is not None and tuple(theirs) != shown.ids:
            del self.running[name]
            sequence.future.set_exception(expanded_otherwise(shown, theirs))
            return True
        if self.options.prefix_caching and not sequence.tokens:
            self.counts["prefix_hit_tokens"] += output.num_cached
        num_top = sequence.request.sampling.logprobs or 0
        if output.versions is not None:
            sequence.versions = output.versions[: len(sequence.tokens)]
        for token, log_prob, top in zip(output.tokens, output.log_probs, output.top, strict=True):
            version = self.version if output.versions is None else output.versions[len(sequence.tokens)]
            sequence.append(token, log_prob, version)
            sequence.top.append(top[:num_top])
            self.counts["tokens"] += 1
            end = finish(sequence.tokens, sequence.request.sampling, self.eos_ids, self.options.decode)
            if end is not None:
                return self._complete(name, end)
        return self._complete(name, Finish("length")) if output.finished else False

    def _complete(self, name: str, end: Finish) -> bool:
        self.running.pop(name).complete(end)
        self.counts["finished"] += end.reason != "abort"
        return True

    def _abort(self, chosen: set[Future[Completion]]) -> None:
        for sequence in [s for s in self.waiting if s.future in chosen]:
            sequence.complete(Finish("abort"))
        self.waiting = [s for s in self.waiting if s.future not in chosen]
        names = [name for name, s in self.running.items() if s.future in chosen]
        self.core.abort(names)
        for name in names:
            self._complete(name, Finish("abort"))

    def _pause(self) -> None:
        self._process(self.core.pause())
        self.paused = True

    def _resume(self) -> None:
        self.core.resume()
        self.paused = False

    def _load(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """A sleeping engine wakes only its weights; the cache stays released."""
        if self.asleep and not self.weights_awake:
            self.core.wake(["weights"])
            self.weights_awake = True
        awake = not self.asleep
        if awake:
            self._process(self.core.pause())
        try:
            self._send(self.weights.stream(stream))
            self.core.set_version(version)
            self.version = version
            if awake:
                keeps_old = self.options.prefix_caching or bool(self.media_kinds)
                self.core.reset_prefix_cache(running=keeps_old and bool(self.running))
            if self.media_kinds:
                self.core.forget_images()
        finally:
            if awake and not self.paused:
                self.core.resume()

    def _send(self, stream: CheckedStream) -> None:
        if self.core.in_this_process:
            self.core.rpc("burnish_load", iter(stream))
        else:
            parent = self.options.extra.get("weight_dir") or shared_memory()
            with tempfile.TemporaryDirectory(prefix="burnish-weights-", dir=parent) as folder:
                write_files(stream, Path(folder))
                self.core.rpc("burnish_load_files", folder)
        stream.check()

    def _score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """As prompts with prompt_logprobs; running requests continue meanwhile."""
        if self.asleep or (self.paused and self.running):
            raise RuntimeError("the engine cannot score while it sleeps, or while it is paused with running requests")
        names: list[str | None] = []
        self.core.rpc("burnish_score_at", str(temperature))
        for ids in rows:
            self._check_ids(ids)
            names.append(next(self._names) if len(ids) > 1 else None)
            if names[-1] is not None:
                fields = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
                self.core.add(names[-1], ids, fields, (), priority=0)
                self._scores[names[-1]] = None
        try:
            while any(self._scores[name] is None for name in names if name is not None):
                self._step_core()
            scores = [None if name is None else self._scores[name] for name in names]
            return [[0.0] * len(ids) if score is None else score for score, ids in zip(scores, rows, strict=True)]
        finally:
            for name in names:
                if name is not None:
                    self._scores.pop(name, None)

    def _sleep(self, level: int) -> None:
        if self.running or self.waiting:
            raise RuntimeError("the engine cannot sleep while requests are in flight")
        if not self.capabilities.sleep:
            return  # vLLM frees nothing on a CPU; the run reports that at its start
        self.core.sleep(level)
        self.asleep, self.weights_awake = True, False
        self.counts["sleeps"] += 1

    def _wake(self) -> None:
        if self.asleep:
            self.core.wake(["kv_cache"] if self.weights_awake else ["weights", "kv_cache"])
            self.asleep = False


def launched_with(options: EngineOptions) -> dict[str, str]:
    """With several training ranks, each has an engine of its own in the trainer's process."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return {}
    if options.tensor_parallel > 1:
        key = f"{options.section}.tensor_model_parallel_size"
        problem = "among several training ranks, only a vLLM server can use several devices"
        raise UserError(problem, key=key, value=options.tensor_parallel, hint=f"{options.section}.mode=async")
    os.environ.setdefault("RANK", str(torch.distributed.get_rank()))
    os.environ.setdefault("LOCAL_RANK", str(options.device.index or 0))
    return {"distributed_executor_backend": "external_launcher"}


def shared_memory() -> str | None:
    """A folder in memory for temporary files; None for the system's default."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
