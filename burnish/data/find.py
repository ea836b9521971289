"""Find rows by name: files, folders of save_to_disk, prefixes of packed files, Hugging Face datasets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.data.files import FORMATS, Rows, read_file
from burnish.data.hub import arrow_rows, hub_rows, is_saved, saved_rows
from burnish.data.indexed import IndexedRows, is_packed
from burnish.errors import UserError
from burnish.storage import is_remote, local_path, looks_local

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class Finder:
    """Resolves the names of one config key, such as `data.train_files`."""

    key: str
    split: str
    use_shm: bool = False
    additional_keys: Sequence[str] = ()
    tokenizer: Any = None

    def rows(self, name: str) -> Rows:
        """The rows of one name; a local path wins over a hub dataset of that name."""
        if is_remote(name) and Path(name).suffix in FORMATS:
            return read_file(name, self.key, self.use_shm)
        if is_packed(name, self.key):
            return IndexedRows(name, self.additional_keys, self.tokenizer, key=self.key, use_shm=self.use_shm)
        path = Path(local_path(name, key=self.key)).expanduser()
        if path.is_dir():
            return self._folder(path, name)
        hub_name, _, folder = name.partition("@")
        if path.exists() or path.suffix in FORMATS or looks_local(name) or not HUB_NAME.fullmatch(hub_name):
            return read_file(name, self.key, self.use_shm)
        if self.use_shm:
            problem = f"{name} is read from the cache of the datasets library"
            raise UserError(problem, key="data.use_shm", value=True, hint="data.use_shm=false")
        return arrow_rows(hub_rows(hub_name, None, self.split, data_dir=folder or None, key=self.key), name)

    def _folder(self, path: Path, name: str) -> Rows:
        if not is_saved(path):
            return read_file(name, self.key)  # raises the error
        where = Path(local_path(str(path), key=self.key, use_shm=self.use_shm))
        return saved_rows(where, self.split, key=self.key, name=name)
