"""How many processes train, and how many of them see rows of their own."""

from __future__ import annotations

from typing import Any

from burnish.config.root import TrainConfig


def ranks(cfg: TrainConfig) -> int:
    """Training processes of the run."""
    return cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node


def data_ranks(cfg: TrainConfig, role: Any) -> int:
    """Ranks that see different rows: those of the run, less those that share a row of this role between them."""
    shared = role.ulysses_sequence_parallel_size
    if role.strategy == "megatron":
        sizes = role.megatron
        shared = sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size * sizes.context_parallel_size
    return max(1, ranks(cfg) // shared)
