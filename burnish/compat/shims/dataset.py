"""verl's RLHFDataset as a base class of users' datasets (data.custom_cls), on top of our file readers.

An item is a row with its messages; Burnish tokenizes, truncates and filters it like any other row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from burnish.data.files import read_files


class Frame:
    """Rows with `filter`, `map` and `select`, each of which returns a new frame."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(row) for row in self.rows)

    def __getitem__(self, which: int | str) -> Any:
        """A row by number, or a column by name."""
        return [row[which] for row in self.rows] if isinstance(which, str) else dict(self.rows[which])

    @property
    def column_names(self) -> list[str]:
        return list(self.rows[0]) if self.rows else []

    def filter(self, function: Callable[[dict[str, Any]], bool], **unused: Any) -> Frame:
        return Frame([row for row in self if function(row)])

    def map(self, function: Callable[..., dict[str, Any]], with_indices: bool = False, **unused: Any) -> Frame:
        numbered = enumerate(self)
        return Frame([row | function(row, number) if with_indices else row | function(row) for number, row in numbered])

    def select(self, indices: Sequence[int]) -> Frame:
        return Frame([self.rows[index] for index in indices])


class RLHFDataset:
    """Reads `data_files`; subclasses change rows, messages or items."""

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        self.data_files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.tokenizer, self.processor, self.config = tokenizer, processor, config
        self.max_samples = max_samples
        self.prompt_key = config.get("prompt_key", "prompt")
        self.image_key = config.get("image_key", "images")
        self.video_key = config.get("video_key", "videos")
        self.max_prompt_length = config.get("max_prompt_length", 1024)
        self.return_raw_chat = config.get("return_raw_chat", False)
        self.truncation = config.get("truncation", "error")
        self.filter_overlong_prompts = config.get("filter_overlong_prompts", True)
        self.dataframe = Frame([])
        self._download()
        self._read_files_and_tokenize()

    def _download(self, **unused: Any) -> None:
        """Does nothing: Burnish has downloaded remote files already."""

    def _read_files_and_tokenize(self) -> None:
        rows = read_files(self.data_files, "data.train_files")
        count = len(rows) if self.max_samples < 0 else min(self.max_samples, len(rows))
        self.dataframe = self.maybe_filter_out_long_prompts(Frame([rows.row(number) for number in range(count)]))

    def maybe_filter_out_long_prompts(self, dataframe: Frame | None = None) -> Frame:
        """Does not filter: Burnish applies data.filter_overlong_prompts later."""
        return self.dataframe if dataframe is None else dataframe

    def __len__(self) -> int:
        return len(self.dataframe)

    def _build_messages(self, example: dict[str, Any]) -> Any:
        return example.pop(self.prompt_key)

    def __getitem__(self, item: int) -> dict[str, Any]:
        row = self.dataframe[item]
        messages = self._build_messages(row)
        return {**row, self.prompt_key: messages}
