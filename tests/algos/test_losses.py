"""Every loss against loops over rows in float64, written from the formulas."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch

from burnish.algos.aggregate import aggregate, totals
from burnish.algos.losses import LOSSES, LossOptions, entropy_from_logits, value_loss, weighted
from burnish.algos.masked import add_metrics

OPTIONS = LossOptions(
    clip_low=0.2, clip_high=0.3, clip_c=1.5, tau_pos=1.2, tau_neg=0.7, kl_cov_ratio=0.2, ppo_kl_coef=0.4
)
INVARIANT = [name for name in LOSSES.names() if not LOSSES[name].metadata.get("couples_rows")]


@pytest.fixture
def inputs(columns):
    log_probs = -columns.noise().abs() - 0.1
    old = (log_probs + columns.noise(0.8)).clamp(max=-0.01)
    return log_probs, old, columns.noise(), columns.mask, columns.lengths


def clamp(x, low, high):
    return min(max(x, low), high)


def token_reference(name, logp, old, adv):
    o = OPTIONS
    ratio = math.exp(clamp(logp - old, -20, 20))
    ppo = max(-adv * ratio, -adv * clamp(ratio, 1 - o.clip_low, 1 + o.clip_high))
    tau = o.tau_pos if adv > 0 else o.tau_neg
    p, q = math.exp(logp), math.exp(old)
    distance = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    outside_tv = p - q > o.clip_high if adv > 0 else q - p > o.clip_low
    outside_kl = p > q and distance > o.clip_high if adv > 0 else p < q and distance > o.clip_low
    step = -min(ratio, o.clip_c) * adv * logp
    return {
        "dppo_tv": 0.0 if outside_tv else step,
        "dppo_kl": 0.0 if outside_kl else step,
        "vanilla": min(ppo, -adv * o.clip_c) if adv < 0 else ppo,
        "gpg": -logp * adv,
        "cispo": -clamp(ratio, 1 - o.clip_low, 1 + o.clip_high) * adv * logp,
        "sapo": -adv * 4 / tau / (1 + math.exp(-tau * (ratio - 1))),
    }[name]


def row_reference(name, logp, old, adv):
    """Loss of each token of one row that has no masked tokens."""
    o, n = OPTIONS, len(logp)
    if name == "gspo":
        ratio = math.exp(min(10, sum(a - b for a, b in zip(logp, old, strict=True)) / n))
        return [max(-a * ratio, -a * clamp(ratio, 1 - o.clip_low, 1 + o.clip_high)) for a in adv]
    if name in ("geo_mean", "gmpo"):
        held = []
        for a, b, advantage in zip(logp, old, adv, strict=True):
            d, sign = clamp(a - b, -20, 20), math.copysign(1, advantage)
            held.append(sign * min(sign * d, sign * clamp(d, -o.clip_low, o.clip_high)))
        return [-sum(adv) / n * math.exp(sum(held) / n)] * n
    return [token_reference(name, *token) for token in zip(logp, old, adv, strict=True)]


@pytest.mark.parametrize("name", INVARIANT)
def test_loss_is_its_formula(name, inputs, columns):
    loss, _ = LOSSES[name].load()(*inputs, OPTIONS)
    for got, logp, old, adv, mask in zip(*map(columns.rows, (loss, *inputs[:4])), strict=True):
        kept = [t for t, m in enumerate(mask) if m]
        if kept:
            expected = row_reference(name, *([row[t] for t in kept] for row in (logp, old, adv)))
            assert [got[t] for t in kept] == pytest.approx(expected)


def share(flags, mask):
    kept = [flag for flag, m in zip(flags, mask.tolist(), strict=True) if m]
    return sum(kept) / len(kept)


def test_vanilla_metrics_are_shares_of_tokens(inputs):
    logp, old, adv, mask, _ = inputs
    _, metrics = LOSSES["vanilla"].load()(*inputs, OPTIONS)
    ratio = (logp - old).exp()
    free, bound = -adv * ratio, -adv * ratio.clamp(0.8, 1.3)
    lower = (adv < 0) & (torch.maximum(free, bound) > -adv * 1.5)
    assert metrics["pg_clipfrac"].mean() == pytest.approx(share((bound > free).tolist(), mask))
    assert metrics["pg_clipfrac_lower"].mean() == pytest.approx(share(lower.tolist(), mask))
    assert metrics["ppo_kl"].mean() == pytest.approx(share((old - logp).tolist(), mask), rel=1e-5)
    assert 0 < metrics["pg_clipfrac_lower"].mean() < 1


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_gives_gradient_inside_the_trust_region_only(name):
    """Old probability 1/2. Up by 0.4 or down by 0.4 leaves the region, in the direction of the update only."""
    new = torch.tensor([0.9, 0.9, 0.1, 0.1, 0.55])
    adv = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    logp = new.log().requires_grad_()
    columns = (logp, torch.full((5,), 0.5).log(), adv, torch.ones(5), torch.tensor([5]))
    loss, metrics = LOSSES[name].load()(*columns, LossOptions(clip_low=0.2, clip_high=0.2, clip_c=1.5))
    loss.sum().backward()
    assert logp.grad.tolist() == pytest.approx([0, 1.5, -0.2, 0, -1.1])
    assert metrics["pg_clipfrac"].mean() == pytest.approx(2 / 5)
    assert metrics["pg_clipfrac_lower"].mean() == pytest.approx(1 / 5)  # ratio 1.8 of the second, capped at 1.5
    free, metrics = LOSSES[name].load()(*columns, LossOptions(clip_c=None))
    assert free[1].item() == pytest.approx(1.8 * math.log(0.9))
    assert "pg_clipfrac_lower" not in metrics


def test_importance_weights_multiply_tokens_except_in_geo_mean(inputs, columns):
    per_token, mask, lengths = inputs[0], inputs[3], inputs[4]
    weights = columns.noise().abs().masked_fill(mask == 0, torch.nan)
    plain = weighted(LOSSES["vanilla"], per_token, weights, mask, lengths)
    torch.testing.assert_close(plain, torch.where(mask == 1, per_token * weights, 0.0))
    geometric = weighted(LOSSES["geo_mean"], per_token, weights, mask, lengths)
    for got, loss, row, keep in zip(*map(columns.rows, (geometric, per_token, weights, mask)), strict=True):
        kept = [t for t, m in enumerate(keep) if m]
        mean = math.exp(sum(math.log(row[t]) for t in kept) / len(kept)) if kept else 0.0
        assert [got[t] for t in kept] == pytest.approx([loss[t] * mean for t in kept], rel=1e-6)


def test_dual_clip_is_off_without_c():
    columns = torch.tensor([0.0]), torch.tensor([-3.0]), torch.tensor([-1.0]), torch.ones(1), torch.tensor([1])
    capped, _ = LOSSES["vanilla"].load()(*columns, LossOptions(clip_c=3.0))
    free, metrics = LOSSES["vanilla"].load()(*columns, LossOptions(clip_c=None))
    assert capped.item() == 3.0
    assert free.item() == pytest.approx(math.exp(3))
    assert "pg_clipfrac_lower" not in metrics


def test_gspo_gives_every_token_of_a_row_its_own_gradient():
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    old, adv = torch.tensor([-1.1, -2.1]), torch.tensor([1.0, 3.0])
    loss, _ = LOSSES["gspo"].load()(logp, old, adv, torch.ones(2), torch.tensor([2]), OPTIONS)
    loss.sum().backward()
    assert logp.grad.tolist() == pytest.approx([-math.exp(0.1), -3 * math.exp(0.1)])


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    logp = torch.tensor([0.0], requires_grad=True)
    one = torch.ones(1)
    loss, _ = LOSSES["cispo"].load()(logp, torch.tensor([-5.0]), one, one, torch.tensor([1]), OPTIONS)
    loss.sum().backward()
    assert logp.grad.item() == pytest.approx(-1.3)


def total_loss_and_gradient(name, inputs, splits):
    """Loss, gradient and metrics of the mini-batch when its rows go in these micro-batches."""
    logp, lengths = inputs[0].clone().requires_grad_(), inputs[4]
    rows = [column.split(lengths.tolist()) for column in (logp, *inputs[1:4])]
    mode = LOSSES[name].metadata.get("aggregation", "token-mean")
    total, loss, metrics = totals(inputs[3], lengths), 0.0, []
    for part in splits:
        columns = [torch.cat([column[i] for i in part]) for column in rows]
        per_token, counted = LOSSES[name].load()(*columns, lengths[list(part)], OPTIONS)
        loss = loss + aggregate(per_token, columns[3], lengths[list(part)], mode, total)
        metrics.append(counted)
    loss.backward()
    return loss.item(), logp.grad, {key: value.mean() for key, value in add_metrics(metrics).items()}


@pytest.mark.parametrize("name", INVARIANT)
@pytest.mark.parametrize("splits", [[[9, 3, 1, 0, 2, 4, 5, 8, 7, 6]], [[0, 9], [5], [1, 2, 3, 4], [8, 6, 7]]])
def test_order_and_split_of_rows_change_nothing(name, splits, inputs):
    loss, gradient, metrics = total_loss_and_gradient(name, inputs, [range(10)])
    other_loss, other_gradient, other_metrics = total_loss_and_gradient(name, inputs, splits)
    assert other_loss == pytest.approx(loss)
    assert other_metrics == pytest.approx(metrics, rel=1e-5)
    torch.testing.assert_close(other_gradient, gradient)


@pytest.mark.parametrize("name", LOSSES.names())
def test_nan_outside_the_mask_reaches_neither_loss_nor_gradient(name, inputs):
    clean = total_loss_and_gradient(name, inputs, [range(10)])
    outside = inputs[3] == 0
    dirty = tuple(column.masked_fill(outside, float("nan")) for column in inputs[:3]) + inputs[3:]
    loss, gradient, metrics = total_loss_and_gradient(name, dirty, [range(10)])
    assert loss == pytest.approx(clean[0]) and metrics == pytest.approx(clean[2])
    torch.testing.assert_close(gradient, clean[1])


def covariance(inputs):
    logp, _, adv, mask, _ = inputs
    kept = mask.bool()
    return ((adv - adv[kept].mean()) * (logp - logp[kept].mean())).masked_fill(~kept, -math.inf)


def test_kl_cov_penalizes_the_tokens_of_highest_covariance(inputs):
    logp, old, adv, mask, _ = inputs
    loss, _ = LOSSES["kl_cov"].load()(*inputs, OPTIONS)
    extra = loss + adv * (logp - old).exp()
    count = int(0.2 * int(mask.sum()))
    chosen = covariance(inputs).argsort(descending=True)[:count]
    expected = torch.zeros_like(loss)
    expected[chosen] = 0.4 * (logp - old)[chosen].abs()
    torch.testing.assert_close(extra[mask.bool()], expected[mask.bool()])
    none, _ = LOSSES["kl_cov"].load()(*inputs, LossOptions(kl_cov_ratio=0.0))
    torch.testing.assert_close((none + adv * (logp - old).exp())[mask.bool()], torch.zeros(int(mask.sum())).double())


def test_clip_cov_drops_some_unclipped_tokens_within_the_bounds_by_seed(inputs):
    logp, old, adv, mask, _ = inputs
    options = LossOptions(clip_cov_ratio=0.1, clip_cov_lb=0.05, clip_cov_ub=2.0, seed=1)
    loss, metrics = LOSSES["clip_cov"].load()(*inputs, options)
    ratio = (logp - old).exp()
    free, bound = -adv * ratio, -adv * ratio.clamp(0.8, 1.2)
    plain, cov = torch.maximum(free, bound), covariance(inputs)
    eligible = mask.bool() & (bound <= free) & (cov > 0.05) & (cov < 2.0)
    dropped = (loss == 0) & mask.bool()
    count = int(0.1 * int(mask.sum()))
    assert int(dropped.sum()) == count < int(eligible.sum())
    assert bool(eligible[dropped].all())
    kept = mask.bool() & ~dropped
    torch.testing.assert_close(loss[kept], plain[kept])
    assert metrics["pg_clipfrac"].mean() == pytest.approx(count / int(mask.sum()))
    again, _ = LOSSES["clip_cov"].load()(*inputs, options)
    assert torch.equal(again, loss)
    others = [LOSSES["clip_cov"].load()(*inputs, replace(options, seed=seed))[0] for seed in range(2, 9)]
    assert any(not torch.equal(other, loss) for other in others)


def test_clip_cov_takes_a_generator(inputs):
    options = LossOptions(clip_cov_lb=0.0, clip_cov_ratio=0.1, seed=torch.Generator().manual_seed(4))
    first, _ = LOSSES["clip_cov"].load()(*inputs, options)
    fixed, _ = LOSSES["clip_cov"].load()(*inputs, LossOptions(clip_cov_lb=0.0, clip_cov_ratio=0.1, seed=4))
    assert torch.equal(first, fixed)


@pytest.mark.parametrize("name", LOSSES.names())
def test_an_empty_micro_batch_has_loss_zero(name):
    empty = torch.empty(0)
    lengths = torch.tensor([0, 0])
    loss, metrics = LOSSES[name].load()(empty, empty, empty, empty, lengths, OPTIONS)
    assert loss.shape == (0,)
    assert all(value.mean() == 0 for value in metrics.values())


def test_value_loss_is_its_formula(inputs):
    values, old, returns, mask, _ = inputs
    loss, metrics = value_loss(values, returns, old, mask, 0.3)
    expected, clipped = [], []
    for v, o, g in zip(values.tolist(), old.tolist(), returns.tolist(), strict=True):
        free, bound = (v - g) ** 2, (clamp(v, o - 0.3, o + 0.3) - g) ** 2
        expected.append(max(free, bound) / 2)
        clipped.append(bound > free)
    assert loss.tolist() == pytest.approx(expected)
    assert metrics["vf_clipfrac"].mean() == pytest.approx(share(clipped, mask))


def test_entropy_is_minus_p_log_p_with_a_finite_gradient():
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    p = logits.softmax(-1)
    torch.testing.assert_close(entropy_from_logits(logits), -(p * p.log()).sum(-1))
    barred = torch.tensor([[1.0, 1.0, -torch.inf]], requires_grad=True)
    entropy = entropy_from_logits(barred)
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(math.log(2))
    assert barred.grad.isfinite().all()


def test_one_long_row_costs_neither_memory_nor_time(long_row, largest_tensor):
    old, advantages = long_row.noise(), long_row.noise()
    log_probs = (old + long_row.noise(0.1)).requires_grad_()
    total = totals(long_row.mask, long_row.lengths)
    start = time.perf_counter()
    with largest_tensor:
        for name in LOSSES.names():
            loss, _ = LOSSES[name].load()(log_probs, old, advantages, long_row.mask, long_row.lengths, OPTIONS)
            aggregate(loss, long_row.mask, long_row.lengths, "seq-mean-token-mean", total).backward()
    assert time.perf_counter() - start < 15
    assert largest_tensor.entries <= len(old)
    assert log_probs.grad.isfinite().all()
