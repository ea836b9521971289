"""Ranks that share a layer's matrices compute what one process computes: alone, and beside FSDP on a mesh of 2 x 2."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    LlamaConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3MoeConfig,
)

from burnish.batch import Batch
from burnish.config.optim import OptimConfig
from burnish.errors import UserError
from burnish.models import attention
from burnish.models.parts import backbone
from burnish.models.recompute import enable_recompute
from burnish.training.backend import BackendOptions
from burnish.training.backends.single import SingleBackend
from burnish.training.dtensor import full_tensor
from burnish.training.optim import Optimizer
from burnish.training.packing import PackedRows
from burnish.training.parallel import SINGLE_PROCESS
from burnish.training.tensor_parallel import apply_tp, check_sizes
from tests.conftest import FAMILIES, SIZES, sharpen
from tests.ranks import run_ranks
from tests.training.conftest import make_batch
from tests.training.test_sharding import train, train_at

KEY = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"
CPU = torch.device("cpu")
TOKENS = (5, 5, 9)  # of the rows of one packed stream
TIED = {**SIZES, "tie_word_embeddings": True}
MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    **FAMILIES,
    "biases everywhere": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "tied head": lambda: Qwen2Config(**TIED),
}
CLOSE = 1e-5


def made(name: str, family: Any = AutoModelForCausalLM) -> PreTrainedModel:
    """The same weights at every call, on every rank; biases and norms at random too."""
    attention.register()
    torch.manual_seed(1)
    config = MODELS[name]()
    config.num_labels, config.classifier_dropout = 1, 0.0
    model = family.from_config(config, attn_implementation=attention.PACKED)
    sharpen(model, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.train()


def rows(seed: int) -> PackedRows:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, SIZES["vocab_size"], (sum(TOKENS),), generator=generator)
    ends = torch.tensor(TOKENS).cumsum(0) - 1
    inner = torch.tensor([place for place in range(sum(TOKENS)) if place not in ends])
    positions = torch.cat([torch.arange(length) for length in TOKENS])
    return PackedRows(ids, positions, list(TOKENS), inner, ids[inner + 1], ends)


def log_probs(model: PreTrainedModel, given: PackedRows) -> Tensor:
    """By the model's own head, as FSDP's hooks want it."""
    found = model(**given.inputs()).logits[0, given.predicts].log_softmax(-1)
    return found.gather(-1, given.targets[:, None]).squeeze(-1)


def fused(model: PreTrainedModel, given: PackedRows) -> Tensor:
    return SingleBackend(model, CPU, torch.float32).log_probs(given, 1.0, False)[0]


def values(model: PreTrainedModel, given: PackedRows) -> Tensor:
    return SingleBackend(model, CPU, torch.float32).values(given)


def loss(numbers: Tensor) -> Tensor:
    return (numbers * torch.linspace(-1, 2, len(numbers))).sum()


def spread(model: PreTrainedModel, data: int, tensor: int) -> tuple[PreTrainedModel, DeviceMesh]:
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))
    apply_tp(model, mesh["tensor"], KEY)
    if data > 1:
        for layer in backbone(model).layers:
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    return model, mesh


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: full_tensor(parameter.detach()) for name, parameter in model.named_parameters()}


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: full_tensor(parameter.grad) for name, parameter in model.named_parameters()}


@dataclass(frozen=True)
class Seen:
    """What a rank of the spread model computes, and what the plain one does."""

    numbers: Tensor
    plain_numbers: Tensor
    gradients: dict[str, Tensor]
    plain_gradients: dict[str, Tensor]
    split: list[str]  # weights of which this rank has a part


def compared(rank: int, name: str, data: int, tensor: int, read: Any, family: Any, recompute: bool) -> Seen:
    plain, (model, mesh) = made(name, family), spread(made(name, family), data, tensor)
    if recompute:
        enable_recompute(model, None, None, "actor_rollout_ref.model")
    here = mesh["data"].get_local_rank()
    numbers = read(model, rows(here))
    (loss(numbers) * data).backward()  # FSDP takes the mean over data ranks
    theirs = [read(plain, rows(seed)) for seed in range(data)]
    sum(map(loss, theirs)).backward()
    split = [name for name, p in model.named_parameters() if isinstance(p, DTensor) and "tensor" in names_of(p)]
    return Seen(numbers.detach(), theirs[here].detach(), gradients_of(model), gradients_of(plain), split)


def names_of(parameter: DTensor) -> tuple[str, ...]:
    return parameter.device_mesh.mesh_dim_names or ()


def all_compared(rank: int, cases: list[tuple]) -> list[Seen]:
    return [compared(rank, *case) for case in cases]


TWO = {
    **{name: (name, 1, 2, fused, AutoModelForCausalLM, False) for name in MODELS},
    "recomputed": ("qwen3", 1, 2, fused, AutoModelForCausalLM, True),
    "a critic": ("qwen2", 1, 2, values, AutoModelForTokenClassification, False),
}
FOUR = {name: (name, 2, 2, log_probs, AutoModelForCausalLM, False) for name in ("qwen3", "biases everywhere")}


def on_four_ranks(rank: int, folder: str) -> dict[str, Any]:
    return {"compared": all_compared(rank, list(FOUR.values())), "updated": updated(rank, folder, 2, 2)}


def on_two_ranks(rank: int, folder: str) -> dict[str, Any]:
    return {
        "compared": all_compared(rank, list(TWO.values())),
        "loaded": {sizes: loaded(rank, folder, *sizes) for sizes in ((1, 2), (2, 1))},
    }


def on_one_rank(rank: int, folder: str) -> dict[str, Any]:
    return {"updated": updated(rank, None, 1, 1), "loaded": {(1, 1): loaded(rank, folder, 1, 1)}}


@dataclass(frozen=True)
class Launches:
    """What every rank returned, by the number of ranks. The checkpoint is that of the four."""

    one: list[dict[str, Any]]
    two: list[dict[str, Any]]
    four: list[dict[str, Any]]


@pytest.fixture(scope="module")
def launches(tmp_path_factory) -> Launches:
    folder = str(tmp_path_factory.mktemp("tensor") / "state")
    four = run_ranks(4, on_four_ranks, folder)
    two = run_ranks(2, on_two_ranks, folder)
    return Launches(run_ranks(1, on_one_rank, folder), two, four)


def without_old(tokenizer: Any) -> Batch:
    batch = make_batch(tokenizer)
    return batch.keep(*(name for name in batch if name != "old_log_probs"))


def seen(ranks: list[dict[str, Any]], cases: dict[str, tuple], name: str) -> list[Seen]:
    return [rank["compared"][list(cases).index(name)] for rank in ranks]


def check(ranks: list[Seen]) -> None:
    """Log-probs and every whole gradient are the plain model's, and the same on all ranks that hold them whole."""
    for seen in ranks:
        torch.testing.assert_close(seen.numbers, seen.plain_numbers, rtol=CLOSE, atol=CLOSE)
        assert seen.gradients.keys() == seen.plain_gradients.keys()
        scale = max(float(gradient.abs().max()) for gradient in seen.plain_gradients.values())
        for name, gradient in seen.gradients.items():
            expected = seen.plain_gradients[name]
            assert float(expected.abs().max()) > 0, name
            torch.testing.assert_close(gradient, expected, rtol=0, atol=CLOSE * scale, msg=name)
            assert torch.equal(gradient, ranks[0].gradients[name]), name


@pytest.mark.long
@pytest.mark.parametrize("name", TWO)
def test_two_tensor_ranks_are_the_plain_model(launches, name):
    check(seen(launches.two, TWO, name))


@pytest.mark.long
@pytest.mark.parametrize("name", FOUR)
def test_two_by_two_are_the_plain_model(launches, name):
    check(seen(launches.four, FOUR, name))


@pytest.mark.long
def test_matrices_of_layers_are_split_and_nothing_else(launches):
    matrices = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    split = seen(launches.two, TWO, "qwen3")[0].split
    assert {name.split(".")[-2] for name in split} == matrices
    assert len(split) == 2 * len(matrices)


def updated(rank: int, folder: str | None, data: int, tensor: int) -> dict[str, Any]:
    """Two clipped updates; then everything whole, and a checkpoint where a folder is named."""
    model, mesh = spread(made("qwen3"), data, tensor)
    optimizer = Optimizer(model, OptimConfig(lr=1e-2, weight_decay=0.1), 10, 1)
    here = [mesh["data"].get_local_rank()] if data > 1 else range(2)
    norms = []
    for _ in range(2):
        for seed in here:
            (loss(log_probs(model, rows(seed))) * data).backward()
        norms.append(float(optimizer.update(grad_clip=0.5)))
    if folder is not None:
        dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    return {"norms": norms, **everything(model, optimizer)}


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer.inner),
    }


def everything(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    moments = {
        moment: {name: full_tensor(optimizer.inner.state[p][moment]) for name, p in model.named_parameters()}
        for moment in ("exp_avg", "exp_avg_sq")
    }
    return {"weights": weights_of(model), **moments}


def loaded(rank: int, folder: str, data: int, tensor: int) -> dict[str, dict[str, Tensor]]:
    """The checkpoint, read on so many ranks."""
    model, _ = spread(made("qwen3"), data, tensor)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    optimizer = Optimizer(model, OptimConfig(lr=1e-2), 10, 1)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer.inner, state["optimizer"])
    return everything(model, optimizer)


@pytest.mark.long
def test_clipped_updates_are_those_of_one_process(launches):
    alone, ranks = launches.one[0]["updated"], [rank["updated"] for rank in launches.four]
    for rank in ranks:
        assert rank["norms"] == pytest.approx(alone["norms"], rel=1e-6)
        assert rank["norms"] == ranks[0]["norms"], "ranks must agree to the last bit: all scale by this number"
        for moment in ("exp_avg", "exp_avg_sq"):
            for name, expected in alone[moment].items():
                atol = CLOSE * float(expected.abs().max())
                torch.testing.assert_close(rank[moment][name], expected, rtol=CLOSE, atol=atol, msg=name)
        for name, expected in alone["weights"].items():
            # Where the gradient is next to nothing, AdamW divides rounding by rounding.
            clear = alone["exp_avg_sq"][name].sqrt() > 1e-5
            assert clear.any()
            torch.testing.assert_close(rank["weights"][name][clear], expected[clear], rtol=CLOSE, atol=CLOSE, msg=name)
            assert torch.equal(rank["weights"][name], ranks[0]["weights"][name]), name


@pytest.mark.long
@pytest.mark.parametrize(("data", "tensor"), [(1, 1), (1, 2), (2, 1)])
def test_a_checkpoint_of_two_by_two_is_read_by_any_number_of_ranks(launches, data, tensor):
    saved = launches.four[0]["updated"]
    for rank in launches.one if data * tensor == 1 else launches.two:
        for part, tensors in rank["loaded"][data, tensor].items():
            assert tensors.keys() == saved[part].keys()
            assert all(torch.equal(tensor, saved[part][name]) for name, tensor in tensors.items()), part


@pytest.mark.parametrize(
    ("sizes", "size", "allowed", "hint"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, 4, [1, 2], f"{KEY}=2"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}, 2, [1, 3], f"{KEY}=1"),
        ({"intermediate_size": 49}, 2, [1], f"{KEY}=1"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_by_arithmetic(sizes, size, allowed, hint):
    with pytest.raises(UserError, match="do not divide evenly") as caught:
        check_sizes(LlamaConfig(**{**SIZES, **sizes}), size, KEY)
    assert (caught.value.key, caught.value.value) == (KEY, size)
    assert (caught.value.allowed, caught.value.hint) == (allowed, hint)


def test_tensor_ranks_share_whole_experts():
    """Columns of experts are not divided; those of dense layers and of shared experts are."""
    check_sizes(Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=3), 2, KEY)
    three = Qwen3MoeConfig(**SIZES, num_experts=3)
    with pytest.raises(UserError, match="3 experts do not divide evenly over 2 ranks"):
        check_sizes(three, 2, KEY)
    check_sizes(three, 1, KEY)
    dense = Qwen3MoeConfig(**{**SIZES, "intermediate_size": 33}, num_experts=4, mlp_only_layers=[0])
    with pytest.raises(UserError, match="33 intermediate columns"):
        check_sizes(dense, 2, KEY)
    check_sizes(LlamaConfig(**SIZES), 2, KEY)


def adapted() -> PreTrainedModel:
    from peft import LoraConfig, inject_adapter_in_model

    return inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj"], use_dora=True), made("qwen2"))


STRANGE: dict[str, Callable[[], PreTrainedModel]] = {
    "matrices in one": lambda: AutoModelForCausalLM.from_config(Phi3Config(**SIZES)),
    "a norm over all heads": lambda: AutoModelForCausalLM.from_config(Olmo2Config(**SIZES)),
    "adapters": adapted,
}


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("matrices in one", "no plan covers: self_attn.o_proj, self_attn.qkv_proj"),
        ("a norm over all heads", "normalizes over all heads"),
        ("adapters", "model.layers.0.self_attn.q_proj has an adapter of type dora"),
    ],
)
def test_a_layer_that_no_plan_covers_is_refused(model, problem):
    with pytest.raises(UserError, match=re.escape(problem)) as caught:
        apply_tp(STRANGE[model](), SimpleNamespace(size=lambda: 2), KEY)
    assert (caught.value.key, caught.value.value) == (KEY, 2)


# A policy as the ranks of a run have it: how many, and which of them share what.
POLICIES: dict[str, tuple[int, dict[str, int], BackendOptions]] = {
    "tensor ranks alone": (2, {"tensor_size": 2}, BackendOptions()),
    "activations in CPU memory": (2, {"tensor_size": 2}, BackendOptions(activations_on_cpu=True)),
    "data and tensor ranks": (4, {"tensor_size": 2}, BackendOptions()),
    "sequence and tensor ranks": (4, {"tensor_size": 2, "sequence_size": 2}, BackendOptions()),
    "whole copies for data ranks": (4, {"tensor_size": 2, "fsdp_size": 1}, BackendOptions()),
}


def all_trained(rank: int, folder: str, batch: Batch, names: list[str]) -> list[dict[str, Any]]:
    return [train(rank, folder, batch, POLICIES[name][1], {}, POLICIES[name][2]) for name in names]


def policies_on(num_ranks: int) -> list[str]:
    return [name for name, (size, _, _) in POLICIES.items() if size == num_ranks]


def check_policies(ranks: list[list[dict[str, Any]]], model_folder: Any, batch: Batch) -> None:
    expected = train_at(SINGLE_PROCESS, str(model_folder), batch, {}, BackendOptions())
    for answers in ranks:
        for found in answers:
            alike(found, expected)
            assert found["local"] < expected["local"]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_policy_on_ranks_learns_what_one_process_does(model_folder, tokenizer, size):
    batch = without_old(tokenizer)
    check_policies(run_ranks(size, all_trained, str(model_folder), batch, policies_on(size)), model_folder, batch)


def alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for part in ("read", "columns", "weights"):
        assert found[part].keys() == expected[part].keys()
        for name, tensor in expected[part].items():
            # A weight moves by 1e-2 in an update, also where its gradient is next to nothing.
            torch.testing.assert_close(found[part][name], tensor, rtol=CLOSE, atol=2e-5, msg=name)
    for ours, theirs in zip(found["numbers"], expected["numbers"], strict=True):
        assert ours == pytest.approx(theirs, rel=CLOSE, abs=1e-6)
