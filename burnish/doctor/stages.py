"""Pipeline stages in the memory plan: the layers of each, and what the first rank keeps at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.ranks import pipeline_parallel_size, virtual_pipeline_size
from burnish.config.stage_rules import layers_per_stage


@dataclass(frozen=True)
class Stages:
    """How a model's layers are cut; one stage without a pipeline."""

    layers: tuple[int, ...]  # of each stage: stage s is chunk s // size of rank s % size
    size: int = 1  # ranks
    schedule: str = "1f1b"

    @staticmethod
    def of(role: Any, num_layers: int) -> Stages:
        """Of a role's section of the config. The run refuses numbers that do not divide; here they are rounded."""
        size, virtual = pipeline_parallel_size(role), virtual_pipeline_size(role)
        if size == 1:
            return Stages((num_layers,))
        first, last, each = layers_per_stage(role)
        num_inner = max(1, size - (first is not None) - (last is not None))
        inner = (num_layers - (first or 0) - (last or 0)) // num_inner
        counts = list(each or [inner] * size)
        if not each:
            counts[0], counts[-1] = first or inner, last or inner
        return Stages(tuple(count // virtual for count in counts) * virtual, size, role.megatron.pipeline_schedule)

    def num_recomputed(self, per_stage: int) -> int:
        """Layers of the model, if each stage recomputes its first ones."""
        return sum(min(per_stage, count) for count in self.layers)

    def kept(self, num_micro_batches: int) -> float:
        """Activations that the first rank keeps at once, in those of one micro-batch in the whole model."""
        if self.size == 1:
            return 1.0
        virtual = len(self.layers) // self.size
        passes = num_micro_batches * virtual
        if self.schedule == "1f1b":
            ahead = self.size - 1 if virtual == 1 else 2 * (self.size - 1) + (virtual - 1) * self.size
            passes = min(passes, ahead + 1)
        return passes / len(self.layers)


ONE_STAGE = Stages(())
