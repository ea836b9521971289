"""CustomRows: the rows of a user's dataset class (data.custom_cls)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from burnish.data.files import fingerprint_of_file, short_hash, value_kind
from burnish.errors import UserError
from burnish.user_code import load_user_attribute

if TYPE_CHECKING:
    from burnish.config.data import DataConfig
    from burnish.config.sft import SftDataConfig

PATH_KEY = "data.custom_cls.path"
NAME_KEY = "data.custom_cls.name"


class CustomRows:
    """Items of a map-style dataset. An item is a row in verl's schema, or a tokenized prompt."""

    def __init__(self, items: Any, name: str, files: Sequence[str] = ()) -> None:
        self.items = items
        self.name = name
        self.length = len(items)
        if self.length == 0:
            raise UserError("the dataset has no rows", key=NAME_KEY, value=name)
        self.kinds = {column: value_kind(value) for column, value in self.row(0).items()}
        # Reading every item may be slow or have side effects, so the fingerprint covers files, class and length.
        paths = [Path(file).expanduser() for file in files]
        content = [fingerprint_of_file(path) if path.is_file() else str(path) for path in paths]
        self.fingerprint = short_hash(repr((name, self.length, content)).encode())

    def __len__(self) -> int:
        return self.length

    def row(self, number: int) -> dict[str, Any]:
        item = self.items[number]
        if not isinstance(item, Mapping):
            problem = f"{self.where(number)} is {type(item).__name__}, not a dict"
            raise UserError(problem, key=NAME_KEY, value=self.name)
        return dict(item)

    def values(self, column: str) -> set[Any]:
        """Only that of the first item: reading all may be slow or have side effects."""
        return {self.row(0).get(column)}

    def where(self, number: int) -> str:
        return f"{self.name}, item {number}"


def load_custom_rows(
    cfg: DataConfig | SftDataConfig,
    files: Sequence[str],
    tokenizer: Any,
    processor: Any,
    max_samples: int,
) -> tuple[CustomRows, bool]:
    """Create the user's dataset with verl's arguments; returns whether the class applied `max_samples` itself."""
    path, name = cfg.custom_cls.path, cfg.custom_cls.name
    if not name:
        raise UserError("no class name for this file", key=NAME_KEY, hint=f"{NAME_KEY}=MyDataset")
    assert path is not None
    dataset_class = load_user_attribute(path, name, key=PATH_KEY)
    _check_class(dataset_class, name)
    arguments = {"data_files": list(files), "tokenizer": tokenizer, "config": class_config(cfg), "processor": processor}
    takes_samples = "max_samples" in inspect.signature(dataset_class).parameters
    if takes_samples:
        arguments["max_samples"] = max_samples
    try:
        items = dataset_class(**arguments)
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        problem = (
            f"{name}({', '.join(f'{argument}=...' for argument in arguments)}) raised {type(error).__name__}: {error}"
        )
        raise UserError(problem, key=PATH_KEY, value=path) from error
    return CustomRows(items, name, files), takes_samples


def _check_class(dataset_class: Any, name: str) -> None:
    needed = ("__len__", "__getitem__")
    if inspect.isclass(dataset_class) and all(hasattr(dataset_class, method) for method in needed):
        return
    raise UserError(
        f"not a dataset class: {dataset_class!r}",
        key=NAME_KEY,
        value=name,
        allowed="a class with __len__ and __getitem__, such as a subclass of torch.utils.data.Dataset",
    )


def class_config(cfg: Any) -> DictConfig:
    """A config section as verl's classes expect it, with attributes, items and `.get(name, default)`."""
    if isinstance(cfg, DictConfig):
        return cfg
    return OmegaConf.create(dataclasses.asdict(cfg))
