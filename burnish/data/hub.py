"""Raw rows of a Hugging Face dataset. The only file that imports `datasets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.errors import UserError


def hub_rows(name: str, subset: str | None, split: str) -> Sequence[dict[str, Any]]:
    """One split of a dataset, downloaded or from the local cache."""
    try:
        import datasets
    except ImportError as error:
        problem = "no such file here, and Hugging Face datasets need a library that is not installed"
        raise UserError(problem, key="SRC", value=name, hint="pip install burnish[datasets]") from error
    try:
        return datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the library raises its own errors, those of the network and those of the file system
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"cannot load split {split!r} of this dataset: {told}", key="SRC", value=name) from error
