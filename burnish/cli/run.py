"""burnish run: run an unchanged launch command, script or YAML of verl, OpenRLHF or MindSpeed RL."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from burnish.config import Loaded, load
from burnish.dialects.invocation import parse_command
from burnish.dialects.report import CONVERTED, INERT, KEPT, PENDING, REFUSED, Item, Translation
from burnish.dialects.translate import translate_command, translate_yaml
from burnish.errors import UserError, UserErrors
from burnish.registry import Registry

DISPLAY_NAMES = {"verl": "verl", "openrlhf": "OpenRLHF", "mindspeed": "MindSpeed RL"}
REFUSED_STATUS = 3


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a launch command or script of verl, OpenRLHF or MindSpeed RL",
        description="burnish run -- python3 -m verl.trainer.main_ppo key=value ... | burnish run SCRIPT.sh [ARGUMENTS]",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="-- COMMAND, a script, or a YAML")


def run(args: argparse.Namespace) -> int:
    """Exit status: that of the job or script; 3 if a setting is refused, 1 if one is not supported yet."""
    words = list(args.words)
    is_command = words[:1] == ["--"]
    words = words[1:] if is_command else words
    if not words:
        raise UserError("nothing to run", hint="burnish run -- python3 -m verl.trainer.main_ppo key=value ...")
    is_file = os.path.isfile(words[0]) and not words[0].endswith(".py")
    if is_command or not (is_file or words[0].endswith((".sh", ".yaml", ".yml"))):
        return run_command(words)
    if not is_file:
        raise UserError(f"no such file: {words[0]}")
    if words[0].endswith((".yaml", ".yml")):
        return run_translation(translate_yaml(words[0], words[1:]))
    from burnish.cli.scripts.run import run_script

    return run_script(words[0], words[1:])


def run_command(words: Sequence[str]) -> int:
    """Translate a command and run it in this process."""
    translation = translate_command(words)
    translation.environment = parse_command(words).env | translation.environment
    return run_translation(translation)


def run_translation(translation: Translation) -> int:
    """Print a summary of the translation and run it, unless a setting is refused or pending."""
    from burnish.log.console import say, say_error

    say(summarize(translation))
    refused, pending = ([item for item in translation.items if item.status == status] for status in (REFUSED, PENDING))
    if refused:
        say_error("\n".join(["not started: some settings are refused.", *map(format_item, refused)]))
        return REFUSED_STATUS
    if pending:
        say_error("\n".join(["not started: some settings are not supported yet.", *map(format_item, pending)]))
        return 1
    os.environ.update(translation.environment)
    try:
        loaded = load(translation.overrides(), job=translation.job)
        return _RUNNERS[translation.job].load()(loaded)
    except UserError as error:
        raise with_source_names(error, translation.items) from error


def summarize(translation: Translation) -> str:
    """One paragraph: the source system, and the number of settings by status."""
    explicit = [item for item in translation.items if item.explicit]
    counts = {status: sum(item.status == status for item in explicit) for status in _STATUS_TEXTS}
    texts = ", ".join(text.format(count) for status, text in _STATUS_TEXTS.items() if (count := counts[status]))
    name = DISPLAY_NAMES.get(translation.dialect, translation.dialect)
    num_defaults = len(translation.items) - len(explicit)
    defaults = (
        f" {num_defaults} defaults of {name} differ from Burnish's and are set explicitly." if num_defaults else ""
    )
    settings = f": {texts}" if texts else ""
    return (
        f"{name} command, translated to `burnish {translation.job}`{settings}.{defaults}"
        " `burnish convert -- COMMAND` lists all settings."
    )


_STATUS_TEXTS = {
    KEPT: "{} settings kept",
    CONVERTED: "{} converted",
    INERT: "{} without effect",
    PENDING: "{} not supported yet",
    REFUSED: "{} refused",
}


def format_item(item: Item) -> str:
    value = "" if item.value is None else f" {item.value}" if item.theirs.startswith("--") else f"={item.value}"
    default = "" if item.explicit else " (a default of the source system)"
    return f"  {item.theirs}{value}{default}: {item.why}"


def with_source_names(error: UserError, items: Sequence[Item]) -> UserError:
    """The same error with Burnish keys replaced by the names that the user wrote."""
    if isinstance(error, UserErrors):
        return UserErrors([with_source_names(inner, items) for inner in error.errors])
    items_by_key = {item.ours: item for item in items if item.ours is not None and item.explicit}
    item = items_by_key.get(error.key or "")
    return UserError(
        _replace_keys(error.problem, items_by_key),
        key=error.key if item is None else item.theirs,
        value=error.value if item is None else item.value,
        allowed=_replace_keys(error.allowed, items_by_key) if isinstance(error.allowed, str) else error.allowed,
        hint=None if error.hint is None else _replace_keys(error.hint, items_by_key),
    )


def _replace_keys(text: str, items_by_key: dict[str, Item]) -> str:
    """Replace `our.key=value` by `--their_flag value` or `their.key=value`."""
    for key in sorted(items_by_key, key=len, reverse=True):  # longest first: one key may be a prefix of another
        name = items_by_key[key].theirs
        text = text.replace(f"{key}=", f"{name} " if name.startswith("--") else f"{name}=").replace(key, name)
    return text


_RUNNERS = Registry("job", key="job")


@_RUNNERS.register("train")
def _train(loaded: Loaded) -> int:
    from burnish.loop.api import train_loaded

    return train_loaded(loaded).status


@_RUNNERS.register("sft")
def _sft(loaded: Loaded) -> int:
    from burnish.jobs.sft.fit import sft_loaded

    return sft_loaded(loaded).status


@_RUNNERS.register("generate")
def _generate(loaded: Loaded) -> int:
    from burnish.jobs.generate import generate_loaded

    generate_loaded(loaded)
    return 0


@_RUNNERS.register("eval")
def _evaluate(loaded: Loaded) -> int:
    from burnish.cli.eval import show
    from burnish.jobs.eval.run import evaluate_loaded

    report = evaluate_loaded(loaded)
    show(report)
    return 1 if report.hopeless else 0
