"""verl's own numbers (README.md says where they are from and where we differ on purpose)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from burnish.algos import schedules
from burnish.algos.batches import balanced_partitions
from burnish.algos.losses import LossOptions, entropy_from_logits
from burnish.algos.masked import masked_mean, masked_var, whiten
from burnish.compat import verl_core_algos as verl

REWARDS = torch.tensor(
    [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.float32
)
MASK = torch.tensor(
    [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.float32
)
UID = np.array(["a", "a", "a", "b", "b", "c"], dtype=object)
VALUES = torch.tensor(
    [[0.1, 0.2, 0.3, 0], [0.4, 0.3, 0.2, 0.1], [0, 0.1, 0, 0], [0.5] * 4, [0.2, 0.1, 0, 0], [0.9, 0, 0, 0]]
)
CONFIG = SimpleNamespace(gamma=0.9, norm_adv_by_std_in_grpo=True)

OLD = torch.tensor([[-1, -2, -0.5, -3], [-0.7, -0.1, -1.1, -2]])
NEW = torch.tensor([[-0.5, -2.6, -0.45, -1], [-0.9, -0.4, -0.2, -0.3]])
ADVANTAGE = torch.tensor([[1.0] * 4, [-0.5] * 4])
LOSS_MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.float32)
CLIP = {"cliprange_low": 0.2, "cliprange_high": 0.28, "clip_ratio_c": 3.0}
OPTIONS = LossOptions(clip_low=0.2, clip_high=0.28, clip_c=3.0)


def near(expected, tolerance=1e-6):
    return pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [0.999998, -0.999998, 0, 0.707106, -0.707106, 0.999999]),
        ("grpo_vectorized", [0.999998, -0.999998, 0, 0.707106, -0.707106, 0.999999]),
        ("rloo", [0.75, -0.75, 0, 2, -2, 1]),
        ("rloo_vectorized", [0.75, -0.75, 0, 2, -2, 0]),
        ("opo", [0.555556, -0.444444, 0.055556, 0.666667, -1.333333, 1]),
        ("gpg", [0.75, -0.75, 0, 1.5, -1.5, 1.5]),
        ("reinforce_plus_plus_baseline", [0.46047, -0.879079, -0.209305, 1.130245, -1.548854, 1.130245]),
    ],
)
def test_one_advantage_per_row(name, expected):
    advantages, returns = verl.get_adv_estimator_fn(name)(REWARDS, MASK, UID)
    assert advantages[:, 0].tolist() == near(expected)
    torch.testing.assert_close(advantages, advantages[:, :1] * MASK)
    assert torch.equal(advantages, returns)


def test_grpo_passk_refuses_the_singleton():
    with pytest.raises(ValueError):
        verl.compute_grpo_passk_outcome_advantage(REWARDS, MASK, UID)


def test_reinforce_plus_plus():
    advantages, returns = verl.compute_reinforce_plus_plus_outcome_advantage(REWARDS, MASK, config=CONFIG)
    assert advantages[0].tolist() == near([0.124954, 0.251489, 0.392084, 0])
    assert returns[0].tolist() == near([0.81, 0.9, 1, 0])


def test_reinforce_plus_plus_carries_returns_across_observations():
    rewards, mask = torch.tensor([[0.0, 0, 0, 1]]), torch.tensor([[1.0, 0, 0, 1]])
    _, returns = verl.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, gamma=0.9)
    assert returns[0].tolist() == near([0.9, 0, 0, 1])


def test_gae():
    advantages, returns = verl.compute_gae_advantage_return(REWARDS, VALUES, MASK, gamma=0.9, lam=0.95)
    assert advantages[0].tolist() == near([0.451291, 0.480525, 0.534911, 0])  # verl has -.673666 on the masked slot
    assert returns[0].tolist() == near([0.751568, 0.8685, 1, 0])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 0.094155),
        ("seq-mean-token-sum", 0.329542),
        ("seq-mean-token-mean", -0.037618),
        ("seq-mean-token-sum-norm", 0.082386),
        ("token-sum", 0.659085),
    ],
)
def test_ppo_loss(mode, expected):
    loss, clipfrac, ppo_kl, lower = verl.compute_policy_loss(OLD, NEW, ADVANTAGE, LOSS_MASK, **CLIP, loss_agg_mode=mode)
    assert loss.item() == near(expected)
    assert [clipfrac.item(), lower.item(), ppo_kl.item()] == near([0.285714, 0.142857, -0.292857])


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("gspo", "token-mean", 0.0615),
        ("gspo", "seq-mean-token-mean", -0.069121),
        ("sapo", "token-mean", -0.396627),
        ("gpg", "token-mean", 0.378571),
        ("geo_mean", "token-mean", -0.023652),
        ("cispo", "token-mean", 0.334949),
    ],
)
def test_other_policy_losses(name, mode, expected):
    loss, _ = verl.policy_loss(name, OLD, NEW, ADVANTAGE, LOSS_MASK, mode, OPTIONS)
    assert loss.item() == near(expected)


def test_value_loss():
    loss, clipfrac = verl.compute_value_loss(NEW, ADVANTAGE, OLD, LOSS_MASK, cliprange_value=0.5)
    assert loss.item() == near(1.326607)
    assert clipfrac.item() == near(0.142857)


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [
        ("kl", [0.2, -0.5, 0], [1, 1, 1]),
        ("abs", [0.2, 0.5, 0], [1, -1, 0]),
        ("k2", [0.02, 0.125, 0], [0.2, -0.5, 0]),
        ("k3", [0.018731, 0.148721, 0], [0.181269, -0.648721, 0]),
        ("k3+", [0.018731, 0.148721, 0], [0.2, -0.5, 0]),
        ("kl+", [0.2, -0.5, 0], [0.2, -0.5, 0]),
        ("abs+", [0.2, 0.5, 0], [0.2, -0.5, 0]),
        ("mse+", [0.02, 0.125, 0], [0.2, -0.5, 0]),
    ],
)
def test_kl_estimators(name, value, gradient):
    log_prob = torch.tensor([-1, -2, -0.5], requires_grad=True)
    penalty = verl.kl_penalty(log_prob, torch.tensor([-1.2, -1.5, -0.5]), name)
    penalty.sum().backward()
    assert penalty.tolist() == near(value)
    assert log_prob.grad.tolist() == near(gradient)


def test_adaptive_kl_controller():
    controller = verl.AdaptiveKLController(init_kl_coef=0.001, target_kl=0.1, horizon=1e4)
    seen = []
    for measured in (0.5, 0.0, 0.11):
        controller.update(current_kl=measured, n_steps=1024)
        seen.append(controller.value)
    assert seen == near([0.00102048, 0.0009995806, 0.0010098163], 1e-10)


def test_whitening_and_entropy():
    x, mask = torch.tensor([1.0, 2, 3, 4]), torch.tensor([1, 1, 0, 1])
    assert whiten(x, mask).tolist() == near([-0.872872, -0.218218, 0, 1.091089])
    everywhere = (x - masked_mean(x, mask)) * torch.rsqrt(masked_var(x, mask) + 1e-8)
    assert everywhere.tolist() == near([-0.872872, -0.218218, 0.436436, 1.091089])
    assert entropy_from_logits(torch.tensor([1.0, 2, 3])).item() == near(0.832396)


LENGTHS = [100, 20, 30, 90, 80, 10, 60, 50]


@pytest.mark.parametrize(
    ("k", "equal_size", "expected"),
    [
        (2, True, [[0, 5, 6, 7], [1, 2, 3, 4]]),
        (4, True, [[6, 7], [2, 4], [1, 3], [0, 5]]),
        (3, False, [[4, 5, 6], [0, 1, 2], [3, 7]]),
    ],
)
def test_balanced_partitions(k, equal_size, expected):
    assert balanced_partitions(LENGTHS, k, equal_size) == expected


@pytest.mark.parametrize(
    ("name", "settings", "after_warm_up"),
    [
        ("constant", {"warmup": 3, "total": 10}, [1, 1]),
        (
            "cosine",
            {"warmup": 2, "total": 10, "min_ratio": 0.1},
            [1, 0.9657, 0.8682, 0.7222, 0.55, 0.3778, 0.2318, 0.1343, 0.1, 0.1],
        ),
        ("wsd", {"warmup": 2, "total": 12}, [1] * 10 + [0, 0]),
    ],
)
def test_learning_rate_schedules(name, settings, after_warm_up):
    factor = schedules.SCHEDULES[name].load()
    warmup = settings["warmup"]
    begin = [(step + 1) / warmup for step in range(warmup)]  # verl: step / warmup, so 0 at first
    got = [factor(step, **settings) for step in range(warmup + len(after_warm_up))]
    assert got == near(begin + after_warm_up, 5e-5)
