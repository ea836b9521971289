"""Preparers: raw questions and answers to rows of verl's schema. `burnish data NAME SRC OUT` runs one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.registry import Registry

if TYPE_CHECKING:
    from burnish.data.files import Rows

PREPARERS = Registry("kind of raw data", key="burnish data")


@dataclass(frozen=True)
class Recipe:
    """How raw rows become prompts: which columns, what is added around the question, what the rows are called."""

    prompt_key: str
    answer_key: str | None
    data_source: str
    instruction: str = ""
    system: str = ""
    split: str = "train"
    ability: str = ""


@dataclass(frozen=True)
class Prepared:
    """The rows made, and the rows left out: (row number, why)."""

    rows: list[dict[str, Any]]
    bad: list[tuple[int, str]]


class BadRow(Exception):
    """A raw row from which no training row can be made."""


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
    found = re.findall(r"####\s*(-?\$?[\d.,]+)", answer)
    if not found:
        raise BadRow("the answer has no '#### number'")
    return found[-1].replace(",", "").replace("$", "").rstrip(".")


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
    """What stands in the last \\boxed{...} (or \\fbox{...}, or after `\\boxed `)."""
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
    "jsonl",
    about="any rows with a prompt and, if the reward needs one, an answer",
    subset=None,
    recipe=Recipe(prompt_key="prompt", answer_key="answer", data_source=""),
)
def whole_answer(answer: Any) -> Any:
    """The answer as it is."""
    return answer


def prepare(name: str, raw: Rows, recipe: Recipe) -> Prepared:
    """Make the rows; those that cannot be made are listed, not dropped in silence."""
    read_answer = PREPARERS[name].load()
    if not recipe.data_source:
        raise UserError(
            "the rows need a name: rewards and metrics go by it", key="--data-source", hint="--data-source my/task"
        )
    for column in filter(None, (recipe.prompt_key, recipe.answer_key)):
        if column not in raw.kinds:
            problem = f"{raw.name} has no column {column!r}"
            raise UserError(
                problem, allowed=f"its columns {', '.join(raw.kinds)}", hint="--prompt-key NAME --answer-key NAME"
            )
    prepared = Prepared([], [])
    for number in range(len(raw)):
        try:
            prepared.rows.append(_row(raw.row(number), number, recipe, read_answer))
        except BadRow as why:
            prepared.bad.append((number, str(why)))
    return prepared


def _row(raw: Mapping[str, Any], number: int, recipe: Recipe, read_answer: Any) -> dict[str, Any]:
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
    return row


def _messages(question: str | list[dict[str, Any]], recipe: Recipe) -> Iterator[dict[str, Any]]:
    """The chat of one question: the system message, then the question with the instruction at its end."""
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else [dict(one) for one in question]
    if recipe.system:
        yield {"role": "system", "content": recipe.system}
    if recipe.instruction:
        last = messages[-1]
        messages[-1] = {**last, "content": f"{last['content']}\n\n{recipe.instruction}"}
    yield from messages
