"""Entry points: translate a launch command or a YAML config of any supported system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.config.rules import estimator_needs, kl_once
from burnish.dialects.invocation import Invocation, parse_command
from burnish.dialects.registry import DIALECTS, Dialect
from burnish.dialects.report import CONVERTED, REFUSED, Item, Translation, apply_statuses, source_names
from burnish.dialects.yaml_file import read_yaml
from burnish.errors import UserError

# Files that a config refers to: their only section -> the key that takes the file's path.
_MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
_REFERENCED_FILES = {
    "tools": f"{_MULTI_TURN}.tool_config_path",
    "interaction": f"{_MULTI_TURN}.interaction_config_path",
}
# Config rules that do not depend on the machine or on the number of processes.
_RULES = {"train": (kl_once, estimator_needs)}
EXAMPLES = (
    "python3 -m verl.trainer.main_ppo ...",
    "python3 -m openrlhf.cli.train_ppo_ray ...",
    "python3 cli/train_grpo.py --config-name NAME",
    "burnish train ...",
)


def knows_command(words: Sequence[str]) -> bool:
    """Whether a dialect can translate this command."""
    try:
        return _dialect_of(parse_command(words)) is not None
    except UserError:
        return False


def translate_command(words: Sequence[str], folder: str = ".") -> Translation:
    """Translate a launch command that would be started in `folder`. UserError if no dialect knows its program."""
    invocation = parse_command(words)
    dialect = _dialect_of(invocation)
    if dialect is None:
        raise UserError(f"{invocation.entry}: not a program that Burnish can translate", allowed=EXAMPLES)
    return _finish(dialect.translate_command(invocation, folder))


def translate_yaml(path: str, overrides: Sequence[str] = ()) -> Translation:
    """Translate a config file, with command-line overrides applied to it."""
    config = read_yaml(path)
    if not isinstance(config, dict) or not config:
        raise UserError(f"{path}: not a config file, no sections found")
    if set(config) <= _REFERENCED_FILES.keys():
        return _translate_referenced_file(config, path)
    for dialect in _dialects():
        if dialect.knows_config(config):
            return _finish(dialect.translate_config(config, str(Path(path).parent), tuple(overrides)))
    raise UserError(
        f"{path}: not a verl, OpenRLHF or MindSpeed RL config (sections found: {', '.join(map(str, config))})"
    )


def _dialect_of(invocation: Invocation) -> Dialect | None:
    return next((dialect for dialect in _dialects() if dialect.knows_command(invocation)), None)


def _finish(translation: Translation) -> Translation:
    """Apply statuses and rules that depend on the complete config."""
    cfg = apply_statuses(translation)
    for rule in _RULES.get(translation.job, ()):
        for error in rule(cfg):
            translation.items.append(_refused_item(error, source_names(translation.items)))
    return translation


def _refused_item(error: UserError, names: dict[str, str]) -> Item:
    """A rule violation, with Burnish keys replaced by the names that the user wrote."""
    text = error.text()
    for key in sorted(names, key=len, reverse=True):  # longest first: one key may be a prefix of another
        text = text.replace(key, names[key])
    return Item(names.get(error.key or "", error.key or ""), error.value, REFUSED, error.key, why=text)


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
