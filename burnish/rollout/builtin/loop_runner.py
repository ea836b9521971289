"""LoopRunner: the runner of an engine whose decode loop lives on the device; the host looks in every few tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.models.attention import PAGED_ON_DEVICE
from burnish.models.chunks import chunk_rows
from burnish.models.load import load_config
from burnish.models.paged import Pages, bind_cache
from burnish.models.parts import head_weight
from burnish.rollout.builtin.blocks import BlockPool, blocks_for
from burnish.rollout.builtin.body import Body, Fixed
from burnish.rollout.builtin.cache import KVCache, Segment
from burnish.rollout.builtin.device_rows import DeviceRows, Mode
from burnish.rollout.builtin.graphs import Graphs
from burnish.rollout.builtin.memory import free_bytes
from burnish.rollout.builtin.pages import NoPages, PrefillPages
from burnish.rollout.builtin.plan import loop_plan
from burnish.rollout.builtin.prefixes import PrefixCache
from burnish.rollout.builtin.rows import Prefix, Row
from burnish.rollout.builtin.runner import Runner
from burnish.rollout.builtin.sampling import Drawn, choose, likeliest
from burnish.rollout.builtin.vmm import Region, region_of
from burnish.rollout.engine import EngineOptions

FIRST_AT_ONCE = 128  # rows whose first tokens are drawn together: bounds the memory


class Made(NamedTuple):
    """What a window made for one row, and whether the device found it over."""

    tokens: list[int]
    log_probs: list[float]
    top: list[list[tuple[int, float]]] | None
    over: bool


class Window:
    """What one window has made. Read row by row: a thousand small lists at once would wake the garbage collector."""

    def __init__(self, rows: DeviceRows, before: np.ndarray) -> None:
        self.rows = rows
        self.made: list[int] = (rows.column("made") - before).tolist()
        self.active: list[int] = rows.column("active").tolist()

    def of(self, row: Row) -> Made:
        place = self.rows.place(row)
        made = self.made[place]
        tokens, log_probs = (mirror.host[place, :made].tolist() for mirror in (self.rows.tokens, self.rows.log_probs))
        return Made(tokens, log_probs, self.rows.top(row, made), not self.active[place])


class Taken(NamedTuple):
    """What has the same addresses for as long as the engine lives."""

    region: Region
    cache: KVCache
    logits: Tensor
    rows: DeviceRows
    num_blocks: int


class LoopRunner(Runner):
    """Blocks for the tokens to come are taken ahead, tables and settings written when rows come, go or grow."""

    attention = PAGED_ON_DEVICE

    def __init__(self, options: EngineOptions, eos_ids: Collection[int]) -> None:
        self.how = loop_plan(options, load_config(options.model).get_text_config().model_type)
        super().__init__(options, invariant=False, block=self.how.block)
        self.eos_ids = eos_ids
        self.rows: DeviceRows | None = None
        self.graphs = Graphs(self.model, self.how, self._body, self._quiet)
        self.host_syncs = self.graph_replays = 0
        self._taken: Taken | None = None
        self._trash = 0
        self._running: list[Row] | None = None
        self._grown: list[Row] = []

    # memory

    def open_cache(self) -> None:
        """The first time, take the share of free memory that the run allows; later, the same at the same addresses."""
        if self._taken is None:
            self._taken = self._take_memory()
            bind_cache(self.model, self._taken.cache.keys, self._taken.cache.values)
        else:
            self._taken.region.restore()
        self.cache, self.rows = self._taken.cache, self._taken.rows
        self.pool = BlockPool(self._taken.num_blocks)
        self._trash = self.pool.take() * self.block
        self.known = PrefixCache(self.pool, self.block) if self.options.prefix_caching else None
        self._running, self._grown = None, []

    def _take_memory(self) -> Taken:
        row_blocks = blocks_for(self.options.max_model_len, self.block)
        # For every row its own blocks and one more, the partial block of a prompt that others still wait for; and one
        # where inactive rows write.
        wanted = (row_blocks + 1) * self.options.max_num_seqs + row_blocks + 1
        places = max(self.options.max_num_seqs, *self.how.buckets, 1)
        vocabulary, dtype = head_weight(self.model).shape[0], self.model.dtype
        at_once = min(places, chunk_rows(vocabulary, dtype.itemsize, self.device.type))
        room = at_once * vocabulary * dtype.itemsize
        affordable = (int(free_bytes(self.device) * self.options.memory_share) - room) // self.shape.block_bytes
        num_blocks = max(row_blocks + 2, min(wanted, affordable))  # one row always fits, so work always goes on
        size, parts = num_blocks * self.shape.block_bytes + room, 2 * self.shape.layers + 1
        region = region_of(self.device, size, parts, beside=self.options.beside)
        cache = KVCache(self.shape, num_blocks, self.device, region.carve)
        logits = region.carve((at_once, vocabulary), dtype)
        longest, look_in = self.options.max_model_len, self.how.look_in
        rows = DeviceRows(places, row_blocks + 1, longest, vocabulary, look_in, self.device)
        return Taken(region, cache, logits, rows, num_blocks)

    @property
    def gave_memory_back(self) -> bool:
        """Had it memory before, and has none now?"""
        return self._taken is not None and self.cache is None

    def close_cache(self) -> None:
        """Give the memory back and keep its addresses, so that graphs stay valid."""
        if self.cache is not None:
            self._taken.region.release()
        super().close_cache()
        self._running, self._grown = None, []

    def release_weights(self) -> None:
        """The next ones come to other addresses."""
        super().release_weights()
        self.graphs.clear()

    # passes

    def _prefill_context(self, segments: list[Segment], cache: KVCache | None) -> Pages:
        if cache is None:
            return NoPages(segments)
        return PrefillPages(segments, self.block, self.device, self.how.triton)

    @torch.inference_mode()
    def first_tokens(self, rows: Sequence[Row], prefixes: Sequence[Prefix]) -> Drawn:
        """Sample each row's first token from its prompt's logits; one wait for the device."""
        parts, top = [], []
        for start in range(0, len(rows), FIRST_AT_ONCE):
            here = slice(start, start + FIRST_AT_ONCE)
            logits = torch.stack([prefix.logits for prefix in prefixes[here]])
            settings = self._settings(rows[here], first=True)
            parts.append(torch.stack([x.double() for x in choose(logits, settings, torch.zeros_like(settings.seed))]))
            top += likeliest(logits, settings) or [[] for _ in rows[here]]
        tokens, log_probs = torch.cat(parts, dim=1).tolist()
        self.host_syncs += 1
        return Drawn([int(token) for token in tokens], log_probs, top if any(top) else None)

    def decode_window(self, rows: list[Row], steps: int) -> Window:
        """Up to so many more tokens for every row; their blocks are there already."""
        self._settle(rows)
        body, is_known = self.graphs.find(len(rows), self.rows.mode)
        before = self.rows.column("made").copy()
        self.rows.push()
        for _ in range(steps):
            body.run()
        self.rows.pull()
        self.host_syncs += 1
        self.graph_replays += steps if is_known else 0
        return Window(self.rows, before)

    def _settle(self, rows: list[Row]) -> None:
        """Rows and their blocks as the next window needs them."""
        if self._running is not rows:
            if self.rows.arrange(rows, self._ends):
                self.graphs.clear()
            self._running = rows
        self.rows.write_tables(row for row in self._grown if self.rows.knows(row))
        self._grown = []

    def _ends(self, row: Row) -> list[int]:
        sampling = row.request.sampling
        return sorted({*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.eos_ids)})

    def _body(self, size: int, mode: Mode) -> Body:
        return Body(self.model, Fixed(self.rows, self._taken.logits, self._trash), size, mode, self.how)

    def _quiet(self) -> None:
        self.rows.quiet()

    # blocks

    def short_of_blocks(self, rows: Sequence[Row], steps: int) -> list[Row]:
        """Rows whose blocks do not hold their next tokens; new rows are looked at one by one, when they reserve."""
        places = np.array([self.rows.place_or(row, -1) for row in rows])
        length, made, limit = (self.rows.column(name) for name in ("length", "made", "limit"))
        needed = length + np.minimum(steps, limit - made)
        short = (needed > self.rows.held * self.block)[places] | (places < 0)
        return [rows[number] for number in np.flatnonzero(short).tolist()]

    def reserve(self, row: Row, steps: int) -> None:
        """Places for the row's next tokens; OutOfBlocksError leaves those it got."""
        cached = row.cached
        needed = cached + min(steps, row.request.sampling.max_tokens - len(row.tokens))
        if needed > len(row.table) * self.block:
            self._grown.append(row)
            while needed > len(row.table) * self.block:
                row.table.append(self.pool.take())

    def drop(self, owner: Row | Prefix) -> None:
        if isinstance(owner, Row) and self.rows is not None:
            self.rows.forget(owner)
        super().drop(owner)
