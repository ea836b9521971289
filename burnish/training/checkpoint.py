"""Checkpoint folders: written under a temporary name, hashed, synced, then renamed, so that a killed save does no harm.

run folder/
  global_step_40/
    actor/  critic/        one folder per role: shards (safetensors and JSON), extra.json, huggingface/
    trainer.json           step, sampler position, KL controller, seed
    manifest.json          size and SHA-256 of every file; there are no others, and no links
  latest_checkpointed_iteration.txt
  best_checkpointed_iteration.txt  the step with the best validation (trainer.best_metric_key)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.folders import is_inside, remove_tree
from burnish.storage import LATEST_STEP as LATEST
from burnish.storage import STEP, disk_full
from burnish.storage import STEP_PREFIX as PREFIX
from burnish.untrusted import read_json_object, read_text

BEST = "best_checkpointed_iteration.txt"
MANIFEST = "manifest.json"
TRAINER = "trainer.json"
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_JSON_BYTES = 2**28  # of a manifest and of the trainer's state


class SaveFailed(UserError):
    """A checkpoint could not be written. Earlier checkpoints and the run are unaffected."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run folder."""

    folder: Path

    def path(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step}"

    def steps(self) -> list[int]:
        """Steps with a complete folder, oldest first."""
        folders = self.folder.glob(f"{PREFIX}*") if self.folder.is_dir() else []
        names = [path.name.removeprefix(PREFIX) for path in folders if path.is_dir()]
        return sorted(int(name) for name in names if STEP.fullmatch(name))

    def own_steps(self) -> list[int]:
        """Steps up to the one saved last; later ones are of an earlier run in the same folder."""
        steps, last = self.steps(), self._pointer(LATEST)
        return steps if last is None else [step for step in steps if step <= last] or steps

    def best(self) -> int | None:
        """The step with the best validation, if its checkpoint exists."""
        step = self._pointer(BEST)
        return step if step in self.steps() else None

    def mark_best(self, step: int | None) -> None:
        """Record the best step; None removes the record. A step without a checkpoint changes nothing."""
        if step is None:
            (self.folder / BEST).unlink(missing_ok=True)
        elif self.path(step).is_dir():
            replace_text(self.folder / BEST, str(step))

    def _pointer(self, name: str) -> int | None:
        try:
            return int(read_text(self.folder / name, limit=100))
        except (OSError, ValueError, UserError):
            return None

    def save(
        self,
        step: int,
        roles: dict[str, Callable[[Path], None]],
        trainer: dict[str, Any],
        best: int | None = None,
        newest: int | None = None,
    ) -> Path:
        """Let every role write its part, then rename the folder. A failure leaves earlier checkpoints as they are.

        `best` is the best step so far, perhaps this one; `newest` is the step to resume from, if not this one.
        """
        final, partial = self.path(step), self.folder / f".{PREFIX}{step}.partial"
        for leftover in self.folder.glob(f".{PREFIX}*.partial"):
            remove_tree(leftover, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            for role, write in roles.items():
                (partial / role).mkdir()
                write(partial / role)
            (partial / TRAINER).write_text(json.dumps(trainer, indent=1))
            _write_manifest(partial)
            if os.path.lexists(final):  # a resumed run that saves the same step again
                remove_tree(final)
            partial.rename(final)
            replace_text(self.folder / LATEST, str(step if newest is None else newest))
            self.mark_best(best)
            _sync(self.folder)
        except OSError as error:
            remove_tree(partial, ignore_errors=True)
            steps = self.own_steps()
            last = f"the last good checkpoint is {self.path(steps[-1])}" if steps else "there is no earlier checkpoint"
            raise SaveFailed(
                f"{disk_full(error)}the checkpoint of step {step} could not be written ({error}); {last}",
                key="trainer.default_local_dir",
                value=str(self.folder),
                hint="trainer.default_local_dir=/a/folder/with/room",
            ) from error
        return final

    def latest_good(self) -> tuple[Path | None, list[str]]:
        """The newest intact checkpoint, and a line for each damaged one that was skipped."""
        damaged = []
        for step in reversed(self.own_steps()):
            problem = damage(self.path(step))
            if problem is None:
                return self.path(step), damaged
            damaged.append(f"checkpoint {self.path(step)} is damaged ({problem}); trying the one before it")
        return None, damaged

    def keep(self, actor: int | None, critic: int | None) -> None:
        """Delete all but the last `actor` checkpoints, and the critic's part of all but the last `critic`.

        The best one is always kept in full.
        """
        best, steps = self.best(), self.own_steps()
        if actor is not None:
            for step in steps[: max(0, len(steps) - actor)]:
                if step != best:
                    remove_tree(self.path(step))
            steps = self.own_steps()
        if critic is not None:
            for step in steps[: max(0, len(steps) - critic)]:
                if step != best:
                    self._drop_role(self.path(step), "critic")

    def _drop_role(self, folder: Path, role: str) -> None:
        if folder.is_symlink():  # the folder that it names is not of this run
            return
        if (folder / role).is_dir():
            files = {name: entry for name, entry in read_manifest(folder).items() if not name.startswith(f"{role}/")}
            replace_text(folder / MANIFEST, json.dumps({"files": files}, indent=1))
            remove_tree(folder / role)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder; None if it is intact.

    The manifest names every file in the folder, and each is a regular file of that size and hash.
    """
    if not (folder / MANIFEST).is_file():
        return f"no {MANIFEST}"
    try:
        manifest = read_manifest(folder)
    except (OSError, UserError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    try:
        sizes = {name: size for name, size in _files_in(folder) if name != MANIFEST}
    except (OSError, ValueError) as error:
        return str(error)
    missing, unexpected = sorted(manifest.keys() - sizes.keys()), sorted(sizes.keys() - manifest.keys())
    if missing:
        return f"{missing[0]} is missing"
    if unexpected:
        return f"{unexpected[0]!r} is not named in {MANIFEST}"
    for name, entry in manifest.items():
        if sizes[name] != entry["bytes"] or _sha256(folder / name) != entry["sha256"]:
            return f"{name} has changed"
    return None


def _files_in(folder: Path) -> Iterator[tuple[str, int]]:
    """Names and sizes of all files. ValueError if there is anything but folders and regular files."""
    for root, folders, files in os.walk(folder, onerror=_raise):
        for name in (*folders, *files):
            path = Path(root, name)
            status = path.lstat()
            relative = path.relative_to(folder).as_posix()
            if stat.S_ISREG(status.st_mode):
                yield relative, status.st_size
            elif not stat.S_ISDIR(status.st_mode):
                raise ValueError(f"{relative!r} is not a regular file")


def _raise(error: OSError) -> None:
    raise error


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of each file, by its name within the folder. UserError if it is anything else."""
    files = read_json_object(folder / MANIFEST, limit=MAX_JSON_BYTES, strict=True).get("files")
    if not isinstance(files, dict):
        raise UserError(f"{folder / MANIFEST} lists no files")
    for name, entry in files.items():
        if not is_inside(name) or name == MANIFEST:
            raise UserError(f"{folder / MANIFEST}: {name!r} is not the name of a file in the checkpoint")
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or size < 0 or not isinstance(digest, str) or not SHA256.fullmatch(digest):
            raise UserError(f"{folder / MANIFEST}: {name!r} has no size and SHA-256")
    return files


def read_trainer(folder: Path) -> dict[str, Any]:
    """The trainer's state. UserError if it cannot be one."""
    state = read_json_object(folder / TRAINER, limit=MAX_JSON_BYTES)
    if type(state.get("step")) is not int or state["step"] < 0:
        raise UserError(f"{folder / TRAINER} has no step")
    return state


def _write_manifest(folder: Path) -> None:
    files = sorted(folder / name for name, _ in _files_in(folder))
    entries = {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files
    }
    (folder / MANIFEST).write_text(json.dumps({"files": entries}, indent=1))
    for path in [*files, folder / MANIFEST]:
        _sync(path)
    for directory in [path for path in folder.rglob("*") if path.is_dir()] + [folder]:
        _sync(directory)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """fsync, so that a rename never reaches the disk before the content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Replace a small file atomically."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.unlink(missing_ok=True)  # a link there would be followed
    temporary.write_text(text)
    _sync(temporary)
    temporary.replace(path)
