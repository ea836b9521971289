"""What a script that is only looked at may see of this machine: no secrets of the environment, and no private files.

Its own folder and the current folder are visible, as a copy, but no hidden files, no files named like keys, and no
links that lead elsewhere. Other files that it names are there, but empty. `trust` lifts both restrictions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from burnish.errors import UserError
from burnish.redact import HIDDEN, is_secret, looks_secret, redact_text
from burnish.untrusted import is_private_name, is_project_folder, read_bytes

MAX_TEXT_BYTES = 256 * 1024
MAX_FILES, MAX_DEPTH, MAX_ENTRIES = 1000, 4, 5000  # near the script; entries of one folder that are looked at
_SKIPPED = {".git", "__pycache__", "node_modules", ".venv", "wandb", "outputs", "checkpoints"}
_RANDOM = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{24,}")


def shown_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with a placeholder for every value that may be a secret, so that tests for it still pass."""
    return {name: HIDDEN if _may_be_secret(name, value) else value for name, value in environment.items()}


def _may_be_secret(name: str, value: str) -> bool:
    if looks_secret(name) or is_secret(name, value) or redact_text(value) != value:
        return True
    return _RANDOM.search(value) is not None and not os.path.exists(value.partition(os.pathsep)[0])


@contextmanager
def without_secrets(trust: bool = False) -> Iterator[None]:
    """Replace the secrets of this process's environment: the configs that it looks at may refer to any variable."""
    before = dict(os.environ)
    if not trust:
        os.environ.update(shown_environment(before))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class Visible:
    """The files that a script sees with their content."""

    folders: tuple[Path, ...]
    trust: bool = False

    @classmethod
    def of(cls, script: Path, folder: Path, *, trust: bool = False) -> Visible:
        """For a script that is started in `folder`. A folder that holds all of a user's files is not shown."""
        candidates = dict.fromkeys((folder, script.parent))
        return cls(tuple(path for path in candidates if trust or is_project_folder(path.resolve())), trust)

    def contains(self, path: Path) -> bool:
        """Whether the script may read the file."""
        if self.trust:
            return True
        real, roots = path.resolve(), [folder.resolve() for folder in self.folders]
        inside = [real.relative_to(root).parts for root in roots if real.is_relative_to(root)]
        return any(not any(map(is_private_name, parts)) for parts in inside)

    def text(self, path: Path) -> str | None:
        """The text of a file that the script may read; None if it is binary, large, or not visible."""
        return text_of(path) if self.contains(path) else None

    def nearby(self) -> Iterator[Path]:
        """Files and folders of the visible folders, nearest first."""
        return islice((path for folder in self.folders for path in self._walk(folder, MAX_DEPTH)), MAX_FILES)

    def _walk(self, root: Path, depth: int) -> Iterator[Path]:
        if root.parent == root or (root / "pyvenv.cfg").exists():
            return
        try:
            with os.scandir(root) as entries:
                names = sorted(entry.name for entry in islice(entries, MAX_ENTRIES))
        except OSError:
            return
        paths = [root / name for name in names if self.trust or not is_private_name(name)]
        yield from (path for path in paths if path.is_file())
        for path in paths:
            if path.is_dir() and not path.is_symlink() and path.name not in _SKIPPED:
                yield path
                if depth > 1:
                    yield from self._walk(path, depth - 1)


def text_of(path: Path) -> str | None:
    try:
        text = read_bytes(path, limit=MAX_TEXT_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError, UserError):
        return None
    return None if "\0" in text else text
