"""StepGraphs: the decode step of every batch size, captured as a CUDA graph or called eagerly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from burnish.models.compile_cache import keep_compiled_programs
from burnish.models.compiled import copied_forwards
from burnish.models.parts import backbone
from burnish.rollout.engines.builtin.decode_plan import DecodePlan
from burnish.rollout.engines.builtin.device_batch import SamplingMode

WARM_UPS = 2  # before a capture: libraries create their handles, Triton and inductor compile


class Runnable(Protocol):
    def run(self) -> None: ...


class EagerStep:
    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def run(self) -> None:
        self.step()


class CapturedStep:
    """A CUDA graph of the step. All graphs share one memory pool, because they never run concurrently."""

    def __init__(self, step: Callable[[], None], pool: Any) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: work that other threads submit meanwhile does not invalidate the capture.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            step()

    def run(self) -> None:
        self.graph.replay()


class StepGraphs:
    """`make_step` builds the step of a batch size, for so many drafts of each sequence; `deactivate` empties the batch,
    so that captures have no effect."""

    def __init__(
        self,
        model: PreTrainedModel,
        plan: DecodePlan,
        make_step: Callable[[int, SamplingMode, int], Callable[[], None]],
        deactivate: Callable[[], None],
    ) -> None:
        self.plan, self.make_step, self.deactivate = plan, make_step, deactivate
        self.layers = CompiledLayers(model) if plan.compiled else None
        self.steps: dict[tuple[int, SamplingMode, int], Runnable] = {}
        self._pool: Any = None

    def get(self, batch_size: int, mode: SamplingMode, depth: int = 0) -> tuple[Runnable, bool]:
        """The step for a batch, and whether it is one of the capture sizes."""
        size = self.plan.capture_size(batch_size)
        if size is None:
            return EagerStep(self.make_step(batch_size, mode, depth)), False
        mode = mode._replace(num_slow=min(mode.num_slow, size))
        if (size, mode, depth) not in self.steps:
            self.steps[size, mode, depth] = self._build(size, mode, depth)
        return self.steps[size, mode, depth], True

    def clear(self) -> None:
        """Tensors have moved to other addresses."""
        self.steps.clear()
        self._pool = None

    def _build(self, size: int, mode: SamplingMode, depth: int) -> Runnable:
        step = self.make_step(size, mode, depth)
        if not self.plan.captured:
            return EagerStep(step if self.layers is None else self.layers.around(step))
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self.deactivate()
        with contextlib.nullcontext() if self.layers is None else self.layers.compiled():
            return CapturedStep(step, self._pool)


class CompiledLayers:
    """The decoder layers through torch.compile.

    All layers run the same compiled code: one program for the first batch size, then one with a dynamic batch size.
    Inductor keeps both on disk (models/compile_cache.py).
    """

    def __init__(self, model: PreTrainedModel, backend: str = "inductor") -> None:
        keep_compiled_programs()
        self.layers: list[nn.Module] = list(backbone(model).get_submodule("layers").children())
        self.forwards = [
            torch.compile(forward, backend=backend, fullgraph=True) for forward in copied_forwards(self.layers)
        ]

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """Prefill, outside of this context, runs the layers uncompiled."""
        for layer, forward in zip(self.layers, self.forwards, strict=True):
            layer.forward = forward
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward

    def around(self, step: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with self.compiled():
                step()

        return run
