"""Raw rows in MindSpeed RL's formats: which columns are the prompt and the answer, and how the prompt is built.

`data.handler` replaces its preprocessing YAML: handler_name, map_keys and prompt_type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.data.files import Rows, short_hash
from burnish.data.prompt import read_messages, text_of
from burnish.errors import UserError
from burnish.registry import Registry

if TYPE_CHECKING:
    from burnish.config.data import HandlerConfig

HANDLERS = Registry("data handler", key="data.handler.name")
PROMPT_TYPES = Registry("prompt type", key="data.handler.prompt_type")

MAP_KEY = "data.handler.map_keys"
COLUMNS = {"prompt": "instruction", "query": "input", "response": "output", "system": "system"}
REQUIRED = ("prompt", "response")
REASONING = (
    "Think before you answer. Put your reasoning between <think> and </think>, then your answer between <answer> and"
    " </answer>, and put the final result inside \\boxed{}."
)


@dataclass(frozen=True)
class RawExample:
    """The parts of a raw row."""

    question: str
    answer: Any
    system: str


@HANDLERS.register("AlpacaStyleInstructionHandler", "R1AlpacaStyleInstructionHandler")
def alpaca(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> RawExample:
    """The question is instruction and input, one per line; the response is the answer."""
    parts = [_text(row, columns.get(name), where) for name in ("prompt", "query")]
    question = "\n".join(part for part in parts if part)
    if not question:
        raise UserError(f"{where}: {columns['prompt']!r} is empty", key=MAP_KEY, value=dict(columns))
    return RawExample(question, row[columns["response"]], _text(row, columns.get("system"), where))


@HANDLERS.register("Math17kAlpacaStyleInstructionHandler")
def math17k(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> RawExample:
    """The question is the joined contents of a chat; the answer is an object's ground_truth."""
    value, answer = row[columns["prompt"]], row[columns["response"]]
    messages = read_messages(None if isinstance(value, str) else value, columns["prompt"], where, key=MAP_KEY)
    if not isinstance(answer, Mapping) or answer.get("ground_truth") is None:
        problem = f"{where}: {columns['response']!r} has no ground_truth"
        raise UserError(problem, key=MAP_KEY, value=dict(columns))
    question = "\n".join(text_of(message["content"]) for message in messages)
    return RawExample(question, answer["ground_truth"], _text(row, columns.get("system"), where))


@PROMPT_TYPES.register("empty", templated=False)
def plain(example: RawExample) -> str:
    """The question as it is, without a chat template."""
    return f"{example.system}\n{example.question}" if example.system else example.question


@PROMPT_TYPES.register("default", "qwen", "qwen3", "llama3", "deepseek3", templated=True)
def chat(example: RawExample) -> list[dict[str, str]]:
    """The row's system message and one user turn, for the tokenizer's chat template."""
    system = [{"role": "system", "content": example.system}] if example.system else []
    return [*system, {"role": "user", "content": example.question}]


@PROMPT_TYPES.register("qwen_r1", "qwen_math_r1", "llama3_r1", templated=True)
def reasoning_chat(example: RawExample) -> list[dict[str, str]]:
    """The same, with a system message that asks for <think>, <answer> and \\boxed."""
    system = f"{REASONING}\n{example.system}" if example.system else REASONING
    return chat(RawExample(example.question, example.answer, system))


class HandledRows:
    """Rows of a handler: a prompt, a ground truth, and the raw row in extra_info."""

    def __init__(self, rows: Rows, cfg: HandlerConfig, prompt_key: str, kept: tuple[str, ...] = ()) -> None:
        self.rows = rows
        self.name = rows.name
        assert cfg.name is not None
        self.parse = HANDLERS[cfg.name].load()
        self.columns = _columns(rows, dict(cfg.map_keys))
        self.prompt_key = prompt_key
        self.build_prompt = PROMPT_TYPES[cfg.prompt_type].load()
        self.kinds = {prompt_key: "list", "reward_model": "object", "extra_info": "object"}
        self.kept = [column for column in kept if column in rows.kinds]  # columns to copy
        self.kinds |= {column: rows.kinds[column] for column in self.kept}
        identity = (rows.fingerprint, cfg.name, cfg.prompt_type, sorted(self.columns.items()))
        self.fingerprint = short_hash(repr(identity).encode())

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> dict[str, Any]:
        raw = self.rows.row(number)
        example = self.parse(raw, self.columns, self.where(number))
        if example.answer is None:
            problem = f"{self.where(number)}: {self.columns['response']!r} is empty"
            raise UserError(problem, key=MAP_KEY, value=self.columns)
        return {
            self.prompt_key: self.build_prompt(example),
            "reward_model": {"ground_truth": example.answer},
            "extra_info": {"row": raw},
            **{column: raw[column] for column in self.kept},
        }

    def values(self, column: str) -> set[Any]:
        return {self.row(number).get(column) for number in range(len(self))} if column in self.kinds else set()

    def where(self, number: int) -> str:
        return self.rows.where(number)


def _columns(rows: Rows, map_keys: dict[str, str]) -> dict[str, str]:
    """Part of a prompt -> column. A part mapped to "" is omitted; an unmapped part uses its default column, if any."""
    unknown = sorted(map_keys.keys() - COLUMNS.keys())
    if unknown:
        raise UserError(f"{', '.join(unknown)} cannot be mapped", key=MAP_KEY, value=map_keys, allowed=list(COLUMNS))
    columns = {part: map_keys.get(part, default) for part, default in COLUMNS.items()}
    for part, column in columns.items():
        required = part in REQUIRED or bool(map_keys.get(part))
        if required and column not in rows.kinds:
            problem = f"{rows.name} has no column {column!r} for the {part}"
            raise UserError(problem, key=MAP_KEY, value=map_keys, allowed=", ".join(sorted(rows.kinds)))
    return {part: column for part, column in columns.items() if column in rows.kinds}


def _text(row: Mapping[str, Any], column: str | None, where: str) -> str:
    value = row.get(column) if column else None
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: {column!r} must be text, not {type(value).__name__}", key=MAP_KEY)
    return value
