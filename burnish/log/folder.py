"""The run folder: config, command, environment and outputs of a run on disk."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from burnish import __version__
from burnish.errors import UserError
from burnish.log.jsonl import encode, write_atomically
from burnish.log.redact import redact_command, redact_text

PACKAGES = ("torch", "transformers", "numpy", "safetensors", "vllm", "sglang", "ray")


class RunFolder:
    """trainer.default_local_dir: created if needed; properties for the paths in it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot create the run folder: {error.strerror or error}",
                key="trainer.default_local_dir",
                value=str(path),
                hint="trainer.default_local_dir=/a/folder/you/can/write",
            ) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError("the run folder is not writable", key="trainer.default_local_dir", value=str(path))

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def command(self) -> Path:
        return self.path / "command.txt"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    def describe(self, config: str, command: Sequence[str] | None = None, device: str | None = None) -> None:
        """Write the resolved config (YAML text), the command line and the environment, without secrets.

        The command is appended to those of earlier starts; config and environment are overwritten.
        """
        write_atomically(self.config, redact_text(config))
        arguments = redact_command(sys.argv if command is None else command)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        with open(self.command, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{when} {shlex.join(arguments)}\n")
        write_atomically(self.environment, encode(environment(device)) + "\n")


def environment(device: str | None = None) -> dict[str, str]:
    """Versions of the main packages, the platform and the device."""
    versions = {"burnish": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions | ({} if device is None else {"device": device})


def dump_rollouts(folder: str | Path, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """{folder}/{step}.jsonl for trainer.rollout_data_dir and trainer.validation_data_dir.

    Each row has input, output, gts (ground truth) and score; step is added, other entries follow.
    """
    lines = []
    for row in rows:
        first = {name: row[name] for name in ("input", "output", "gts", "score")} | {"step": step}
        lines.append(encode(first | {name: value for name, value in row.items() if name not in first}) + "\n")
    path = Path(folder).expanduser() / f"{step}.jsonl"
    write_atomically(path, "".join(lines))
    return path


def persistent_id(folder: Path, name: str, create: Callable[[], str], *, resume: bool) -> str:
    """The run id of a tracker, stored in the run folder so that a resumed run continues under it."""
    path = folder / ".ids" / name
    if resume and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    run_id = create()
    write_atomically(path, run_id)
    return run_id


def new_id() -> str:
    return uuid.uuid4().hex[:16]
