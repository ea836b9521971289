"""Question answering with search: the last <answer>...</answer>, compared with the accepted answers."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

_MAX_TAGS = 10
_MAX_ANSWER_LENGTH = 2000
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def search_qa(solution_str: str, ground_truth: Any) -> float:
    """1 if the last answer is one of the accepted answers, 0.25 if there are more than 10 answer tags; else 0."""
    answer = last_tagged(solution_str)
    if answer is None or plain_words(answer) not in {plain_words(text) for text in accepted(ground_truth)}:
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
    """Lower case, without punctuation and articles, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())
