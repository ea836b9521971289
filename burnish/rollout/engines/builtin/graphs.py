"""Graphs: the body of every batch size, captured as a CUDA graph or, where there is none, called as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from burnish.models.compiled import copied_forwards
from burnish.models.parts import backbone
from burnish.rollout.engines.builtin.device_rows import Mode
from burnish.rollout.engines.builtin.plan import LoopPlan

WARM_UPS = 2  # before a capture: libraries make their handles, Triton and inductor compile


class Runnable(Protocol):
    def run(self) -> None: ...


class Eager:
    """The body, called."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.body = body

    def run(self) -> None:
        self.body()


class Captured:
    """The body's kernels, launched by the driver in one go. All graphs share one pool: they never run together."""

    def __init__(self, body: Callable[[], None], pool: Any) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                body()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: what they do is not part of this.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            body()

    def run(self) -> None:
        self.graph.replay()


class Graphs:
    """`make_body` makes the body of a size; `quiet` lets no row be active, so that trying it changes nothing."""

    def __init__(
        self,
        model: PreTrainedModel,
        plan: LoopPlan,
        make_body: Callable[[int, Mode], Callable[[], None]],
        quiet: Callable[[], None],
    ) -> None:
        self.plan, self.make_body, self.quiet = plan, make_body, quiet
        self.layers = CompiledLayers(model) if plan.compiled else None
        self.known: dict[tuple[int, Mode], Runnable] = {}
        self._pool: Any = None

    def find(self, rows: int, mode: Mode) -> tuple[Runnable, bool]:
        """What makes one token for so many rows, and whether it is one of the known sizes."""
        size = self.plan.bucket(rows)
        if size is None:
            return Eager(self.make_body(rows, mode)), False
        mode = mode._replace(slow=min(mode.slow, size))
        if (size, mode) not in self.known:
            self.known[size, mode] = self._make(size, mode)
        return self.known[size, mode], True

    def clear(self) -> None:
        """Addresses have changed."""
        self.known.clear()
        self._pool = None

    def _make(self, size: int, mode: Mode) -> Runnable:
        body = self.make_body(size, mode)
        if not self.plan.captured:
            return Eager(body if self.layers is None else self.layers.around(body))
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self.quiet()
        with contextlib.nullcontext() if self.layers is None else self.layers.compiled():
            return Captured(body, self._pool)


class CompiledLayers:
    """The decoder layers through torch.compile. All layers run the same compiled code, made for one batch size and, at
    the second, once more for every size; inductor keeps it on disk for the next start."""

    def __init__(self, model: PreTrainedModel, backend: str = "inductor") -> None:
        self.layers: list[nn.Module] = list(backbone(model).layers)
        self.forwards = [
            torch.compile(forward, backend=backend, fullgraph=True) for forward in copied_forwards(self.layers)
        ]

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """Prefill, outside of this, runs the layers as they are."""
        for layer, forward in zip(self.layers, self.forwards, strict=True):
            layer.forward = forward
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward

    def around(self, body: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with self.compiled():
                body()

        return run
