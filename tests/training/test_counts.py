"""Counts that need no clock: waits of the host, passes through the model, and tokens that are padding."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.training.packing import MicroBatchSize, row_lengths
from burnish.training.reference import Reference
from burnish.training.sft import SftModel
from burnish.training.update import UpdatePlan

from .conftest import CPU, TEMPERATURE
from .waits import watched


def device_tensors(role):
    yield from role.backend.model.parameters()
    yield from role.backend.model.buffers()
    yield from role.optimizer._state()
    if role.optimizer.average is not None:
        yield from role.optimizer.average.weights.values()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ppo_micro_batch_size_per_gpu": 1, "loss_agg_mode": "seq-mean-token-mean"},
        {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 17, "ppo_epochs": 2, "ppo_mini_batch_size": 3},
        {"use_kl_loss": True, "entropy_coeff": 0.1, "ema_beta": 0.9},
        {"policy_loss.loss_mode": "gspo"},
        {"policy_loss.loss_mode": "geo_mean", "grad_clip": 0.0},
    ],
    ids=["plain", "one row at a time", "four updates", "KL, entropy, average", "gspo", "no clipping"],
)
@pytest.mark.parametrize("reads", [True, False], ids=["old log-probs read", "taken from the update"])
def test_the_host_waits_once_for_all_updates_of_a_step(make_policy, batch, without, changes, reads):
    """At most once per update, then, and not before the last of them."""
    policy = make_policy(**changes)
    batch = batch if reads else without(batch, "old_log_probs")
    with watched(device_tensors(policy)) as waits:
        policy.update(batch, 1)
    assert len(waits.found) == 1 and waits.found[0].startswith("to_host"), "\n".join(waits.found)


def test_the_exact_kl_and_resampled_rows_wait_no_more(make_policy, backend, batch):
    policy = make_policy(use_kl_loss=True, kl_loss_type="full")
    policy.reference = Reference(backend(), TEMPERATURE, MicroBatchSize(rows=6))
    batch = batch.add(weight=torch.arange(1.0, 7.0), importance_weights=batch["values"])
    model = policy.reference.backend.model
    with watched([*device_tensors(policy), *model.parameters(), *model.buffers()]) as waits:
        policy.update(batch, 1)
    assert len(waits.found) == 1, "\n".join(waits.found)


def test_critic_and_imitator_wait_once_too(make_critic, make_policy, batch):
    policy = make_policy()
    plan = UpdatePlan(epochs=1, mini_rows=6, micro_batch=MicroBatchSize(rows=2), grad_clip=1.0)
    for role in (make_critic(ppo_micro_batch_size_per_gpu=2), SftModel(policy.backend, plan, seed=1)):
        with watched(device_tensors(role)) as waits:
            role.update(batch, 1)
        assert len(waits.found) == 1, "\n".join(waits.found)


def test_a_pass_without_gradients_waits_once_for_all_its_micro_batches(make_policy, make_critic, backend, batch):
    one_row = MicroBatchSize(rows=1)
    policy, critic, reference = make_policy(), make_critic(), Reference(backend(), TEMPERATURE, one_row)
    policy.inference_micro_batch = critic.inference_micro_batch = one_row
    for role, compute in (
        (policy, policy.compute_log_probs),
        (critic, critic.compute_values),
        (reference, reference.compute_log_probs),
    ):
        model = role.backend.model
        with watched([*model.parameters(), *model.buffers()]) as waits:
            compute(batch)
        assert len(waits.found) == 1 and waits.found[0].startswith("to_host"), "\n".join(waits.found)


def test_the_watch_sees_what_waits():
    weight = torch.arange(4.0)
    with watched([weight]) as waits:
        double = weight * 2
        assert waits.found == []
        float(double.sum())
        double.tolist()
        double[double > 2].sum()
        torch.ones(2).to(CPU)
        torch.ones(2).to(CPU, non_blocking=True)
        float(torch.ones(2).sum())  # of the host
    told = [line.split(" at ")[0] for line in waits.found]
    assert told == ["_local_scalar_dense", "tolist()", "index", "to(device)"]


@pytest.fixture
def passes():
    """Tokens of every pass through a role's backbone."""

    def count(role):
        found = []
        embedding = role.backend.model.get_input_embeddings()
        embedding.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0].numel()))
        return found

    return count


@pytest.mark.parametrize("reads", [True, False])
def test_one_pass_per_micro_batch_and_no_padding(make_policy, batch, without, passes, reads):
    """Also where log-probs and entropy come out of the update: nobody reads them by a pass of their own."""
    policy = make_policy(ppo_micro_batch_size_per_gpu=2, ppo_epochs=2)
    seen = passes(policy)
    taught = policy.update(batch if reads else without(batch, "old_log_probs"), 1)
    assert ("old_log_probs" in taught.columns) == (not reads)
    assert len(seen) == 2 * 3
    assert sum(seen) == 2 * int(row_lengths(batch).sum())  # every token once in each epoch, and nothing else


def test_inference_pads_nothing_either(make_policy, make_critic, batch, passes):
    for role, inference in ((make_policy(), "compute_log_probs"), (make_critic(), "compute_values")):
        seen = passes(role)
        getattr(role, inference)(batch)
        assert sum(seen) == int(row_lengths(batch).sum())


class HeadProducts(TorchDispatchMode):
    """Counts matrix products with the head's weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.count = weight.data_ptr(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        reads = any(isinstance(tensor, torch.Tensor) and tensor.data_ptr() == self.weight for tensor in args)
        self.count += reads and function._schema.name in ("aten::mm", "aten::addmm")
        return function(*args, **(kwargs or {}))


@pytest.fixture
def head_products():
    """head_products(policy, call): products of the call with the policy's head."""

    def count(policy, call):
        with HeadProducts(policy.backend.model.get_output_embeddings().weight) as products:
            call()
        return products.count

    return count


MICRO_BATCHES = 3


def test_one_product_gives_log_probs_and_entropy(make_policy, batch, head_products):
    policy = make_policy()
    policy.inference_micro_batch = MicroBatchSize(rows=len(batch) // MICRO_BATCHES)
    assert head_products(policy, lambda: policy.compute_log_probs(batch)) == MICRO_BATCHES


@pytest.mark.parametrize("entropy_coeff", [0.0, 0.1])
@pytest.mark.parametrize("reads", [True, False], ids=["old log-probs read", "taken from the update"])
def test_an_update_computes_its_logits_twice_whatever_it_reads_of_them(
    make_policy, batch, without, head_products, entropy_coeff, reads
):
    """Forward, again in the backward pass instead of being kept, and for the gradient of the hidden states."""
    policy = make_policy(ppo_micro_batch_size_per_gpu=len(batch) // MICRO_BATCHES, entropy_coeff=entropy_coeff)
    given = batch if reads else without(batch, "old_log_probs")
    assert head_products(policy, lambda: policy.update(given, 1)) == 3 * MICRO_BATCHES
