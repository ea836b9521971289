import pytest
import torch

from burnish.batch import Ragged
from burnish.training.inference import compute_log_probs, compute_values, in_row_order
from burnish.training.packing import MicroBatchSize

CUTS = [
    MicroBatchSize(rows=1),
    MicroBatchSize(rows=4),
    MicroBatchSize(tokens=1),
    MicroBatchSize(tokens=17),
    MicroBatchSize(tokens=1000),
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_cut_changes_no_log_prob(backend, batch, cut):
    whole, entropy = compute_log_probs(backend(), batch, 0.7, MicroBatchSize(rows=len(batch)), with_entropy=True)
    parts, part_entropy = compute_log_probs(backend(), batch, 0.7, cut, with_entropy=True)
    assert torch.equal(parts.lengths, batch["responses"].lengths)
    torch.testing.assert_close(parts.flat, whole.flat, rtol=0, atol=1e-5)
    torch.testing.assert_close(part_entropy.flat, entropy.flat, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_cut_changes_no_value(value_backend, batch, cut):
    whole = compute_values(value_backend(), batch, MicroBatchSize(rows=len(batch)))
    torch.testing.assert_close(compute_values(value_backend(), batch, cut).flat, whole.flat, rtol=0, atol=1e-5)


def test_rows_keep_their_own_log_probs_when_reordered(backend, batch):
    order = [4, 2, 0, 5, 3, 1]
    there = compute_log_probs(backend(), batch, 1.0, MicroBatchSize(tokens=20), with_entropy=False)[0]
    here = compute_log_probs(backend(), batch.select(order), 1.0, MicroBatchSize(tokens=20), with_entropy=False)[0]
    torch.testing.assert_close(here.flat, there.select(torch.tensor(order)).flat, rtol=0, atol=1e-5)


def test_reading_leaves_no_graph_and_turns_dropout_off(backend, batch):
    made = backend()
    made.model.train()
    modes = []
    made.model.register_forward_pre_hook(lambda *_: modes.append(made.model.training))
    made.model.model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    log_probs, _ = compute_log_probs(made, batch, 1.0, MicroBatchSize(rows=2), with_entropy=True)
    assert not log_probs.flat.requires_grad
    assert modes == [False] * 3 and made.model.training


def test_parts_come_back_in_row_order():
    like = Ragged.of([[0], [0, 0], torch.empty(0), [0]], torch.float32)
    parts = [([3, 1], torch.tensor([30.0, 10.0, 11.0])), ([2, 0], torch.tensor([0.5]))]
    assert in_row_order(parts, like).lists() == [[0.5], [10.0, 11.0], [], [30.0]]
