"""Made rows: what a dataset of this name would hold, in the columns that the config names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burnish.reward.rules import find_rule

# Names of datasets -> the data source whose rule scores them, and a question. The first that matches wins.
_SUBJECTS: tuple[tuple[str, str, str], ...] = (
    (r"gsm8k", "openai/gsm8k", "Ann sells {n} apples at 2 coins each. How many coins does she get?"),
    (r"geo3k|geometry", "hiyouga/geometry3k", "A square has sides of {n}. How long is its diagonal?"),
    (r"search|nq|hotpot|trivia", "searchR1_nq", "Who wrote book number {n}?"),
    (r"eurus|numina", "numina_synthetic_math", "Expand the square of a binomial, number {n}."),
    (r"code|taco|apps|contest|leetcode", "codecontests", "Write a program that adds {n} to a number."),
    (r"dapo|aime|deepscaler|math.?17k|orz|amc|r1_bench|retool", "math_dapo", "What is {n} + 5?"),
    (r"math", "DigitalLearningGmbH/MATH-lighteval", "Solve for x: 2x = {n}."),
    (r"hh|rlhf|chat|prompt-collection|ultra|alpaca|orca|preference|pokemon", "", "Tell me fact number {n}."),
)
_DEFAULT = ("openai/gsm8k", "What is {n} + 5?")


@dataclass(frozen=True)
class Subject:
    """What a dataset is about: its data source (a rule of ours scores it, if there is one), its questions."""

    source: str
    question: str
    truth: Any
    right: str
    wrong: str

    @property
    def name(self) -> str:
        return f"data source {self.source}"


def subject_of(name: str) -> Subject:
    """By the name of the dataset."""
    found = ((source, ask) for pattern, source, ask in _SUBJECTS if re.search(pattern, name.lower()))
    source, ask = next(found, _DEFAULT)
    rule = find_rule(source) if source else None
    if rule is None:
        plain = name.rstrip("/").rpartition("/")[2].removesuffix(".parquet").removesuffix(".jsonl")
        return Subject(source or plain or "chat", ask, "It is so.", "It is so.", "It is not so.")
    example = rule.metadata["example"]
    return Subject(source, ask, example.ground_truth, example.right, example.wrong)


def prompts(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    """Rows of a prompt, a truth, and what goes with them in verl's schema; or raw ones for a handler."""
    about = subject_of(name)
    handled = cfg.data.handler.name is not None
    return [(_raw if handled else _prompt)(cfg, about, number) for number in range(count)], about.name


def _prompt(cfg: Any, about: Subject, number: int) -> dict[str, Any]:
    data, question = cfg.data, about.question.format(n=number + 2)
    messages = [{"role": "user", "content": question}]
    row: dict[str, Any] = {
        "reward_model": {"style": "rule", "ground_truth": about.truth},
        "extra_info": {"index": number, "split": "train", "question": question, "answer": about.right},
        data.reward_fn_key: about.source,
        data.prompt_key: messages if data.apply_chat_template else question,
    }
    if data.label_key is not None and data.label_key not in row:
        row[data.label_key] = about.truth if isinstance(about.truth, str) else about.right
    return row


def _raw(cfg: Any, about: Subject, number: int) -> dict[str, Any]:
    """The columns that a MindSpeed handler reads, mapped as the user mapped them."""
    columns = {"prompt": "instruction", "query": "input", "response": "output", "system": "system"}
    columns |= dict(cfg.data.handler.map_keys)
    question = about.question.format(n=number + 2)
    chat = "math17k" in cfg.data.handler.name.lower()
    parts: dict[str, Any] = {
        "prompt": [{"role": "user", "content": question}] if chat else question,
        "query": "",
        "response": {"ground_truth": about.truth} if chat else about.truth,
        "system": "",
    }
    return {columns[part]: value for part, value in parts.items() if columns.get(part)}


def examples(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    """Questions with answers, or whole conversations."""
    about = subject_of(name)
    return [_example(cfg.data, about, number) for number in range(count)], about.name


def _example(data: Any, about: Subject, number: int) -> dict[str, Any]:
    question = about.question.format(n=number + 2)
    if data.multiturn.enable:
        said = [{"role": "user", "content": question}, {"role": "assistant", "content": about.right}]
        return {data.multiturn.messages_key: said}
    row: dict[str, Any] = {}
    _bury(row, [data.prompt_key, *data.prompt_dict_keys], question)
    if data.response_key:
        _bury(row, [data.response_key, *data.response_dict_keys], about.right)
    return row


def _bury(row: dict[str, Any], keys: list[str], value: str) -> None:
    """Put a value under nested keys."""
    for key in keys[:-1]:
        row = row.setdefault(key, {})
    row[keys[-1]] = value


def questions(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    about = subject_of(name)
    asked = [about.question.format(n=number + 2) for number in range(count)]
    rows = [{cfg.data.prompt_key: [{"role": "user", "content": one}], "data_source": about.source} for one in asked]
    return rows, about.name


def answered(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    """Rows with a right and a wrong response each."""
    about, data = subject_of(name), cfg.data
    rows = [
        {
            data.prompt_key: [{"role": "user", "content": about.question.format(n=number + 2)}],
            data.response_key: [about.right, about.wrong],
            data.data_source_key: about.source,
            (data.reward_model_key or "reward_model"): {"style": "rule", "ground_truth": about.truth},
        }
        for number in range(count)
    ]
    return rows, about.name


# Who makes the rows of a job: (config, name of the dataset, how many) -> rows, and what they are.
MADE: dict[str, Callable[[Any, str, int], tuple[list[dict[str, Any]], str]]] = {
    "train": prompts,
    "sft": examples,
    "generate": questions,
    "eval": answered,
}
