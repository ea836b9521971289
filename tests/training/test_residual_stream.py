"""16-bit products with float32 weights: several ranks keep the float32 residual stream that one process has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma3TextConfig, MixtralConfig, PretrainedConfig, Qwen2Config

from burnish.batch import Batch, Ragged
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.training.backend import MicroBatch, create_backend
from burnish.training.dtensor import full_tensor
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh
from burnish.training.stages import StageOptions
from tests.ranks import run_ranks
from tests.training.conftest import CPU, settings

BF16 = torch.bfloat16
SIZES: dict[str, Any] = {
    **{"vocab_size": 61, "hidden_size": 72, "intermediate_size": 96, "pad_token_id": 0, "head_dim": 16},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}
# The square root of the hidden size, by which Gemma multiplies embeddings, is no number of 16 bits.
CONFIGS: dict[str, PretrainedConfig] = {
    "deep": Qwen2Config(**SIZES, num_hidden_layers=24),
    "gemma3": Gemma3TextConfig(**SIZES, num_hidden_layers=2),
    # Without norms of queries and keys, which give 16 bits where their weights are gathered.
    "mixture": MixtralConfig(**SIZES, num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=2),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": {},
    "sequence": {"sequence_size": 2},
    "stages": {"stages": StageOptions(2)},
    "tensor": {"tensor_size": 2},
    "experts": {"expert_size": 2},
}
# Differences of log-probs and gradients from one process, as parts of what rounding the residual stream causes.
# Gradients of gathered weights have 16 bits. Matrices that tensor ranks divide give partial sums, each of which is
# rounded.
GATHERED, DIVIDED = (0.02, 0.3), (0.8, 0.9)
CASES = [
    *(("deep", layout, GATHERED) for layout in ("sharded", "sequence", "stages")),
    ("deep", "tensor", DIVIDED),
    *((model, "sharded", GATHERED) for model in ("gemma3", "mixture")),
]


class Sums(TorchDispatchMode):
    """Which dtypes tensor and expert ranks exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops._c10d_functional.all_reduce.default, torch.ops.c10d.alltoall_base_.default):
            self.dtypes.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def rows() -> Batch:
    generator = torch.Generator().manual_seed(3)

    def ids(length: int) -> list[int]:
        return torch.randint(3, 60, (length,), generator=generator).tolist()

    return Batch(
        prompt_ids=Ragged.of([ids(12) for _ in range(4)], torch.int64),
        responses=Ragged.of([ids(24) for _ in range(4)], torch.int64),
    )


def compute(folder: str, parallel: ParallelContext, weights: torch.dtype = torch.float32) -> dict[str, Any]:
    """Log-probs of all rows and their gradients, where this rank has them. Weights are those of 16 bits, as published
    ones are: all that differs is how they are used."""
    model = load_causal_lm(ModelSource(folder), PACKED, weights, empty=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            scale = 0.6 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
            base = 0 if parameter.dim() > 1 or not bool((parameter == 1).all()) else 1
            parameter.copy_((base + scale * values).to(BF16))
    with torch.backends.mkldnn.flags(enabled=False):  # its products of 16 bits end the process on some machines
        backend = create_backend(model, CPU, BF16, parallel=parallel)
        backend.create_optimizer(settings("actor_rollout_ref.actor", {}).optim, 10, 1)
        with backend.on_device(), Sums() as sums:
            outputs = backend.forward_backward([MicroBatch([0, 1, 2, 3], rows(), parallel.data_size)], with_loss)
        gradients = {
            name: full_tensor(parameter.grad).float()
            for name, parameter in backend.model.named_parameters()
            if parameter.grad is not None
        }
    return {"log_probs": outputs[0] if outputs else None, "gradients": gradients, "exchanged": sums.dtypes}


def with_loss(output: Any) -> tuple[Tensor, Tensor]:
    log_probs, _ = output.log_probs(1.0, False)
    return -log_probs.mean(), log_probs.detach()


def in_a_rank(rank: int, folders: dict[str, str], cases: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [compute(folders[model], build_mesh(CPU, **LAYOUTS[layout])) for model, layout in cases]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    found = {name: str(tmp_path_factory.mktemp(name)) for name in CONFIGS}
    for name, config in CONFIGS.items():
        config.save_pretrained(found[name])
    return found


def gap(found: dict[str, Any], expected: dict[str, Any]) -> tuple[float, float]:
    """Mean difference of log-probs, and the norm of the gradients' difference."""
    shared = expected["gradients"].keys() & found["gradients"].keys()
    assert shared
    squares = sum(float((found["gradients"][name] - expected["gradients"][name]).square().sum()) for name in shared)
    return float((found["log_probs"] - expected["log_probs"]).abs().mean()), squares**0.5


def test_ranks_compute_what_one_process_does(folders):
    cases = [(model, layout) for model, layout, _ in CASES]
    ranks = run_ranks(2, in_a_rank, folders, cases)
    for number, (model, layout, parts) in enumerate(CASES):
        alone, rounded = (compute(folders[model], SINGLE_PROCESS, dtype) for dtype in (torch.float32, BF16))
        # The last stage has the log-probs, and each stage the gradients of its own layers.
        found = ranks[1][number] | {"gradients": ranks[0][number]["gradients"] | ranks[1][number]["gradients"]}
        for ours, part, narrow in zip(gap(found, alone), parts, gap(rounded, alone), strict=True):
            assert ours <= part * narrow, (model, layout)


def test_ranks_exchange_16_bits(folders):
    """Activations and gradients of tensor parallelism, and tokens on their way to experts."""
    layouts = [("deep", "tensor"), ("mixture", "experts")]
    tensor, experts = run_ranks(2, in_a_rank, folders, layouts)[0]
    assert tensor["exchanged"] == {BF16}
    assert experts["exchanged"] == {BF16, torch.int64}  # and how many tokens go to each rank
