"""What defines a run: its settings, and the content of the files that they name. A checkpoint keeps both, so that a
run does not resume as another experiment by mistake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.config.resume_rules import Change, Resume, changed_settings, flat, is_source, resume_class, split_changes
from burnish.config.tree import to_plain
from burnish.config.values import written_as
from burnish.errors import UserError
from burnish.loop.function_hash import function_hash
from burnish.models.load import cached_revision
from burnish.redact import redact
from burnish.storage import content_hash, is_remote, local_path, model_folder, short_hash
from burnish.untrusted import read_json_object
from burnish.user_code import is_user_path

KEY = "trainer.resume_changes"
REWARD = "reward"  # a function that was passed in Python
# Their content is always known, so that its absence from a checkpoint means something too.
GIVEN_IN_PYTHON = (REWARD, "data.val_files")
# Entries of a model's config.json that decide the shapes of its weights.
SHAPES = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "num_experts", "num_local_experts", "moe_intermediate_size"),
)


@dataclass(frozen=True)
class Experiment:
    """`settings` by key, without secrets; `contents` are hashes of what the settings name, by key."""

    cfg: Any
    job: str
    settings: dict[str, Any]
    contents: dict[str, str] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return {"job": self.job, "settings": self.settings, "contents": self.contents}

    def changes(self, saved: Mapping[str, Any]) -> tuple[list[Change], list[Change]]:
        """Differences to the experiment of a checkpoint: those that define another one, and harmless ones."""
        changes, moved, listed = [], [], set()
        for change in changed_settings(saved["settings"], self.settings, self.job):
            hashes = (saved["contents"].get(change.key), self.contents.get(change.key))
            is_moved = hashes[0] is not None and hashes[0] == hashes[1]
            (moved if is_moved else changes).append(change)
            listed.add(hashes)
        for key in {**self.contents, **dict.fromkeys(GIVEN_IN_PYTHON)}:
            old, new = saved["contents"].get(key), self.contents.get(key)
            is_known = key in GIVEN_IN_PYTHON or old is not None
            is_listed = (old, new) in listed or any(change.key == key for change in changes)
            if is_known and old != new and not is_listed:  # several keys may name the same files
                changes.append(self._changed_content(key, old))
                listed.add((old, new))
        defining, harmless = split_changes(changes, self.cfg, self.job)
        return defining, [*harmless, *moved]

    def _changed_content(self, key: str, old: str | None) -> Change:
        value = written_as(self.settings.get(key) or "passed in Python")

        def text(content: str | None) -> str:
            return f"not {value}" if content is None else f"{value} (content {content})"

        return Change(key, text(old), text(self.contents.get(key)))


def describe_experiment(
    cfg: Any, job: str, data: Mapping[str, str | None], reward: Callable[..., Any] | None = None
) -> Experiment:
    """`data` are the fingerprints of data that was read, by key."""
    keys = [key for key in flat(cfg, job) if resume_class(key) is not Resume.START]
    settings = json.loads(json.dumps(_flatten(redact(to_plain(cfg), distinguish=True), keys), default=str))
    contents = {key: value for key, value in data.items() if value is not None}
    for key, value in flat(cfg, job).items():
        if key not in data and resume_class(key) not in (Resume.HARMLESS, Resume.START):
            hashed = _content(key, value)
            if hashed is not None:
                contents[key] = hashed
    if reward is not None:
        contents[REWARD] = function_hash(reward)
    return Experiment(cfg, job, settings, contents)


def check_same_experiment(experiment: Experiment, saved: Mapping[str, Any] | None, where: str) -> list[str]:
    """Refuse to resume as another experiment, unless trainer.resume_changes accepts it; returns notices."""
    if not saved:
        return [f"{where} has no record of its settings (an older version saved it): they are not compared"]
    if saved["job"] != experiment.job:
        raise _other_job(experiment, saved["job"], where)
    defining, harmless = experiment.changes(saved)
    notices = []
    if harmless:
        notices.append(f"settings that changed since {where}: " + "; ".join(change.text() for change in harmless))
    if not defining:
        return notices
    if experiment.cfg.trainer.resume_changes != "accept":
        raise UserError(
            "\n  ".join([f"{where} is of another experiment:", *(change.text() for change in defining), "Not resumed"]),
            key="trainer.resume_mode",
            value=experiment.cfg.trainer.resume_mode,
            hint="trainer.resume_mode=disable to start anew, trainer.default_local_dir=/another/folder to keep both,"
            f" or {KEY}=accept to resume with the new settings",
        )
    changed = "; ".join(change.text() for change in defining)
    return [*notices, f"{KEY}=accept: resuming another experiment than that of {where}: {changed}"]


def _other_job(experiment: Experiment, job: str, where: str) -> UserError:
    trainer = experiment.cfg.trainer
    model = {"train": "actor_rollout_ref.model.path", "sft": "model.partial_pretrain"}[experiment.job]
    return UserError(
        f"{where} is of `burnish {job}`, not of `burnish {experiment.job}`",
        key="trainer.default_local_dir",
        value=trainer.default_local_dir,
        hint=f"trainer.default_local_dir=/another/folder, and {model}={trainer.default_local_dir} to start from its"
        " model",
    )


def check_same_shape(checkpoint: Path, model: Mapping[str, Any], key: str, value: str | None) -> None:
    """Refuse a model whose weights cannot be those of the checkpoint, before it is loaded."""
    try:
        saved = read_json_object(checkpoint / "actor" / "huggingface" / "config.json")
    except (OSError, UserError):
        return
    names = [name for name in SHAPES if name in saved and name in model and saved[name] != model[name]]
    if names:
        differences = ", ".join(f"{name} {saved[name]} -> {model[name]}" for name in names)
        raise UserError(
            f"a model of another shape than that of {checkpoint} ({differences})",
            key=key,
            value=value,
            hint="trainer.resume_mode=disable to start anew, or trainer.default_local_dir=/another/folder",
        )


def _flatten(plain: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    """The entries of a nested mapping by dotted key."""
    settings = {}
    for key in keys:
        value: Any = plain
        for name in key.split("."):
            value = value[name]
        settings[key] = _absolute(value) if is_source(key) else value
    return settings


def _absolute(value: Any) -> Any:
    """The same for a relative and an absolute path of a file."""
    if isinstance(value, list):
        return [_absolute(entry) for entry in value]
    if not isinstance(value, str) or "\n" in value:
        return value
    path = os.path.abspath(os.path.expanduser(value.removeprefix("file://")))
    return path if os.path.exists(path) else value


def _content(key: str, value: Any) -> str | None:
    """One hash of all files that a value names; None if it names none that exist here."""
    names = [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]
    hashes = []
    for name in names:
        if is_user_path(name) and not name.startswith("pkg://"):
            hashes.append(_hash_of(name.rpartition(":")[0], key))
        elif is_source(key):
            hashes.append(_hash_of(name, key))
    known = [hashed for hashed in hashes if hashed is not None]
    return short_hash(" ".join(known)) if known and len(known) == len(hashes) else None


def _hash_of(name: str, key: str) -> str | None:
    if name.startswith(("pkg://", "http://", "https://")) or "\n" in name or "{{" in name:
        return None  # a module, a server, or Jinja text
    try:
        path = Path(local_path(name, key=key)).expanduser()
        if not path.exists():
            return None if is_remote(name) else cached_revision(name)
        return content_hash(model_folder(path) or path)
    except (OSError, UserError):  # whoever uses the file reports it
        return None
