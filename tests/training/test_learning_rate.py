"""The learning rate: what each key makes of it, and Megatron's words beside verl's."""

from __future__ import annotations

import math

import pytest

from burnish.config.optim import OptimConfig
from burnish.training.learning_rate import DECAY_STYLES, LearningRate


def rates(steps: int, total: int = 10, updates: int = 1, **settings) -> list[float]:
    made = LearningRate(OptimConfig(**{"lr": 2.0, **settings}), total, updates)
    return [made.after(step, step * updates) for step in range(steps)]


def test_the_names_are_those_of_the_config():
    allowed = {f.name: f for f in OptimConfig.__dataclass_fields__.values()}["lr_decay_style"].metadata["facts"].allowed
    assert set(DECAY_STYLES) == set(allowed)


def test_warm_up_starts_at_its_own_rate():
    assert rates(5, lr_warmup_steps=4, lr_warmup_init=0.4) == pytest.approx([0.8, 1.2, 1.6, 2.0, 2.0])


def test_megatrons_linear_ends_at_its_lowest_rate():
    found = rates(12, lr_decay_style="linear", min_lr=0.5)
    assert found == pytest.approx([2.0 - 1.5 * step / 10 for step in range(10)] + [0.5, 0.5])


def test_megatrons_cosine_is_its_formula():
    found = rates(9, lr_decay_style="cosine", min_lr=0.5, lr_warmup_steps=2, lr_decay_steps=8)
    expected = [0.5 + 1.5 * 0.5 * (math.cos(math.pi * (step - 2) / 6) + 1) for step in range(2, 8)]
    assert found == pytest.approx([1.0, 2.0, *expected, 0.5])


def test_inverse_square_root():
    found = rates(12, lr_decay_style="inverse_square_root", min_lr=0.1, lr_warmup_steps=4)
    assert found == pytest.approx([0.5, 1.0, 1.5, 2.0] + [2.0 * math.sqrt(4 / n) for n in range(4, 11)] + [0.1])


@pytest.mark.parametrize(
    ("style", "half"),
    [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5), ("exponential", 2**0.5 - 1), ("minus_sqrt", 1 - 0.5**0.5)],
)
def test_warm_up_stable_decay(style, half):
    found = rates(11, lr_decay_style="WSD", lr_wsd_decay_style=style, lr_wsd_decay_steps=4, lr_warmup_steps=2, min_lr=1)
    end = 2.0 if style == "constant" else 1.0
    assert found[:7] == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    assert (found[8], found[10]) == pytest.approx((1 + half, end))


def test_all_steps_are_counted_in_updates_where_asked():
    settings = {"lr_step_unit": "update", "lr_decay_style": "WSD", "lr_wsd_decay_style": "linear"}
    made = LearningRate(OptimConfig(lr=1.0, lr_decay_steps=4, lr_wsd_decay_steps=2, **settings), 100, 3)
    assert [made.after(0, update) for update in (0, 6, 9, 12)] == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_a_floor_as_a_rate_comes_before_one_as_a_share():
    assert rates(11, warmup_style="linear", min_lr_ratio=0.5)[-1] == pytest.approx(1.0)
    assert rates(11, warmup_style="linear", min_lr_ratio=0.5, min_lr=0.2)[-1] == pytest.approx(0.2)


def test_a_rate_of_zero_stays_zero():
    assert rates(3, lr=0.0, lr_decay_style="linear", min_lr=0.1, lr_warmup_init=0.1) == [0.0, 0.0, 0.0]
