"""ExampleDataset: batches of examples for supervised training from files, a list, or a custom dataset class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from burnish.batch import Batch, Column, Ragged
from burnish.data.custom import load_custom_rows
from burnish.data.encode import TRUNCATIONS, PromptEncoder, TemplateFailure, cuts_a_picture
from burnish.data.example import Example, chat_example, conversation, nested_value, pair_example, tokenized_example
from burnish.data.files import ListRows, Rows, folder_of, join_rows
from burnish.data.find import Finder
from burnish.data.invalid_media import INVALID_MEDIA, at_row
from burnish.data.load import select_rows
from burnish.data.pictures import MediaColumns, VisionEncoder
from burnish.data.prompt import Prompt, read_messages
from burnish.data.prompt_pictures import with_pictures
from burnish.data.tool_messages import read_schemas
from burnish.errors import UserError
from burnish.media import InvalidMedia
from burnish.storage import local_path

if TYPE_CHECKING:
    from burnish.config.sft import SftDataConfig

CACHED_TOKENS = 50_000_000


class ExampleDataset:
    """Examples by index; `kept[index]` is the row's number in its source, used in messages."""

    def __init__(
        self,
        rows: Rows,
        tokenizer: Any,
        cfg: SftDataConfig,
        selected: Sequence[int],
        key: str,
        vision: VisionEncoder | None = None,  # None: the model takes text only
    ) -> None:
        self.rows = rows
        self.cfg = cfg
        self.key = key
        self.kept = list(selected)
        kwargs = dict(cfg.apply_chat_template_kwargs)
        self.encoder = PromptEncoder(tokenizer, kwargs, cfg.apply_chat_template, cfg.input_template, vision=vision)
        has_media = any(name in rows.kinds for name in (cfg.image_key, cfg.video_key))
        self.media_columns = MediaColumns(cfg.image_key, cfg.video_key, expected=has_media)
        self.truncation = TRUNCATIONS[cfg.truncation]
        self._cache: dict[int, Example] = {}
        self._cache_budget = CACHED_TOKENS
        self.notices: list[str] = []  # what was left out or cut, for the start of the run
        self._cut_rows: set[int] = set()  # row numbers
        if not self.kept:
            raise UserError("no rows selected", key=key, value=rows.name, hint="max_samples=-1 selects all rows")
        self._check_columns()
        # All rows are read before a model is loaded, so that the run does not stop at row 40,000.
        targets = self._read_all()
        self._add_notices(num_empty=targets.count(False))

    def _read_all(self) -> list[bool]:
        """Whether each example has a target. Rows with bad pictures are dropped or an error (data.invalid_media)."""
        targets: dict[int, bool] = {}
        errors: list[tuple[str, UserError]] = []
        for index, number in enumerate(self.kept):
            try:
                targets[number] = any(self.example(index).loss_mask)
            except InvalidMedia as error:
                errors.append((self.rows.where(number), error))
        if errors:
            INVALID_MEDIA[self.cfg.invalid_media].load()(errors, self.key)
            report = f"{len(errors)} of {len(self.kept)} examples (first: {at_row(errors[0][1], errors[0][0]).problem})"
            if not targets:
                raise UserError(f"no example is left: bad pictures in {report}", key=self.key, value=self.rows.name)
            self.notices.append(f"{self.key}: data.invalid_media=drop dropped {report}")
            self.kept = list(targets)
        return list(targets.values())

    def _add_notices(self, num_empty: int) -> None:
        cfg, rows = self.cfg, len(self.kept)
        cut = f"data.max_length={cfg.max_length}"
        if num_empty == rows:
            problem = f"none of the {rows} examples has a token to train on after truncation to {cut}"
            raise UserError(problem, key=self.key, value=self.rows.name, hint="a larger data.max_length")
        if rows < len(self.rows):
            samples_key = self.key.replace("_files", "_max_samples")
            self.notices.append(f"{self.key}: {samples_key} selects {rows} of {len(self.rows)} rows")
        if self._cut_rows:
            count = len(self._cut_rows)
            self.notices.append(
                f"{self.key}: {count} of {rows} examples are truncated to {cut} (data.truncation={cfg.truncation})"
            )
        if num_empty:
            self.notices.append(f"{self.key}: {num_empty} of {rows} examples have no token to train on")

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def fingerprint(self) -> str:
        return self.rows.fingerprint

    def batch(self, indices: Sequence[int]) -> Batch:
        """prompt_ids before the first target token, responses from it on, and the loss mask of the responses."""
        examples = [self.example(index) for index in indices]
        masks = [[float(mark) for mark in example.loss_mask[example.response_start :]] for example in examples]
        columns: dict[str, Column] = dict(
            prompt_ids=Ragged.of([example.ids[: example.response_start] for example in examples], torch.int64),
            responses=Ragged.of([example.ids[example.response_start :] for example in examples], torch.int64),
            response_mask=Ragged.of(masks, torch.float32),
        )
        if self.encoder.vision is not None:
            columns["media"] = [example.media for example in examples]
        return Batch(**columns)

    def example(self, index: int) -> Example:
        """The truncated tokens of one row, cached while the budget lasts."""
        number = self.kept[index]
        if number in self._cache:
            return self._cache[number]
        where = self.rows.where(number)
        try:
            whole = self._read(self.rows.row(number), where, folder_of(self.rows, number))
        except TemplateFailure as failure:
            raise UserError(
                f"{where}: the chat template failed: {failure}",
                key=self.key,
                hint="data.ignore_input_ids_mismatch=true if the turns only tokenize differently",
            ) from failure
        except UserError as error:
            raise at_row(error, where) from error
        example = whole.truncated(lambda tokens: self._truncated(tokens, where))
        if example is None:
            raise cuts_a_picture(where, len(whole.ids), self.cfg.max_length, "data.max_length")
        if len(example.ids) < len(whole.ids):
            self._cut_rows.add(number)
        if len(example.ids) <= self._cache_budget and not example.media:
            self._cache_budget -= len(example.ids)
            self._cache[number] = example
        return example

    def _truncated(self, tokens: Sequence[int], where: str) -> Sequence[int]:
        limit = self.cfg.max_length
        if self.truncation.metadata.get("before_start") and len(tokens) > limit:
            raise UserError(
                f"{where} has {len(tokens)} tokens, more than data.max_length={limit}",
                key="data.truncation",
                value=self.cfg.truncation,
                hint=f"data.max_length={len(tokens)} to fit it, or data.truncation=right (left, middle) to truncate",
            )
        return self.truncation.load()(tokens, limit, where)

    def _read(self, row: Mapping[str, Any], where: str, folder: str) -> Example:
        tokenized = tokenized_example(row, where)
        if tokenized is not None:
            self._with_pictures(Prompt(None, ids=tokenized.ids), row, where, folder)  # refuses pictures
            return tokenized
        cfg = self.cfg
        if cfg.multiturn.enable:
            messages = conversation(row, cfg.multiturn.messages_key, where)
            whole = self._with_pictures(Prompt(messages), row, where, folder)
            encoder = self._encoder_of(row, where)
            return chat_example(encoder, whole.messages or [], whole.media, tolerant=cfg.ignore_input_ids_mismatch)
        prompt = nested_value(row.get(cfg.prompt_key), cfg.prompt_dict_keys, cfg.prompt_key, where)
        response = nested_value(row.get(cfg.response_key), cfg.response_dict_keys, cfg.response_key, where)
        if not isinstance(response, str):
            problem = f"{where}: the response must be a string, not {type(response).__name__}"
            raise UserError(problem, key="data.response_key", value=cfg.response_key)
        return pair_example(
            self.encoder, self._with_pictures(self._prompt(prompt, where), row, where, folder), response
        )

    def _with_pictures(self, prompt: Prompt, row: Mapping[str, Any], where: str, folder: str) -> Prompt:
        return with_pictures(prompt, row, self.encoder, self.media_columns, where, folder, self.key)

    def _prompt(self, value: object, where: str) -> Prompt:
        if isinstance(value, str):
            return Prompt([{"role": "user", "content": value}], plain_text=value)
        return Prompt(read_messages(value, self.cfg.prompt_key, where))

    def _encoder_of(self, row: Mapping[str, Any], where: str) -> PromptEncoder:
        """The encoder with the row's own template arguments: its tools, and whether thinking is enabled."""
        columns = {"tools": self.cfg.multiturn.tools_key, "enable_thinking": self.cfg.multiturn.enable_thinking_key}
        arguments = {name: row[column] for name, column in columns.items() if row.get(column) is not None}
        if not arguments:
            return self.encoder
        if "tools" in arguments:
            arguments["tools"] = read_schemas(arguments["tools"], where, "data.multiturn.tools_key")
        return replace(self.encoder, template_kwargs={**self.encoder.template_kwargs, **arguments})

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
                    f"no such column in {self.rows.name}",
                    key=key,
                    value=column,
                    allowed=", ".join(sorted(columns)),
                    hint=f"{key}=COLUMN" + ("" if cfg.multiturn.enable else ", or data.multiturn.enable=true"),
                )


def load_examples(
    cfg: SftDataConfig,
    finder: Finder,
    files: list[str],
    max_samples: int,
    rows: Sequence[Mapping[str, Any]] | None = None,
    vision: VisionEncoder | None = None,
) -> ExampleDataset:
    """The examples of the configured files, or `rows` instead."""
    source: Rows
    if rows is not None:
        source = ListRows(rows)
    elif cfg.custom_cls.path:
        local = [local_path(file, key=finder.key, use_shm=cfg.use_shm) for file in files]
        source, took_samples = load_custom_rows(cfg, local, finder.tokenizer, None, max_samples)
        max_samples = -1 if took_samples else max_samples
    else:
        source = join_rows([finder.rows(file) for file in files], finder.key)
    selected = select_rows(len(source), max_samples, shuffle=False, seed=0)
    return ExampleDataset(source, finder.tokenizer, cfg, selected, finder.key, vision)
