"""Invariant modules on weights that FSDP shards over ranks: the bits of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from burnish.batch import Batch, Ragged
from burnish.models.attention import PACKED
from burnish.models.invariant.head import InvariantHead
from burnish.models.invariant.modules import use_invariant_modules
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels.lazy_triton import ordered_products
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.logits import TORCH
from burnish.models.parts import backbone
from burnish.training.backend import BackendOptions, create_backend
from burnish.training.packing import PackedRows
from burnish.training.parallel import SINGLE_PROCESS, build_mesh
from tests.ranks import run_ranks

CPU, BF16 = torch.device("cpu"), torch.bfloat16


def log_probs(folder: str, ranks: int, *, rounded: bool = False) -> list[float]:
    parallel = SINGLE_PROCESS if ranks == 1 else build_mesh(CPU)
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32)
    use_invariant_modules(model, BF16)
    if rounded:
        for layer in backbone(model).get_submodule("layers").children():
            layer.register_forward_pre_hook(lambda layer, args: (args[0].to(BF16).float(), *args[1:]))
    options = BackendOptions(head=InvariantHead(TORCH))
    backend = create_backend(model, CPU, BF16, options=options, parallel=parallel)
    rows = Batch(
        prompt_ids=Ragged.of([[3, 4, 5], [6]], torch.int64), responses=Ragged.of([[7, 8], [9, 10, 11]], torch.int64)
    )
    with torch.no_grad(), backend.on_device():
        return backend.log_probs(PackedRows.of(rows, CPU), 1.0, False)[0].tolist()


def in_a_rank(rank: int, folder: str, rounded: bool) -> list[float]:
    kernels.ROWS, kernels.QUERIES, kernels.KEYS = 16, 16, 16
    with ordered_products():
        return log_probs(folder, 2, rounded=rounded)


@pytest.mark.long
def test_bits_of_one_process(tiny_folder: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("ROWS", "QUERIES", "KEYS"):
        monkeypatch.setattr(kernels, name, 16)
    with ordered_products():
        alone = log_probs(tiny_folder, 1)
    assert run_ranks(2, in_a_rank, str(Path(tiny_folder)), False) == [alone, alone]
    rounded = run_ranks(2, in_a_rank, str(Path(tiny_folder)), True)
    assert rounded[0] != alone  # the control: a residual stream that is rounded between layers
