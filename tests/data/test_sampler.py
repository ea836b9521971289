import random

import pytest

from burnish.data.sampler import PromptSampler, epoch_order, validation_batches
from burnish.errors import UserError

SHAPES = [(rows, size) for rows in (1, 2, 7, 32) for size in (1, 2, 3, 7) if size <= rows]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("rows", "size"), SHAPES)
def test_every_epoch_has_full_batches_of_different_rows(rows, size, shuffle):
    sampler = PromptSampler(rows, size, shuffle, seed=5)
    for epoch in range(3):
        batches = [sampler.next() for _ in range(sampler.batches_per_epoch)]
        assert {at for _, at in batches} == {epoch}
        assert all(len(indices) == size for indices, _ in batches)
        seen = [index for indices, _ in batches for index in indices]
        assert len(seen) == len(set(seen)) == rows // size * size
        assert seen == epoch_order(rows, shuffle, 5, epoch)[: len(seen)]


def test_an_order_is_a_permutation_that_depends_on_seed_and_epoch():
    orders = [tuple(epoch_order(50, True, seed, epoch)) for seed in range(4) for epoch in range(4)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(orders)) == 16
    assert epoch_order(50, False, 1, 2) == list(range(50))


def test_an_order_is_the_same_in_every_process_and_version():
    order = [4, 9, 0, 15, 8, 11, 1, 5, 6, 3, 19, 18, 2, 10, 7, 17, 14, 16, 12, 13]
    assert epoch_order(20, True, 11, 3) == order


def walk(sampler, steps, chooser):
    """A run of batches and single draws, like that of a loop that rejects prompts."""
    return [sampler.next() if chooser.random() < 0.6 else sampler.draw(chooser.randint(1, 9)) for _ in range(steps)]


@pytest.mark.parametrize("trial", range(20))
def test_resuming_anywhere_continues_exactly(trial):
    shape = random.Random(trial)
    rows = shape.randint(1, 30)
    arguments = (rows, shape.randint(1, rows), shape.random() < 0.8, shape.randint(0, 9))
    sampler = PromptSampler(*arguments)
    walk(sampler, shape.randint(0, 15), random.Random(trial + 100))
    resumed = PromptSampler(*arguments)
    resumed.load_state_dict(sampler.state_dict())
    assert walk(resumed, 10, random.Random(trial + 200)) == walk(sampler, 10, random.Random(trial + 200))
    assert resumed.state_dict() == sampler.state_dict()


def test_draws_take_the_prompts_that_come_next():
    sampler = PromptSampler(10, 4, True, seed=1)
    first, second = epoch_order(10, True, 1, 0), epoch_order(10, True, 1, 1)
    assert sampler.next() == (first[:4], 0)
    assert sampler.draw(3) == (first[4:7], [0, 0, 0])
    assert sampler.draw(5) == (first[7:] + second[:2], [0, 0, 0, 1, 1])
    assert sampler.next() == (second[2:6], 1)
    assert sampler.next() == (second[6:10], 1)
    assert sampler.next()[1] == 2


def test_a_draw_may_be_longer_than_an_epoch():
    indices, epochs = PromptSampler(3, 1, False, seed=0).draw(7)
    assert indices == [0, 1, 2, 0, 1, 2, 0]
    assert epochs == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("drawn", [1, 4, 10, 11, 25])
def test_what_is_given_back_comes_next(drawn):
    sampler, expected = PromptSampler(10, 4, True, seed=3), PromptSampler(10, 4, True, seed=3)
    sampler.draw(7)
    expected.draw(7)
    sampler.draw(drawn)
    sampler.give_back(drawn)
    assert sampler.state_dict() == expected.state_dict()
    assert sampler.draw(25) == expected.draw(25)


def test_an_epoch_is_done_with_its_last_prompt():
    sampler = PromptSampler(10, 4, True, seed=0)
    assert sampler.epochs_done == 0
    sampler.draw(9)
    assert sampler.epochs_done == 0
    sampler.draw(1)
    assert sampler.epochs_done == 1 and sampler.epoch == 0
    sampler.draw(3)
    sampler.give_back(3)
    assert sampler.epochs_done == 1 and sampler.epoch == 0
    sampler.give_back(10)
    assert sampler.state_dict() == PromptSampler(10, 4, True, seed=0).state_dict()


def test_the_batch_size_may_change_on_resume():
    sampler = PromptSampler(10, 4, True, seed=1)
    sampler.next()
    wider = PromptSampler(10, 6, True, seed=1)
    wider.load_state_dict(sampler.state_dict())
    assert wider.next() == (epoch_order(10, True, 1, 0)[4:], 0)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((11, 4, True, 1), "number of training prompts=11"),
        ((10, 4, False, 1), "data.shuffle"),
        ((10, 4, True, 2), "data.seed"),
    ],
)
def test_a_position_in_other_data_is_refused(arguments, key):
    state = PromptSampler(10, 4, True, 1).state_dict()
    with pytest.raises(UserError, match=f"{key}.*the checkpoint has"):
        PromptSampler(*arguments).load_state_dict(state)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UserError, match=r"data\.train_batch_size=11: .*10 prompts.*Type: data\.train_batch_size=10"):
        PromptSampler(10, 11, True, 0)
    with pytest.raises(UserError, match="must be at least 1"):
        PromptSampler(10, 0, True, 0)


@pytest.mark.parametrize(("size", "lengths"), [(None, [7]), (3, [3, 3, 1]), (9, [7])])
def test_validation_sees_every_row_once(size, lengths):
    for shuffle in (True, False):
        batches = list(validation_batches(7, size, shuffle, seed=0))
        assert [len(batch) for batch in batches] == lengths
        assert sorted(index for batch in batches for index in batch) == list(range(7))
    assert next(validation_batches(7, 3, False, seed=0)) == [0, 1, 2]
    assert next(validation_batches(30, None, True, seed=0)) != list(range(30))


def test_what_an_epoch_leaves_out_is_reported():
    left_out = "3 of 11 training rows are left out of every epoch: data.train_batch_size=4 does not divide them"
    assert PromptSampler(11, 4, shuffle=True, seed=0).notices() == [left_out]
    assert PromptSampler(12, 4, shuffle=True, seed=0).notices() == []
