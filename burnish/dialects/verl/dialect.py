"""Verl: verl commands, YAML files with verl's sections, and Burnish's own commands, which use the same keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from burnish.config.aliases import ALIASES, GROUPS
from burnish.config.jobs import JOBS
from burnish.config.overrides import Entry, flat, is_added, is_group, read_file, read_mapping, read_overrides
from burnish.config.tree import tree
from burnish.config.verl_files import VERL_FILES
from burnish.dialects.invocation import Invocation
from burnish.dialects.report import CONVERTED, KEPT, REFUSED, Item, Translation
from burnish.dialects.verl.arguments import Arguments, parse_arguments
from burnish.dialects.verl.defaults import verl_defaults, write_defaults
from burnish.dialects.verl.programs import BURNISH, Program, find_program, module_of
from burnish.dialects.verl.torchrun import TORCHRUN_KEYS, apply_torchrun_counts
from burnish.dialects.verl.translator import Translator, is_known
from burnish.dialects.verl.versions import (
    Assumption,
    assume_version,
    given_version,
    megatron_defaults_of,
    parse_version,
)
from burnish.dialects.yaml_file import check_folder, read_yaml
from burnish.errors import UserError

# Environment variables that a Burnish run needs too; the rest configure verl's libraries.
_VARIABLES = ("WANDB_", "HF_", "MLFLOW_", "SWANLAB_", "TRACKIO_", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_", "SANDBOX_")
_MEGATRON_FILE = "ppo_megatron_trainer"
_ASYNC_WHY = "this program generates on separate devices during training"


class Verl:
    """The dialect of verl."""

    version: str | None = None  # whose defaults apply; None: the version that the settings imply

    def assume(self, text: str) -> None:
        """Use the defaults of one version, `verl==0.7`, whatever the settings imply."""
        name, equals, version = text.partition("==")
        if name.strip() != "verl" or not equals:
            raise UserError("not a version of verl", key="--as", value=text, hint="--as verl==0.7")
        self.version = parse_version(version)

    def _assumption(self, names: Sequence[str], overrides: Sequence[str]) -> Assumption:
        if self.version is not None:
            return given_version(self.version)
        parsed, _ = read_overrides(overrides)
        return assume_version(names, [override.key_or_group for override in parsed if is_added(override)])

    def knows_command(self, invocation: Invocation) -> bool:
        return find_program(invocation.entry, invocation.argv) is not None

    def knows_config(self, config: dict[str, Any]) -> bool:
        sections = {key.split(".")[0] for job in JOBS for key in tree(job).sections | tree(job).leaves}
        return any(name in sections or name in _aliased_sections() for name in config)

    def translate_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        program = find_program(invocation.entry, invocation.argv)
        assert program is not None
        argv = list(invocation.argv)
        if invocation.entry == BURNISH:
            argv.remove(program.job)
        arguments = parse_arguments(argv)
        translation = Translation("verl", program.job, [*arguments.items], prints_config=arguments.prints_config)
        translation.environment = {name: value for name, value in invocation.env.items() if name.startswith(_VARIABLES)}
        if program.refusal:
            translation.items.append(Item(invocation.entry, None, REFUSED, why=program.refusal))
        translator = Translator(translation, program.other_keys)
        file = _read_config_file(translation, arguments, program, folder)
        names = [*_written(arguments.overrides, file), module_of(invocation.entry)]
        assumed = self._assumption(names, arguments.overrides)
        for key, value in program.settings.items():
            translator.add(Entry(key, value, "a default of this program in verl"), explicit=False)
        for entry in _of_version(file, assumed.version):
            translator.add(entry, explicit=file.is_users)
        translator.add_overrides(_key_overrides(arguments))
        ignored = TORCHRUN_KEYS if program.torchrun else ()
        cfg = translator.finish(verl_defaults(program.job, assumed.version, ignored) if program.config_name else None)
        for key, value in _async_settings(program).items():
            if key not in translation.settings:
                translation.add(Item(invocation.entry, None, CONVERTED, key, value, _ASYNC_WHY, explicit=False))
        if program.torchrun:
            apply_torchrun_counts(invocation, translation)
        if program.config_name:
            write_defaults(translation, cfg, assumed.version, ignored)
            translation.notes.append(assumed.note())
        return translation

    def translate_config(
        self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()
    ) -> Translation:
        if config.get("defaults"):
            check_folder(folder)
        entries = read_mapping(config, folder, "the file")
        arguments = parse_arguments(overrides)
        parsed, _ = read_overrides(arguments.overrides)
        keys = [entry.key for entry in entries] + [override.key_or_group for override in parsed]
        translation = Translation("verl", _job_of(keys), [*arguments.items])
        translator = Translator(translation)
        bases = [_stem(entry) for entry in config.get("defaults") or [] if isinstance(entry, str)]
        file = ConfigFile(entries, tuple(base for base in bases if base in VERL_FILES))
        assumed = self._assumption(_written(arguments.overrides, file), arguments.overrides)
        for entry in _of_version(file, assumed.version) if file.bases else entries:
            translator.add(entry)
        translator.add_overrides(arguments.overrides)
        ignored = TORCHRUN_KEYS if translation.job == "sft" else ()
        cfg = translator.finish(verl_defaults(translation.job, assumed.version, ignored) if file.bases else None)
        if file.bases:  # a file without any gets Burnish's defaults
            write_defaults(translation, cfg, assumed.version, ignored)
            translation.notes.append(assumed.note())
        return translation


def _async_settings(program: Program) -> dict[str, Any]:
    """Settings implied by an asynchronous program."""
    if not program.async_mode:
        return {}
    return {"async_training.mode": program.async_mode, "actor_rollout_ref.hybrid_engine": False}


def _key_overrides(arguments: Arguments) -> list[str]:
    """Overrides that set keys, without those that select a file of the user's config folder."""
    if arguments.folder is None:
        return arguments.overrides
    parsed, _ = read_overrides(arguments.overrides)
    groups = {override.input_line for override in parsed if is_group(override, arguments.folder)}
    return [text for text in arguments.overrides if text not in groups]


@dataclass(frozen=True)
class ConfigFile:
    """The entries of a config file, and the files of verl's tree that it builds on."""

    entries: Sequence[Entry] = ()
    bases: tuple[str, ...] = ()
    is_users: bool = True  # else a file of verl


def _read_config_file(translation: Translation, arguments: Arguments, program: Program, folder: str) -> ConfigFile:
    """Read the config file: the user's if it exists, else verl's file of that name."""
    name = arguments.config_name or program.config_name
    if not name:
        return ConfigFile()
    config_folder = os.path.join(folder, arguments.folder or ".")
    exists = any(Path(config_folder, f"{_stem(name)}{suffix}").is_file() for suffix in (".yaml", ".yml"))
    is_users = exists and arguments.config_name is not None
    try:
        parsed, _ = read_overrides(arguments.overrides)
        groups = [override for override in parsed if is_group(override, arguments.folder and config_folder)]
        if is_users:
            check_folder(config_folder, [override.input_line or "" for override in groups])
        read = read_file if is_users else _read_verl_file
        entries: Sequence[Entry] = read(config_folder, name, groups)
    except UserError as error:
        items = translation.items
        index = next(index for index, item in enumerate(items) if item.theirs in ("--config-name", "-cn"))
        items[index] = Item(items[index].theirs, name, REFUSED, why=error.text())
        return ConfigFile()
    if is_users:
        return ConfigFile(entries, _bases(config_folder, name))
    _explain_verl_file(translation, name)
    return ConfigFile(entries, (_stem(name),), is_users=False)


def _bases(folder: str, name: str) -> tuple[str, ...]:
    """The files of verl's tree in the `defaults:` list of a user's file."""
    path = next(path for end in (".yaml", ".yml") if (path := Path(folder, f"{_stem(name)}{end}")).is_file())
    content = read_yaml(path)
    defaults = content.get("defaults") if isinstance(content, dict) else None
    return tuple(_stem(entry) for entry in defaults or [] if isinstance(entry, str) and _stem(entry) in VERL_FILES)


def _of_version(file: ConfigFile, version: str) -> list[Entry]:
    """The file's entries, with what verl's Megatron files set in this version instead of in 0.5."""
    before = _values_of(_MEGATRON_FILE)
    if not any(before.items() <= _values_of(base).items() for base in file.bases):
        return list(file.entries)
    changes = megatron_defaults_of(version)
    entries = [
        replace(entry, value=changes[entry.key])
        if entry.key in changes and entry.value == before.get(entry.key)
        else entry
        for entry in file.entries
    ]
    missing = [key for key in changes if key not in {entry.key for entry in entries}]
    return [*(Entry(key, changes[key], f"verl's {_MEGATRON_FILE}") for key in missing), *entries]


def _values_of(name: str) -> dict[str, Any]:
    """What a file of verl's tree sets, by key."""
    return {entry.key: entry.value for entry in flat(VERL_FILES[name], name) if not isinstance(entry.value, list)}


def _written(overrides: Sequence[str], file: ConfigFile) -> list[str]:
    """`key=value` of everything the user wrote, except keys added with `+`, which no version has."""
    parsed, _ = read_overrides(overrides)
    written = [f"{override.key_or_group}={override.value()}" for override in parsed if not is_added(override)]
    return [*(f"{entry.key}={entry.value}" for entry in file.entries if file.is_users), *written]


def _read_verl_file(folder: str, name: str, groups: Sequence[Any]) -> list[Entry]:
    """The entries that a file of verl's config tree sets."""
    if _stem(name) not in VERL_FILES:
        return read_file(folder, name, groups)  # raises an error that lists the existing files
    return read_mapping(VERL_FILES[_stem(name)], folder, f"verl's {_stem(name)}")


def _explain_verl_file(translation: Translation, name: str) -> None:
    for index, item in enumerate(translation.items):
        if item.theirs in ("--config-name", "-cn"):
            entries = "no other values" if not VERL_FILES[_stem(name)] else "the values listed as its defaults"
            why = f"built-in copy of verl's file: verl's defaults, and {entries}"
            translation.items[index] = Item(item.theirs, item.value, KEPT, why=why)


def _stem(name: str) -> str:
    return name.removesuffix(".yaml").removesuffix(".yml")


def _job_of(keys: Sequence[str]) -> str:
    """The job whose config tree has most of the keys; the first one on a tie."""
    return max(JOBS, key=lambda job: sum(_knows(key, job) for key in keys))


def _knows(key: str, job: str) -> bool:
    return any(group[:2] == (job, key) for group in GROUPS) or is_known(key, job)


def _aliased_sections() -> set[str]:
    return {alias.theirs.split(".")[0] for rows in ALIASES.values() for alias in rows} - {"*"}
