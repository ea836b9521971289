"""burnish run: a launch command of verl, OpenRLHF or MindSpeed RL, or a script of them, as it is."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from burnish.config import Loaded, load
from burnish.dialects.invocation import read_command
from burnish.dialects.read import translate_command, translate_yaml
from burnish.dialects.report import CONVERTED, INERT, KEPT, PENDING, REFUSED, Item, Translation
from burnish.errors import UserError, UserErrors
from burnish.registry import Registry

NAMES = {"verl": "verl", "openrlhf": "OpenRLHF", "mindspeed": "MindSpeed RL"}
NOT_UNDERSTOOD = 3


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a launch command or script of verl, OpenRLHF or MindSpeed RL",
        description="burnish run -- python3 -m verl.trainer.main_ppo key=value ... | burnish run SCRIPT.sh [ARGUMENTS]",
    )
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="-- and a command, or a script, or a YAML"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status: the job's or the script's own; 3 if a setting was refused, 1 if one waits for later work."""
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
    from burnish.cli.script import run_script

    return run_script(words[0], words[1:])


def run_command(words: Sequence[str]) -> int:
    """Translate a command and do it in this process."""
    translation = translate_command(words)
    translation.environment = read_command(words).env | translation.environment
    return run_translation(translation)


def run_translation(translation: Translation) -> int:
    """Say how it was understood, and do it, unless something in it cannot be done."""
    from burnish.log.console import say, say_error

    say(understood(translation))
    refused, pending = ([one for one in translation.items if one.status == status] for status in (REFUSED, PENDING))
    if refused:
        say_error("\n".join(["not started: some settings are refused.", *map(line_of, refused)]))
        return NOT_UNDERSTOOD
    if pending:
        say_error("\n".join(["not started: some settings wait for later work.", *map(line_of, pending)]))
        return 1
    os.environ.update(translation.environment)
    try:
        loaded = load(translation.overrides(), job=translation.job)
        return _RUNNERS[translation.job].load()(loaded)
    except UserError as error:
        raise retold(error, translation.items) from error


def understood(translation: Translation) -> str:
    """One paragraph: whose command it is, and what became of its settings."""
    given = [item for item in translation.items if item.given]
    counts = {status: sum(item.status == status for item in given) for status in _SAID}
    said = ", ".join(text.format(count) for status, text in _SAID.items() if (count := counts[status]))
    name = NAMES.get(translation.dialect, translation.dialect)
    written = len(translation.items) - len(given)
    defaults = f" {written} defaults of {name} that differ from ours are written out." if written else ""
    settings = f": {said}" if said else ""
    return (
        f"A command of {name}, understood as `burnish {translation.job}`{settings}.{defaults}"
        " `burnish convert -- COMMAND` shows every one."
    )


_SAID = {
    KEPT: "{} settings kept",
    CONVERTED: "{} converted",
    INERT: "{} without effect here",
    PENDING: "{} waiting for later work",
    REFUSED: "{} refused",
}


def line_of(item: Item) -> str:
    value = "" if item.value is None else f" {item.value}" if item.theirs.startswith("--") else f"={item.value}"
    default = "" if item.given else " (a default of theirs)"
    return f"  {item.theirs}{value}{default}: {item.why}"


def retold(error: UserError, items: Sequence[Item]) -> UserError:
    """The same error under the names that the user wrote."""
    if isinstance(error, UserErrors):
        return UserErrors([retold(one, items) for one in error.errors])
    theirs = {item.ours: item for item in items if item.ours is not None and item.given}
    item = theirs.get(error.key or "")
    return UserError(
        _spoken(error.problem, theirs),
        key=error.key if item is None else item.theirs,
        value=error.value if item is None else item.value,
        allowed=_spoken(error.allowed, theirs) if isinstance(error.allowed, str) else error.allowed,
        hint=None if error.hint is None else _spoken(error.hint, theirs),
    )


def _spoken(text: str, theirs: dict[str, Item]) -> str:
    """`our.key=value` becomes `--their_flag value`, or `their.key=value`. Longer keys first: one may begin another."""
    for ours in sorted(theirs, key=len, reverse=True):
        name = theirs[ours].theirs
        text = text.replace(f"{ours}=", f"{name} " if name.startswith("--") else f"{name}=").replace(ours, name)
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
