import pytest
import torch
from torch import nn
from transformers import PretrainedConfig

from burnish.algos.aggregate import Totals
from burnish.algos.masked import masked_share
from burnish.batch import Batch, Ragged
from burnish.config.optim import OptimConfig
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import MicroBatchSize
from burnish.training.update import LossOutput, UpdatePlan, loss_mask, row_weights, run_updates


def plan(**changes):
    return UpdatePlan(
        **{"epochs": 1, "mini_rows": 4, "micro_batch": MicroBatchSize(rows=2), "grad_clip": 1.0} | changes
    )


def test_without_a_seed_rows_keep_their_order():
    assert plan().mini_batches(10, step=3, epoch=0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_mini_batches_change_their_order_and_keep_their_rows():
    ordered = plan().mini_batches(64, step=1, epoch=0)
    shuffled = plan(mini_batch_order_seed=7)
    one = shuffled.mini_batches(64, step=1, epoch=0)
    assert one != ordered
    assert sorted(one) == ordered
    assert plan(mini_batch_order_seed=7).mini_batches(64, step=1, epoch=1) == one  # the same in every epoch of a step
    assert shuffled.mini_batches(64, step=2, epoch=0) != one


def test_a_seed_shuffles_alike_every_time_and_differently_for_each_step_and_epoch():
    shuffled = plan(shuffle_seed=7)
    one = shuffled.mini_batches(64, step=1, epoch=0)
    rows = [row for mini in one for row in mini]
    assert sorted(rows) == list(range(64)) and rows != list(range(64))
    torch.randn(3)  # whoever draws in between
    assert plan(shuffle_seed=7).mini_batches(64, step=1, epoch=0) == one
    others = [
        shuffled.mini_batches(64, 2, 0),
        shuffled.mini_batches(64, 1, 1),
        plan(shuffle_seed=8).mini_batches(64, 1, 0),
    ]
    assert all(other != one for other in others)


@pytest.fixture
def rows():
    """Ten rows of one token each, whose prompt says which row it is."""
    ones = Ragged.of([[1]] * 10, torch.float32)
    return Batch(
        prompt_ids=Ragged.of([[row] for row in range(10)], torch.int64),
        responses=Ragged.of([[0]] * 10, torch.int64),
        response_mask=ones,
    )


@pytest.fixture
def run_plan(rows):
    """Run a plan with a loss that is the parameter times each row's number, and write down what was asked."""

    def run(**changes):
        module = nn.Linear(1, 1, bias=False)
        module.config = PretrainedConfig()
        backend = SingleBackend(module, torch.device("cpu"), torch.float32)
        optimizer = backend.create_optimizer(OptimConfig(lr=0.0), total_steps=1, updates_per_step=1)
        asked = []

        def loss_fn(output, count):
            micro = output.micro_batch.batch
            asked.append((micro["prompt_ids"].flat.tolist(), output.micro_batch.rows, count))
            loss = (module.weight * micro["prompt_ids"].flat.float()).sum() / count.tokens
            metrics = {"size": masked_share(torch.ones(len(micro)), torch.ones(len(micro)))}
            return loss, LossOutput(torch.tensor(float(len(micro))), metrics)

        return run_updates(rows, 5, plan(**changes), backend, loss_fn), asked, optimizer

    return run


def test_each_micro_batch_knows_its_rows_and_its_mini_batchs_totals(run_plan):
    _, asked, optimizer = run_plan(shuffle_seed=3)
    assert all(prompts == numbers for prompts, numbers, _ in asked)
    assert [count.tokens for _, _, count in asked] == [4, 4, 4, 4, 2]
    assert asked[0][2] == Totals(tokens=4, sequences=4)
    assert sorted(row for _, numbers, _ in asked for row in numbers) == list(range(10))
    assert (optimizer.updates, optimizer.steps) == (3, 1)


def test_micro_batches_of_one_mini_batch_add_up(run_plan):
    done, _, _ = run_plan(mini_rows=10, micro_batch=MicroBatchSize(rows=3))
    assert done.grad_norms == [pytest.approx(sum(range(10)) / 10)]


def test_numbers_are_means_over_the_updates(run_plan):
    done, _, _ = run_plan(epochs=2)
    numbers = done.summary("actor", "pg_loss")
    assert numbers["actor/pg_loss"] == pytest.approx(10 * 2 / 6)  # rows of both epochs over six updates
    assert numbers["actor/grad_norm"] == pytest.approx(sum(done.grad_norms) / 6)
    assert numbers["actor/size"] == 1.0


def test_every_epoch_is_shuffled_anew(run_plan):
    _, asked, _ = run_plan(epochs=2, shuffle_seed=3)
    numbers = [row for _, micro, _ in asked for row in micro]
    assert numbers[:10] != numbers[10:]


def test_rejection_takes_tokens_out_of_the_loss(rows):
    assert loss_mask(rows).sum() == 10
    rejected = rows.add(loss_mask=Ragged.of([[0]] + [[1]] * 9, torch.float32))
    assert loss_mask(rejected).tolist() == [0.0] + [1.0] * 9
    assert row_weights(rows) is None
    weight = torch.arange(10.0)
    assert row_weights(rows.add(weight=weight)) is weight
