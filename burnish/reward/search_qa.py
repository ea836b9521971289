"""Question answering with search: the last <answer>...</answer>, compared with the accepted answers."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

_MAX_TAGS = 10
_MAX_ANSWER_LENGTH = 2000
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = re.escape(string.punctuation)
# Kept: the point and the minus of a number, what parts two numbers (3-4, 1/2; not 1,000), the signs of C++, C#, A+, A-.
_MEANINGFUL = re.compile(
    rf"(?<![\w.])(?P<minus>-)(?=\.?[0-9])|(?<=[0-9])(?P<comma>,)(?=[0-9]{{3}}(?![0-9]))"
    rf"|(?:(?<=[0-9])|(?<![\w.])(?=\.))(?P<inner>[{_PUNCTUATION}]+)(?=[0-9])"
    rf"|(?<=\w)(?P<sign>[+#]+)(?!\w)|(?<=\b[a-zA-Z])(?P<grade>-)(?!\w)|[{_PUNCTUATION}]"
)


def search_qa(solution_str: str, ground_truth: Any) -> float:
    """1 if the last answer is one of the accepted answers, 0.25 if there are more than 10 answer tags; else 0."""
    answer = last_tagged(solution_str)
    if not answer or plain_words(answer) not in {plain_words(text) for text in accepted(ground_truth)}:
        return 0.0
    too_many_tags = max(solution_str.count("<answer>"), solution_str.count("</answer>")) > _MAX_TAGS
    return 0.25 if too_many_tags else 1.0


def last_tagged(text: str) -> str | None:
    """The text of the last closed <answer>...</answer>."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") :].partition("</answer>")[0][:_MAX_ANSWER_LENGTH] if start >= 0 else None


def accepted(ground_truth: Any) -> list[str]:
    """{"target": [...]}, a list, or one answer."""
    target = ground_truth["target"] if isinstance(ground_truth, Mapping) else ground_truth
    if hasattr(target, "tolist"):  # array from a parquet file
        target = target.tolist()
    return [str(answer) for answer in target] if isinstance(target, list | tuple) else [str(target)]


def plain_words(text: str) -> str:
    """Lower case, without punctuation and articles, white space collapsed; "A" and "?" stay as they are."""
    words = " ".join(_MEANINGFUL.sub(_kept, text.lower()).split())
    return " ".join(_ARTICLES.sub(" ", words).split()) or words or text.strip()


def _kept(match: re.Match[str]) -> str:
    return "" if match.lastgroup in (None, "comma") else match.group()
