"""ExampleDataset: rows of files, of a list or of a custom class, as batches of tokens to imitate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from burnish.batch import Batch, Ragged
from burnish.data.custom import load_custom_rows
from burnish.data.encode import TRUNCATIONS, PromptEncoder, TemplateFailure
from burnish.data.example import Example, chat_example, conversation, follow, given_example, pair_example
from burnish.data.files import ListRows, Rows, join_rows
from burnish.data.find import Finder
from burnish.data.load import pick
from burnish.data.prompt import Prompt, read_messages
from burnish.errors import UserError
from burnish.storage import local_path

if TYPE_CHECKING:
    from burnish.config.sft import SftDataConfig

CACHED_TOKENS = 50_000_000


class ExampleDataset:
    """Examples by index; `kept[index]` is the row's number in its source, which names it in messages."""

    def __init__(self, rows: Rows, tokenizer: Any, cfg: SftDataConfig, picked: Sequence[int], key: str) -> None:
        self.rows = rows
        self.cfg = cfg
        self.key = key
        self.kept = list(picked)
        kwargs = dict(cfg.apply_chat_template_kwargs)
        self.encoder = PromptEncoder(tokenizer, kwargs, cfg.apply_chat_template, cfg.input_template)
        self.truncation = TRUNCATIONS[cfg.truncation]
        self._cache: dict[int, Example] = {}
        self._cache_room = CACHED_TOKENS
        self._check_columns()
        # What would fail on every row fails here, before a model is loaded; and where nothing may be cut, each row is
        # measured, because a run that stops at row 40,000 has lost its time.
        for index in range(len(self.kept) if self.truncation.metadata.get("before_start") else 1):
            self.example(index)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def fingerprint(self) -> str:
        return self.rows.fingerprint

    def batch(self, indices: Sequence[int]) -> Batch:
        """prompt_ids up to the first taught token, responses after it, and a mask of what is taught there."""
        examples = [self.example(index) for index in indices]
        marks = [[float(mark) for mark in one.taught[one.first :]] for one in examples]
        return Batch(
            prompt_ids=Ragged.of([one.ids[: one.first] for one in examples], torch.int64),
            responses=Ragged.of([one.ids[one.first :] for one in examples], torch.int64),
            response_mask=Ragged.of(marks, torch.float32),
        )

    def example(self, index: int) -> Example:
        """The tokens of one row, truncated; remembered while there is room."""
        number = self.kept[index]
        if number in self._cache:
            return self._cache[number]
        where = self.rows.where(number)
        try:
            whole = self._read(self.rows.row(number), where)
        except TemplateFailure as failure:
            raise UserError(
                f"{where}: the chat template failed: {failure}",
                key=self.key,
                hint="data.ignore_input_ids_mismatch=true where the turns only tokenise differently",
            ) from failure
        example = whole.cut(lambda tokens: self._truncated(tokens, where))
        if len(example.ids) <= self._cache_room:
            self._cache_room -= len(example.ids)
            self._cache[number] = example
        return example

    def _truncated(self, tokens: Sequence[int], where: str) -> Sequence[int]:
        limit = self.cfg.max_length
        if self.truncation.metadata.get("before_start") and len(tokens) > limit:
            raise UserError(
                f"{where} has {len(tokens)} tokens, more than data.max_length={limit}",
                key="data.truncation",
                value=self.cfg.truncation,
                hint=f"data.max_length={len(tokens)} to fit it, or data.truncation=right (left, middle) to cut",
            )
        return self.truncation.load()(tokens, limit, where)

    def _read(self, row: Mapping[str, Any], where: str) -> Example:
        given = given_example(row, where)
        if given is not None:
            return given
        cfg = self.cfg
        if cfg.multiturn.enable:
            messages = conversation(row, cfg.multiturn.messages_key, where)
            return chat_example(self._encoder_of(row), messages, tolerant=cfg.ignore_input_ids_mismatch)
        asked = follow(row.get(cfg.prompt_key), cfg.prompt_dict_keys, cfg.prompt_key, where)
        answer = follow(row.get(cfg.response_key), cfg.response_dict_keys, cfg.response_key, where)
        if not isinstance(answer, str):
            problem = f"{where}: the response must be a string, not {type(answer).__name__}"
            raise UserError(problem, key="data.response_key", value=cfg.response_key)
        return pair_example(self.encoder, self._prompt(asked, where), answer)

    def _prompt(self, value: object, where: str) -> Prompt:
        if isinstance(value, str):
            return Prompt([{"role": "user", "content": value}], written=value)
        return Prompt(read_messages(value, self.cfg.prompt_key, where))

    def _encoder_of(self, row: Mapping[str, Any]) -> PromptEncoder:
        """The template's arguments that a row brings: its tools, and whether it thinks."""
        columns = {"tools": self.cfg.multiturn.tools_key, "enable_thinking": self.cfg.multiturn.enable_thinking_key}
        found = {name: row[column] for name, column in columns.items() if row.get(column) is not None}
        return (
            replace(self.encoder, template_kwargs={**self.encoder.template_kwargs, **found}) if found else self.encoder
        )

    def _check_columns(self) -> None:
        cfg, columns = self.cfg, self.rows.kinds
        if "input_ids" in columns:
            return
        needed = {"data.prompt_key": cfg.prompt_key, "data.response_key": cfg.response_key}
        if cfg.multiturn.enable:
            needed = {"data.multiturn.messages_key": cfg.multiturn.messages_key}
        for key, column in needed.items():
            if column not in columns:
                raise UserError(
                    f"{self.rows.name} has no such column",
                    key=key,
                    value=column,
                    allowed=f"its columns {', '.join(sorted(columns))}",
                    hint=f"{key}=COLUMN" + ("" if cfg.multiturn.enable else ", or data.multiturn.enable=true"),
                )


def load_examples(
    cfg: SftDataConfig,
    finder: Finder,
    files: list[str],
    max_samples: int,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> ExampleDataset:
    """The examples that the config names, or `rows` in their place."""
    found: Rows
    if rows is not None:
        found = ListRows(rows)
    elif cfg.custom_cls.path:
        local = [local_path(file, key=finder.key, use_shm=cfg.use_shm) for file in files]
        found, took_samples = load_custom_rows(cfg, local, finder.tokenizer, None, max_samples)
        max_samples = -1 if took_samples else max_samples
    else:
        found = join_rows([finder.rows(file) for file in files], finder.key)
    picked = pick(len(found), max_samples, shuffle=False, seed=0)
    return ExampleDataset(found, finder.tokenizer, cfg, picked, finder.key)
