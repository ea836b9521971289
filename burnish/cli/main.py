"""The `burnish` command. Each subcommand has a module of its name."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from burnish.cli.pipes import quiet_broken_pipe
from burnish.errors import ExitStatus, StopNow, UserError
from burnish.escape import escape_output, escaped_output

if TYPE_CHECKING:
    from burnish.cli.parser import Parser

# Command -> the examples that its help shows.
COMMANDS = {
    "train": """
  burnish train algorithm.adv_estimator=grpo data.train_files=train.parquet \\
      actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct
  burnish train --config-path examples --config-name grpo --cfg job
  burnish train --config-name grpo trainer.seed=2 --json > result.json""",
    "sft": """
  burnish sft model.partial_pretrain=Qwen/Qwen2.5-0.5B \\
      data.train_files=train.parquet data.train_batch_size=32""",
    "generate": """
  burnish generate model.path=Qwen/Qwen2.5-0.5B-Instruct \\
      data.path=test.parquet data.output_path=answers.parquet data.n_samples=4""",
    "eval": """
  burnish eval data.path=answers.parquet --json""",
    "export": """
  burnish export runs/first my-model --dtype bf16
  burnish export runs/first --push OWNER/NAME""",
    "view": """
  burnish view runs/first runs/second
  burnish view runs --export runs.html
  burnish view --text runs/first --step 40 --group 3""",
    "demo": """
  burnish demo --seed 1""",
    "runs": """
  burnish runs checkpoints
  burnish runs --json | jq '.[] | select(.state == "crashed")'""",
    "data": """
  burnish data gsm8k openai/gsm8k train.parquet --split train
  burnish data vision-shapes shapes.parquet --task count --size 512
  burnish data check train.parquet --tokenizer Qwen/Qwen2.5-0.5B-Instruct""",
    "explain": """
  burnish explain algorithm.adv_estimator
  burnish explain algorithm --lang zh""",
    "run": """
  burnish run -- python3 -m verl.trainer.main_ppo key=value ...
  burnish run run_qwen2.5_grpo.sh""",
    "convert": """
  burnish convert run_qwen2.5_grpo.sh
  burnish convert --yaml -- python3 -m verl.trainer.main_ppo key=value ...""",
    "rehearse": """
  burnish rehearse --steps 2 run_qwen2.5_grpo.sh""",
    "doctor": """
  burnish doctor
  burnish doctor --gpu-memory 80 -- python3 -m verl.trainer.main_ppo ...""",
    "schema": """
  burnish schema > burnish.schema.json""",
    "completion": """
  burnish completion bash > ~/.local/share/bash-completion/completions/burnish""",
    "help": """
  burnish help train""",
}


@quiet_broken_pipe
def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 success, 1 user error, 2 invalid arguments, 124 run hung, 130 Ctrl-C, 143 SIGTERM."""
    if argv is None:
        escape_output()  # to the end of the process, which may print a traceback
    words = sys.argv[1:] if argv is None else argv
    with escaped_output(), _watched_interrupts(own_process=argv is None) as interrupts:
        try:
            return _run(words)
        except UserError as error:
            if "--traceback" in words:
                raise
            _print_error(error)
            return ExitStatus.ERROR
        except KeyboardInterrupt as interrupt:
            return _report_interrupt(interrupt)
        except Exception as error:
            if interrupts:
                return _report_interrupt(error)
            if "--traceback" in words or not _report_disk_full(error):
                raise
            return ExitStatus.ERROR


def _run(words: list[str]) -> int:
    """Run the command. Its module is imported here, so that Ctrl-C during an import is handled."""
    from burnish.cli.parser import did_you_mean

    first = next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
    parser = root_parser()
    parser.parse_args(words[:first])
    if first == len(words):
        print_help(parser)
        return 0
    command = words[first]
    if command not in COMMANDS:
        parser.error(f"no such command: {command}{did_you_mean(command, COMMANDS)}")
    args = command_parser(command).parse_args(words[first + 1 :])
    return importlib.import_module(f"burnish.cli.{command}").run(args)


def root_parser() -> Parser:
    """The flags before the command."""
    from burnish import __version__
    from burnish.cli.parser import Parser

    parser = Parser(
        prog="burnish",
        usage="burnish [--version] COMMAND ...",
        description="Reinforcement-learning post-training of language models.",
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("-V", "--version", action="version", version=f"burnish {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show the traceback of errors")
    return parser


def command_parser(command: str) -> Parser:
    """The parser of one command; only its module is imported."""
    import argparse

    from burnish.cli.parser import Parser

    subparsers = Parser(prog="burnish").add_subparsers()
    importlib.import_module(f"burnish.cli.{command}").add_parser(subparsers)
    parser = subparsers.choices[command]
    parser.epilog = f"example:{COMMANDS[command]}"
    parser.add_argument("--traceback", action="store_true", help=argparse.SUPPRESS)
    return parser


def print_help(parser: Parser) -> None:
    """The flags and a line per command."""
    import textwrap

    from burnish.cli.parser import WIDTH

    lines = [
        textwrap.fill(f"{name:<11} {summary}", WIDTH - 2, initial_indent="  ", subsequent_indent=" " * 14)
        for name, summary in command_summaries().items()
    ]
    parser.epilog = "\n".join(["commands:", *lines, "", "Type `burnish COMMAND --help` for its flags and an example."])
    parser.print_help()


def command_summaries() -> dict[str, str]:
    """Command -> its line in the help."""
    from burnish.cli.parser import Parser

    subparsers = Parser(prog="burnish").add_subparsers()
    for command in COMMANDS:
        importlib.import_module(f"burnish.cli.{command}").add_parser(subparsers)
    return {action.dest: action.help or "" for action in subparsers._choices_actions}


@contextmanager
def _watched_interrupts(own_process: bool) -> Iterator[list[int]]:
    """Yields a list of the Ctrl-C's: C extensions turn one that arrives during their import into an ImportError.

    Afterwards, while a process of our own ends, another one kills it without a traceback.
    """
    interrupts: list[int] = []
    on_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not on_main_thread or before not in (signal.default_int_handler, signal.SIG_DFL):
        yield interrupts
        return

    def handle(signum: int, frame: object) -> None:
        interrupts.append(signum)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupts
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, signal.SIG_DFL if own_process else before)


def _report_interrupt(interrupt: BaseException) -> int:
    from burnish.cli.layout import wrap

    notes = getattr(interrupt, "__notes__", ["interrupted"])
    sys.stderr.write("\n".join(wrap(note, hanging="  ") for note in notes) + "\n")
    return interrupt.status if isinstance(interrupt, StopNow) else ExitStatus.INTERRUPTED


def _report_disk_full(error: Exception) -> bool:
    """Whether a full disk caused the error, which is then reported without a traceback."""
    from burnish.storage import disk_full

    prefix = disk_full(error) if isinstance(error, OSError) else ""
    if prefix:
        _print_text(f"{prefix}{error}")
    return bool(prefix)


def _print_error(error: UserError) -> None:
    from burnish.storage import disk_full

    _print_text(f"{disk_full(error)}{error.text()}")


def _print_text(text: str) -> None:
    from burnish.log.console import say_error  # imports rich, so only on errors

    say_error(text)


if __name__ == "__main__":
    sys.exit(main())
