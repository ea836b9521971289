"""BuiltinEngine: continuous batching around the Hugging Face class. One thread owns model, cache and rows."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial

from torch import Tensor

from burnish.errors import UserError
from burnish.rollout.engine import Capabilities, Completion, EngineOptions, Request, check_requests
from burnish.rollout.engines.builtin.blocks import OutOfBlocksError, blocks_for
from burnish.rollout.engines.builtin.past import Past
from burnish.rollout.engines.builtin.rows import Prefix, Row
from burnish.rollout.engines.builtin.runner import Runner
from burnish.rollout.engines.builtin.sampling import Drawn
from burnish.rollout.engines.builtin.worker import CallersThread, DrivenFuture, OwnThread
from burnish.rollout.engines.digests import digests_of
from burnish.rollout.engines.weights import copy_weights
from burnish.rollout.stop import Finish, finish


class BuiltinEngine:
    """Public methods hand pieces of work to whoever runs the engine, who takes them between two tokens."""

    def __init__(self, options: EngineOptions) -> None:
        self.runner = self._make_runner(options)
        can = {"score": True, "abort": True, "sleep": True, "digests": True}
        self.capabilities = Capabilities("token", self.runner.invariant, **can, remarks=self.runner.remarks)
        self.options = options
        self.eos_ids = frozenset(options.eos_ids)
        self.version = 0
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.prefixes: dict[tuple[int, ...], Prefix] = {}
        self.paused = self.asleep = False
        self.crowded = False  # the last time rows were admitted, room ran out before the token budget
        self.counts: Counter[str] = Counter()
        self._worker = OwnThread(self._is_idle, self._step) if options.own_thread else CallersThread()

    def _make_runner(self, options: EngineOptions) -> Runner:
        invariant = options.device.type == "cpu" if options.invariant is None else options.invariant
        return Runner(options, invariant)

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options)
        self._check_budget(requests)
        new_future = Future if self.options.own_thread else partial(DrivenFuture, self.step)
        rows = [Row(request, new_future(), Past.of(request, self.eos_ids)) for request in requests]
        for row in rows:
            row.future.set_running_or_notify_cancel()  # from here on only `abort` ends it early
        self._worker.post(lambda: self._enqueue(rows))
        return [row.future for row in rows]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        chosen = set(futures)
        self._worker.do(lambda: self._abort(chosen))

    def pause(self) -> None:
        self._worker.do(self._pause)

    def resume(self) -> None:
        self._worker.do(lambda: setattr(self, "paused", False))

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._worker.do(lambda: self._load(stream, version))

    def digests(self) -> dict[str, Tensor]:
        return self._worker.do(lambda: digests_of(self.runner.model))

    def score(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        return self._worker.do(lambda: self.runner.score(rows, temperature))

    def sleep(self, level: int = 1) -> None:
        self._worker.do(lambda: self._sleep(level))

    def wake(self) -> None:
        self._worker.do(lambda: setattr(self, "asleep", False))

    def stats(self) -> dict[str, float]:
        def take() -> dict[str, float]:
            counts, self.counts = dict(self.counts), Counter()
            return counts

        return self._worker.do(take)

    def memory(self) -> dict[str, list[Tensor]]:
        """The tensors it holds, by what they are."""
        cache = self.runner.cache
        pools = [] if cache is None else [*cache.keys, *cache.values]
        return {"weights": list(self.runner.model.parameters()), "cache": pools}

    def step(self) -> bool:
        if self.options.own_thread or self._is_idle():
            return False
        self._worker.do(self._step)
        return True

    def close(self) -> None:
        self._worker.close()
        self._fail(RuntimeError("the engine was closed"))

    def _check_budget(self, requests: Sequence[Request]) -> None:
        """Without chunked prefill a prompt must fit into one pass."""
        longest = max((len(request.ids) for request in requests), default=0)
        if longest > self.options.max_num_batched_tokens and not self.options.chunked_prefill:
            raise UserError(
                f"a prompt of {longest} tokens does not fit into one engine step",
                key="actor_rollout_ref.rollout.max_num_batched_tokens",
                value=self.options.max_num_batched_tokens,
                hint="actor_rollout_ref.rollout.enable_chunked_prefill=true, to split it over several",
            )

    # turns

    def _is_idle(self) -> bool:
        return self.paused or self.asleep or not (self.waiting or self.running)

    def _step(self) -> None:
        """Admit what fits, then one token for everybody."""
        started = time.perf_counter()
        try:
            self._admit()
            if self.running:
                self._decode()
        except Exception as error:  # nobody must wait for ever on a future of a broken engine
            self._fail(error)
        self.counts["seconds"] += time.perf_counter() - started

    def _fail(self, error: Exception) -> None:
        for row in [*self.running, *self.waiting]:
            if not row.future.done():
                row.future.set_exception(error)
        self.running, self.waiting = [], deque()
        self.prefixes.clear()
        self.runner.close_cache()

    # requests

    def _pause(self) -> None:
        self.paused = True

    def _enqueue(self, rows: list[Row]) -> None:
        self.waiting.extend(rows)
        if any(row.request.priority for row in self.waiting):
            self.waiting = deque(sorted(self.waiting, key=lambda row: row.request.priority))  # stable: first come

    def _abort(self, chosen: set[Future[Completion]]) -> None:
        for row in [row for row in self.running if row.future in chosen]:
            self.runner.drop(row)
            row.complete(Finish("abort"))
        self.running = [row for row in self.running if row.future not in chosen]
        for row in [row for row in self.waiting if row.future in chosen]:
            row.complete(Finish("abort"))
        self.waiting = deque(row for row in self.waiting if row.future not in chosen)
        self._close_prefixes()

    def _load(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        copy_weights(self.runner.model, stream)
        self.version = version
        for prefix in self.prefixes.values():
            self.runner.drop(prefix)
        self.prefixes.clear()
        self.runner.forget()

    def _sleep(self, level: int) -> None:
        if self.running or self.waiting:
            raise RuntimeError("the engine cannot sleep while requests are in flight")
        self.runner.close_cache()
        self.prefixes.clear()
        if level >= 2:
            self.runner.release_weights()
        self.asleep = True
        self.counts["sleeps"] += 1

    # scheduling

    def _admit(self) -> None:
        """Start waiting rows, prompt by prompt, while there are places, blocks and prefill tokens."""
        if not self.waiting:
            return
        if self.runner.cache is None:
            self.runner.open_cache()
        places = self.options.max_num_seqs - len(self.running)
        chosen = [self.waiting[i] for i in range(min(places, len(self.waiting)))]
        started, pieces = self._open_prefixes(chosen)
        if pieces:
            self.runner.prefill(pieces)
            self.counts["prefill_tokens"] += sum(count for _, count in pieces)
        self._fork(started)
        if started:
            drawn = self.runner.first_tokens(started, [self.prefixes[row.request.ids] for row in started])
            gone = set(map(id, started))
            self.waiting = deque(row for row in self.waiting if id(row) not in gone)
            self.running = [*self.running, *started]
            self._take(started, drawn)
        self._close_prefixes()

    def _open_prefixes(self, chosen: list[Row]) -> tuple[list[Row], list[tuple[Prefix, int]]]:
        """The rows that can start now, and how much of which prompts to prefill in one pass of the token budget."""
        started: list[Row] = []
        pieces: list[tuple[Prefix, int]] = []
        keep: set[tuple[int, ...]] = set()
        budget = self.options.max_num_batched_tokens
        self.crowded = False
        for row in chosen:
            ids = row.request.ids
            keep.add(ids)
            prefix = self.prefixes.get(ids)
            if prefix is None and pieces and self._piece(len(ids), budget) == 0:
                break
            # one block for each row that starts, so that opened prompts never take the last block from the first row
            opening = blocks_for(len(ids), self.runner.block) if prefix is None else 0
            if not self._make_room(len(started) + 1 + opening, keep):
                self.crowded = True
                break
            if prefix is None:
                prefix = self._open_prefix(ids)
            if prefix.left:
                count = self._piece(prefix.left, budget, alone=not pieces)
                if count == 0:
                    break
                self.runner.plan(prefix, count)
                pieces.append((prefix, count))
                budget -= count
            if prefix.left == 0:
                started.append(row)
        return started, pieces

    def _open_prefix(self, ids: tuple[int, ...]) -> Prefix:
        prefix = self.prefixes[ids] = self.runner.open_prefix(ids)
        if self.options.prefix_caching:
            self.counts["prefix_hit_tokens"] += prefix.planned
        return prefix

    def _piece(self, left: int, budget: int, alone: bool = False) -> int:
        """How many of a prompt's tokens go into a pass: all, or whole blocks of them; never none of the first."""
        if left <= budget:
            return left
        if not self.options.chunked_prefill:
            return left if alone else 0
        block = self.runner.block
        whole = max(0, budget // block * block)
        return whole or (min(left, block) if alone else 0)

    def _make_room(self, blocks: int, keep: set[tuple[int, ...]]) -> bool:
        """Are there so many free blocks, if need be without the idle prompts that are not in `keep`?"""
        for ids in [ids for ids in self.prefixes if ids not in keep]:
            if self.runner.make_room(blocks):
                break
            self.runner.drop(self.prefixes.pop(ids))
        return self.runner.make_room(blocks)

    def _fork(self, rows: list[Row]) -> None:
        """Give the rows their prompts' blocks."""
        by_prompt: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            by_prompt.setdefault(row.request.ids, []).append(row)
        for ids, members in by_prompt.items():
            self.runner.fork(self.prefixes[ids], members)

    def _close_prefixes(self) -> None:
        """Prompts that nobody waits for give their blocks back (rows keep the ones they share)."""
        wanted = {row.request.ids for row in self.waiting}
        for ids in [ids for ids in self.prefixes if ids not in wanted]:
            self.runner.drop(self.prefixes.pop(ids))

    def _decode(self) -> None:
        if not self.runner.has_room(self.running):
            self._grow(list(self.running), self.runner.grow)
        if self.running:
            drawn = self.runner.decode(self.running)
            self.counts["decode_steps"] += 1
            self._take(self.running, drawn)

    def _grow(self, rows: list[Row], grow: Callable[[Row], None]) -> None:
        """A place for these rows' next tokens; who came last goes back where there are too few."""
        for row in rows:
            while row.table or row in self.running:
                try:
                    grow(row)
                    break
                except OutOfBlocksError:
                    if self._preempt() is row:
                        break

    def _preempt(self) -> Row | None:
        """Blocks ran out: idle prompts go first, then the newest row starts again later."""
        if self.runner.make_room(1):
            return None
        if self.prefixes:
            self.runner.drop(self.prefixes.pop(next(iter(self.prefixes))))
            return None
        row = self.running[-1]
        self.running = self.running[:-1]
        self.runner.drop(row)
        row.restart()
        self.waiting.appendleft(row)
        self.counts["preemptions"] += 1
        return row

    def _take(self, rows: list[Row], drawn: Drawn) -> None:
        """Append one token to each row, and let the finished ones go."""
        done: set[int] = set()
        for row, top in zip(rows, drawn.top or (), strict=False):
            row.top.append(top)
        for row, token, log_prob in zip(rows, drawn.tokens, drawn.log_probs, strict=True):
            row.append(token, log_prob, self.version)
            if not (row.is_watched or token in self.eos_ids or len(row.tokens) >= row.most):
                continue  # most tokens end nothing, and there are very many of them
            end = finish(row.tokens, row.request.sampling, self.eos_ids, self.options.decode)
            if end is not None:
                self.runner.drop(row)
                row.complete(end)
                done.add(id(row))
        self.counts["tokens"] += len(rows)
        if done:
            self.counts["finished"] += len(done)
            self.running = [row for row in self.running if id(row) not in done]
