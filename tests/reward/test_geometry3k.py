import pytest

from burnish.reward.geometry3k import geometry3k

THOUGHT = "<think>By Pythagoras.</think>"


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (THOUGHT + r" It is \boxed{\sqrt{8}}.", 1.0),
        (THOUGHT + r" It is \boxed{3}.", 0.1),
        (r"It is \boxed{2\sqrt{2}}.", 0.9),
        ("It is 3.", 0.0),
        (r"<think>\boxed{2\sqrt2}</think> done", 0.9),
        ("", 0.0),
    ],
)
def test_answer_and_format_weights(response, score):
    result = geometry3k(response, r"2\sqrt{2}")
    assert result["score"] == pytest.approx(score)
    assert result["score"] == pytest.approx(0.9 * result["acc"] + 0.1 * result["format"])
