"""Who holds the device's memory when it runs out."""

from __future__ import annotations

import pickle

import pytest
import torch

from burnish.algos.aggregate import Totals
from burnish.training.backend import MicroBatch
from burnish.training.device_memory import REST, OutOfMemory, bytes_by_owner, memory_reported
from burnish.training.reference import Reference

from .conftest import CPU, TEMPERATURE


def num_bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_every_tensor_has_one_owner(make_policy, make_critic, batch):
    policy, critic = make_policy(), make_critic()
    totals = Totals(tokens=1.0, sequences=1.0)
    micro_batch = MicroBatch.select(batch, list(range(len(batch))))
    policy.backend.forward_backward([micro_batch], lambda output: policy._loss(output, totals))
    shared = Reference(policy.backend, TEMPERATURE, policy.inference_micro_batch)
    found = bytes_by_owner({"policy": policy, "critic": critic, "reference": shared}, CPU)
    model = policy.backend.model
    weights = num_bytes({p.data_ptr(): p for p in [*model.parameters(), *model.buffers()]}.values())
    assert found["policy weights"] == weights
    assert found["policy gradients"] == num_bytes(p.grad for p in model.parameters())
    assert found["policy optimizer"] == num_bytes(policy.optimizer._state())
    assert found["critic optimizer"] == num_bytes(critic.optimizer._state())
    assert "critic gradients" not in found and not any(owner.startswith("reference") for owner in found)


def test_running_out_is_accounted_for(make_policy):
    policy = make_policy()
    with pytest.raises(OutOfMemory, match="Tried to allocate") as caught, memory_reported({"policy": policy}, CPU):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 1 GiB")
    assert caught.value.requested == "2.50 GiB"
    assert caught.value.owners.keys() == {"policy weights", "policy optimizer", REST}
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (sent.owners, sent.requested, sent.capacity) == (caught.value.owners, "2.50 GiB", None)


def test_other_errors_pass():
    with pytest.raises(ValueError, match="else"), memory_reported({}, CPU):
        raise ValueError("something else")
