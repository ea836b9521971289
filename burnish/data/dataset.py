"""PromptDataset: batches of tokenized prompts from files, a list, or a custom dataset class."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.batch import Batch, Column, Ragged
from burnish.data.encode import (
    TRUNCATIONS,
    Encoded,
    PromptEncoder,
    TemplateFailure,
    cuts_a_picture,
    too_long,
    truncate_spans,
    truncated,
)
from burnish.data.extended import ExtendedRows
from burnish.data.files import ListRows, Rows, folder_of
from burnish.data.handlers import PROMPT_TYPES
from burnish.data.invalid_media import INVALID_MEDIA, at_row
from burnish.data.measure import Measured, PromptLength, measure
from burnish.data.pictures import MODEL_DATA, SPLIT, MediaColumns, VisionEncoder, texts
from burnish.data.prompt import Prompt, read_prompt, select_tools
from burnish.data.prompt_pictures import with_pictures
from burnish.errors import UserError
from burnish.media import InvalidMedia

if TYPE_CHECKING:
    from burnish.config.data import DataConfig

logger = logging.getLogger(__name__)

CACHED_TOKENS = 50_000_000  # of prompts that are cached, at 4 bytes each


@dataclass(frozen=True)
class FilterReport:
    """The result of the overlong filter."""

    rows: int
    overlong: int
    failed: int
    limit: int
    first_failure: str | None
    by_file: dict[str, tuple[int, int]] = field(default_factory=dict)  # file -> (kept, rows)

    @property
    def kept(self) -> int:
        return self.rows - self.overlong - self.failed

    def text(self) -> str:
        parts = [f"kept {self.kept} of {self.rows} prompts"]
        if self.overlong:
            parts.append(f"dropped {self.overlong} longer than data.max_prompt_length={self.limit}")
        if self.failed:
            parts.append(f"dropped {self.failed} on which the chat template failed (first: {self.first_failure})")
        if len(self.by_file) > 1:
            parts.append(", ".join(f"{name}: {kept} of {rows}" for name, (kept, rows) in self.by_file.items()))
        return "; ".join(parts)


class PromptDataset:
    """Prompts by index. `kept[index]` is the row's number in its source, used in uids and messages."""

    def __init__(
        self,
        rows: Rows | Sequence[Mapping[str, Any]],
        tokenizer: Any,
        cfg: DataConfig,
        *,
        selected: Sequence[int] | None = None,
        key: str = "data.train_files",
        tools: Sequence[Any] = (),  # schemas that the chat template shows the model
        vision: VisionEncoder | None = None,  # None: the model takes text only
    ) -> None:
        self.rows: Rows = rows if isinstance(rows, Rows) else ListRows(rows)
        self.cfg = cfg
        self.key = key
        self.templated = cfg.apply_chat_template and PROMPT_TYPES[cfg.handler.prompt_type].metadata["templated"]
        kwargs = dict(cfg.apply_chat_template_kwargs or {})
        self.encoder = PromptEncoder(tokenizer, kwargs, self.templated, cfg.input_template, tuple(tools), vision)
        has_media = any(name in self.rows.kinds for name in (cfg.image_key, cfg.video_key, MODEL_DATA))
        self.media_columns = MediaColumns(cfg.image_key, cfg.video_key, cfg.max_images_per_prompt, has_media)
        self.truncation = TRUNCATIONS[cfg.truncation]
        self.kept: list[int] = list(range(len(self.rows))) if selected is None else list(selected)
        self.report: FilterReport | None = None
        self.notices: list[str] = []  # what was left out or cut, for the start of the run
        self.with_rows = False  # whether batches carry `dataset_row`: the prompt and all columns, as in the file
        self._cache: dict[int, Tensor] = {}
        self._cache_budget = CACHED_TOKENS
        if not self.kept:
            raise UserError("no rows selected", key=key, value=self.rows.name, hint="max_samples=-1 selects all rows")
        self._check_columns()
        self._check_first_row()
        if vision is not None and not has_media and (cfg.image_key or cfg.video_key):
            self._check_placeholders()
        if len(self.kept) < len(self.rows):
            samples_key = key.replace("_files", "_max_samples")
            self.notices.append(f"{key}: {samples_key} selects {len(self.kept)} of {len(self.rows)} rows")
        if cfg.filter_overlong_prompts:
            self._filter()
        else:
            self._check_lengths()

    @property
    def fingerprint(self) -> str:
        return self.rows.fingerprint

    def __len__(self) -> int:
        return len(self.kept)

    def uid(self, index: int, epoch: int) -> str:
        """Identifies a prompt in an epoch; seeds of everything random about it derive from this."""
        return f"{self.fingerprint}-{self.kept[index]}-{epoch}"

    def find(self, uids: Sequence[str]) -> tuple[list[int], list[int]]:
        """Indices and epochs of prompts by uid, for `batch`."""
        index_of = {number: index for index, number in enumerate(self.kept)}
        parsed = [(data, int(row), int(epoch)) for data, row, epoch in (uid.rsplit("-", 2) for uid in uids)]
        if any(data != self.fingerprint or row not in index_of for data, row, _ in parsed):
            raise UserError(
                "the checkpoint holds responses to prompts that are not in this data",
                key=self.key,
                value=self.rows.name,
                hint="the files of the checkpoint, or trainer.resume_mode=disable",
            )
        return [index_of[row] for _, row, _ in parsed], [epoch for _, _, epoch in parsed]

    def data_sources(self) -> set[str]:
        """All data sources of the rows."""
        return {source for source in self.rows.values(self.cfg.reward_fn_key) if source is not None}

    def agent_names(self) -> set[str]:
        """The agents that rows name."""
        names = self.rows.values("agent_name") if "agent_name" in self.rows.kinds else set()
        return {str(name) for name in names if name is not None}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """A row as it is in its file, for user-defined samplers and generators."""
        return self.rows.row(self.kept[index])

    def prompt(self, index: int) -> Prompt:
        return self._read_prompt(self.rows.row(self.kept[index]), self.kept[index])

    def batch(self, indices: Sequence[int], epoch: int | Sequence[int]) -> Batch:
        """The columns of these prompts, with one epoch for all or one for each."""
        epochs = [epoch] * len(indices) if isinstance(epoch, int) else epoch
        numbers = [self.kept[index] for index in indices]
        rows = [(self.rows.row(number), number) for number in numbers]
        prompts = [(self._read_prompt(row, number), number) for row, number in rows]
        encoded = [self._encoded(prompt, number) for prompt, number in prompts]
        columns: dict[str, Column] = {
            "prompt_ids": Ragged.of([each.ids for each in encoded], torch.int64),
            "uid": [self.uid(*key) for key in zip(indices, epochs, strict=True)],
            "data_source": [self._data_source(row, number) for row, number in rows],
            "ground_truth": [self._ground_truth(row, number) for row, number in rows],
            "extra_info": [self._extra_info(row, number) for row, number in rows],
        }
        if self.encoder.vision is not None:
            columns["media"] = [each.media for each in encoded]
        if "agent_name" in self.rows.kinds:
            columns["agent_name"] = [row.get("agent_name") for row, _ in rows]
        if self.cfg.return_raw_chat:
            columns["raw_prompt"] = [prompt.messages for prompt, _ in prompts]
        if self.with_rows:
            columns["dataset_row"] = [
                (prompt.messages if prompt.plain_text is None else prompt.plain_text, self._other_columns(row))
                for (prompt, _), (row, _) in zip(prompts, rows, strict=True)
            ]
        if self.cfg.return_full_prompt:
            columns["full_prompts"] = [self.encoder.text(prompt) for prompt, _ in prompts]
        if self.cfg.return_raw_input_ids:
            raw_ids = [self._raw_ids(prompt, number) for prompt, number in prompts]
            columns["raw_input_ids"] = Ragged.of(raw_ids, torch.int64)
        return Batch(**columns)

    def column_names(self) -> set[str]:
        """Columns of the data other than the prompt."""
        return {name for name in self.rows.kinds if name != self.cfg.prompt_key}

    def _other_columns(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name != self.cfg.prompt_key}

    def append(self, rows: Sequence[Mapping[str, Any]], origin: str, *, measure: bool = True) -> list[int]:
        """Append rows, except those that the overlong filter drops; returns the positions of the appended ones."""
        extended = self.rows if isinstance(self.rows, ExtendedRows) else ExtendedRows(self.rows)
        fitting = [
            number for number, row in enumerate(rows) if not measure or self._fits(row, f"{origin}, row {number}")
        ]
        self.rows = extended
        self.kept += extended.add([rows[number] for number in fitting], origin)
        return fitting

    def _fits(self, row: Mapping[str, Any], where: str) -> bool:
        """Whether to append a new row; also makes the checks that file rows get at start."""
        for name in (self.cfg.prompt_key, self.cfg.reward_fn_key):
            if row.get(name) is None:
                raise UserError(f"{where}: no {name!r}", key="data.datagen.name", value=self.cfg.datagen.name)
        result = self._measure([self._measured(self._full_prompt, row, where, "")])[0]
        if result.failure and not self.cfg.filter_overlong_prompts:
            raise UserError(f"{where}: the chat template failed: {result.failure}", key=self.key)
        if result.media_error is not None:
            INVALID_MEDIA[self.cfg.invalid_media].load()([(where, result.media_error)], self.key)
        limit = self.cfg.max_prompt_length
        if result.length > limit and not self.cfg.filter_overlong_prompts:
            if self.truncation.metadata.get("before_start"):
                raise too_long(f"{where} has {result.length} tokens", limit, result.length)
            self._check_truncation(result, where)
        is_broken = bool(result.failure) or result.media_error is not None
        return not is_broken and (result.length <= limit or not self.cfg.filter_overlong_prompts)

    def _read_prompt(self, row: Mapping[str, Any], number: int) -> Prompt:
        where = self._where(number)
        prompt = self._full_prompt(row, where, folder_of(self.rows, number))
        if not self.templated and prompt.plain_text is None and prompt.ids is None:
            name = self.cfg.prompt_key
            problem = f"{where}: {name!r} is a list of messages, which requires a chat template"
            raise UserError(problem, key="data.apply_chat_template", value=False, hint="data.apply_chat_template=true")
        return prompt

    def _full_prompt(self, row: Mapping[str, Any], where: str, folder: str) -> Prompt:
        """The prompt with its pictures and the tools that it shows."""
        prompt = read_prompt(row, self.cfg.prompt_key, where)
        tools = select_tools(row, self.encoder.tool_names, where)
        prompt = prompt if tools is None else replace(prompt, tools=tools)
        return with_pictures(prompt, row, self.encoder, self.media_columns, where, folder, self.key)

    def _encoded(self, prompt: Prompt, number: int) -> Encoded:
        """Truncated tokens of a prompt, cached while the budget lasts, and its pictures, which are not cached here."""
        if number in self._cache:
            return Encoded(self._cache[number].tolist())
        where = self._where(number)
        try:
            encoded = self.encoder.encode(prompt)
        except TemplateFailure as failure:
            raise UserError(f"{where}: the chat template failed: {failure}", key=self.key) from failure
        except UserError as error:
            raise (at_row(error, where) if prompt.media or isinstance(error, InvalidMedia) else error) from error
        if not encoded.ids:
            raise UserError(f"{where}: the prompt has no tokens", key=self.key)
        limit, key = self.cfg.max_prompt_length, "data.max_prompt_length"
        encoded = truncated(encoded, self.truncation.load(), limit, where, key)
        if len(encoded.ids) <= self._cache_budget and not encoded.media:
            self._cache_budget -= len(encoded.ids)
            self._cache[number] = torch.tensor(encoded.ids, dtype=torch.int32)
        return encoded

    def _check_truncation(self, measured: PromptLength, where: str) -> None:
        """Refuse a truncation that would cut a picture."""
        limit = self.cfg.max_prompt_length
        kept = self.truncation.load()(range(measured.length), limit, where)
        if truncate_spans(kept, measured.length, measured.spans) is None:
            raise cuts_a_picture(where, measured.length, limit, "data.max_prompt_length")

    def _raw_ids(self, prompt: Prompt, number: int) -> list[int]:
        if prompt.messages is None:
            problem = f"{self._where(number)} has tokens but no messages to tokenize without a template"
            raise UserError(
                problem, key="data.return_raw_input_ids", value=True, hint="data.return_raw_input_ids=false"
            )
        return self.encoder.content_ids(prompt)

    def _data_source(self, row: Mapping[str, Any], number: int) -> Any:
        value = row.get(self.cfg.reward_fn_key)
        if value is None:
            name = self.cfg.reward_fn_key
            raise UserError(f"{self._where(number)}: no {name!r}", key="data.reward_fn_key", value=name)
        return value

    def _ground_truth(self, row: Mapping[str, Any], number: int) -> Any:
        truth, label = self._object(row, "reward_model", number).get("ground_truth"), self.cfg.label_key
        if truth is not None or label is None:
            return truth
        if row.get(label) is None:
            raise UserError(f"{self._where(number)}: no {label!r}", key="data.label_key", value=label)
        return row[label]

    def _extra_info(self, row: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The row's extra_info; a missing index is the row's number."""
        extra = self._object(row, "extra_info", number)
        return extra if extra.get("index") is not None else {**extra, "index": number}

    def _object(self, row: Mapping[str, Any], name: str, number: int) -> dict[str, Any]:
        """An object column; a missing or null value is an empty object."""
        value = row.get(name)
        if value is not None and not isinstance(value, Mapping):
            problem = f"{self._where(number)}: {name!r} must be an object, not {type(value).__name__}"
            raise UserError(problem, key=self.key, hint=f'{name}={{"...": ...}} in every row')
        return dict(value or {})

    def _where(self, number: int) -> str:
        return self.rows.where(number)

    def _check_columns(self) -> None:
        """Require the prompt and data source columns, and a label column if one is configured."""
        columns = self.rows.kinds
        tokens = ({"prompt_ids"}, {"raw_prompt_ids"}, {"raw_prompt"}, {"input_ids", "attention_mask"})
        has_prompt = self.cfg.prompt_key in columns or any(names <= columns.keys() for names in tokens)
        needed = {"data.prompt_key": has_prompt, "data.reward_fn_key": self.cfg.reward_fn_key in columns}
        if self.cfg.label_key is not None:
            needed["data.label_key"] = self.cfg.label_key in columns or "reward_model" in columns
        for key, present in needed.items():
            if not present:
                raise UserError(
                    f"no such column in {self.rows.name}",
                    key=key,
                    value=getattr(self.cfg, key.removeprefix("data.")),
                    allowed=", ".join(sorted(columns)),
                    hint=f"{key}=COLUMN",
                )

    def _check_first_row(self) -> None:
        """Fail before a model is loaded where every row would fail."""
        try:
            self.encoder.text(self.prompt(0))
        except (TemplateFailure, InvalidMedia):
            return  # may concern this row only; reported when the row is measured or used

    def _check_placeholders(self) -> None:
        """Report prompts with <image> where the data have no column of images: its name may be wrong."""
        count = sum(any(map(SPLIT.search, texts(self._read_messages(number)))) for number in self.kept)
        problem = f"{count} of {len(self.kept)} prompts have <image> or <video>, but the data have no such column"
        keys = f"data.image_key={self.cfg.image_key}, data.video_key={self.cfg.video_key}"
        if count == len(self.kept):
            columns = ", ".join(sorted(self.rows.kinds))
            raise UserError(f"{problem} ({keys})", key=self.key, allowed=columns, hint="data.image_key=COLUMN")
        if count:
            self.notices.append(f"{self.key}: {problem} ({keys}): it is text")

    def _read_messages(self, number: int) -> list[dict[str, Any]]:
        return read_prompt(self.rows.row(number), self.cfg.prompt_key, self._where(number)).messages or []

    def _measure(self, prompts: Iterable[Measured]) -> list[PromptLength]:
        return measure(prompts, self.encoder, self.cfg.filter_overlong_prompts_workers)

    def _measure_all(self) -> list[PromptLength]:
        """The lengths of all prompts, of which those with bad pictures are dropped first."""
        logger.info("%s: measuring %d prompts", self.key, len(self.kept))
        lengths = self._measure(self._measured(self.prompt, index) for index in range(len(self.kept)))
        errors = [
            (self._where(number), length.media_error)
            for number, length in zip(self.kept, lengths, strict=True)
            if length.media_error is not None
        ]
        if not errors:
            return lengths
        INVALID_MEDIA[self.cfg.invalid_media].load()(errors, self.key)
        first = at_row(errors[0][1], errors[0][0]).problem
        if len(errors) == len(self.kept):
            raise UserError(f"no prompt is left: all have bad pictures (first: {first})", key=self.key)
        self.notices.append(
            f"{self.key}: data.invalid_media=drop dropped {len(errors)} of {len(self.kept)} prompts (first: {first})"
        )
        good = [index for index, length in enumerate(lengths) if length.media_error is None]
        self.kept = [self.kept[index] for index in good]
        return [lengths[index] for index in good]

    def _measured(self, read: Callable[..., Prompt], *arguments: Any) -> Measured:
        """The prompt, or what is wrong with its pictures."""
        try:
            return read(*arguments)
        except InvalidMedia as error:
            return PromptLength(0, media_error=error)

    def _filter(self) -> None:
        """Drop prompts that are too long or on which the chat template fails, and log how many."""
        limit = self.cfg.max_prompt_length
        lengths = self._measure_all()
        failures = [index for index, length in enumerate(lengths) if length.failure]
        first = f"{self._where(self.kept[failures[0]])}: {lengths[failures[0]].failure}" if failures else None
        fitting = [i for i, length in enumerate(lengths) if not length.failure and length.length <= limit]
        overlong = len(lengths) - len(failures) - len(fitting)
        self.report = FilterReport(len(lengths), overlong, len(failures), limit, first, self._by_file(fitting))
        if not fitting:
            shortest = min((length.length for length in lengths if not length.failure), default=None)
            hint = f"data.max_prompt_length={shortest} or more (the shortest prompt)" if shortest else None
            problem = f"no prompt is left after filtering: {self.report.text()}"
            raise UserError(problem, key=self.key, value=self.rows.name, hint=hint)
        self.notices.append(f"{self.key}: data.filter_overlong_prompts {self.report.text()}")
        self.kept = [self.kept[index] for index in fitting]

    def _by_file(self, kept: Sequence[int]) -> dict[str, tuple[int, int]]:
        """How many of each file's rows are among these indices."""
        # `where` says "FILE, row NUMBER".
        files = [self._where(number).rpartition(", ")[0] for number in self.kept]
        rows, num_kept = Counter(files), Counter(files[index] for index in kept)
        return {name: (num_kept[name], count) for name, count in rows.items()}

    def _check_lengths(self) -> None:
        """Measure all prompts before the run starts: truncation=error would stop it, others cut without a word."""
        limit = self.cfg.max_prompt_length
        lengths = self._measure_all()
        failures = [index for index, length in enumerate(lengths) if length.failure]
        if failures:
            where, why = self._where(self.kept[failures[0]]), lengths[failures[0]].failure
            problem = f"the chat template failed on {len(failures)} of {len(lengths)} prompts (first: {where}: {why})"
            raise UserError(problem, key=self.key, hint="data.filter_overlong_prompts=true to drop them")
        long = [index for index, length in enumerate(lengths) if length.length > limit]
        if long and not self.truncation.metadata.get("before_start"):
            for index in long:
                self._check_truncation(lengths[index], self._where(self.kept[index]))
            cut = {name: count for name, (count, _) in self._by_file(long).items() if count}
            files = f" ({', '.join(f'{name}: {count}' for name, count in cut.items())})" if len(cut) > 1 else ""
            self.notices.append(
                f"{self.key}: {len(long)} of {len(lengths)} prompts are longer than data.max_prompt_length={limit}"
                f" and truncated (data.truncation={self.cfg.truncation}){files}"
            )
        elif long:
            problem = f"{self._where(self.kept[long[0]])} has {lengths[long[0]].length} tokens"
            more = f" (the first of {len(long)} such rows)" if len(long) > 1 else ""
            raise too_long(problem + more, limit, max(length.length for length in lengths))
