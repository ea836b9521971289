"""Raw rows for `burnish data`: a file, a folder of JSON objects, or a Hugging Face dataset."""

from __future__ import annotations

from pathlib import Path

from burnish.data.files import FORMATS, ListRows, Rows, read_file
from burnish.data.find import HUB_NAME
from burnish.data.hub import hub_rows
from burnish.errors import UserError


def raw_rows(source: str, *, subset: str | None, split: str) -> Rows:
    """The rows of SRC: a local file or folder, else a hub dataset."""
    path = Path(source).expanduser()
    if path.is_dir():
        return folder_rows(path)
    if path.exists() or path.suffix in FORMATS or not HUB_NAME.fullmatch(source):
        return read_file(source, key="SRC")
    return ListRows(hub_rows(source, subset, split), name=source, fingerprint=source)


def folder_rows(folder: Path) -> Rows:
    """A folder of .json files with one object each (the format of MATH), in natural order of their names."""
    tables = sorted(file.name for file in folder.iterdir() if file.suffix in FORMATS and file.suffix != ".json")
    splits = sorted(inner.name for inner in folder.iterdir() if inner.name in ("train", "test") and inner.is_dir())
    choices = tables or (splits if len(splits) > 1 else [])
    if choices:
        problem = "the folder has several datasets; choose one"
        raise UserError(problem, key="SRC", value=str(folder), allowed=choices, hint=str(folder / choices[-1]))
    files = sorted(folder.rglob("*.json"), key=lambda file: (str(file.parent), len(file.stem), file.stem))
    if not files:
        raise UserError("the folder has no .json files", key="SRC", value=str(folder))
    parts = [read_file(str(file), key="SRC") for file in files]
    return ListRows([part.row(number) for part in parts for number in range(len(part))], name=str(folder))
