"""VllmEngine: vLLM in this process. Its scheduler makes one step at a time, whenever we ask for one."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.errors import UserError, raise_all
from burnish.rollout.engine import Capabilities, Completion, EngineOptions, Request, check_requests
from burnish.rollout.engines.builtin.rows import Row
from burnish.rollout.engines.builtin.worker import CallersThread, DrivenFuture, OwnThread
from burnish.rollout.engines.checkpoint_stream import CheckedStream, Weights, write_files
from burnish.rollout.engines.vllm import library
from burnish.rollout.engines.vllm.arguments import (
    check_kwargs,
    engine_arguments,
    model_folder,
    refusals,
    sampling_fields,
)
from burnish.rollout.engines.vllm.library import Core, News
from burnish.rollout.stop import Finish, finish


class VllmEngine:
    """Public methods hand pieces of work to whoever runs the engine, who takes them between two steps."""

    refusals = staticmethod(refusals)

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.eos_ids = tuple(options.eos_ids)
        self.weights = Weights(options.model)
        self.version = 0
        self.waiting: list[Row] = []
        self.running: dict[str, Row] = {}
        self.paused = self.asleep = self.weights_awake = self.closed = False
        self.counts: Counter[str] = Counter()
        self._names = map(str, itertools.count())
        self._scores: dict[str, list[float] | None] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="burnish-vllm-"))
        self._worker = OwnThread(self._is_idle, self._step) if options.own_thread else CallersThread()
        try:
            self.core: Core = self._worker.do(self._start)
        except BaseException:
            self._worker.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        can_sleep = options.device.type != "cpu" and options.sleeps
        self.capabilities = Capabilities("request", invariant=False, score=True, abort=True, sleep=can_sleep)

    @staticmethod
    def check(extra: Mapping[str, Any], device: torch.device, section: str) -> None:
        """Before anything is loaded: is vLLM here, for this device, and does it know what it is to be told?"""
        library.check_installed(section)
        library.check_device(device, section)
        check_kwargs(extra, library.known_arguments(), section, library.version())

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options)
        for sampling in {request.sampling for request in requests}:
            raise_all(list(self.refusals(sampling, self.options.section)))
        new_future = Future if self.options.own_thread else partial(DrivenFuture, self.step)
        rows = [Row(request, new_future()) for request in requests]
        for row in rows:
            row.future.set_running_or_notify_cancel()  # from here on only `abort` ends it early
        self._worker.post(lambda: self.waiting.extend(rows))
        return [row.future for row in rows]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        chosen = set(futures)
        self._worker.do(lambda: self._abort(chosen))

    def pause(self) -> None:
        self._worker.do(self._pause)

    def resume(self) -> None:
        self._worker.do(self._resume)

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._worker.do(lambda: self._load(stream, version))

    def score(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        return self._worker.do(lambda: self._score(rows, temperature))

    def sleep(self, level: int = 1) -> None:
        self._worker.do(lambda: self._sleep(level))

    def wake(self) -> None:
        self._worker.do(self._wake)

    def stats(self) -> dict[str, float]:
        def take() -> dict[str, float]:
            counts, self.counts = dict(self.counts), Counter()
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

    # turns

    def _start(self) -> Core:
        options = self.options
        self.check(options.extra, options.device, options.section)
        if options.device.type == "cpu" and self.weights.has_experts:
            problem = "vLLM on a CPU leaves the experts of a mixture as they were when it is given new weights"
            key = f"{options.section}.name"
            raise UserError(problem, key=key, value="vllm", hint=f"{key}=builtin")
        return self._core()

    def _core(self) -> Core:
        """No step begins before the last one's tokens are here: else new weights would come between the two."""
        options = self.options
        arguments = {"async_scheduling": False} | engine_arguments(options) | launched_with(options)
        return Core(arguments | {"model": model_folder(options.model, self._folder)}, options.section)

    def _stop(self) -> None:
        self._fail(RuntimeError("the engine was closed"))
        self.core.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_idle(self) -> bool:
        return self.paused or self.asleep or not (self.waiting or self.running)

    def _step(self) -> None:
        """Hand vLLM what waits, then one step for everybody."""
        started = time.perf_counter()
        try:
            self._admit()
            self._step()
        except Exception as error:  # nobody must wait for ever on a future of a broken engine
            self._fail(error)
        self.counts["seconds"] += time.perf_counter() - started

    def _fail(self, error: Exception) -> None:
        rows = [*self.running.values(), *self.waiting]
        self.core.abort(list(self.running))
        self.running, self.waiting = {}, []
        for row in rows:
            row.future.set_exception(error)

    def _admit(self) -> None:
        waiting, self.waiting = self.waiting, []
        for row in waiting:
            request, name = row.request, next(self._names)
            try:
                self._check_ids(request.ids)
                fields = sampling_fields(request, self.eos_ids)
                self.core.add(name, request.ids, fields, request.sampling.bad_words, request.priority)
            except Exception as error:  # a request that vLLM refuses is its asker's, and nobody else's
                row.future.set_exception(error)
            else:
                self.running[name] = row

    def _check_ids(self, ids: Sequence[int]) -> None:
        """vLLM without a tokenizer does not, and would read beyond the embeddings."""
        wrong = [token for token in ids if not 0 <= token < self.weights.vocabulary]
        if wrong:
            raise ValueError(f"token {wrong[0]} is not one of the model's {self.weights.vocabulary}")

    def _step(self) -> None:
        if not (self.running or self._scores):
            return
        news = self.core.step()
        self.counts["decode_steps"] += bool(news)
        self._take_all(news)

    def _take_all(self, news: list[News]) -> None:
        over = [one.name for one in news if self._take(one) and not one.finished]
        if over:
            self.core.abort(over)

    def _take(self, news: News) -> bool:
        """Append what is new to its row; True once the row has all it wanted."""
        if news.error is not None and news.name in self.running:
            self.running.pop(news.name).future.set_exception(news.error)
            return True
        if news.name in self._scores:
            if news.error is not None:
                raise news.error
            self._scores[news.name] = news.prompt_log_probs or self._scores[news.name]
            return True
        row = self.running.get(news.name)
        if row is None:
            return True
        if self.options.prefix_caching and not row.tokens:
            self.counts["prefix_hit_tokens"] += news.num_cached
        num_top = row.request.sampling.logprobs or 0
        if news.versions is not None:
            row.versions = news.versions[: len(row.tokens)]
        for token, log_prob, top in zip(news.tokens, news.log_probs, news.top, strict=True):
            row.append(token, log_prob, self.version if news.versions is None else news.versions[len(row.tokens)])
            row.top.append(top[:num_top])
            self.counts["tokens"] += 1
            end = finish(row.tokens, row.request.sampling, self.eos_ids, self.options.decode)
            if end is not None:
                return self._complete(news.name, end)
        return self._complete(news.name, Finish("length")) if news.finished else False

    def _complete(self, name: str, end: Finish) -> bool:
        self.running.pop(name).complete(end)
        self.counts["finished"] += end.reason != "abort"
        return True

    # pieces of work

    def _abort(self, chosen: set[Future[Completion]]) -> None:
        for row in [row for row in self.waiting if row.future in chosen]:
            row.complete(Finish("abort"))
        self.waiting = [row for row in self.waiting if row.future not in chosen]
        names = [name for name, row in self.running.items() if row.future in chosen]
        self.core.abort(names)
        for name in names:
            self._complete(name, Finish("abort"))

    def _pause(self) -> None:
        self._take_all(self.core.hold())
        self.paused = True

    def _resume(self) -> None:
        self.core.go_on()
        self.paused = False

    def _load(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """While it sleeps only the weights are woken: there is no need yet for room for the cache."""
        if self.asleep and not self.weights_awake:
            self.core.wake(["weights"])
            self.weights_awake = True
        awake = not self.asleep
        if awake:
            self._take_all(self.core.hold())
        try:
            self._hand_over(self.weights.stream(stream))
            self.core.label(version)
            self.version = version
            if awake:
                self.core.forget_prefixes(running=self.options.prefix_caching and bool(self.running))
        finally:
            if awake and not self.paused:
                self.core.go_on()

    def _hand_over(self, stream: CheckedStream) -> None:
        if self.core.in_this_process:
            self.core.rpc("burnish_load", iter(stream))
        else:
            place = self.options.extra.get("weight_dir") or shared_memory()
            with tempfile.TemporaryDirectory(prefix="burnish-weights-", dir=place) as folder:
                write_files(stream, Path(folder))
                self.core.rpc("burnish_load_files", folder)
        stream.check()

    def _score(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """As prompts whose log-probs are asked for; other requests go on beside them."""
        if self.asleep or (self.paused and self.running):
            raise RuntimeError("the engine cannot score while it sleeps, or is paused with requests half way")
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
                self._step()
            return [
                [0.0] * len(ids) if name is None else self._scores[name] for name, ids in zip(names, rows, strict=True)
            ]
        finally:
            for name in names:
                self._scores.pop(name, None)

    def _sleep(self, level: int) -> None:
        if self.running or self.waiting:
            raise RuntimeError("the engine cannot sleep while requests are in flight")
        if not self.capabilities.sleep:
            return  # vLLM frees nothing on a CPU; the run says so at its start
        self.core.sleep(level)
        self.asleep, self.weights_awake = True, False
        self.counts["sleeps"] += 1

    def _wake(self) -> None:
        if self.asleep:
            self.core.wake(["kv_cache"] if self.weights_awake else ["weights", "kv_cache"])
            self.asleep = False


def launched_with(options: EngineOptions) -> dict[str, str]:
    """Among ranks that train together each has an engine of its own, in the trainer's process."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return {}
    if options.tensor_parallel > 1:
        key = f"{options.section}.tensor_model_parallel_size"
        problem = "each of several training ranks holds a whole vLLM of its own"
        raise UserError(problem, key=key, value=options.tensor_parallel, allowed="1", hint=f"{key}=1")
    os.environ.setdefault("RANK", str(torch.distributed.get_rank()))
    os.environ.setdefault("LOCAL_RANK", str(options.device.index or 0))
    return {"distributed_executor_backend": "external_launcher"}


def shared_memory() -> str | None:
    """Where files cost no disk; None is the system's own place for such files."""
    return next((place for place in ("/dev/shm",) if os.access(place, os.W_OK)), None)
