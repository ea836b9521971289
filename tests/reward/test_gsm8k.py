import pytest

from burnish.errors import UserError
from burnish.reward.gsm8k import gsm8k


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("#### 72", "72"),
        ("####72", "72"),
        ("#### 1,234", "1234"),
        ("#### $1,234.50", "1234.50"),
        ("#### -5", "-5"),
        ("#### 1234567", "1,234,567"),
        ("#### 72, as", "72"),
        ("#### 3\nNo, wait.\n#### 72", "72"),
        ("#### 72.", "72"),
        ("#### 72 apples", 72),
    ],
)
def test_right(response, truth):
    assert gsm8k(response, truth) == 1.0


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("The answer is 72", "72"),
        ("#### 72\n#### 3", "72"),
        ("#### 72.0", "72"),
        ("#### 7", "72"),
        ("#### 72" + " " * 300, "72"),  # beyond the last 300 characters
        ("### 72", "72"),
        ("", "72"),
        ("#### 7,2", "72"),
    ],
)
def test_wrong(response, truth):
    assert gsm8k(response, truth) == 0.0


def test_flexible_takes_the_last_number():
    assert gsm8k("First 3, then she has 1,072 left.", "1072", method="flexible") == 1.0
    assert gsm8k("She has 1,072 left of 2,000", "1072", method="flexible") == 0.0
    assert gsm8k("none", "1072", method="flexible") == 0.0


def test_unknown_method_is_refused():
    with pytest.raises(UserError, match="strict, flexible"):
        gsm8k("#### 1", "1", method="loose")
