"""verl's correction functions with padded arguments: its documented behavior, and the flat functions' numbers."""

from __future__ import annotations

import math

import pytest
import torch

from burnish.algos.correction import Rejection, Weighting, correct
from burnish.compat import verl_core_algos as verl

MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
OLD = torch.tensor([[-1.0, -2.0, 9.0], [-0.5, -3.0, -1.0]])
ROLLOUT = torch.tensor([[-2.0, -1.8, -7.0], [-0.5, -1.0, -1.2]])
GAP = (OLD - ROLLOUT) * MASK  # 1, -0.2 | 0, -2, 0.2


def test_token_weights_are_cut_from_above():
    weights, metrics = verl.compute_rollout_correction_weights(GAP, MASK, "token", 2.0)
    expected = torch.tensor([[2.0, math.exp(-0.2), 0.0], [1.0, math.exp(-2.0), math.exp(0.2)]])
    torch.testing.assert_close(weights, expected)
    assert metrics["rollout_corr/rollout_is_truncated"] == pytest.approx(1 / 5)


def test_sequence_weights_are_the_product():
    weights, _ = verl.compute_rollout_correction_weights(GAP, MASK, "sequence", 2.0)
    torch.testing.assert_close(weights[0], torch.tensor([2.0, 2.0, 0.0]))
    torch.testing.assert_close(weights[1], torch.full((3,), math.exp(-1.8)))


def test_a_pair_of_thresholds_drops_what_is_outside():
    weights, _ = verl.compute_rollout_correction_weights(GAP, MASK, "token", "0.5_5.0")
    expected = torch.tensor([[math.e, math.exp(-0.2), 0.0], [1.0, 0.0, math.exp(0.2)]])
    torch.testing.assert_close(weights, expected)


def test_rejection_gives_a_smaller_mask():
    mask, _ = verl.compute_rollout_rejection_mask(GAP, MASK, "token_k1", "0.5_2.0")
    assert mask.tolist() == [[0, 1, 0], [1, 0, 1]]
    mask, _ = verl.compute_rollout_rejection_mask(GAP, MASK, "seq_max_k2", 1.0)
    assert mask.tolist() == [[1, 1, 0], [0, 0, 0]]
    mask, _ = verl.compute_rollout_rejection_mask(GAP, MASK, "token_k2,seq_mean_k1", "0.4,0.5_2.0")
    assert mask.tolist() == [[0, 1, 0], [1, 0, 1]]


def test_k1_bounds_are_those_of_engine_over_trainer():
    """verl's k1 is minus the log-ratio, so that 1.5 lets through a trainer that is half again less sure, not more."""
    gap, mask = torch.tensor([[math.log(1.4), -math.log(1.4)]]), torch.ones(1, 2)
    kept, _ = verl.compute_rollout_rejection_mask(gap, mask, "token_k1", "0.9_1.5")
    assert kept.tolist() == [[0, 1]]
    older, _ = verl.compute_rollout_rejection_mask(gap, mask, "token", "0.9_1.5")
    assert older.tolist() == [[1, 0]]


def test_both_at_once_are_the_flat_functions():
    settings = {"rollout_is": "sequence", "rollout_is_batch_normalize": True}
    rejection = {"rollout_rs": "geometric", "rollout_rs_threshold": "0.4_3.0"}
    weights, mask, metrics = verl.compute_rollout_correction_and_rejection_mask(
        OLD, ROLLOUT, MASK, **settings, **rejection
    )
    found = correct(
        OLD.reshape(-1),
        ROLLOUT.reshape(-1),
        MASK.reshape(-1),
        torch.tensor([3, 3]),
        Weighting("sequence", normalize=True),
        [Rejection("geometric", 0.4, 3.0)],
    )
    torch.testing.assert_close(weights.reshape(-1), found.weights)
    assert torch.equal(mask.reshape(-1), found.kept * MASK.reshape(-1))
    assert metrics == found.metrics
    nothing, same, _ = verl.compute_rollout_correction_and_rejection_mask(OLD, ROLLOUT, MASK)
    assert nothing is None and same is MASK


def test_filtration_gives_the_rows_of_the_resampled_batch():
    scores = torch.tensor([[0.0, 0.0], [0.0, 3.0], [-3.0, 0.0], [0.0, 1.0]])
    rows = verl.compute_pf_ppo_reweight_data(scores, "max_min", generator=torch.Generator().manual_seed(1))
    assert len(rows) == 4 and set(rows.tolist()) <= {1, 2}
    assert torch.equal(verl.compute_pf_ppo_reweight_data(scores), verl.compute_pf_ppo_reweight_data(scores))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="needs rollout_rs_threshold"):
        verl.compute_rollout_rejection_mask(GAP, MASK, "token_k1")
    with pytest.raises(ValueError, match="one threshold each"):
        verl.compute_rollout_rejection_mask(GAP, MASK, "token_k1", "1.1,2,3")


def test_an_epsilon_of_ones_own():
    rewards = torch.tensor([[1.0], [3.0]])
    advantages, _ = verl.compute_grpo_outcome_advantage(rewards, torch.ones(2, 1), [0, 0], epsilon=0.5)
    assert advantages[1].item() == pytest.approx(1 / (math.sqrt(2) + 0.5))
