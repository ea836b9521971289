"""LoopEngine: the built-in engine where decoding lives on the device and the host looks in every few tokens.

Requests, prompts, blocks, preemption and sleep are those of the engine it extends. A turn is: admit what fits, then one
window of tokens for everybody. Between two turns nothing runs on the device, so that a pause, an abort or new weights
find it standing still.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from burnish.rollout.builtin.engine import BuiltinEngine
from burnish.rollout.builtin.loop_runner import LoopRunner, Made, Window
from burnish.rollout.builtin.rows import Row
from burnish.rollout.engine import EngineOptions
from burnish.rollout.stop import Finish, finish


class LoopEngine(BuiltinEngine):
    runner: LoopRunner

    def __init__(self, options: EngineOptions) -> None:
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

    def _turn(self) -> None:
        super()._turn()
        self.counts["host_syncs"] += self.runner.host_syncs
        self.counts["graph_replays"] += self.runner.graph_replays
        self.runner.host_syncs = self.runner.graph_replays = 0

    def _decode(self) -> None:
        steps = self._steps()
        self._grow(self.runner.short_of_blocks(self.running, steps), partial(self.runner.reserve, steps=steps))
        if not self.running:
            return
        used = self.runner.pool.num_blocks - self.runner.pool.num_free
        self.counts["blocks_in_use"] = max(self.counts["blocks_in_use"], used)
        window = self.runner.decode_window(self.running, steps)
        self.counts["decode_steps"] += steps
        self._take_window(self.running, window)

    def _steps(self) -> int:
        """Tokens until the next look: fewer where every row will be over, one while prompts wait for their pass."""
        waits = self.waiting and len(self.running) < self.options.max_num_seqs and not self.crowded
        if waits:
            return 1
        left = max(row.request.sampling.max_tokens - len(row.tokens) for row in self.running)
        return min(self.runner.how.look_in, left)

    def _take_window(self, rows: list[Row], window: Window) -> None:
        """Append what the device made, and let the finished rows go."""
        done: set[int] = set()
        for row in rows:
            made = window.of(row)
            end = self._append_by_token(row, made) if row.request.sampling.stop else self._append(row, made)
            if end is not None:
                self.runner.drop(row)
                row.complete(end)
                done.add(id(row))
        self.counts["tokens"] += sum(window.made[: len(rows)])
        if done:
            self.counts["finished"] += len(done)
            self.running = [row for row in rows if id(row) not in done]

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
