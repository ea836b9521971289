import time

import pytest

from burnish.reward.comparison import same_result, same_text


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ("3", "3\n"), ("1 2  \n3\n\n", "1 2\n3"), ("0.3333333", "0.33333333333"), ("1e3", "1000.0"), ("2", "2.0"),
        ("a 0.10 b", "a 0.1 b"), ("  x", "x"), ("1\r\n2", "1\n2"), ("", "\n"), ("YES  1", "YES 1"),
    ],
)  # fmt: skip
def test_equal_texts(actual, expected):
    assert same_text(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ("3", "4"), ("1 2", "1\n2"), ("1\n2\n3", "1\n2"), ("3.0000001", "3"), ("yes", "YES"), ("nan", "1.0"),
        ("inf", "1.0"),
        ("1.1", "1.2"), ("1_0", "10.0"), ("", "0.0"), ("1.0 2.0", "1.0"), ("9" * 100_000, "1.0"), ("１", "1.0"),
    ],
)  # fmt: skip
def test_different_texts(actual, expected):
    assert not same_text(actual, expected)


@pytest.mark.parametrize("text", ["1 " * 30_000, "\n" * 60_000, "9." * 30_000, "1.5e" * 15_000])
def test_long_texts_are_compared_quickly(text):
    started = time.perf_counter()
    same_text(text, text[:-1] + "x")
    same_result(text, [1.0])
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("stdout", "expected"),
    [
        ("noise\n[1, 2]\n", [1, 2]),
        ("3", [3]),
        ("3", 3),
        ("0.30000001", 0.3),
        ('{"a": 1}', {"a": 1}),
        ("2", 2.0),
        ('"x"', "x"),
    ],
)
def test_equal_results(stdout, expected):
    assert same_result(stdout, expected)


@pytest.mark.parametrize(
    ("stdout", "expected"),
    [
        ("[1, 2]\nnoise", [1, 2]),
        ("true", 1),
        ("1", True),
        ("", None),
        ("[1]", [1, 2]),
        ("1" + "0" * 400, 1.0),
        ("[" * 50_000, []),
    ],
)
def test_different_results(stdout, expected):
    assert not same_result(stdout, expected)
