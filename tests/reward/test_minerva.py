import pytest

from burnish.reward.minerva import normalize


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("$34$", "34"),
        ("x = 34", "34"),
        ("an apple", "apple"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\sqrt3", r"\sqrt{3}"),
        ("1,234", "1234"),
        ("(1,234)", "(1,234)"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        ("34 dollars", "34"),
        (r"x\text{ and }y", "x,y"),
        (r"\boxed{34}", "34"),
        (r"\mbox{cm}", ""),
        (r"5\text{m}^2", "5"),
        ("It is $7$.", "7"),
        (r"\text{(B)}", "(B)"),
        ("", ""),
    ],
)
def test_normalize(answer, expected):
    assert normalize(answer) == expected


def test_equal_after_normalization():
    assert normalize(r"$\frac12$") == normalize(r"\frac{1}{2}")
    assert normalize("1,000 meters") == normalize("1000")
    assert normalize("1000") != normalize("1001")
