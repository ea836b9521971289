"""read: a launch command or a YAML, whoever's it is, as a Translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.config.rules import estimator_needs, kl_once
from burnish.dialects.invocation import Invocation, read_command
from burnish.dialects.report import CONVERTED, REFUSED, Item, Translation, in_their_words, weigh
from burnish.dialects.table import DIALECTS, Dialect
from burnish.dialects.yaml_file import read_yaml
from burnish.errors import UserError

# Files that are named in a config: their one section, and the key that names them.
_TURNS = "actor_rollout_ref.rollout.multi_turn"
_NAMED_FILES = {"tools": f"{_TURNS}.tool_config_path", "interaction": f"{_TURNS}.interaction_config_path"}
# Rules that no machine and no number of processes can mend.
_CONTRADICTIONS = {"train": (kl_once, estimator_needs)}
EXAMPLES = (
    "python3 -m verl.trainer.main_ppo ...",
    "python3 -m openrlhf.cli.train_ppo_ray ...",
    "python3 cli/train_grpo.py --config-name NAME",
    "burnish train ...",
)


def knows_command(words: Sequence[str]) -> bool:
    """Does a dialect read this command?"""
    try:
        return _dialect_of(read_command(words)) is not None
    except UserError:
        return False


def translate_command(words: Sequence[str], folder: str = ".") -> Translation:
    """What a launch command asks for. UserError if nobody reads it. `folder` is where it would be started."""
    invocation = read_command(words)
    dialect = _dialect_of(invocation)
    if dialect is None:
        raise UserError(f"{invocation.entry} is no program that Burnish reads", allowed=EXAMPLES)
    return _finished(dialect.read_command(invocation, folder))


def translate_yaml(path: str, overrides: Sequence[str] = ()) -> Translation:
    """The same for a config file, with overrides after it."""
    config = read_yaml(path)
    if not isinstance(config, dict) or not config:
        raise UserError(f"{path} is no config: it holds no sections")
    if set(config) <= _NAMED_FILES.keys():
        return _named_file(config, path)
    for dialect in _dialects():
        if dialect.knows_config(config):
            return _finished(dialect.read_config(config, str(Path(path).parent), tuple(overrides)))
    raise UserError(f"{path} is no config that Burnish reads: its sections are {', '.join(map(str, config))}")


def _dialect_of(invocation: Invocation) -> Dialect | None:
    return next((dialect for dialect in _dialects() if dialect.knows_command(invocation)), None)


def _finished(translation: Translation) -> Translation:
    """Weighed as a whole, and with what the run as a whole cannot be."""
    cfg = weigh(translation)
    for rule in _CONTRADICTIONS.get(translation.job, ()):
        for error in rule(cfg):
            translation.items.append(_refused(error, in_their_words(translation.items)))
    return translation


def _refused(error: UserError, theirs: dict[str, str]) -> Item:
    """A broken rule under the names that the user wrote; longer keys first, since one may begin another."""
    text = error.text()
    for ours in sorted(theirs, key=len, reverse=True):
        text = text.replace(ours, theirs[ours])
    return Item(theirs.get(error.key or "", error.key or ""), error.value, REFUSED, error.key, why=text)


def _dialects() -> Iterator[Dialect]:
    """Every dialect, in the order of the table."""
    for name in DIALECTS.names():
        yield DIALECTS[name].load()()


def _named_file(config: dict[str, Any], path: str) -> Translation:
    """A file of tools or of simulated users: a config names it."""
    translation = Translation("verl", "train")
    for section in config:
        key = _NAMED_FILES[section]
        why = f"a file of {section}, which a config names under this key"
        translation.put(Item(section, config[section], CONVERTED, key, path, why))
    return translation
