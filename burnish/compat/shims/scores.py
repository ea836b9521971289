"""verl.utils.reward_score on top of our rules, with the same arguments and results, for users' reward functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from burnish.reward import geometry3k, minerva, numina, search_qa
from burnish.reward import gsm8k as gsm8k_rule
from burnish.reward import math as math_rules
from burnish.reward.math_dapo import math_dapo as dapo_rule
from burnish.reward.rules import find_rule


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **unused: Any
) -> float | dict[str, Any]:
    """Score by the built-in rule of this data source. `unused` are verl's arguments for its code sandbox."""
    rule = find_rule(data_source)
    if rule is None:
        raise NotImplementedError(f"no built-in rule for data source {data_source!r}")
    result = rule.load()(solution_str, ground_truth)
    if isinstance(result, dict) and "pred" not in result:
        return float(result["score"])  # verl returns a number here as well
    return result


def gsm8k_answer(solution_str: str, method: str = "strict") -> str | None:
    """The extracted answer, without commas and dollar signs."""
    answer = gsm8k_rule.METHODS[method].load()(solution_str[-300:])
    return None if answer is None else answer.replace(",", "").replace("$", "")


def gsm8k(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` if correct, `format_score` if there is any answer, else 0."""
    if gsm8k_answer(solution_str, method) is None:
        return 0.0
    return score if gsm8k_rule.gsm8k(solution_str, ground_truth, method) else format_score


def math(solution_str: str, ground_truth: str) -> float:
    r"""1 if the last \boxed answer is the ground truth."""
    return math_rules.boxed_math(solution_str, ground_truth)


def is_equiv(str1: str | None, str2: str | None, verbose: bool = False) -> bool:
    if str1 is None or str2 is None:
        return str1 is str2
    return math_rules.same_answer(str1, str2)


def last_boxed_only_string(string: str) -> str | None:
    r"""The last \boxed{...}, with the command around it."""
    answer = math_rules.last_boxed(string)
    return None if answer is None else rf"\boxed{{{answer}}}"


def remove_boxed(s: str) -> str:
    answer = math_rules.last_boxed(s)
    return s if answer is None else answer


def math_verify(model_output: str, ground_truth: str, timeout_score: float = 0) -> float:
    r"""1 if the last \boxed answer is mathematically equal to the ground truth; 0 on a timeout."""
    return numina.numina(model_output, ground_truth)


def math_dapo(solution_str: str, ground_truth: str, strict_box_verify: bool = False, **unused: Any) -> dict[str, Any]:
    """Score 1 or -1 with `acc` and `pred`, from the last "Answer:" line, or strictly from the last box."""
    if not strict_box_verify:
        return dapo_rule(solution_str, ground_truth)
    answer = math_rules.last_boxed(solution_str[-100:])
    right = answer == str(ground_truth)
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": answer}


def normalize_final_answer(final_answer: str) -> str:
    return minerva.normalize(final_answer)


def geo3k(predict_str: str, ground_truth: str, use_boxed: bool = True, format_score: float = 0.1) -> float:
    """Weighted sum of correctness and format."""
    right, formatted = geo3k_acc(predict_str, ground_truth, use_boxed), geo3k_format(predict_str)
    return (1.0 - format_score) * right + format_score * formatted


def geo3k_acc(predict_str: str, ground_truth: str, use_boxed: bool = True) -> float:
    return numina.numina(predict_str if use_boxed else rf"\boxed{{{predict_str}}}", ground_truth)


def geo3k_format(predict_str: str) -> float:
    return float(geometry3k.is_formatted(predict_str))


def search_r1_answer(solution_str: str) -> str | None:
    answer = search_qa.last_tagged(solution_str)
    return None if answer is None else answer.strip()


def search_r1(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` if the last answer is correct (a quarter of it if there are many answers), else `format_score`, or 0."""
    if search_qa.last_tagged(solution_str) is None:
        return 0.0
    right = search_qa.search_qa(solution_str, ground_truth)
    return score * right if right else format_score


def em_check(prediction: str, golden_answers: str | Iterable[str]) -> int:
    """1 if the prediction equals one of the answers, ignoring punctuation and articles."""
    answers = [golden_answers] if isinstance(golden_answers, str) else golden_answers
    return int(search_qa.plain_words(prediction) in {search_qa.plain_words(answer) for answer in answers})


def normalize_answer(s: str) -> str:
    return search_qa.plain_words(s)
