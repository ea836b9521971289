"""Pipeline schedules as data: no rank waits forever, and bubbles, messages and kept activations are as published."""

import pytest

from burnish.training.pipeline_schedule import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    Action,
    Shape,
    forward_plan,
    num_messages,
    simulate,
    training_plan,
)

SHAPES = [Shape(size, virtual, num) for size in (1, 2, 3, 4, 8) for virtual in (1, 2, 3) for num in (1, 2, 3, 5, 8, 12)]
BOTH = 3  # units of time of a forward and a backward pass


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_rank_runs_everything_once_and_never_waits_forever(name):
    for shape in SHAPES:
        plan = training_plan(name, shape)
        assert simulate(plan, shape).complete, shape
        for actions in plan:
            expected = {
                Action(kind, chunk, number)
                for kind in (FORWARD, BACKWARD)
                for chunk in range(shape.virtual)
                for number in range(shape.num)
            }
            assert len(actions) == len(expected) and set(actions) == expected
        assert simulate(forward_plan(shape), shape).complete


def test_a_schedule_that_waits_forever_is_found():
    shape = Shape(2, 1, 2)
    first, last = training_plan("1f1b", shape)
    assert not simulate((tuple(reversed(first)), last), shape).complete


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_bubble_is_one_pass_per_other_rank(name, size):
    """(p - 1) (t_forward + t_backward), whatever the number of micro-batches."""
    for num in (size, 3 * size):
        shape = Shape(size, 1, num)
        assert set(simulate(training_plan(name, shape), shape).idle) == {(size - 1) * BOTH}


@pytest.mark.parametrize("virtual", [2, 4])
def test_chunks_divide_the_bubble(virtual):
    """A chunk takes 1 / v of a stage's time, and the bubble has as many of the shorter passes as without chunks."""
    for size in (2, 4):
        shape = Shape(size, virtual, 3 * size)
        assert set(simulate(training_plan("1f1b", shape), shape).idle) == {(size - 1) * BOTH}


def test_1f1b_keeps_the_activations_of_few_micro_batches():
    shape = Shape(4, 1, 12)
    assert simulate(training_plan("gpipe", shape), shape).most_kept == (12, 12, 12, 12)
    assert simulate(training_plan("1f1b", shape), shape).most_kept == (4, 3, 2, 1)


def test_every_link_carries_each_micro_batch_in_both_directions():
    for shape in SHAPES:
        links = shape.num_stages - 1 if shape.size > 1 else 0
        for name in SCHEDULES:
            plan = training_plan(name, shape)
            if links:
                assert simulate(plan, shape).num_messages == 2 * links * shape.num
        assert sum(num_messages(actions, shape, rank) for rank, actions in enumerate(forward_plan(shape))) == (
            (shape.num_stages - 1) * shape.num
        )
