import pytest

from burnish.reward.math_dapo import math_dapo


@pytest.mark.parametrize(
    ("response", "truth", "pred"),
    [
        ("Answer: 34", "34", "34"),
        ("answer :  $34$", "34", "34"),
        ("Answer: 33\nNo.\nAnswer: 34\n", 34, "34"),
        ("Answer: x = 1,234", r"\boxed{1234}", "1234"),
        (r"Answer: \frac12", r"\frac{1}{2}", r"\frac{1}{2}"),
    ],
)
def test_right(response, truth, pred):
    assert math_dapo(response, truth) == {"score": 1.0, "acc": True, "pred": pred}


@pytest.mark.parametrize(
    ("response", "pred"),
    [
        ("Answer: 43", "43"),
        (r"\boxed{34}", ""),
        ("", ""),
        ("Answer: 34" + " " * 300, ""),  # beyond the last 300 characters
    ],
)
def test_wrong(response, pred):
    assert math_dapo(response, "34") == {"score": -1.0, "acc": False, "pred": pred}
