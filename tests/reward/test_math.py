from fractions import Fraction

import pytest

from burnish.reward.math import boxed_math, last_boxed, normalize, rational, same_answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so $\boxed{7}$.", "7"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed 7 and more", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{3} and then \boxed{unfinished", "3"),
        (r"\\boxed{3}", "3"),
        (r"}}} \boxed{3}", "3"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{}", ""),
        ("no box", None),
        (r"\boxed", None),
        (r"\boxedsomething{3}", None),
    ],
)
def test_last_boxed(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac1{2}", r"\frac{1}{2}"),
        (r"\dfrac{1}{2}", r"\tfrac 12"),
        ("1/2", r"\frac{1}{2}"),
        ("0.5", r"\frac{1}{2}"),
        (".5", "0.50"),
        ("-3/4", r"\frac{-3}{4}"),
        (r"-\frac{3}{4}", "-0.75"),
        (r"1\frac{1}{2}", "1.5"),
        (r"\frac{2}{4}", r"\frac{1}{2}"),
        ("7.", "7"),
        ("7.0", "7"),
        ("+7", "7"),
        ("−7", "-7"),
        ("1,000", "1000"),
        (r"10,\!080", "10080"),
        ("10{,}080", "10080"),
        (r"\$1{,}234", "1234"),
        (r"50\%", "50"),
        ("50%", "50"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        ("90°", "90"),
        (r"5\text{ cm}", "5"),
        (r"5 \text{ cm}^2", "5"),
        (r"\sqrt{3} \mathrm{~cm}", r"\sqrt3"),
        (r"5 \text{ centimeters}", r"5\text{ cm}"),
        (r"\text{Friday}", "Friday"),
        (r"\text{(C)}", "C"),
        (r"\left( 3, 4 \right)", "(3,4)"),
        (r"\bigl(3,\;4\bigr)", "(3, 4)"),
        ("x = 5", "5"),
        ("f(x) = 2x", "2x"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
)
def test_same(one, other):
    assert same_answer(one, other)
    assert same_answer(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "2"),
        ("(3,4)", "(4,3)"),
        ("(1,000)", "(1000)"),
        ("1, 200", "1200"),
        (r"\frac{1}{2}", r"\frac{1}{20}"),
        (r"\frac{1}{0}", r"\frac{2}{0}"),
        ("-7", "7"),
        (r"\text{even}", r"\text{odd}"),
        (r"\text{A}\text{B}", r"\text{A}\text{C}"),
        ("x+1", "1"),
        ("", "0"),
        (r"\sqrt{2}", "2"),
        (r"5\text{ cm}", r"5\text{ km}"),
        ("x = 5", "y = 5"),
        ("1 2", "12"),
    ],
)
def test_different(one, other):
    assert not same_answer(one, other)


def test_normalize_is_idempotent():
    for answer in (r"\dfrac12", "x = 1,000.", r"5\text{ cm}^2", r"\left(\sqrt3, .5\right)"):
        text = normalize(answer).text
        assert normalize(text).text == text


def test_rational_parses_plain_numbers_only():
    assert rational("-2.50") == Fraction(-5, 2)
    assert rational(r"-1\frac{1}{2}") == Fraction(-3, 2)
    for text in ("", "1e9", "2**3", r"\frac{1}{0}", "1" * 200, "inf", "nan", "0x10"):
        assert rational(text) is None


def test_score_and_ground_truth_with_its_own_box():
    assert boxed_math(r"Thus $\boxed{\dfrac{1}{2}}$", "0.5") == 1.0
    assert boxed_math(r"\boxed{3}", r"The sum is \boxed{3}.") == 1.0
    assert boxed_math("the answer is 3", "3") == 0.0
    assert boxed_math(r"\boxed{4}", "3") == 0.0
    assert boxed_math(r"\boxed{3}", 3) == 1.0
