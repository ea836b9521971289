from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from burnish.batch import Batch, Ragged
from burnish.log.clock import PER_RESPONSE_TOKEN, PER_TOKEN
from burnish.log.metrics import batch_metrics, draft_metrics, engine_metrics
from burnish.log.step_warnings import step_warnings

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def full_batch() -> Batch:
    """Two groups of two; token 1 of the first response is an observation; the last response is empty."""
    ragged = Ragged.of
    return Batch(
        uid=["a", "a", "b", "b"],
        prompt_ids=ragged([[1, 2], [1, 2], [3, 4, 5, 6], [3, 4, 5, 6]]),
        responses=ragged([[7, 8, 9], [7], [8, 9], []]),
        response_mask=ragged([[1, 0, 1], [1], [1, 1], []]),
        finish_reason=["stop", "stop", "length", "stop"],
        token_level_scores=ragged([[0.0, 0.0, 1.0], [1.0], [0.0, 0.5], []], torch.float32),
        token_level_rewards=ragged([[0.0, -0.5, 1.0], [1.0], [0.0, 0.5], []], torch.float32),
        advantages=ragged([[1.0, 99.0, 1.0], [-1.0], [0.0, 2.0], []], torch.float32),
        returns=ragged([[1.0, 99.0, 2.0], [3.0], [4.0, 5.0], []], torch.float32),
        values=ragged([[1.0, -99.0, 2.0], [3.0], [4.0, 4.0], []], torch.float32),
        rollout_log_probs=ragged([[-1.0, 0.0, -2.0], [-1.0], [-0.5, -0.1], []], torch.float32),
        old_log_probs=ragged([[-1.0, -9.0, -2.0], [-1.5], [-0.5, -0.1], []], torch.float32),
    )


def test_every_metric_of_a_full_batch():
    metrics = batch_metrics(full_batch(), max_prompt_length=4, max_response_length=3)
    expected = {
        "critic/score/mean": 0.625,
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "critic/rewards/mean": 0.5,
        "critic/rewards/max": 1.0,
        "critic/rewards/min": 0.0,
        "critic/advantages/mean": 0.6,
        "critic/advantages/max": 2.0,
        "critic/advantages/min": -1.0,
        "critic/returns/mean": 3.0,
        "critic/returns/max": 5.0,
        "critic/returns/min": 1.0,
        "critic/values/mean": 2.8,
        "critic/values/max": 4.0,
        "critic/values/min": 1.0,
        "critic/vf_explained_var": 1 - 0.2 / (2.5 + 1e-5),
        "response_length/mean": 1.5,
        "response_length/max": 3.0,
        "response_length/min": 0.0,
        "response_length/clip_ratio": 0.25,
        "prompt_length/mean": 3.0,
        "prompt_length/max": 4.0,
        "prompt_length/min": 2.0,
        "prompt_length/clip_ratio": 0.5,
        "rollout/num_groups": 2.0,
        "rollout/zero_variance_groups": 0.5,
        "rollout/truncated": 0.25,
        "training/rollout_probs_diff_max": math.exp(-1) - math.exp(-1.5),
        "training/rollout_probs_diff_mean": (math.exp(-1) - math.exp(-1.5)) / 5,
        "training/rollout_probs_diff_std": (math.exp(-1) - math.exp(-1.5)) / math.sqrt(5),
        "rollout_corr/kl": 0.5 / 5,
        "rollout_corr/k3_kl": (math.exp(-0.5) - 0.5) / 5,
    }
    correlation = metrics.pop("training/rollout_actor_probs_pearson_corr")
    assert metrics == pytest.approx(expected, abs=1e-6)
    assert 0.9 < correlation < 1


def test_equal_probabilities_correlate_fully():
    batch = Batch(
        rollout_log_probs=Ragged.of([[-1.0, -2.0], [-0.5]]),
        old_log_probs=Ragged.of([[-1.0, -2.0], [-0.5]]),
    )
    metrics = batch_metrics(batch)
    assert metrics["training/rollout_probs_diff_max"] == 0
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(1.0)


def test_metrics_of_missing_columns_are_omitted():
    assert batch_metrics(Batch()) == {}
    assert batch_metrics(Batch(data_source=["x"])) == {}
    assert set(batch_metrics(Batch(responses=Ragged.of([[1, 2]])))) == {
        "response_length/mean",
        "response_length/max",
        "response_length/min",
    }


def test_one_row_of_one_token():
    batch = full_batch().select([1])
    metrics = batch_metrics(batch, max_prompt_length=4, max_response_length=3)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["training/rollout_probs_diff_std"] == 0.0
    # One sample has nothing to be compared with; one token has no variance.
    assert "rollout/zero_variance_groups" not in metrics
    assert "critic/vf_explained_var" not in metrics
    assert "training/rollout_actor_probs_pearson_corr" not in metrics


def test_only_empty_responses():
    metrics = batch_metrics(full_batch().select([3, 3]))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["critic/score/mean"] == 0.0
    assert metrics["response_length/max"] == 0.0
    assert not any(name.startswith(("critic/advantages", "training/")) for name in metrics)


def test_equal_scores_give_a_warning():
    batch = Batch(uid=["a", "a"], token_level_scores=Ragged.of([[0.0, 0.3], [0.3]]))
    (text,) = step_warnings(batch_metrics(batch)).values()
    assert text == "the only group has equal scores: no learning signal in this step"


def test_every_name_is_documented():
    documented = set(re.findall(r"`([^`\n]+)`", DOCS.read_text(encoding="utf-8")))
    emitted = set(batch_metrics(full_batch(), max_prompt_length=4, max_response_length=3))
    emitted |= {f"timing_per_token_ms/{phase}" for phase in (*PER_RESPONSE_TOKEN, *PER_TOKEN)}
    emitted |= {"perf/total_num_tokens", "perf/time_per_step", "perf/throughput", "reward/failed"}
    emitted |= {"mean@N", "std@N", "best@n/mean", "worst@n/std", "maj@n/mean"}
    assert emitted <= documented


def test_metrics_of_an_engine_with_conversations():
    counts = {"decode_tokens": 30.0, "decode_slots": 40.0, "loaded_tokens": 9.0, "loaded_slots": 10.0}
    counts |= {"prefill_tokens": 105.0, "evicted_sessions": 2.0}
    assert engine_metrics(counts, min_prefill=100) == {
        "rollout/decode_occupancy": 0.75,
        "rollout/decode_occupancy_loaded": 0.9,
        "rollout/prefill_tokens": 105.0,
        "rollout/prefill_ratio": 1.05,
        "rollout/evicted_sessions": 2.0,
    }
    assert engine_metrics({"tokens": 3.0}, min_prefill=7) == {}  # of an engine that does not count them


def test_drafts_of_an_engine_that_verified_some():
    counts = {"tokens": 9.0, "draft_tokens": 5, "draft_accepted": 2}
    assert draft_metrics(counts) == {"rollout/draft_tokens": 5.0, "rollout/draft_accepted": 2.0}
    assert draft_metrics({"tokens": 9.0}) == {}
