"""Synthetic rows in place of a dataset that is not local, with the columns that the config names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.data.shapes import shape_rows
from burnish.errors import UserError
from burnish.reward.rules import find_rule
from burnish.untrusted import load_yaml, read_text

# Pattern of a dataset's name -> the data source whose rule scores it, and a question. The first match wins.
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
    """The data source of a dataset, and a question with its answers."""

    source: str
    question: str
    ground_truth: Any
    right: str
    wrong: str

    @property
    def name(self) -> str:
        return f"data source {self.source}"


def subject_of(name: str) -> Subject:
    """The subject by a dataset's name."""
    matches = ((source, question) for pattern, source, question in _SUBJECTS if re.search(pattern, name.lower()))
    source, question = next(matches, _DEFAULT)
    rule = find_rule(source) if source else None
    if rule is None:
        stem = name.rstrip("/").rpartition("/")[2].removesuffix(".parquet").removesuffix(".jsonl")
        return Subject(source or stem or "chat", question, "It is so.", "It is so.", "It is not so.")
    example = rule.metadata["example"]
    return Subject(source, question, example.ground_truth, example.right, example.wrong)


def prompts(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    """Rows in verl's schema, or raw rows where a data handler is configured."""
    about = subject_of(name)
    has_handler = cfg.data.handler.name is not None
    return [(_raw if has_handler else _prompt)(cfg, about, number) for number in range(count)], about.name


def _prompt(cfg: Any, about: Subject, number: int) -> dict[str, Any]:
    data, question = cfg.data, about.question.format(n=number + 2)
    messages = [{"role": "user", "content": question}]
    extra = {"index": number, "split": "train", "question": question, "answer": about.right}
    row: dict[str, Any] = {
        "reward_model": {"style": "rule", "ground_truth": about.ground_truth},
        "extra_info": extra | _interaction(cfg, question, about),
        data.reward_fn_key: about.source,
        data.prompt_key: messages if data.apply_chat_template else question,
    }
    if data.label_key is not None and data.label_key not in row:
        row[data.label_key] = about.ground_truth if isinstance(about.ground_truth, str) else about.right
    return row


def _interaction(cfg: Any, question: str, about: Subject) -> dict[str, Any]:
    """Which simulated user a row talks with: the first of the file."""
    path = cfg.actor_rollout_ref.rollout.multi_turn.interaction_config_path
    if not path or not Path(path).expanduser().is_file():
        return {}
    try:
        name = load_yaml(read_text(Path(path).expanduser()))["interaction"][0].get("name")
    except (UserError, OSError, LookupError, TypeError, AttributeError):  # reported where the file is loaded
        return {}
    kwargs = {"name": name, "query": question, "ground_truth": about.ground_truth}
    return {"interaction_kwargs": {key: value for key, value in kwargs.items() if value is not None}}


def _raw(cfg: Any, about: Subject, number: int) -> dict[str, Any]:
    """The columns of a MindSpeed handler, under the user's names."""
    columns = {"prompt": "instruction", "query": "input", "response": "output", "system": "system"}
    columns |= dict(cfg.data.handler.map_keys)
    question = about.question.format(n=number + 2)
    chat = "math17k" in cfg.data.handler.name.lower()
    parts: dict[str, Any] = {
        "prompt": [{"role": "user", "content": question}] if chat else question,
        "query": "",
        "response": {"ground_truth": about.ground_truth} if chat else about.ground_truth,
        "system": "",
    }
    return {columns[part]: value for part, value in parts.items() if columns.get(part)}


def examples(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    """Questions with answers, or conversations."""
    about = subject_of(name)
    return [_example(cfg.data, about, number) for number in range(count)], about.name


def _example(data: Any, about: Subject, number: int) -> dict[str, Any]:
    question = about.question.format(n=number + 2)
    if data.multiturn.enable:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": about.right}]
        return {data.multiturn.messages_key: messages}
    row: dict[str, Any] = {}
    _set_nested(row, [data.prompt_key, *data.prompt_dict_keys], question)
    if data.response_key:
        _set_nested(row, [data.response_key, *data.response_dict_keys], about.right)
    return row


def _set_nested(row: dict[str, Any], keys: list[str], value: str) -> None:
    """Put a value under nested keys."""
    for key in keys[:-1]:
        row = row.setdefault(key, {})
    row[keys[-1]] = value


def questions(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    about = subject_of(name)
    prompts = [about.question.format(n=number + 2) for number in range(count)]
    rows = [{cfg.data.prompt_key: [{"role": "user", "content": text}], "data_source": about.source} for text in prompts]
    return rows, about.name


def responses(cfg: Any, name: str, count: int) -> tuple[list[dict[str, Any]], str]:
    """Rows with a right and a wrong response."""
    about, data = subject_of(name), cfg.data
    rows = [
        {
            data.prompt_key: [{"role": "user", "content": about.question.format(n=number + 2)}],
            data.response_key: [about.right, about.wrong],
            data.data_source_key: about.source,
            (data.reward_model_key or "reward_model"): {"style": "rule", "ground_truth": about.ground_truth},
        }
        for number in range(count)
    ]
    return rows, about.name


# Datasets of text, which vision models are trained on too.
_TEXT_ONLY = re.compile(r"gsm8k|math(?!vi)|aime|dapo|code|hotpot|alpaca")


def has_pictures(cfg: Any, settings: Collection[str], name: str) -> bool:
    """Whether a vision model's dataset of this name has images: unless it is known as text, or none are read."""
    return cfg.data.image_key is not None and ("data.image_key" in settings or _TEXT_ONLY.search(name.lower()) is None)


def with_picture(row: dict[str, Any], cfg: Any, number: int) -> dict[str, Any]:
    """The row with a picture, which its first text mentions."""
    multiturn = getattr(cfg.data, "multiturn", None)
    key = multiturn.messages_key if multiturn is not None and multiturn.enable else cfg.data.prompt_key
    value = row.get(key)
    if isinstance(value, str):
        value = f"<image>{value}"
    elif isinstance(value, list):
        value = [{**value[0], "content": f"<image>{value[0]['content']}"}, *value[1:]]
    else:  # raw rows of a data handler, and nested columns
        return row
    picture = next(shape_rows("count", 1, seed=number))["images"][0]
    return {**row, key: value, cfg.data.image_key: [picture]}


# By job: (config, dataset name, row count) -> rows, and their description.
SYNTHETIC_ROWS: dict[str, Callable[[Any, str, int], tuple[list[dict[str, Any]], str]]] = {
    "train": prompts,
    "sft": examples,
    "generate": questions,
    "eval": responses,
}
