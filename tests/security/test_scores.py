"""No response is right for two different answers, and no length of a response takes more than linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.log.jsonl import encode
from burnish.reward.call import parse_result
from burnish.reward.comparison import same_result, same_text
from burnish.reward.protocol import parse_response
from burnish.reward.rules import find_rule
from burnish.reward.verifiers import VERIFIERS

from .attacks import attack

# Each rule with the form of its answers. All built-in rules that compare answers are here.
RULES = {
    "lighteval/MATH": r"So \boxed{ANSWER}.",
    "numina_olympiads": r"So \boxed{ANSWER}.",
    "hiyouga/geometry3k": r"So \boxed{ANSWER}.",
    "math_dapo": "So\nAnswer: ANSWER",
    "openai/gsm8k": "So\n#### ANSWER",
    "searchR1_nq": "<answer>ANSWER</answer>",
    "burnish/sums": "ANSWER",
    "acc": r"\boxed{ANSWER}",
    "base_acc": r"<think>t</think><answer>\boxed{ANSWER}</answer>",
    "retool_reward": r"\boxed{ANSWER}",
}
FAST_RULES = ["lighteval/MATH", "math_dapo", "openai/gsm8k", "searchR1_nq", "burnish/sums", "retool_reward"]
COMPARISONS = [*FAST_RULES, "numina_olympiads"]  # one rule for each way to compare; the others compare as the last one
# Different answers; those of one list are spellings of one answer.
ANSWERS = [
    *(["1"], ["2"], ["12", "12.0"], ["21"], ["3"], ["4"], ["5"], ["6"], ["7"], ["34"], ["43"], ["-1"], ["-12"]),
    *(["0.12"], ["1.2"], ["0"], ["10^{-7}"], ["1000", "1,000"], ["100"], [r"\frac12", "0.5"], ["0.05"], ["50"]),
    *(["1,2", r"\{2,1\}", "1 or 2"], ["(1,2)"], ["(2,1)"], ["[1,2]"], ["(1,2]"], ["1,2,2"], [r"\emptyset"]),
    *(["x=1,y=2"], ["x=2,y=1"], ["x>1", "1<x"], ["x<1"], ["x+1"], ["x-1"], ["x^2"], ["2x"], ["x"], ["y"]),
    *([r"\sqrt{2}"], [r"\pi"], [r"2\pi"], [r"\frac{\pi}{2}"], ["1:2"], ["2:1"], ["0.3"], [r"0.\overline{3}"]),
    *(["yes"], ["no"], ["on"], ["A", "(A)"], ["B"], ["a"], ["٣"], ["３４"], ["²"], ["C++"], ["C#"], ["C"]),
    *([r"\begin{pmatrix}1\\2\end{pmatrix}"], [r"\begin{pmatrix}1&2\end{pmatrix}"]),
]
# The published rule of this one ignores case, brackets and other punctuation: its answers are names and numbers.
NOT_NAMES = (["a"], ["x+1"], ["x-1"])
NAMES = [names for names in ANSWERS if not set("([\\{<>=:^") & set("".join(names)) and names not in NOT_NAMES]
SPELLINGS = [answer for spellings in ANSWERS for answer in spellings]
OF_RULE = {"searchR1_nq": NAMES}


def is_right(rule: str, response: str, truth: str) -> bool:
    if rule in VERIFIERS:
        function = VERIFIERS[rule].load()
        extra = {"extra_info": {"num_tool_calls": 0}} if rule == "retool_reward" else {}
        return function(response, truth, **extra) > 0
    entry = find_rule(rule)
    assert entry is not None
    result = entry.load()(response, truth)
    return result["acc"] > 0 if isinstance(result, dict) else result > 0


def right_answers(rule: str, body: str) -> list[list[str]]:
    """The different answers for which a response with this body is right."""
    response = RULES[rule].replace("ANSWER", body)
    answers = OF_RULE.get(rule, ANSWERS)
    return [spellings for spellings in answers if any(is_right(rule, response, truth) for truth in spellings)]


def check_one_answer(body: str, rules=COMPARISONS) -> None:
    for rule in rules:
        assert len(right_answers(rule, body)) <= 1, rule


@attack("scores", "every plain answer, against every other answer")
@pytest.mark.parametrize("rule", COMPARISONS)
def test_each_answer_is_right_for_itself_alone(rule):
    """Otherwise the attacks below would prove nothing."""
    tried = ANSWERS[:: 1 if rule in FAST_RULES else 5]
    right = [right_answers(rule, spellings[0]) for spellings in tried]
    assert all(len(answers) <= 1 for answers in right)
    assert sum(answers == [spellings] for answers, spellings in zip(right, tried, strict=True)) > len(tried) / 3


BODIES = {
    "numbers side by side": ["1 2", "3 4", "1\n2", "1\t2", "1 2 1", "3  4", "x 1 2"],
    "numbers side by side in groups": ["{3}{4}", "3{4}", "1{}2", "{1}2", "(3)(4)", "3(4)", "3|4|", "1{ }2"],
    "LaTeX spaces between two numbers": [r"1\,2", r"1\;2", r"1\ 2", r"1\!2", r"1~2", r"1\quad 2", r"3\qquad4"],
    "invisible boxes in the answer": [r"3\phantom{4}", r"\phantom{3}4", r"3\hphantom{4}", r"\vphantom{3}4"],
    "invisible colors and sizes": [r"3\color{white}{4}", r"\textcolor{white}{3}4", r"3{\tiny 4}", r"3\smash{4}"],
    "labels and references": [r"3\label{4}", r"3\tag{4}", r"\ref{3}4", r"3\footnote{4}", r"\cite{3}4"],
    "spacing commands with a number": [r"3\hspace{4}", r"3\kern4pt", r"3\mkern4mu", r"3\rule{4pt}{0pt}"],
    "comments": ["3%4", "3 % or 4\n", "3%\n4", r"3\%4", "% 3\n4"],
    "text commands around a second answer": [
        r"3\text{4}",
        r"\text{3}4",
        r"3\text{ or 4}",
        r"3\mathrm{4}",
        r"3\mbox{4}",
    ],
    "a second answer as a unit": [r"3\text{ or four}", r"3\text{ (4)}", r"3 \text{ to 4}", r"3\text{ cm or } 4"],
    "zero-width and other spaces": ["1\u200b2", "1\u200d2", "1\ufeff2", "1\u20602", "1\u20092", "1\u30002", "1\u00ad2"],
    "or, and, commas": ["3 or 4", "3 and 4", "3, 4", "3;4", "3/4", "3-4", "3 4 or 5", "3,4,5", "1,2", "12,", "1,,2"],
    "sets, points and intervals": ["(1,2)", "[1,2]", "(1,2]", r"\{1,2\}", r"\{1\},2", "((1,2))", "1..2", r"1\ldots2"],
    "equations in the answer": ["x=1=2", "1=2", "2=1", "x=1,2", "x=1, y=2", "x=y=1", "y=1", "1=x=2", r"1\approx2"],
    "plus or minus": [r"\pm1", r"1\pm2", r"\mp1", "±1", "+-1", "-+1", "--1"],
    "money, percent and degrees": [r"1\$2", "1$2", "$1$2$", r"5\%", "0.05%", r"90^\circ", r"1^\circ2", "50%50"],
    "units": [
        r"12\text{ cm}",
        r"1\text{ m }2\text{ cm}",
        "1 dollars 2",
        "1 cm 2",
        "1feet2",
        r"3\text{ m}^4",
        "1 units2",
    ],
    "products and powers": ["3 x 4", r"3\cdot4", r"3\times 4", "1_2", "12_3", "2^1", "1!2", "3!", "1e2", "0x12", "1'2"],
    "words": [r"\text{no}", "on", r"\text{yes or no}", "yes no", "AB", "A or B", "(A)(B)", "aA", r"\text{A}\text{B}"],
    "several boxes, lines and tags": [
        r"1} \boxed{2",
        r"\boxed{1}2",
        "1\nAnswer: 2",
        "1\n#### 2",
        "1</answer><answer>2",
    ],
    "matrices": [r"\begin{pmatrix}1\\2\\\end{pmatrix}", r"1\\2", r"1&2", r"\begin{pmatrix}12\end{pmatrix}"],
    "decimals": ["1.2.1", "1. 2", "1 .2", ".12", "0.1 2", r"0.\overline{3}", r"0.\overline{12}", "1,2.0", "0.120"],
    "punctuation of names": ["C++", "C#", "C", "1-2", "1.2", "-12", "the", "a", "!", "C+ +", "c#"],
    "nothing at all": ["", " ", r"\text{}", "{}", "$$", ".", "%", r"\phantom{}", "\u200b", "=", ","],
}


@pytest.mark.parametrize("bodies", [pytest.param(b, id=n, marks=attack("scores", n)) for n, b in BODIES.items()])
def test_one_response_is_right_for_at_most_one_answer(bodies):
    check_one_answer(bodies[0], RULES)
    for body in bodies[1:]:
        check_one_answer(body)


PIECES = (
    *("1", "2", "12", "3", "4", "34", "0", "5", ",", ", ", " ", "\\,", "\\!", "{", "}", "\\{", "\\}", "\\text{", "\n"),
    *(
        "\\phantom{",
        "\\mathrm{",
        "%",
        "$",
        "\\$",
        " or ",
        " and ",
        "\u200b",
        "\u2009",
        "(",
        ")",
        "[",
        "]",
        "^",
        "_",
        "-",
    ),
    *(
        "−",
        ".",
        "/",
        "=",
        "x",
        "y",
        "\\frac",
        "\\frac{1}{",
        "\\pm",
        ";",
        "\\\\",
        "cm",
        " cm",
        "\\sqrt",
        "\\pi",
        "\\cdot",
    ),
    *(
        "\\times ",
        "!",
        "<",
        ">",
        "\\cup",
        "^\\circ",
        "٣",
        "３",
        "²",
        "\\overline{",
        "\\boxed{",
        "\\quad",
        "~",
        "|",
        "*",
    ),
    *("&", "yes", "no", "A", "\\approx ", "\\left(", "\\right)", " units", "dollars", "feet ", "#", '"', "a ", "the "),
)
bodies = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join),
    st.tuples(
        st.sampled_from(SPELLINGS),
        st.sampled_from(PIECES),
        st.sampled_from(SPELLINGS),
        st.sampled_from(["", *PIECES]),
    ).map("".join),
)


@attack("scores", "random mixtures of two answers and LaTeX")
@settings(max_examples=25, deadline=None, derandomize=True)
@given(bodies)
def test_mixtures_are_right_for_at_most_one_answer(body):
    check_one_answer(body, FAST_RULES)


@attack("scores", "random mixtures of two answers and LaTeX, as formulas")
@settings(max_examples=10, deadline=None, derandomize=True)
@given(bodies)
def test_mixtures_as_formulas_are_right_for_at_most_one_answer(body):
    check_one_answer(body, ["numina_olympiads"])


@attack("scores", "digits of other scripts")
@pytest.mark.parametrize("digits", ["٣٤", "３４", "³⁴", "𝟑𝟒", "३४", "㊂㊃", "①"])
def test_digits_of_other_scripts_count_only_where_the_reference_has_them(digits):
    for rule, form in RULES.items():
        response = form.replace("ANSWER", digits)
        assert not any(is_right(rule, response, truth) for truth in ("34", "1", "3")), rule
        if rule not in ("openai/gsm8k",):  # which takes numbers only
            assert is_right(rule, response, digits), rule


@attack("scores", "a million characters")
def test_a_million_characters():
    for rule, form in RULES.items():
        assert not is_right(rule, form.replace("ANSWER", "3" * 1_000_000), "34"), rule
        assert is_right(rule, "7" * 1_000_000 + " ".join(["", form.replace("ANSWER", "34")]), "34") == (
            rule not in ("base_acc", "burnish/sums")  # whose responses have nothing before the answer
        ), rule


LONG = {
    "boxes": lambda n: r"\boxed{" * (n // 7),
    "bare boxes": lambda n: r"\boxed " * (n // 7),
    "a box with spaces": lambda n: r"\boxed" + " " * n,
    "backslashes": lambda n: "\\" * n,
    "braces": lambda n: "{" * (n // 2) + "}" * (n // 2),
    "digits": lambda n: "9" * n,
    "commas": lambda n: "1," * (n // 2),
    "spaces": lambda n: "Answer:" + " " * n,
    "marks": lambda n: "#### Answer: <answer>" * (n // 20),
    "minus and dollar": lambda n: "-$" * (n // 2),
    "answer is": lambda n: "boxed answer is " * (n // 16),
    "tags": lambda n: "<think></think> " * (n // 16),
}


def cpu_seconds(text: str) -> float:
    started = time.process_time()
    for rule in [*COMPARISONS, "acc"]:
        is_right(rule, RULES[rule].replace("ANSWER", text), "34")
    same_text(text, text[:-1] + "x")
    same_result(text, [1.0])
    return time.process_time() - started


@attack("scores", "a very long response in patterns that backtrack")
@pytest.mark.parametrize("pattern", LONG)
def test_time_is_linear_in_the_length(pattern):
    """16 times the length takes about 16 times as long; a quadratic rule would take 256 times."""
    small, large = LONG[pattern](6_250), LONG[pattern](100_000)
    assert cpu_seconds(large) < 80 * max(cpu_seconds(small), 0.002)


INSIDE = {
    "units": r"1\text{" * 300,
    "texts": r"\text{a}" * 250,
    "fractions": r"\frac{1}{" * 200,
    "spaces": "1~" * 1000,
    "connectors": "1 or " * 400,
    "commas": "1,000," * 330,
    "names": "x=1," * 500,
    "powers": "x^" * 190,
    "brackets": "(" * 190 + ")" * 190,
    "points": "(1,2)" * 75,
    "sums": "x+" * 190 + "x",
    "dollars": "$" * 1900,
    "roots": r"\sqrt" * 380,
    "degrees": r"^\circ" * 300,
}


@attack("scores", "an answer of the longest accepted length in patterns that backtrack")
@pytest.mark.parametrize("pattern", INSIDE)
def test_the_longest_answers_are_compared_quickly(pattern):
    text = INSIDE[pattern]
    started = time.process_time()
    for size in (len(text), 290):
        for rule in COMPARISONS:
            assert not is_right(rule, RULES[rule].replace("ANSWER", text[:size]), "34")
    assert time.process_time() - started < 5  # 1 s is the limit of one comparison of formulas


def nested(depth: int, wrap) -> object:
    value: object = 0
    for _ in range(depth):
        value = wrap(value)
    return value


CYCLE: list[object] = []
CYCLE.append(CYCLE)
RESULTS = {
    "an infinite int": 10**5000,
    "not a number": float("nan"),
    "an int beyond floats": {"score": -(10**400)},
    "deep lists": {"score": 1.0, "x": nested(100, lambda value: [value])},
    "very deep mappings": {"score": 1.0, "x": nested(50_000, lambda value: {"a": value})},
    "a list in itself": {"score": 1.0, "x": CYCLE},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=attack("scores", f"a reward returns {name}")) for name in RESULTS]
)
def test_odd_results_fail_their_sample_only(name):
    """As an invalid result, or an exception that is the sample's (reward/evaluate.py)."""
    for parse in (
        parse_result,
        lambda result, label: parse_response({"rewards": 1.0, "extra_logs": {"x": result}}, label),
    ):
        result = RESULTS[name]
        try:
            outcome = parse(result, "reward")
        except ValueError as error:
            assert "levels deep" in str(error) or "digits" in str(error)
        else:
            assert outcome.kind is not None or len(encode(outcome.extras)) < 10_000
