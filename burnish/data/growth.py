"""Growth: new rows that a class of the user's own makes during training (data.datagen)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.data.custom import class_config
from burnish.data.dataset import PromptDataset
from burnish.data.user_state import load_state_text, state_text
from burnish.errors import UserError
from burnish.user_code import load_user_attribute

if TYPE_CHECKING:
    from burnish.config.data import DataConfig

PATH_KEY, NAME_KEY = "data.datagen.path", "data.datagen.name"
FILE = "rows.jsonl"


class Growth:
    """Asks the generator for rows after every step and remembers them, so that a checkpoint can hold them."""

    def __init__(self, generator: Any, dataset: PromptDataset, name: str = "the generator") -> None:
        self.generator = generator
        self.dataset = dataset
        self.name = name
        self.rows: list[str] = []  # as JSON: a resumed run reads what this one used

    def grow(self) -> int:
        """New rows after a step, less those that are too long; how many prompts there are now."""
        try:
            made = self.generator.generate(self.dataset)
        except UserError:
            raise
        except Exception as error:  # the user's code may raise anything
            problem = f"generate(dataset) raised {type(error).__name__}: {error}"
            raise UserError(problem, key=NAME_KEY, value=self.name) from error
        texts = [self._text(row) for row in made or ()]
        kept = self.dataset.append([json.loads(text) for text in texts], f"rows of {self.name}")
        self.rows += [texts[number] for number in kept]
        return len(self.dataset)

    def _text(self, row: Any) -> str:
        if not isinstance(row, Mapping):
            problem = f"generate(dataset) gave a {type(row).__name__} among its rows, not a dict"
            raise UserError(problem, key=NAME_KEY, value=self.name)
        try:
            return json.dumps(dict(row))
        except (TypeError, ValueError) as error:
            problem = f"a row that it made cannot be saved in a checkpoint: {error}"
            allowed = "text, numbers, lists and dicts"
            raise UserError(problem, key=NAME_KEY, value=self.name, allowed=allowed) from error

    def writer(self) -> Callable[[Path], None]:
        """Writes all rows so far into a folder, one line each; later rows do not get in."""
        content = "".join(f"{text}\n" for text in self.rows)

        def write(folder: Path) -> None:
            (folder / FILE).write_text(content)

        return write

    def state_dict(self) -> dict[str, Any]:
        return {"generator": state_text(self.generator, NAME_KEY)}

    def load(self, folder: Path, state: dict[str, Any] | None) -> None:
        """The rows and the state of a checkpoint. All rows were kept once, so none is measured again."""
        if state is None:
            hint = "trainer.resume_mode=disable"
            raise UserError("the checkpoint was made without it", key=NAME_KEY, value=self.name, hint=hint)
        # Line breaks within a text are escaped in JSON, other separators of lines are not.
        self.rows = (folder / FILE).read_text().split("\n")[:-1]
        rows = [json.loads(text) for text in self.rows]
        self.dataset.append(rows, f"rows of {self.name}", measure=False)
        load_state_text(self.generator, state["generator"], NAME_KEY)


def load_growth(cfg: DataConfig, dataset: PromptDataset) -> Growth:
    """Made as verl makes it: MyGenerator(config), config the data.datagen section."""
    path, name = cfg.datagen.path, cfg.datagen.name
    generator_class = load_user_attribute(path, name, key=PATH_KEY)
    if not hasattr(generator_class, "generate"):
        raise UserError("not a generator class", key=NAME_KEY, value=name, allowed="a class with generate(dataset)")
    try:
        return Growth(generator_class(class_config(cfg.datagen)), dataset, name)
    except Exception as error:  # the user's code may raise anything
        problem = f"{name}(config) raised {type(error).__name__}: {error}"
        raise UserError(problem, key=PATH_KEY, value=path) from error
