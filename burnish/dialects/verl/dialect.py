"""Verl: verl commands, YAML files with verl's sections, and Burnish's own commands, which use the same keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.config.aliases import ALIASES, GROUPS, find_alias
from burnish.config.jobs import JOBS
from burnish.config.overrides import Entry, is_group, read_file, read_mapping, read_overrides
from burnish.config.tree import tree
from burnish.config.verl_files import VERL_FILES
from burnish.dialects.invocation import Invocation
from burnish.dialects.report import CONVERTED, KEPT, REFUSED, Item, Translation
from burnish.dialects.verl.arguments import Arguments, parse_arguments
from burnish.dialects.verl.defaults import write_defaults
from burnish.dialects.verl.programs import BURNISH, Program, find_program
from burnish.dialects.verl.torchrun import apply_torchrun_counts
from burnish.dialects.verl.translator import Translator
from burnish.errors import UserError

# Environment variables that a Burnish run needs too; the rest configure verl's libraries.
_VARIABLES = ("WANDB_", "HF_", "MLFLOW_", "SWANLAB_", "TRACKIO_", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_", "SANDBOX_")
_ASYNC_WHY = "this program generates on separate devices during training"


class Verl:
    """The dialect of verl."""

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
        translation = Translation("verl", program.job, [*arguments.items])
        translation.environment = {name: value for name, value in invocation.env.items() if name.startswith(_VARIABLES)}
        if program.refusal:
            translation.items.append(Item(invocation.entry, None, REFUSED, why=program.refusal))
        translator = Translator(translation)
        _add_config_file(translator, arguments, program, folder)
        translator.add_overrides(_key_overrides(arguments))
        cfg = translator.finish()
        for key, value in _async_settings(program).items():
            if key not in translation.settings:
                translation.add(Item(invocation.entry, None, CONVERTED, key, value, _ASYNC_WHY, explicit=False))
        if program.job == "sft":
            apply_torchrun_counts(invocation, translation)
        if program.config_name:
            write_defaults(translation, cfg)
        return translation

    def translate_config(
        self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()
    ) -> Translation:
        entries = read_mapping(config, folder, "the file")
        arguments = parse_arguments(overrides)
        parsed, _ = read_overrides(arguments.overrides)
        keys = [entry.key for entry in entries] + [override.key_or_group for override in parsed]
        translation = Translation("verl", _job_of(keys), [*arguments.items])
        translator = Translator(translation)
        for entry in entries:
            translator.add(entry)
        translator.add_overrides(arguments.overrides)
        cfg = translator.finish()
        if _inherits(config):
            write_defaults(translation, cfg)
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


def _add_config_file(translator: Translator, arguments: Arguments, program: Program, folder: str) -> None:
    """Add the config file: the user's if it exists, else verl's file of that name."""
    name = arguments.config_name or program.config_name
    if not name:
        return
    config_folder = os.path.join(folder, arguments.folder or ".")
    exists = any(Path(config_folder, f"{_stem(name)}{suffix}").is_file() for suffix in (".yaml", ".yml"))
    is_user_file = exists and arguments.config_name is not None
    try:
        parsed, _ = read_overrides(arguments.overrides)
        groups = [override for override in parsed if is_group(override, arguments.folder and config_folder)]
        read = read_file if is_user_file else _read_verl_file
        entries: Sequence[Entry] = read(config_folder, name, groups)
    except UserError as error:
        items = translator.translation.items
        index = next(index for index, item in enumerate(items) if item.theirs in ("--config-name", "-cn"))
        items[index] = Item(items[index].theirs, name, REFUSED, why=error.text())
        return
    if not is_user_file:
        _explain_verl_file(translator.translation, name)
    for entry in entries:
        translator.add(entry, explicit=is_user_file)


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


def _inherits(config: dict[str, Any]) -> bool:
    """Whether a YAML inherits from a file of verl's tree. One that does not gets Burnish's defaults."""
    defaults = config.get("defaults") or []
    return any(isinstance(entry, str) and _stem(entry) in VERL_FILES for entry in defaults)


def _job_of(keys: Sequence[str]) -> str:
    """The job whose config tree has most of the keys; the first one on a tie."""
    return max(JOBS, key=lambda job: sum(_knows(key, job) for key in keys))


def _knows(key: str, job: str) -> bool:
    config_tree = tree(job)
    is_group_choice = any(group[:2] == (job, key) for group in GROUPS)
    is_key = config_tree.find(key) is not None or key in config_tree.sections
    return is_group_choice or is_key or find_alias(key, job) is not None


def _aliased_sections() -> set[str]:
    return {alias.theirs.split(".")[0] for rows in ALIASES.values() for alias in rows} - {"*"}
