"""LoopEngine: the built-in engine where decoding lives on the device and the host looks in every few tokens.

Requests, prompts, blocks, preemption and sleep are those of the engine it extends. A turn is: admit what fits, then one
window of tokens for everybody, and while the device makes these, the host reads those of the window before. Between two
turns nothing runs on the device, so that a pause, an abort or new weights find it standing still.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

from torch import Tensor

from burnish.rollout.engine import Completion, EngineOptions
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.engines.builtin.loop_runner import LoopRunner
from burnish.rollout.engines.builtin.rows import Row
from burnish.rollout.engines.builtin.window import Made, Window
from burnish.rollout.stop import Finish, finish


class LoopEngine(BuiltinEngine):
    runner: LoopRunner

    def __init__(self, options: EngineOptions) -> None:
        self._unread: Window | None = None  # a window that has landed
        super().__init__(options)
        self.capabilities = replace(self.capabilities, remarks=self.runner.how.remarks)

    def _make_runner(self, options: EngineOptions) -> LoopRunner:
        return LoopRunner(options, frozenset(options.eos_ids))

    def wake(self) -> None:
        self._worker.do(self._wake)

    def _wake(self) -> None:
        """Take the memory at once, so that waking is what it costs, and not the first request."""
        self.asleep = False
        if self.runner.gave_memory_back:
            self.runner.open_cache()

    def _step(self) -> None:
        super()._step()
        self.counts["host_syncs"] += self.runner.host_syncs
        self.counts["graph_replays"] += self.runner.graph_replays
        self.runner.host_syncs = self.runner.graph_replays = 0

    def _decode(self) -> None:
        standing = self.runner.standing(self.running)
        if standing.has_new:  # then all rows may have to be written again, from their lists
            self._read()
        steps = self._steps(int(standing.left.max()))
        short = self.runner.short_of_blocks(self.running, standing, steps)
        self._grow(list(short), lambda row: self.runner.reserve(row, short[row]))
        if not self.running:
            return
        used = self.runner.pool.num_blocks - self.runner.pool.num_free
        self.counts["blocks_in_use"] = max(self.counts["blocks_in_use"], used)
        self.runner.launch(self.running, steps)
        self._read()
        self._take_window(self.runner.land())
        self.counts["decode_steps"] += steps

    def _steps(self, left: int) -> int:
        """Tokens until the next look: fewer where every row will be over, one while prompts wait for their pass."""
        waits = self.waiting and len(self.running) < self.options.max_num_seqs and not self.crowded
        return 1 if waits else min(self.runner.how.look_in, left)

    def _take_window(self, window: Window) -> None:
        """Let go of the rows that the device found over. What it made is read while it makes the next, if it can."""
        self._unread = window
        self.counts["tokens"] += sum(window.made)
        over = window.over
        for row in over:
            self.runner.drop(row)
        if over:
            self.running = _without(self.running, over)
        if not self.running or any(row.is_read_closely for row in window.rows):
            self._read()

    def _read(self) -> None:
        """Append what the last window made, and tell who waits for a row that is over."""
        if self._unread is None:
            return
        stopped = []
        for row, made in self._unread:
            end = self._append_by_token(row, made) if row.request.sampling.stop else self._append(row, made)
            if end is not None:
                if not made.over:
                    self.runner.drop(row)
                    stopped.append(row)
                row.complete(end)
                self.counts["finished"] += 1
        self._unread = None
        if stopped:
            self.running = _without(self.running, stopped)

    # what needs to know all that was made

    def _pause(self) -> None:
        self._read()
        super()._pause()

    def _abort(self, chosen: set[Future[Completion]]) -> None:
        self._read()
        super()._abort(chosen)

    def _load(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._read()
        super()._load(stream, version)

    def _preempt(self) -> Row | None:
        self._read()
        return super()._preempt()

    def _fail(self, error: Exception) -> None:
        unread, self._unread = self._unread, None
        if unread is not None:
            self.running = [*_without(self.running, unread.rows), *unread.rows]
        super()._fail(error)

    def _append(self, row: Row, made: Made) -> Finish | None:
        row.tokens += made.tokens
        row.log_probs += made.log_probs
        row.versions += [self.version] * len(made.tokens)
        row.top += made.top or []
        return finish(row.tokens, row.request.sampling, self.eos_ids, None) if made.over else None

    def _append_by_token(self, row: Row, made: Made) -> Finish | None:
        """Stop strings are text, which the device does not know: what it made beyond one is dropped."""
        for number, (token, log_prob) in enumerate(zip(made.tokens, made.log_probs, strict=True)):
            row.tokens.append(token)
            row.log_probs.append(log_prob)
            row.versions.append(self.version)
            row.top += made.top[number : number + 1] if made.top else []
            end = finish(row.tokens, row.request.sampling, self.eos_ids, self.options.decode)
            if end is not None:
                self.counts["tokens"] -= len(made.tokens) - number - 1
                return end
        return None


def _without(rows: list[Row], gone: Iterable[Row]) -> list[Row]:
    left_out = set(gone)
    return [row for row in rows if row not in left_out]
