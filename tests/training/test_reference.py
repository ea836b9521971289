import torch

from burnish.training.packing import MicroBatchSize
from burnish.training.reference import Reference


def test_the_reference_reads_what_the_policy_reads_before_it_learns(backend, make_policy, batch, without):
    policy = make_policy()
    reference = Reference(backend(), 0.7, MicroBatchSize(tokens=20))
    unread = without(batch, "ref_log_prob", "old_log_probs")
    before = policy.compute_log_probs(unread)["old_log_probs"].flat
    torch.testing.assert_close(reference.compute_log_probs(unread).flat, before, rtol=0, atol=1e-5)
    policy.update(batch, 1)
    torch.testing.assert_close(reference.compute_log_probs(unread).flat, before, rtol=0, atol=1e-5)
    assert not torch.allclose(policy.compute_log_probs(unread)["old_log_probs"].flat, before, rtol=0, atol=1e-3)


def test_the_reference_is_frozen(backend):
    reference = Reference(backend(), 1.0, MicroBatchSize(rows=1))
    assert not any(parameter.requires_grad for parameter in reference.backend.model.parameters())
