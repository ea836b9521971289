"""One role on several ranks: the same numbers, gradients and weights as on one."""

from __future__ import annotations

import pytest
import torch

from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.training.backend import BackendOptions, FsdpOptions, create_backend
from burnish.training.batch_shard import Cut, cut_forward
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh
from burnish.training.policy import Policy
from tests.ranks import run_ranks
from tests.training.conftest import CPU, TEMPERATURE, settings

MINI = {"ppo_mini_batch_size": 4, "ppo_epochs": 2, "optim.lr": 1e-2, "use_dynamic_bsz": True}


def train(rank: int, folder: str, batch, sizes: dict, changes: dict, options: BackendOptions, steps: int = 2):
    """Two steps of a policy on this rank; what it read, said, and its weights at the end."""
    parallel = SINGLE_PROCESS if sizes is None else build_mesh(CPU, **sizes)
    return train_at(parallel, folder, batch, changes, options, steps)


def policy_at(parallel: ParallelContext, folder: str, changes: dict, options: BackendOptions) -> Policy:
    model = load_causal_lm(ModelSource(folder), PACKED, torch.float32)
    backend = create_backend(model, CPU, torch.float32, options=options, parallel=parallel)
    config = settings("actor_rollout_ref.actor", MINI | {"ppo_max_token_len_per_gpu": 24} | changes)
    backend.create_optimizer(config.optim, 10, 1)
    return Policy(
        backend,
        config,
        temperature=TEMPERATURE,
        rows_per_prompt=1,
        max_response_length=12,
        inference_micro_batch=MicroBatchSize(tokens=20),
        seed=1,
    )


def train_at(parallel: ParallelContext, folder: str, batch, changes: dict, options: BackendOptions, steps: int = 2):
    policy = policy_at(parallel, folder, changes, options)
    said, read = [], policy.compute_log_probs(batch)
    for step in range(1, steps + 1):
        said.append(policy.update(batch.add(**read) if step == 1 else batch, step))
    return {
        "read": {name: column.flat for name, column in read.items()},
        "numbers": [taught.metrics for taught in said],
        "columns": {name: column.flat for name, column in said[-1].columns.items()},
        "weights": {name: tensor.clone() for name, tensor in policy.weights()},
        "local": sum(
            p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in policy.backend.model.parameters()
        ),
    }


def same(found: dict, expected: dict) -> None:
    for part in ("read", "columns", "weights"):
        assert found[part].keys() == expected[part].keys()
        for name, tensor in expected[part].items():
            torch.testing.assert_close(found[part][name], tensor, rtol=1e-5, atol=1e-6, msg=name)
    for ours, theirs in zip(found["numbers"], expected["numbers"], strict=True):
        assert ours.keys() == theirs.keys()
        for name, number in theirs.items():
            assert ours[name] == pytest.approx(number, rel=1e-5, abs=1e-7), name


@pytest.fixture
def without_old(batch, without):
    return without(batch, "old_log_probs")


CASES = {
    "sharded": ({}, {}, BackendOptions()),
    "replicated": ({"fsdp_size": 1}, {}, BackendOptions()),
    "kept after forward": ({}, {}, BackendOptions(fsdp=FsdpOptions(reshard_after_forward=False, prefetch=True))),
    "by size": ({}, {}, BackendOptions(fsdp=FsdpOptions(min_num_params=500))),
    "rows as they come": ({"balance": False}, {"loss_agg_mode": "seq-mean-token-mean"}, BackendOptions()),
    "by rows": ({}, {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 1}, BackendOptions()),
    "coupled rows": ({}, {"policy_loss.loss_mode": "clip_cov", "policy_loss.clip_cov_ratio": 0.5}, BackendOptions()),
    "offloaded": ({}, {}, BackendOptions(fsdp=FsdpOptions(offload=True))),
}


def all_cases(rank: int, folder: str, batch, names: list[str]):
    return {name: train(rank, folder, batch, *CASES[name]) for name in names} | {"last stage": last_stage(rank)}


def last_stage(rank: int):
    """What a rank of a two-stage pipeline has and reports, and what all ranks gather."""
    stage = ParallelContext(pipeline_rank=rank, pipeline_size=2)
    outputs = [f"output of stage {rank}"] if stage.has_results else []
    return stage.has_results, stage.reports_results, stage.gather_lists(outputs)


def test_two_ranks_compute_what_one_does(model_folder, without_old):
    found = run_ranks(2, all_cases, str(model_folder), without_old, list(CASES))
    for name, (_, changes, _) in CASES.items():
        expected = train_at(SINGLE_PROCESS, str(model_folder), without_old, changes, BackendOptions())
        for rank in range(2):
            same(found[rank][name], expected)
    assert found[0]["sharded"]["local"] < 0.6 * found[0]["replicated"]["local"]
    outputs = ["output of stage 1"]
    assert [rank["last stage"] for rank in found] == [(False, False, outputs), (True, True, outputs)]


@pytest.mark.long
def test_four_ranks_compute_what_one_does(model_folder, without_old):
    found = run_ranks(4, hybrid, str(model_folder), without_old)
    expected = train_at(SINGLE_PROCESS, str(model_folder), without_old, {}, BackendOptions())
    for answer in found:
        for one in answer:
            same(one, expected)


def hybrid(rank: int, folder: str, batch):
    return [train(rank, folder, batch, sizes, {}, BackendOptions()) for sizes in ({}, {"fsdp_size": 2})]


# shards: what the controller cuts is what ranks would choose


def shard_cases(rank: int, folder: str, batch, names: list[str]):
    return {name: (train(rank, folder, batch, *CASES[name]), train_cut(folder, batch, *CASES[name])) for name in names}


def train_cut(folder: str, batch, sizes: dict, changes: dict, options: BackendOptions):
    """As `train`, but this rank sees the rows of its own shards only."""
    parallel = build_mesh(CPU, **sizes)
    policy = policy_at(parallel, folder, changes, options)
    mine = parallel.data_rank
    forward = cut_forward(batch, policy.inference_micro_batch, parallel.sharding)
    read = policy.compute_log_probs(forward.shards[mine])
    whole = batch.add(**_joined(forward, read))
    found = {"read": {name: column.flat for name, column in whole.columns.items() if name in read}, "numbers": []}
    for step in (1, 2):
        given = whole if step == 1 else batch
        cut = policy.plan.cut(given, step, parallel.sharding)
        result = policy.update(cut.shards[mine], step)
        found["numbers"].append(result.metrics)
        found["columns"] = {name: column.flat for name, column in _joined(cut, result.columns).items()}
        found["rows"] = len(cut.shards[mine].batch)
    return found | {"weights": {name: tensor.clone() for name, tensor in policy.weights()}}


def _joined(cut: Cut, own: dict) -> dict:
    parts = [None, None]
    torch.distributed.all_gather_object(parts, own)
    return cut.join(parts)


def test_a_rank_that_sees_its_rows_only_computes_the_same_bits(model_folder, without_old):
    names = ["sharded", "rows as they come", "by rows", "coupled rows"]
    for found in run_ranks(2, shard_cases, str(model_folder), without_old, names):
        for name, (whole, cut) in found.items():
            assert cut["numbers"] == whole["numbers"], name
            for part in ("read", "columns", "weights"):
                assert cut[part].keys() == whole[part].keys()
                assert all(torch.equal(cut[part][key], tensor) for key, tensor in whole[part].items()), (name, part)
        assert found["coupled rows"][1]["rows"] == len(without_old)
