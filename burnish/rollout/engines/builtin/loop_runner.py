"""LoopRunner: the runner of an engine whose decode loop lives on the device; the host looks in every few tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.models.attention import PAGED_ON_DEVICE
from burnish.models.load import load_config
from burnish.models.paged import Pages, bind_cache
from burnish.models.parts import head_weight
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.blocks import BlockPool, blocks_for
from burnish.rollout.engines.builtin.body import Body, Fixed
from burnish.rollout.engines.builtin.cache import KVCache, Segment
from burnish.rollout.engines.builtin.device_rows import DeviceRows, Mode
from burnish.rollout.engines.builtin.graphs import Graphs
from burnish.rollout.engines.builtin.memory import free_bytes
from burnish.rollout.engines.builtin.pages import NoPages, PrefillPages
from burnish.rollout.engines.builtin.plan import loop_plan
from burnish.rollout.engines.builtin.prefixes import PrefixCache
from burnish.rollout.engines.builtin.rows import Prefix, Row
from burnish.rollout.engines.builtin.runner import Runner
from burnish.rollout.engines.builtin.sampling import Drawn, choose, likeliest
from burnish.rollout.engines.builtin.vmm import Region, region_of
from burnish.rollout.engines.builtin.window import Standing, Window
from burnish.sizing import FIRST_TOKEN_BATCH, cache_blocks, max_chunk_rows


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
        self._before: np.ndarray | None = None  # tokens made before the window in flight

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
        least, most = cache_blocks(self.options.max_model_len, self.options.max_num_seqs, self.block, device_loop=True)
        places = max(self.options.max_num_seqs, *self.how.buckets, 1)
        vocabulary, dtype = head_weight(self.model).shape[0], self.model.dtype
        at_once = min(places, max_chunk_rows(vocabulary, dtype.itemsize, self.device.type))
        room = at_once * vocabulary * dtype.itemsize
        affordable = (int(free_bytes(self.device) * self.options.memory_share) - room) // self.shape.block_bytes
        num_blocks = max(least, min(most, affordable))  # one row always fits, so work always goes on
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
        for start in range(0, len(rows), FIRST_TOKEN_BATCH):
            here = slice(start, start + FIRST_TOKEN_BATCH)
            logits = torch.stack([prefix.logits for prefix in prefixes[here]])
            settings = self._settings(rows[here], first=True)
            parts.append(torch.stack([x.double() for x in choose(logits, settings, torch.zeros_like(settings.seed))]))
            top += likeliest(logits, settings) or [[] for _ in rows[here]]
        tokens, log_probs = torch.cat(parts, dim=1).tolist()
        self.host_syncs += 1
        return Drawn([int(token) for token in tokens], log_probs, top if any(top) else None)

    def launch(self, rows: list[Row], steps: int) -> None:
        """Let the device make up to so many more tokens for every row; their blocks are there already."""
        self._settle(rows)
        body, is_known = self.graphs.find(len(rows), self.rows.mode)
        self._before = self.rows.column("made").copy()
        self.rows.push()
        for _ in range(steps):
            body.run()
        self.graph_replays += steps if is_known else 0

    def land(self) -> Window:
        """Wait for them."""
        self.rows.pull()
        self.host_syncs += 1
        return Window(self.rows, self._before)

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

    def standing(self, rows: Sequence[Row]) -> Standing:
        return Standing.of(rows, self.rows)

    def short_of_blocks(self, rows: Sequence[Row], standing: Standing, steps: int) -> dict[Row, int]:
        """Rows whose blocks do not hold their next tokens, and how many tokens those must hold."""
        return {rows[number]: tokens for number, tokens in standing.needed(steps, self.rows.held, self.block)}

    def reserve(self, row: Row, tokens: int) -> None:
        """Blocks that hold so many of the row's; OutOfBlocksError leaves those it got."""
        if tokens > len(row.table) * self.block:
            self._grown.append(row)
            while tokens > len(row.table) * self.block:
                row.table.append(self.pool.take())

    def drop(self, owner: Row | Prefix) -> None:
        if isinstance(owner, Row) and self.rows is not None:
            self.rows.forget(owner)
        super().drop(owner)
