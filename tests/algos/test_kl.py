from __future__ import annotations

import math

import pytest
import torch

from burnish.algos import kl
from burnish.errors import UserError

BASES = ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full"]


@pytest.fixture
def log_probs():
    generator = torch.Generator().manual_seed(2)
    policy, reference = (torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(2))
    return policy.requires_grad_(), reference


def value(name, x):
    formulas = {
        "kl": x,
        "abs": abs(x),
        "mse": x * x / 2,
        "low_var_kl": min(max(math.exp(-x) + x - 1, -10), 10),
    }
    return formulas[{"k1": "kl", "k2": "mse", "k3": "low_var_kl"}.get(name, name)]


@pytest.mark.parametrize("name", [name for name in BASES if name != "full"])
@pytest.mark.parametrize("plus", ["", "+"])
def test_value_is_the_formula(name, plus, log_probs):
    policy, reference = log_probs
    expected = [value(name, x) for x in (policy - reference).tolist()]
    assert kl.kl_penalty(policy, reference, name + plus).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", BASES)
def test_plus_has_the_gradient_of_k2(name, log_probs):
    policy, reference = log_probs
    logits = [torch.randn(9, 4, dtype=torch.float64) for _ in range(2)]
    kl.kl_penalty(policy, reference, f"{name}+", *logits).sum().backward()
    torch.testing.assert_close(policy.grad, (policy - reference).detach())


def test_names_are_the_bases_with_and_without_plus():
    assert set(kl.KL_ESTIMATORS.names()) == {name + plus for name in BASES for plus in ("", "+")}


def test_full_kl_is_the_sum_over_the_vocabulary():
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    p, q = a.exp() / a.exp().sum(-1, keepdim=True), b.exp() / b.exp().sum(-1, keepdim=True)
    expected = [sum(p[i, v] * math.log(p[i, v] / q[i, v]) for v in range(5)) for i in range(3)]
    torch.testing.assert_close(kl.full_kl(a, b), torch.stack(expected))
    torch.testing.assert_close(kl.kl_penalty(p, q, "full", a, b), kl.full_kl(a, b))
    assert kl.full_kl(a, a).abs().max() < 1e-12


def test_full_kl_of_a_token_that_cannot_be_taken_is_finite_with_a_finite_gradient():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    result = kl.full_kl(logits, torch.tensor([[0.5, 0.5, -torch.inf]]))
    result.sum().backward()
    assert result.isfinite().all() and logits.grad.isfinite().all()


def test_full_without_logits_says_so():
    with pytest.raises(ValueError, match="needs the logits"):
        kl.kl_penalty(torch.zeros(1), torch.zeros(1), "full")
    with pytest.raises(UserError, match="low_var_kl"):
        kl.kl_penalty(torch.zeros(1), torch.zeros(1), "low_var")


def test_k3_is_finite_at_extremes():
    assert kl.k3(torch.tensor([-1000.0, 1000.0]), torch.zeros(2)).tolist() == [10, 10]


def test_controllers_keep_their_state():
    fixed = kl.KL_CONTROLLERS["fixed"].load()(kl_coef=0.3, target_kl=0.1, horizon=100)
    fixed.update(5.0, 1000)
    assert fixed.value == 0.3
    adaptive = kl.KL_CONTROLLERS["adaptive"].load()(kl_coef=0.3, target_kl=0.1, horizon=100)
    adaptive.update(0.11, 10)
    assert adaptive.value == pytest.approx(0.3 * (1 + 0.1 * 10 / 100))
    resumed = kl.AdaptiveKL(9.9, 0.1, 100)
    resumed.load_state_dict(adaptive.state_dict())
    assert resumed.value == adaptive.value
    with pytest.raises(ValueError, match="positive"):
        kl.AdaptiveKL(0.1, target_kl=0.0)


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "abs"])
def test_a_clamp_holds_the_value_and_stops_the_gradient_outside(name):
    policy = torch.tensor([-30.0, -1.0, 30.0], requires_grad=True)
    plain = kl.kl_penalty(policy, torch.zeros(3), name)
    found = kl.kl_penalty(policy, torch.zeros(3), name, clamp=0.75)
    assert found.tolist() == [max(-0.75, min(0.75, x)) for x in plain.tolist()]
    found.sum().backward()
    assert policy.grad[0] == policy.grad[2] == 0


def test_an_exact_kl_may_be_given(log_probs):
    policy, reference = log_probs
    exact = torch.rand(9, dtype=torch.float64)
    assert kl.kl_penalty(policy, reference, "full", exact=exact) is exact
    straight = kl.kl_penalty(policy, reference, "full+", exact=exact)
    torch.testing.assert_close(straight.detach(), exact)
    straight.sum().backward()
    torch.testing.assert_close(policy.grad, (policy - reference).detach())
