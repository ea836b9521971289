"""Weights and rejection against loops over rows in float64, written from the formulas."""

from __future__ import annotations

import math

import pytest
import torch

from burnish.algos.correction import REJECTIONS, Rejection, Weighting, correct
from burnish.config.thresholds import RATIO_REJECTIONS
from burnish.errors import UserError


@pytest.fixture
def case(columns):
    """The trainer's and the engine's log-probs, with gaps large enough to be cut; NaN where nobody may look."""
    rollout = -columns.noise().abs() - 0.1
    trainer = rollout + columns.noise(0.6)
    unread = columns.mask == 0
    return trainer.masked_fill(unread, torch.nan), rollout.masked_fill(unread, torch.nan), columns


def gaps(case):
    """x of each row's own tokens, and where they stand."""
    trainer, rollout, columns = case
    masks = columns.rows(columns.mask)
    pairs = zip(columns.rows(trainer), columns.rows(rollout), strict=True)
    rows = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    return rows, masks


def ran(case, **asked):
    trainer, rollout, columns = case
    return correct(trainer, rollout, columns.mask, columns.lengths, **asked)


def own_sum(row, mask):
    return sum(x for x, m in zip(row, mask, strict=True) if m)


def ref_weights(case, level, low, high, drop):
    rows, masks = gaps(case)
    out = []
    for row, mask in zip(rows, masks, strict=True):
        for x, m in zip(row, mask, strict=True):
            if not m:
                out.append(0.0)
                continue
            w = math.exp(x if level == "token" else own_sum(row, mask))
            out.append(w if low <= w <= high else (0.0 if drop else min(max(w, low), high)))
    return out


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("low", "high", "drop"), [(0.0, 1.3, False), (0.7, 1.3, False), (0.7, 1.3, True)])
def test_weights_are_their_formula(case, level, low, high, drop):
    found = ran(case, weighting=Weighting(level, low, high, drop))
    expected = ref_weights(case, level, low, high, drop)
    assert found.weights.tolist() == pytest.approx(expected)
    assert found.kept is None
    own = [w for w, m in zip(expected, case[2].mask.tolist(), strict=True) if m]
    assert found.metrics["rollout_corr/rollout_is_mean"] == pytest.approx(sum(own) / len(own))
    assert 0 < found.metrics["rollout_corr/rollout_is_truncated"] < 1
    assert found.metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(
        sum(own) ** 2 / sum(w * w for w in own) / len(own)
    )


@pytest.mark.parametrize("bound", [0.5, 5.0])
def test_bounds_are_inclusive(bound):
    """Of a weight exactly at a bound nothing is taken."""
    trainer = torch.tensor([math.log(bound)], dtype=torch.float64)
    columns = (trainer, torch.zeros(1, dtype=torch.float64), torch.ones(1), torch.tensor([1]))
    exact = math.exp(math.log(bound))
    low, high = (exact, 5.0) if bound < 1 else (0.5, exact)
    assert correct(*columns, Weighting(low=low, high=high, drop=True)).weights.tolist() == [exact]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_normalized_weights_have_mean_one(case, level):
    columns = case[2]
    plain = ran(case, weighting=Weighting(level, high=1.5)).weights
    found = ran(case, weighting=Weighting(level, high=1.5, normalize=True))
    own = columns.mask.bool()
    torch.testing.assert_close(found.weights / plain.where(own, torch.ones_like(plain)), (own / factor(found)))
    per_row = [
        w[m.bool()] for w, m in zip(found.weights.split(columns.lengths.tolist()), split_mask(columns), strict=True)
    ]
    means = torch.stack([w.mean() for w in per_row if len(w)])
    whole = found.weights[own].mean() if level == "token" else means.mean()
    assert whole.item() == pytest.approx(1.0)


def factor(found):
    return torch.tensor(found.metrics["rollout_corr/rollout_is_batch_norm_factor"], dtype=torch.float64)


def split_mask(columns):
    return columns.mask.split(columns.lengths.tolist())


DIVERGENCES = {
    "k1": lambda x: -x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.exp(x) - 1 - x,
    "ratio": lambda x: x,
}
REDUCTIONS = {
    "seq_sum": sum,
    "seq_mean": lambda values: sum(values) / len(values),
    "seq_max": max,
}
OLDER = {"token": ("token", "ratio"), "sequence": ("seq_sum", "ratio"), "geometric": ("seq_mean", "ratio")}


def ref_kept(case, measure, low, high):
    level, _, name = measure.rpartition("_")
    level, name = OLDER.get(measure, (level, name))
    rows, masks = gaps(case)
    out = []
    for row, mask in zip(rows, masks, strict=True):
        values = [DIVERGENCES[name](x) for x, m in zip(row, mask, strict=True) if m]
        for x, m in zip(row, mask, strict=True):
            if level == "token":
                statistic = DIVERGENCES[name](x) if m else 0.0
            else:
                statistic = REDUCTIONS[level](values) if values else 0.0
            if name in ("k1", "ratio"):
                statistic = math.exp(statistic)
            out.append(1.0 if (low is None or statistic >= low) and statistic <= high else 0.0)
    return out


def test_the_config_knows_which_measures_are_ratios():
    assert {name for name in REJECTIONS.names() if REJECTIONS[name].metadata["ratio"]} == RATIO_REJECTIONS


@pytest.mark.parametrize("measure", REJECTIONS.names())
def test_rejection_is_its_formula(case, measure):
    low, high = (0.7, 1.6) if measure in RATIO_REJECTIONS else (None, 0.4)
    found = ran(case, rejections=[Rejection(measure, low, high)])
    own = case[2].mask.bool()
    expected = torch.tensor(ref_kept(case, measure, low, high))
    assert torch.equal(found.kept[own].double(), expected[own].double())
    assert found.weights is None
    share = 1 - float(found.kept[own].mean())
    assert 0 < share < 1, "the thresholds of the test decide nothing"
    assert found.metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(share)
    assert found.metrics[f"rollout_corr/rollout_rs_{measure}_masked_fraction"] == pytest.approx(share)


@pytest.mark.parametrize("measure", sorted(RATIO_REJECTIONS))
def test_a_single_ratio_means_its_reciprocal_too(case, measure):
    one, pair = Rejection(measure, None, 1.5), Rejection(measure, 1 / 1.5, 1.5)
    assert torch.equal(ran(case, rejections=[one]).kept, ran(case, rejections=[pair]).kept)


def test_a_token_must_pass_every_measure(case):
    one, other = Rejection("token_k2", None, 0.1), Rejection("seq_max_k3", None, 0.4)
    both = ran(case, rejections=[one, other])
    alone = [ran(case, rejections=[each]).kept for each in (one, other)]
    assert torch.equal(both.kept, alone[0] * alone[1])
    assert not torch.equal(both.kept, alone[0]) and not torch.equal(both.kept, alone[1])


def test_one_unlikely_token_vetoes_its_row(case):
    rows, masks = gaps(case)
    found = ran(case, veto=0.6)
    both = zip(rows, masks, strict=True)
    lowest = [min([math.exp(x) for x, m in zip(*row, strict=True) if m], default=1.0) for row in both]
    expected = [0.0 if low < 0.6 else 1.0 for low, row in zip(lowest, rows, strict=True) for _ in row]
    assert found.kept.tolist() == expected and 0 < sum(expected) < len(expected)
    vetoed = sum(low < 0.6 for low in lowest) / len(lowest)
    assert found.metrics["rollout_corr/rollout_is_veto_fraction"] == pytest.approx(vetoed)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_permuting_rows_permutes_the_correction(case, level):
    trainer, rollout, columns = case
    order = torch.randperm(len(columns.lengths), generator=torch.Generator().manual_seed(3))

    def moved(flat):
        return torch.cat([flat.split(columns.lengths.tolist())[i] for i in order])

    asked = {"weighting": Weighting(level, 0.5, 1.5, normalize=True), "rejections": [Rejection("geometric", 0.9, 1.2)]}
    there = ran(case, **asked)
    here = correct(moved(trainer), moved(rollout), moved(columns.mask), columns.lengths[order], **asked)
    torch.testing.assert_close(here.weights, moved(there.weights))
    assert torch.equal(here.kept, moved(there.kept))


def test_equal_probabilities_change_nothing(case):
    trainer, _, columns = case
    every = [Rejection(name, None, 1.001) for name in REJECTIONS.names()]
    same = (trainer, trainer, columns.mask, columns.lengths)
    found = correct(*same, Weighting("sequence", normalize=True), every, veto=0.99)
    assert torch.equal(found.weights, columns.mask.double())
    assert found.kept.min() == 1


def test_an_impossible_token_is_held(case):
    """A log-prob of -inf on either side gives no NaN and no infinity."""
    columns = (torch.tensor([-torch.inf, -1.0]), torch.tensor([-1.0, -torch.inf]), torch.ones(2), torch.tensor([1, 1]))
    found = correct(*columns, Weighting(high=3.0), [Rejection("token_k3", None, 1.0)])
    assert found.weights.tolist() == pytest.approx([0.0, 3.0], abs=1e-6)
    assert found.kept.tolist() == [0.0, 0.0]


def test_no_tokens_at_all():
    nothing = torch.empty(0)
    found = correct(nothing, nothing, nothing, torch.zeros(2, dtype=torch.int64), Weighting(normalize=True), veto=0.5)
    assert found.weights.shape == found.kept.shape == (0,)


def test_gradients_do_not_pass(case):
    trainer, rollout, columns = case
    leaf = trainer.clone().requires_grad_()
    assert not correct(leaf, rollout, columns.mask, columns.lengths, Weighting()).weights.requires_grad


def test_one_long_row_costs_no_memory(long_row, largest_tensor):
    trainer, rollout = long_row.noise(0.1), long_row.noise(0.1)
    every = [Rejection(name, None, 2.0) for name in REJECTIONS.names()]
    with largest_tensor:
        for level in ("token", "sequence"):
            correct(trainer, rollout, long_row.mask, long_row.lengths, Weighting(level, normalize=True), every, 0.1)
    assert largest_tensor.entries <= len(trainer)


def test_an_unknown_measure_is_named():
    with pytest.raises(UserError, match="Did you mean 'geometric'"):
        REJECTIONS["geometrik"]
