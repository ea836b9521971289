"""burnish run: run an unchanged launch command, script or YAML of verl, OpenRLHF or MindSpeed RL."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from burnish.cli.launch_input import add_version
from burnish.cli.parser import add_plain, plain_output
from burnish.config import Loaded, load
from burnish.dialects.report import PENDING, REFUSED, Item, Translation, apply_statuses, setting_text, summarize
from burnish.dialects.translate import find_programs, translate_command, translate_yaml
from burnish.errors import ExitStatus, NotSupportedYet, UserError, UserErrors
from burnish.registry import Registry


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a launch command or script of verl, OpenRLHF or MindSpeed RL",
        description="burnish run -- python3 -m verl.trainer.main_ppo key=value ... | burnish run SCRIPT.sh [ARGUMENTS]",
    )
    add_version(parser)
    add_plain(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="-- COMMAND, a script, or a YAML")


def run(args: argparse.Namespace) -> int:
    """Exit status: that of the job or script; 3 if a setting is refused, 4 if one is not supported yet."""
    with plain_output(args.plain):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    words = list(args.words)
    is_command = words[:1] == ["--"]
    words = words[1:] if is_command else words
    if not words:
        raise UserError("nothing to run", hint="burnish run -- python3 -m verl.trainer.main_ppo key=value ...")
    is_file = os.path.isfile(words[0]) and not words[0].endswith(".py")
    if is_command or not (is_file or words[0].endswith((".sh", ".yaml", ".yml"))):
        return run_command(words, args.assume)
    if not is_file:
        raise UserError(f"no such file: {words[0]}")
    if words[0].endswith((".yaml", ".yml")):
        return run_translation(translate_yaml(words[0], words[1:], args.assume))
    from burnish.cli.scripts.run import run_script

    return run_script(words[0], words[1:], args.assume)


def run_command(words: Sequence[str], assume: str | None = None) -> int:
    """Translate a command and run it in this process."""
    from burnish.log.console import say_error

    program = next(iter(find_programs(words)), None)
    if program is not None and program.place:
        problem = f"the command runs {program.place}, and Burnish would run it here"
        raise UserError(problem, hint="burnish run -- COMMAND, there")
    try:
        translation = translate_command(words, assume=assume)
    except NotSupportedYet as error:
        say_error(error.text())
        return ExitStatus.UNSUPPORTED
    if translation.prints_config and translation.exit_status == 0:
        print(load(translation.overrides(), job=translation.job, check=False).yaml(), end="")
        return 0
    translation.environment = (program.env if program is not None else {}) | translation.environment
    return run_translation(translation)


def run_translation(translation: Translation) -> int:
    """Print a summary of the translation and run it, unless a setting is refused or pending."""
    from burnish.log.console import say, say_error
    from burnish.loop.profiling import start_under_nsys

    apply_statuses(translation, here=True)
    say(" ".join([summarize(translation), *translation.notes, "`burnish convert -- COMMAND` lists all settings."]))
    if translation.blockers():
        say_error(f"not started: {describe_blockers(translation)}")
        return translation.run_status
    os.environ.update(translation.environment)
    try:
        loaded = load(values=translation.settings, job=translation.job)
        if translation.job == "train":
            start_under_nsys(loaded.cfg, [sys.executable, "-m", "burnish", "train", *translation.overrides()])
        return _RUNNERS[translation.job].load()(loaded)
    except UserError as error:
        raise with_source_names(error, translation.items) from error


def describe_blockers(translation: Translation) -> str:
    """The settings with which a command does not start, one per line under a heading per kind; empty if none."""
    lines: list[str] = []
    for status, text in _BLOCKING_TEXTS.items():
        items = [item for item in translation.items if item.status == status]
        if items:
            verb = "setting is" if len(items) == 1 else "settings are"
            lines += [f"{len(items)} {verb} {text}.", *map(format_item, items)]
    return "\n".join(lines)


_BLOCKING_TEXTS = {REFUSED: "refused", PENDING: "not supported yet"}


def format_item(item: Item) -> str:
    """A setting as the user typed it, and its explanation."""
    default = "" if item.explicit else " (a default of the source system)"
    return f"  {setting_text(item.theirs, item.value)}{default}: {item.why}"


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
    from burnish.log.console import activity
    from burnish.loop.stop import naming_last_checkpoint

    with naming_last_checkpoint(loaded.cfg.trainer.default_local_dir):
        with activity("loading PyTorch", shown="console" in loaded.cfg.trainer.logger):
            from burnish.loop.api import train_loaded

        return train_loaded(loaded).status


@_RUNNERS.register("sft")
def _sft(loaded: Loaded) -> int:
    from burnish.loop.stop import naming_last_checkpoint

    with naming_last_checkpoint(loaded.cfg.trainer.default_local_dir):
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
    return 1 if report.failed_sources else 0
