"""Roles whose ranks share every row, under FSDP: the numbers and gradients of one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Qwen3Config,
    Qwen3MoeConfig,
)

from burnish.models import attention
from burnish.training.backend import create_backend
from burnish.training.critic import Critic
from burnish.training.inference import compute_scores
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, build_mesh
from burnish.training.policy import Policy
from burnish.training.reference import Reference
from burnish.training.row_sharding import RowSharding

from ..conftest import SIZES, sharpen
from ..ranks import run_ranks
from .conftest import CPU, TEMPERATURE, settings

# By what serves them on two ranks and on four.
HEADS = {"Ulysses": {"num_attention_heads": 4, "num_key_value_heads": 2}, "ring": {"num_attention_heads": 3}}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EVERYTHING = {"use_kl_loss": True, "kl_loss_type": "full", "kl_loss_coef": 0.3, "entropy_coeff": 0.1}


class Ranks:
    """What the roles are made of, alone or where this rank stands."""

    def __init__(self, served: str, sizes: dict | None) -> None:
        self.heads = {"head_dim": 8, "num_key_value_heads": 1, **HEADS[served]}
        self.served = served
        self.parallel = SINGLE_PROCESS if sizes is None else build_mesh(CPU, **sizes)

    def config(self, family=Qwen3Config, **more):
        return family(**{**SIZES, **self.heads, **more})

    def backend(self, family, config, seed):
        attention.register()
        torch.manual_seed(seed)
        model = family.from_config(config, attn_implementation=attention.PACKED)
        sharpen(model, seed)
        made = create_backend(model, CPU, torch.float32, parallel=self.parallel)
        assert (made.sequence is None) == (not self.parallel.is_distributed)
        assert made.sequence is None or made.sequence.method.name == self.served
        return made


def policy_of(ranks, config, changes, reference=None):
    backend = ranks.backend(AutoModelForCausalLM, config, seed=1)
    actor = settings("actor_rollout_ref.actor", {"ppo_mini_batch_size": 6, "ppo_micro_batch_size_per_gpu": 4} | changes)
    backend.create_optimizer(actor.optim, 10, 1)
    return Policy(
        backend,
        actor,
        temperature=TEMPERATURE,
        rows_per_prompt=1,
        max_response_length=12,
        inference_micro_batch=MicroBatchSize(rows=4),
        seed=1,
        reference=reference,
    )


def critic_of(ranks):
    config = ranks.config(num_labels=1, classifier_dropout=0.0)
    backend = ranks.backend(AutoModelForTokenClassification, config, seed=2)
    critic = settings("critic", {"ppo_mini_batch_size": 6, "ppo_micro_batch_size_per_gpu": 4})
    backend.create_optimizer(critic.optim, 10, 1)
    return Critic(backend, critic, rows_per_prompt=1, max_response_length=12, seed=1)


def learned(role, batch):
    """What the role says of a step, and the gradient it would have followed."""
    kept = {}

    def update(grad_clip):
        for name, parameter in role.backend.model.named_parameters():
            grad = parameter.grad
            kept[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
        return 1.0

    role.optimizer.update = update
    said = role.update(batch, 1)
    numbers = {name: number for name, number in getattr(said, "metrics", said).items() if "lr" not in name}
    return {"numbers": numbers, "gradient": kept}


def study(rank, batch, served, sizes, balance=0.5):
    """All columns and gradients of all roles. The routers' balance is one of a micro-batch, which data ranks split."""
    ranks = Ranks(served, sizes)
    unread = batch.keep(*(name for name in batch if name != "old_log_probs"))
    reference = Reference(
        ranks.backend(AutoModelForCausalLM, ranks.config(), seed=5), TEMPERATURE, MicroBatchSize(rows=4)
    )
    policy = policy_of(ranks, ranks.config(), EVERYTHING, reference)
    columns = {
        **policy.compute_log_probs(batch),
        "exact_kl": policy.compute_exact_kl(batch),
        "ref_log_prob": reference.compute_log_probs(batch),
    }
    found = {"policy": learned(policy, unread)}
    mixture = ranks.config(Qwen3MoeConfig, **MIXTURE)
    found["mixture"] = learned(policy_of(ranks, mixture, {"aux_loss_coef": balance}), unread)
    critic = critic_of(ranks)
    columns["values"] = critic.compute_values(batch)
    found["critic"] = learned(critic, batch)
    judge = ranks.backend(AutoModelForSequenceClassification, ranks.config(num_labels=1), seed=3)
    found["columns"] = {name: column.flat for name, column in columns.items()}
    found["columns"]["scores"] = compute_scores(judge, batch["prompt_ids"], MicroBatchSize(rows=4))
    found["micro-batches"] = ranks.parallel.shard_batch(batch, MicroBatchSize(tokens=7))
    return found


def same(found, expected):
    assert found["columns"].keys() == expected["columns"].keys()
    for name, column in expected["columns"].items():
        torch.testing.assert_close(found["columns"][name], column, rtol=1e-5, atol=2e-5, msg=lambda m: f"{name}: {m}")
    for role in ("policy", "mixture", "critic"):
        assert found[role]["numbers"] == pytest.approx(expected[role]["numbers"], rel=1e-5, abs=1e-6)
        ours, theirs = found[role]["gradient"], expected[role]["gradient"]
        assert ours.keys() == theirs.keys()
        scale = max(float(gradient.abs().max()) for gradient in theirs.values())
        assert scale > 1e-3
        for name, gradient in theirs.items():
            torch.testing.assert_close(ours[name], gradient, rtol=0, atol=2e-5 * scale, msg=f"{role}: {name}")


def study_all(rank, batch):
    return {served: study(rank, batch, served, {"sequence_size": 2}) for served in HEADS}


def test_two_ranks_share_the_rows(batch):
    ranks = run_ranks(2, study_all, batch)
    size = MicroBatchSize(tokens=14)
    for served in HEADS:
        expected = study(0, copy.deepcopy(batch), served, None)
        for rank in ranks:
            same(rank[served], expected)
            sharded = rank[served]["micro-batches"]
            assert [sharded] == RowSharding().micro_batches(size.sizes(batch), size)
            assert len(sharded) < len(expected["micro-batches"])


@pytest.mark.long
@pytest.mark.parametrize("served", HEADS)
@pytest.mark.parametrize("sizes", [{"sequence_size": 4}, {"sequence_size": 2}, {"sequence_size": 2, "fsdp_size": 2}])
def test_four_ranks_share_the_rows(batch, served, sizes):
    balance = 0.5 if sizes["sequence_size"] == 4 else 0.0
    expected = study(0, copy.deepcopy(batch), served, None, balance)
    for found in run_ranks(4, study, batch, served, sizes, balance):
        same(found, expected)
