"""RowGenerator: rows that a user's class generates during training (data.datagen)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.data.custom import class_config
from burnish.data.dataset import PromptDataset
from burnish.data.user_state import pack_state, restore_state
from burnish.errors import UserError
from burnish.untrusted import parse_json, read_text
from burnish.user_code import load_user_attribute

if TYPE_CHECKING:
    from burnish.config.data import DataConfig

PATH_KEY, NAME_KEY = "data.datagen.path", "data.datagen.name"
FILE = "rows.jsonl"
MAX_FILE_BYTES = 2**32


class RowGenerator:
    """Calls the user's generator after every step, and keeps its rows for checkpoints."""

    def __init__(self, generator: Any, dataset: PromptDataset, name: str = "the generator") -> None:
        self.generator = generator
        self.dataset = dataset
        self.name = name
        self.rows: list[str] = []  # as JSON, so that a resumed run reads the same values
        self.num_dropped = 0  # generated rows that the overlong filter dropped, and how many of them were reported
        self._num_reported = 0

    def grow(self) -> int:
        """Append new rows, except those that are too long; returns the number of prompts."""
        try:
            rows = self.generator.generate(self.dataset)
        except UserError:
            raise
        except Exception as error:  # the user's code may raise anything
            problem = f"generate(dataset) raised {type(error).__name__}: {error}"
            raise UserError(problem, key=NAME_KEY, value=self.name) from error
        texts = [self._text(row) for row in rows or ()]
        kept = self.dataset.append([json.loads(text) for text in texts], f"rows of {self.name}")
        self.rows += [texts[number] for number in kept]
        self.num_dropped += len(texts) - len(kept)
        return len(self.dataset)

    def take_notices(self) -> list[str]:
        """A line if rows were dropped since the last call, with the count so far."""
        if self.num_dropped == self._num_reported:
            return []
        self._num_reported = self.num_dropped
        return [
            f"{self.num_dropped} of {self.num_dropped + len(self.rows)} rows of {self.name} were dropped as too long"
        ]

    def _text(self, row: Any) -> str:
        if not isinstance(row, Mapping):
            problem = f"generate(dataset) returned a {type(row).__name__} among its rows, not a dict"
            raise UserError(problem, key=NAME_KEY, value=self.name)
        try:
            return json.dumps(dict(row))
        except (TypeError, ValueError) as error:
            problem = f"a generated row cannot be saved in a checkpoint: {error}"
            allowed = "text, numbers, lists and dicts"
            raise UserError(problem, key=NAME_KEY, value=self.name, allowed=allowed) from error

    def writer(self) -> Callable[[Path], None]:
        """A function that writes the current rows into a folder, one line each."""
        content = "".join(f"{text}\n" for text in self.rows)

        def write(folder: Path) -> None:
            (folder / FILE).write_text(content)

        return write

    def state_dict(self) -> dict[str, Any]:
        return {"generator": pack_state(self.generator, NAME_KEY)}

    def load(self, folder: Path, state: dict[str, Any] | None) -> None:
        """Load the rows and the state of a checkpoint. The rows passed the length filter before."""
        if state is None:
            hint = "trainer.resume_mode=disable"
            raise UserError("the checkpoint has no generated rows", key=NAME_KEY, value=self.name, hint=hint)
        # JSON escapes line breaks but not Unicode line separators, so splitlines() would be wrong.
        self.rows = read_text(folder / FILE, limit=MAX_FILE_BYTES).split("\n")[:-1]
        rows = [parse_json(text, f"{folder / FILE}, line {number}") for number, text in enumerate(self.rows, 1)]
        self.dataset.append(rows, f"rows of {self.name}", measure=False)
        restore_state(self.generator, state["generator"], NAME_KEY)


def load_row_generator(cfg: DataConfig, dataset: PromptDataset) -> RowGenerator:
    """Create the user's class as verl does: MyGenerator(config), with the section data.datagen."""
    path, name = cfg.datagen.path, cfg.datagen.name
    assert path is not None and name is not None  # config/data_rules.py requires both
    generator_class = load_user_attribute(path, name, key=PATH_KEY)
    if not hasattr(generator_class, "generate"):
        raise UserError("not a generator class", key=NAME_KEY, value=name, allowed="a class with generate(dataset)")
    try:
        return RowGenerator(generator_class(class_config(cfg.datagen)), dataset, name)
    except Exception as error:  # the user's code may raise anything
        problem = f"{name}(config) raised {type(error).__name__}: {error}"
        raise UserError(problem, key=PATH_KEY, value=path) from error
