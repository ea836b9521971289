import contextlib
import signal
import threading
import time

import latex2sympy2_extended
import pytest

from burnish.errors import UserError
from burnish.reward import grader
from burnish.reward.grader import check_installed, is_cheap_to_parse, same_value


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("0.5", r"\frac{1}{2}"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        (r"\{2, 1\}", r"\{1, 2\}"),
        (r"\int_0^1 x^{3} dx", r"\frac{1}{4}"),
        ("2^{10}", "1024"),
        (r"\text{even}", "even"),
        (r"\text{Yes}", "yes"),
        ("3 or 4", r"\{4, 3\}"),
        ("x = 3, x = 4", r"4 \text{ and } 3"),
        (r"\pm 3", "-3, 3"),
        ("y = 2x + 1", "2x+1"),
        ("2x - y = -1", "y - 2x = 1"),
        ("x > 1", "1 < x"),
        ("x > 1", r"-x < -1"),
        (r"(2,3)\cup(0,1)", r"\left(0, 1\right) \cup \left(2, 3\right)"),
        (r"\begin{pmatrix} 1/2 \\ \sqrt{8} \end{pmatrix}", r"\begin{pmatrix} 0.5 \\ 2\sqrt2 \end{pmatrix}"),
        (r"1\frac12 \pi", r"\frac{3\pi}{2}"),
        ("2(3+4)", "14"),
        (r"\sin x \cos x", r"\cos x \sin x"),
        (r"\emptyset", r"\{\}"),
        ("0.333333", r"\frac13"),
        (r"\sum_{i=1}^{3} i", "6"),
    ],
)
def test_equal_values(answer, truth):
    assert same_value(answer, truth)


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("x^2+1", "(x+1)^2"),
        (r"\sqrt{7}", r"2\sqrt{2}"),
        ("(1,2)", "(2,1)"),
        ("", "1"),
        ("10", "10**20"),
        ("1" * 500, "1"),
        ("[1,2]", "(1,2)"),
        ("x > 1", "x < 1"),
        ("x > 1", r"x \ge 1"),
        ("0", "0.0000001"),
        (r"\{\}", r"\{1\}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
)
def test_different_values(answer, truth):
    assert not same_value(answer, truth)


BOMBS = {
    "tower": "9^{9^{9}}",
    "tower without braces": "9^9^9",
    "python's power": "9**9**9",
    "large exponent": "2^{99999}",
    "large factorial": "99999999!",
    "factorial of a factorial": "9!!",
    "binomial": r"\binom{1000000000}{500000000}",
    "nested fractions": r"\frac{" * 30 + "1" + "}{2}" * 30,
    "powers of powers": "((((((((x+1)^9)^9)^9)^9)^9)^9)^9)^9",
    "long number": "9" * 100,
    "code": "__import__('os').system('touch was_run')",
    "unbalanced": "{{{{1",
    "other scripts": "٤٢",
    "null": "\x001",
}


@pytest.mark.parametrize("answer", BOMBS.values(), ids=BOMBS.keys())
def test_expensive_formulas_are_not_parsed(answer):
    started = time.perf_counter()
    assert not is_cheap_to_parse(answer)
    assert not same_value(answer, "3")
    assert time.perf_counter() - started < 0.5


def test_a_slow_comparison_is_not_equal(monkeypatch):
    before = signal.getsignal(signal.SIGVTALRM)
    monkeypatch.setattr(grader, "_SECONDS", 0.1)
    monkeypatch.setattr(grader, "_library", lambda: lambda text: _for_ever())
    grader._read.cache_clear()
    started = time.process_time()
    assert not same_value("x+1", "y")
    assert 0.05 < time.process_time() - started < 1
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def _for_ever():
    while True:
        try:
            sum(range(1000))
        except Exception:  # a library that goes on whatever happens
            continue


def test_initialization_does_not_count_towards_the_time_limit(monkeypatch):
    counted, counting = [], []
    parse = latex2sympy2_extended.latex2sympy
    monkeypatch.setattr(
        latex2sympy2_extended, "latex2sympy", lambda *a, **k: counted.append(bool(counting)) or parse(*a, **k)
    )

    @contextlib.contextmanager
    def limit(seconds):
        counting.append(seconds)
        yield

    monkeypatch.setattr(grader, "_time_limit", limit)
    for cached in (grader._library, grader._read):
        cached.cache_clear()
    try:
        assert same_value("x+x", "2x")
    finally:
        grader._library.cache_clear()
    assert counted[0] is False and counted[-2:] == [True, True]


def test_it_works_in_a_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(same_value("x+1", "1+x")))
    thread.start()
    thread.join()
    assert results == [True]


def test_a_missing_library_is_reported(monkeypatch):
    monkeypatch.setattr(grader.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[math\]"'):
        check_installed()
