import pytest
import torch

from burnish.batch import Ragged
from burnish.training.backend import MicroBatch
from burnish.training.batch_shard import ForwardShard
from burnish.training.inference import compute_log_probs, compute_policy_columns, compute_values, in_row_order
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import ParallelContext

CUTS = [
    MicroBatchSize(rows=1),
    MicroBatchSize(rows=4),
    MicroBatchSize(tokens=1),
    MicroBatchSize(tokens=17),
    MicroBatchSize(tokens=1000),
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_cut_changes_no_log_prob(backend, batch, cut):
    whole = compute_policy_columns(backend(), batch, 0.7, MicroBatchSize(rows=len(batch)))
    parts = compute_policy_columns(backend(), batch, 0.7, cut)
    assert torch.equal(parts["log_probs"].lengths, batch["responses"].lengths)
    for name in ("log_probs", "entropys"):
        torch.testing.assert_close(parts[name].flat, whole[name].flat, rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sum_pi_squared_is_that_of_the_whole_vocabulary(backend, batch, temperature):
    made = backend()
    columns = compute_policy_columns(made, batch, temperature, MicroBatchSize(rows=2), sum_pi_squared=True)
    whole = MicroBatch.select(batch, list(range(len(batch))))
    (head,) = made.forward([whole], lambda output: output.head_input())
    expected = (head.hidden @ head.weight.T / temperature).double().softmax(-1).square().sum(-1)
    torch.testing.assert_close(columns["sum_pi_squared"].flat.double(), expected, rtol=1e-4, atol=1e-6)
    plain = compute_policy_columns(made, batch, temperature, MicroBatchSize(rows=2))
    assert "sum_pi_squared" not in plain
    assert torch.equal(plain["log_probs"].flat, columns["log_probs"].flat)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_cut_changes_no_value(value_backend, batch, cut):
    whole = compute_values(value_backend(), batch, MicroBatchSize(rows=len(batch)))
    torch.testing.assert_close(compute_values(value_backend(), batch, cut).flat, whole.flat, rtol=0, atol=1e-5)


def test_rows_keep_their_own_log_probs_when_reordered(backend, batch):
    order = [4, 2, 0, 5, 3, 1]
    there = compute_log_probs(backend(), batch, 1.0, MicroBatchSize(tokens=20))
    here = compute_log_probs(backend(), batch.select(order), 1.0, MicroBatchSize(tokens=20))
    torch.testing.assert_close(here.flat, there.select(torch.tensor(order)).flat, rtol=0, atol=1e-5)


def test_inference_leaves_no_graph_and_turns_dropout_off(backend, batch):
    made = backend()
    made.model.train()
    modes = []
    made.model.register_forward_pre_hook(lambda *_: modes.append(made.model.training))
    made.model.model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    log_probs = compute_log_probs(made, batch, 1.0, MicroBatchSize(rows=2))
    assert not log_probs.flat.requires_grad
    assert modes == [False] * 3 and made.model.training


def test_parts_come_back_in_row_order():
    like = Ragged.of([[0], [0, 0], torch.empty(0), [0]], torch.float32)
    parts = [([3, 1], torch.tensor([30.0, 10.0, 11.0])), ([2, 0], torch.tensor([0.5]))]
    assert in_row_order(parts, like).lists() == [[0.5], [10.0, 11.0], [], [30.0]]


def test_a_rank_without_results_has_no_columns(make_policy, make_critic, batch, monkeypatch):
    """A pipeline stage that is not the last, or a rank without rows that only takes part in collectives."""
    policy, critic = make_policy(), make_critic()
    empty = ForwardShard(batch.select([0]), [[]])
    assert policy.compute_log_probs(empty) == {}
    assert len(critic.compute_values(empty)) == 0
    monkeypatch.setattr(ParallelContext, "has_results", False)
    assert policy.compute_log_probs(ForwardShard(batch, [[0, 1], [2]])) == {}
