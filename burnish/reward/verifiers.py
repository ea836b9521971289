r"""VERIFIERS: MindSpeed RL's rules, selected by `reward.verifiers` and combined as a weighted sum.

Each takes some of solution_str, ground_truth and extra_info, and returns a number; docs/rewards.md has a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from burnish.registry import Registry
from burnish.reward.grader import same_value
from burnish.reward.math import last_boxed
from burnish.reward.math_dapo import TAIL, math_dapo
from burnish.reward.numina import numina

VERIFIERS = Registry("verifier", key="reward.verifiers")

_TAGS = ("<think>", "</think>", "<answer>", "boxed", "</answer>")  # in this order, each once
_STOP = re.compile(r"</s>|<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>")
_BETWEEN = re.compile(r"</think>\s{0,100}<answer>")
_ANSWER_IS = re.compile(r"answer is:?\s{0,10}([^\n]{1,200})", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")
_STEP = re.compile(r"Step \d{1,9}:|\A\d{1,9}\.|\n[-*]|(?:First|Second|Next|Finally),")
_MIN_STEPS = 3
_RETOOL_TAIL = 100


@VERIFIERS.register("acc", needs={"math_verify"})
def accuracy(solution_str: str, ground_truth: Any) -> float:
    r"""1 for the correct answer, -0.5 for a wrong one, -1 for a response without \boxed or without an answer."""
    text = _STOP.split(solution_str, maxsplit=1)[0]
    answer = _any_answer(text) if "boxed" in text else None
    if answer is None:
        return -1.0
    return 1.0 if same_value(answer, _truth(ground_truth)) else -0.5


@VERIFIERS.register("strict_format")
def strict_format(solution_str: str) -> float:
    r"""1 for exactly <think>...</think>...<answer>...\boxed...</answer>, each tag once; else -0.5."""
    text = solution_str.strip()
    positions = [text.find(tag) for tag in _TAGS]
    once = all(text.count(tag) == 1 for tag in _TAGS)
    framed = text.startswith(_TAGS[0]) and text.endswith(_TAGS[-1])
    return 1.0 if once and framed and positions == sorted(positions) else -0.5


@VERIFIERS.register("format")
def answer_format(solution_str: str) -> float:
    """1 for <think>...</think> followed by <answer>...</answer> and nothing else; else 0."""
    return float(_has_format(solution_str.strip()))


@VERIFIERS.register("step")
def steps(solution_str: str) -> float:
    """1/3 for each marker of step-by-step reasoning ("Step 1:", bullets, "First,", ...), at most 1."""
    return min(1.0, len(_STEP.findall(solution_str)) / _MIN_STEPS)


@VERIFIERS.register("base_acc", "math_verify_reward", needs={"math_verify"})
def formatted_accuracy(solution_str: str, ground_truth: Any) -> float:
    r"""1 for the correct \boxed answer inside <answer>, after <think>; else 0."""
    text = solution_str.strip()
    answer = last_boxed(text[text.rfind("<answer>") :]) if _has_format(text) else None
    return float(answer is not None and same_value(answer, _truth(ground_truth)))


@VERIFIERS.register("math_17k_acc", "acc_for_ppo", needs={"math_verify"})
def boxed_accuracy(solution_str: str, ground_truth: Any) -> float:
    r"""1 if the last \boxed answer is correct, else 0."""
    return numina(solution_str, ground_truth)


@VERIFIERS.register("acc_for_dapo")
def dapo_accuracy(solution_str: str, ground_truth: Any) -> float:
    """1 if the last "Answer: ..." line is correct, else -1."""
    return math_dapo(solution_str, ground_truth)["score"]


@VERIFIERS.register("retool_reward")
def retool(solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    r"""1 if \boxed at the very end equals the ground truth; else -1 plus 0.1 per tool call, at most 0."""
    if last_boxed(solution_str[-TAIL:][-_RETOOL_TAIL:]) == _truth(ground_truth):
        return 1.0
    return min(0.0, -1.0 + 0.1 * _num_tool_calls(solution_str, extra_info))


def weighted(names: Sequence[str], weights: Sequence[float]) -> Callable[..., dict[str, Any]]:
    """A reward function that returns the weighted sum of verifiers, with their individual scores as extras."""
    verifiers = [(name, VERIFIERS[name].load(), weight) for name, weight in zip(names, weights, strict=True)]

    def verify(solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> dict[str, Any]:
        available = {"solution_str": solution_str, "ground_truth": ground_truth, "extra_info": extra_info}
        scores = {
            name: function(
                **{argument: available[argument] for argument in function.__annotations__ if argument in available}
            )
            for name, function, _ in verifiers
        }
        return {"score": sum(weight * scores[name] for name, _, weight in verifiers), **scores}

    return verify


def _has_format(text: str) -> bool:
    return text.startswith("<think>") and text.endswith("</answer>") and _BETWEEN.search(text) is not None


def _any_answer(text: str) -> str | None:
    r"""The \boxed answer; else the text after "answer is"; else the last number."""
    answer = last_boxed(text)
    if answer is None and (matches := _ANSWER_IS.findall(text)):
        answer = matches[-1].rstrip(". ")
    if answer is None and (numbers := _NUMBER.findall(text[-TAIL:])):
        answer = numbers[-1]
    return answer or None


def _truth(ground_truth: Any) -> str:
    truth = str(ground_truth)
    return last_boxed(truth) or truth


def _num_tool_calls(text: str, extra_info: dict[str, Any]) -> float:
    """The rollout's count; else from the number of turns, less prompt and final answer; else the number of tags."""
    if "num_tool_calls" in extra_info:
        return float(extra_info["num_tool_calls"])
    if "num_turns" in extra_info:
        return max(0.0, (float(extra_info["num_turns"]) - 2) / 2)
    return float(text.count("<tool_call>"))
