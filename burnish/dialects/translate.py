"""Entry points: translate a launch command or a YAML config of any supported system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.dialects.invocation import Invocation, parse_commands
from burnish.dialects.registry import DIALECTS, Dialect, VersionedDialect
from burnish.dialects.report import CONVERTED, Item, Translation, add_config_errors, apply_statuses
from burnish.dialects.vision import refuse_unsupported_families
from burnish.dialects.yaml_file import read_yaml
from burnish.errors import UserError

# Files that a config refers to: their only section -> the key that takes the file's path.
_MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
_REFERENCED_FILES = {
    "tools": f"{_MULTI_TURN}.tool_config_path",
    "interaction": f"{_MULTI_TURN}.interaction_config_path",
}
EXAMPLES = (
    "python3 -m verl.trainer.main_ppo ...",
    "python3 -m openrlhf.cli.train_ppo_ray ...",
    "python3 cli/train_grpo.py --config-name NAME",
    "burnish train ...",
)


def find_programs(words: Sequence[str]) -> list[Invocation]:
    """The programs of a command that a dialect knows; a shell line may start several."""
    try:
        return [invocation for invocation in parse_commands(words) if _dialect_of(invocation) is not None]
    except UserError:
        return []


def knows_command(words: Sequence[str]) -> bool:
    """Whether a dialect can translate this command."""
    return bool(find_programs(words))


def translate_command(words: Sequence[str], folder: str = ".", assume: str | None = None) -> Translation:
    """Translate a launch command that would be started in `folder`. UserError if no dialect knows its program.

    Of a shell line with several programs, the first one is translated. `assume`, such as `verl==0.7`, is the version
    whose defaults apply.
    """
    known = find_programs(words)
    return translate_program(known[0] if known else parse_commands(words)[0], folder, assume)


def translate_program(invocation: Invocation, folder: str = ".", assume: str | None = None) -> Translation:
    """Translate one program of a command."""
    dialect = _dialect_of(invocation)
    if dialect is None:
        raise UserError(f"{invocation.entry}: not a program that Burnish can translate", allowed=EXAMPLES)
    _assume(dialect, assume)
    translation = dialect.translate_command(invocation, folder)
    if invocation.place:
        translation.notes.append(f"The command runs {invocation.place}: paths are those there.")
    return _finish(translation)


def translate_yaml(path: str, overrides: Sequence[str] = (), assume: str | None = None) -> Translation:
    """Translate a config file, with command-line overrides applied to it. `assume` as in `translate_command`."""
    config = read_yaml(path)
    if not isinstance(config, dict) or not config:
        raise UserError(f"{path}: not a config file, no sections found")
    if set(config) <= _REFERENCED_FILES.keys():
        return _translate_referenced_file(config, path)
    for dialect in _dialects():
        if dialect.knows_config(config):
            _assume(dialect, assume)
            return _finish(dialect.translate_config(config, str(Path(path).parent), tuple(overrides)))
    raise UserError(
        f"{path}: not a verl, OpenRLHF or MindSpeed RL config (sections found: {', '.join(map(str, config))})"
    )


def _assume(dialect: Dialect, assume: str | None) -> None:
    """Tell the dialect which version's defaults apply; only verl's depend on it."""
    if assume is None:
        return
    if not isinstance(dialect, VersionedDialect):
        raise UserError(
            "only the defaults of verl depend on its version", key="--as", value=assume, hint="leave it out"
        )
    dialect.assume(assume)


def _dialect_of(invocation: Invocation) -> Dialect | None:
    return next((dialect for dialect in _dialects() if dialect.knows_command(invocation)), None)


def _finish(translation: Translation) -> Translation:
    """Apply statuses and rules that depend on the complete config."""
    apply_statuses(translation)
    add_config_errors(translation)
    refuse_unsupported_families(translation)
    return translation


def _dialects() -> Iterator[Dialect]:
    """All dialects, in registration order."""
    for name in DIALECTS.names():
        yield DIALECTS[name].load()()


def _translate_referenced_file(config: dict[str, Any], path: str) -> Translation:
    """A tool or interaction file, to which a config refers by path."""
    translation = Translation("verl", "train")
    for section in config:
        key = _REFERENCED_FILES[section]
        why = f"a file with {section} definitions; configs refer to it with this key"
        translation.add(Item(section, config[section], CONVERTED, key, path, why))
    return translation
