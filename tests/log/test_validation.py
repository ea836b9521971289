from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from burnish.log.validation import _resamples, pick_generations, validation_metrics


def test_one_response_per_prompt_has_only_a_mean():
    metrics = validation_metrics(["gsm8k"] * 4, [0, 1, 2, 3], [1.0, 0.0, 1.0, 1.0])
    assert metrics == {"val-core/gsm8k/reward/mean@1": 0.75}


def test_sources_are_separate_and_acc_is_core():
    metrics = validation_metrics(
        ["a", "a", "b"], ["p", "q", "p"], [1.0, -1.0, 0.5], {"acc": [True, False, None], "note": ["x", "y", "z"]}
    )
    assert metrics == {
        "val-core/a/acc/mean@1": 0.5,
        "val-aux/a/reward/mean@1": 0.0,
        "val-core/b/reward/mean@1": 0.5,
    }


def test_names_with_three_responses_and_answers():
    metrics = validation_metrics(["m"] * 3, ["p"] * 3, [1.0, 0.0, 0.0], {"pred": ["4", "5", "5"]})
    core = {name for name in metrics if name.startswith("val-core/")}
    assert core == {
        f"val-core/m/reward/{name}" for name in ("mean@3", "best@3/mean", "best@3/std", "maj@3/mean", "maj@3/std")
    }
    aux = {name.removeprefix("val-aux/m/reward/") for name in metrics if name.startswith("val-aux/")}
    assert aux == {"std@3", "worst@3/mean", "worst@3/std"} | {
        f"{kind}@2/{moment}" for kind in ("best", "worst", "maj") for moment in ("mean", "std")
    }


def test_bootstrap_equals_a_plain_loop():
    """One draw after another from a legacy generator seeded with 42, as the definition says."""
    scores, answers = [1.0, 0.0, 0.25, 0.5, 0.75], ["a", "b", "b", "c", "a"]
    metrics = validation_metrics(["m"] * 5, ["p"] * 5, scores, {"pred": answers})
    for size in (2, 4, 5):
        generator = np.random.RandomState(42)
        best, worst, majority = [], [], []
        for _ in range(1000):
            drawn = generator.choice(5, size=size, replace=True)
            best.append(max(scores[i] for i in drawn))
            worst.append(min(scores[i] for i in drawn))
            winner = Counter(answers[i] for i in drawn).most_common(1)[0][0]  # equal counts: first drawn
            majority.append(next(scores[i] for i in drawn if answers[i] == winner))
        for kind, values in (("best", best), ("worst", worst), ("maj", majority)):
            section = "val-core" if size == 5 and kind != "worst" else "val-aux"
            assert metrics[f"{section}/m/reward/{kind}@{size}/mean"] == pytest.approx(np.mean(values), abs=1e-12)
            assert metrics[f"{section}/m/reward/{kind}@{size}/std"] == pytest.approx(np.std(values), abs=1e-12)


def test_resampling_is_deterministic():
    first = _resamples(4, 4).copy()
    _resamples.cache_clear()
    assert np.array_equal(first, _resamples(4, 4))
    assert first.shape == (1000, 4) and first.max() == 3 and first.min() == 0


def test_missing_answer_means_no_majority():
    metrics = validation_metrics(["m"] * 2, ["p"] * 2, [1.0, 0.0], {"pred": ["4", None]})
    assert not any("maj@" in name for name in metrics)
    assert metrics["val-core/m/reward/mean@2"] == 0.5


def test_empty_validation():
    assert validation_metrics([], [], []) == {}


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="acc has 1 entries, there are 2 scores"):
        validation_metrics(["m"] * 2, ["p"] * 2, [1.0, 0.0], {"acc": [1.0]})


def test_generations_do_not_depend_on_order():
    inputs = [f"prompt {i}" for i in range(20)]
    outputs = [f"answer {i}" for i in range(20)]
    scores = [float(i) for i in range(20)]
    picked = pick_generations(inputs, outputs, scores, 5)
    assert pick_generations(inputs[::-1], outputs[::-1], scores[::-1], 5) == picked
    assert len(picked) == 5 and picked != sorted(picked)
    assert all(output == f"answer {score:.0f}" for _, output, score in picked)
    assert pick_generations(inputs, outputs, scores, 0) == []
    assert len(pick_generations(inputs, outputs, scores, 99)) == 20
