"""Preparers convert raw questions and answers to verl's schema. `burnish data NAME SRC OUT` runs one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.data.prompt import text_of
from burnish.errors import UserError
from burnish.media import InvalidMedia
from burnish.media.image import image_bytes
from burnish.registry import Registry

if TYPE_CHECKING:
    from burnish.data.files import Rows

PREPARERS = Registry("kind of raw data", key="burnish data")


@dataclass(frozen=True)
class Recipe:
    """How to convert raw rows: columns, text around the question, data source."""

    prompt_key: str
    answer_key: str | None
    data_source: str
    instruction: str = ""
    system: str = ""
    split: str = "train"
    ability: str = ""
    image_key: str | None = None  # column of pictures, which the rows then have too


@dataclass(frozen=True)
class Prepared:
    """The converted rows, and the rows that failed: (row number, reason)."""

    rows: list[dict[str, Any]]
    bad: list[tuple[int, str]]


class BadRow(Exception):
    """A raw row that cannot be converted."""


@PREPARERS.register(
    "gsm8k",
    about="grade-school maths: question, answer ending in '#### number'",
    subset="main",
    recipe=Recipe(
        prompt_key="question",
        answer_key="answer",
        data_source="openai/gsm8k",
        instruction="Work through it step by step. On the last line write #### followed by the final number.",
        ability="math",
    ),
)
def gsm8k_answer(answer: str) -> str:
    """The number after the last ####, without thousands separators."""
    numbers = re.findall(r"####\s*(-?\$?[\d.,]+)", answer)
    if not numbers:
        raise BadRow("the answer has no '#### number'")
    return numbers[-1].replace(",", "").replace("$", "").rstrip(".")


@PREPARERS.register(
    "math",
    about="competition maths (MATH): problem, solution with \\boxed{}",
    subset=None,
    recipe=Recipe(
        prompt_key="problem",
        answer_key="solution",
        data_source="lighteval/MATH",
        instruction="Work through it step by step and put the final answer inside \\boxed{}.",
        ability="math",
    ),
)
def boxed_answer(solution: str) -> str:
    """The content of the last \\boxed{...} (or \\fbox{...}, or the word after `\\boxed `)."""
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    if start < 0:
        raise BadRow("the solution has no \\boxed answer")
    rest = solution[start:].removeprefix("\\boxed").removeprefix("\\fbox").lstrip()
    if not rest.startswith("{"):
        word = re.match(r"[^\s$]+", rest)
        if word is None:
            raise BadRow("nothing follows \\boxed")
        return word.group().rstrip(".")
    depth = 0
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:position]
    raise BadRow("the braces of \\boxed are not closed")


@PREPARERS.register(
    "geo3k",
    about="geometry with figures (Geometry3K): problem with <image>, images, answer",
    subset=None,
    recipe=Recipe(
        prompt_key="problem",
        answer_key="answer",
        data_source="hiyouga/geometry3k",
        instruction="Think step by step between <think> and </think>, then put the final answer inside \\boxed{}.",
        ability="math",
        image_key="images",
    ),
)
def figure_answer(answer: Any) -> str:
    """The answer as text, without white space around it."""
    text = str(answer).strip()
    if not text:
        raise BadRow("the answer is empty")
    return text


@PREPARERS.register(
    "jsonl",
    about="any rows with a prompt and, if the reward needs one, an answer",
    subset=None,
    recipe=Recipe(prompt_key="prompt", answer_key="answer", data_source=""),
)
def whole_answer(answer: Any) -> Any:
    """The answer as it is."""
    return answer


def prepare(name: str, raw: Rows, recipe: Recipe) -> Prepared:
    """Convert the rows; the result lists those that cannot be converted."""
    from burnish.data.files import folder_of

    read_answer = PREPARERS[name].load()
    if not recipe.data_source:
        problem = "a data source is required: it selects the reward and groups the metrics"
        raise UserError(problem, key="--data-source", hint="--data-source my/task")
    for column in filter(None, (recipe.prompt_key, recipe.answer_key, recipe.image_key)):
        if column not in raw.kinds:
            problem = f"no column {column!r} in {raw.name}"
            raise UserError(problem, allowed=", ".join(raw.kinds), hint="--prompt-key NAME --answer-key NAME")
    prepared = Prepared([], [])
    for number in range(len(raw)):
        try:
            prepared.rows.append(_row(raw.row(number), number, recipe, read_answer, folder_of(raw, number)))
        except BadRow as error:
            prepared.bad.append((number, str(error)))
    return prepared


def _row(raw: Mapping[str, Any], number: int, recipe: Recipe, read_answer: Any, folder: str) -> dict[str, Any]:
    question = raw.get(recipe.prompt_key)
    answer = raw.get(recipe.answer_key) if recipe.answer_key else None
    if not question:
        raise BadRow(f"{recipe.prompt_key!r} is empty")
    if recipe.answer_key and answer is None:
        raise BadRow(f"{recipe.answer_key!r} is empty")
    row = {
        "data_source": recipe.data_source,
        "prompt": list(_messages(question, recipe)),
        "ability": recipe.ability,
        "extra_info": {"split": recipe.split, "index": number, "question": question},
    }
    if recipe.answer_key:
        row["reward_model"] = {"style": "rule", "ground_truth": read_answer(answer)}
        row["extra_info"]["answer"] = answer
    if recipe.image_key is not None:
        row["images"] = _images(raw.get(recipe.image_key), row["prompt"], folder)
    return row


def _images(value: Any, messages: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """The pictures as bytes, so that the file is complete, after each was decoded once."""
    values = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    wanted = sum(text_of(message["content"]).count("<image>") for message in messages)
    if wanted != len(values):
        raise BadRow(f"{wanted} <image> in the question, but {len(values)} images")
    images = []
    for number, each in enumerate(values):
        try:
            images.append({"bytes": image_bytes(each, f"image {number}", folder), "path": None})
        except InvalidMedia as error:
            raise BadRow(error.problem) from error
    return images


def _messages(question: str | list[dict[str, Any]], recipe: Recipe) -> Iterator[dict[str, Any]]:
    """The chat of one question: the system message, then the question followed by the instruction."""
    if isinstance(question, str):
        question = [{"role": "user", "content": question}]
    messages = [dict(message) for message in question]
    if recipe.system:
        yield {"role": "system", "content": recipe.system}
    if recipe.instruction:
        last = messages[-1]
        messages[-1] = {**last, "content": f"{last['content']}\n\n{recipe.instruction}"}
    yield from messages
