"""Verl: commands of verl, YAML files of its tree, and Burnish's own commands, which use the same keys."""

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
from burnish.dialects.verl.arguments import Arguments, read_arguments
from burnish.dialects.verl.defaults import write_defaults
from burnish.dialects.verl.entries import OWN, Program, find_program
from burnish.dialects.verl.ranks import read_ranks
from burnish.dialects.verl.settings import Reading
from burnish.errors import UserError

# Variables that a run needs here too; the rest are of verl's own libraries.
_VARIABLES = ("WANDB_", "HF_", "MLFLOW_", "SWANLAB_", "TRACKIO_", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_", "SANDBOX_")
_BESIDE = "this program trains beside an engine that has devices of its own"


class Verl:
    """The dialect of verl."""

    def knows_command(self, invocation: Invocation) -> bool:
        return find_program(invocation.entry, invocation.argv) is not None

    def knows_config(self, config: dict[str, Any]) -> bool:
        sections = {key.split(".")[0] for job in JOBS for key in tree(job).sections | tree(job).leaves}
        return any(name in sections or name in _aliased_sections() for name in config)

    def read_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        program = find_program(invocation.entry, invocation.argv)
        assert program is not None
        argv = list(invocation.argv)
        if invocation.entry == OWN:
            argv.remove(program.job)
        arguments = read_arguments(argv)
        translation = Translation("verl", program.job, [*arguments.items])
        translation.environment = {name: value for name, value in invocation.env.items() if name.startswith(_VARIABLES)}
        if program.refused:
            translation.items.append(Item(invocation.entry, None, REFUSED, why=program.refused))
        reading = Reading(translation)
        _add_file(reading, arguments, program, folder)
        reading.add_overrides(_settings_of(arguments))
        cfg = reading.finish()
        for key, value in _ahead(program).items():
            if key not in translation.settings:
                translation.put(Item(invocation.entry, None, CONVERTED, key, value, _BESIDE, given=False))
        if program.job == "sft":
            read_ranks(invocation, translation)
        if program.config_name:
            write_defaults(translation, cfg)
        return translation

    def read_config(self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()) -> Translation:
        entries = read_mapping(config, folder, "the file")
        arguments = read_arguments(overrides)
        parsed, _ = read_overrides(arguments.overrides)
        keys = [entry.key for entry in entries] + [one.key_or_group for one in parsed]
        translation = Translation("verl", _job_of(keys), [*arguments.items])
        reading = Reading(translation)
        for entry in entries:
            reading.add(entry)
        reading.add_overrides(arguments.overrides)
        cfg = reading.finish()
        if _inherits(config):
            write_defaults(translation, cfg)
        return translation


def _ahead(program: Program) -> dict[str, Any]:
    """What a program that generates ahead says by being called."""
    if not program.ahead:
        return {}
    return {"async_training.mode": program.ahead, "actor_rollout_ref.hybrid_engine": False}


def _settings_of(arguments: Arguments) -> list[str]:
    """The overrides that set keys; those that choose a file of the user's own config folder were read with it."""
    if arguments.folder is None:
        return arguments.overrides
    parsed, _ = read_overrides(arguments.overrides)
    groups = {one.input_line for one in parsed if is_group(one, arguments.folder)}
    return [text for text in arguments.overrides if text not in groups]


def _add_file(reading: Reading, arguments: Arguments, program: Program, folder: str) -> None:
    """The config file: the user's own where it is found, else what verl's file of that name says."""
    name = arguments.config_name or program.config_name
    if not name:
        return
    where = os.path.join(folder, arguments.folder or ".")
    found = any(Path(where, f"{_stem(name)}{end}").is_file() for end in (".yaml", ".yml"))
    own = found and arguments.config_name is not None
    try:
        parsed, _ = read_overrides(arguments.overrides)
        groups = [one for one in parsed if is_group(one, arguments.folder and where)]
        entries: Sequence[Entry] = read_file(where, name, groups) if own else _known(where, name, groups)
    except UserError as error:
        items = reading.translation.items
        place = next(index for index, item in enumerate(items) if item.theirs in ("--config-name", "-cn"))
        items[place] = Item(items[place].theirs, name, REFUSED, why=error.text())
        return
    if not own:
        _tell_known(reading.translation, name)
    for entry in entries:
        reading.add(entry, given=own)


def _known(where: str, name: str, groups: Sequence[Any]) -> list[Entry]:
    """What verl's file of that name sets; an error with the names there are if it has none."""
    if _stem(name) not in VERL_FILES:
        return read_file(where, name, groups)  # raises, with the names there are
    return read_mapping(VERL_FILES[_stem(name)], where, f"verl's {_stem(name)}")


def _tell_known(translation: Translation, name: str) -> None:
    for index, item in enumerate(translation.items):
        if item.theirs in ("--config-name", "-cn"):
            count = "nothing" if not VERL_FILES[_stem(name)] else "what is listed as its defaults"
            why = f"a file of verl's own tree, known here: beyond verl's defaults it sets {count}"
            translation.items[index] = Item(item.theirs, item.value, KEPT, why=why)


def _stem(name: str) -> str:
    return name.removesuffix(".yaml").removesuffix(".yml")


def _inherits(config: dict[str, Any]) -> bool:
    """Does a YAML build on a file of verl's tree? One that does not stands for itself, and gets our defaults."""
    defaults = config.get("defaults") or []
    return any(isinstance(one, str) and _stem(one) in VERL_FILES for one in defaults)


def _job_of(keys: Sequence[str]) -> str:
    """The job whose tree knows most of the keys; the first of those that know equally many."""
    return max(JOBS, key=lambda job: sum(_knows(key, job) for key in keys))


def _knows(key: str, job: str) -> bool:
    known = tree(job)
    is_choice = any(group[:2] == (job, key) for group in GROUPS)
    return is_choice or known.find(key) is not None or key in known.sections or find_alias(key, job) is not None


def _aliased_sections() -> set[str]:
    return {alias.theirs.split(".")[0] for rows in ALIASES.values() for alias in rows} - {"*"}
