"""burnish data: make training files from raw ones, and say what is wrong with a file."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from burnish.data.prepare import PREPARERS, Recipe
from burnish.errors import UserError
from burnish.registry import Entry


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Put `data` and what it can do among the commands."""
    parser = subparsers.add_parser("data", help="make training files, or check one", description=__doc__)
    parser.set_defaults(run=run)
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    for row in PREPARERS.entries.values():
        _add_preparer(commands, row)
    check = commands.add_parser("check", help="say what is wrong with a file; exit status 1 if something is")
    check.set_defaults(data_run=run_check)
    check.add_argument("file", metavar="FILE", help=".parquet, .jsonl or .json")
    check.add_argument("--tokenizer", metavar="PATH", help="measure prompts with this model's tokenizer and template")
    check.add_argument("--trust-remote-code", action="store_true", help="let the tokenizer run code it brings along")
    check.add_argument(
        "--max-prompt-length", type=int, metavar="N", help="longer prompts are errors (needs --tokenizer)"
    )
    check.add_argument("--prompt-key", default="prompt", metavar="COLUMN")
    check.add_argument("--reward-fn-key", default="data_source", metavar="COLUMN")
    return parser


def _add_preparer(commands: argparse._SubParsersAction, row: Entry) -> None:
    recipe: Recipe = row.metadata["recipe"]
    parser = commands.add_parser(row.name, help=row.metadata["about"])
    parser.set_defaults(data_run=run_prepare)
    parser.add_argument("source", metavar="SRC", help="file, folder of .json objects, or Hugging Face dataset")
    parser.add_argument("out", metavar="OUT", help="the parquet file to write")
    parser.add_argument("--prompt-key", default=recipe.prompt_key, metavar="COLUMN", help="default: %(default)s")
    parser.add_argument("--answer-key", default=recipe.answer_key, metavar="COLUMN", help="default: %(default)s")
    parser.add_argument("--no-answer", action="store_true", help="the rows have no answer, the reward needs none")
    parser.add_argument(
        "--data-source", default=recipe.data_source, metavar="NAME", help="what rewards and metrics go by"
    )
    parser.add_argument("--instruction", default=recipe.instruction, metavar="TEXT", help="put after every question")
    parser.add_argument("--system", default="", metavar="TEXT", help="system message of every prompt")
    parser.add_argument("--split", default="train", help="split of a Hugging Face dataset; noted in extra_info")
    parser.add_argument("--subset", default=row.metadata["subset"], help="subset of a Hugging Face dataset")
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that have no usable answer")


def run(args: argparse.Namespace) -> int:
    return args.data_run(args)


def run_prepare(args: argparse.Namespace) -> int:
    """Read SRC, make rows, write OUT."""
    from burnish.data.files import write_parquet
    from burnish.data.prepare import prepare
    from burnish.data.source import raw_rows

    recipe = dataclasses.replace(
        PREPARERS[args.data_command].metadata["recipe"],
        prompt_key=args.prompt_key,
        answer_key=None if args.no_answer else args.answer_key,
        data_source=args.data_source,
        instruction=args.instruction,
        system=args.system,
        split=args.split,
    )
    prepared = prepare(args.data_command, raw_rows(args.source, subset=args.subset, split=args.split), recipe)
    if prepared.bad and (not args.skip_bad or not prepared.rows):
        number, why = prepared.bad[0]
        total = len(prepared.bad) + len(prepared.rows)
        problem = f"{len(prepared.bad)} of {total} rows cannot be used (first: row {number}, {why})"
        raise UserError(
            problem, key="SRC", value=args.source, hint="--skip-bad to leave them out" if prepared.rows else None
        )
    write_parquet(prepared.rows, args.out)
    left_out = f", left out {len(prepared.bad)}" if prepared.bad else ""
    print(f"wrote {len(prepared.rows)} rows to {args.out}{left_out}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Print what a file holds and what is wrong with it."""
    from burnish.data.check import check_rows
    from burnish.data.encode import PromptEncoder
    from burnish.data.files import read_file

    if args.max_prompt_length is not None and not args.tokenizer:
        raise UserError(
            "lengths need a tokenizer", key="--max-prompt-length", value=args.max_prompt_length, hint="--tokenizer PATH"
        )
    encoder = PromptEncoder(load_tokenizer(args.tokenizer, args.trust_remote_code), {}) if args.tokenizer else None
    try:
        rows = read_file(args.file, key="FILE")
    except UserError as error:
        print(f"error: {error}")
        return 1
    report = check_rows(
        rows,
        prompt_key=args.prompt_key,
        reward_fn_key=args.reward_fn_key,
        max_prompt_length=args.max_prompt_length,
        encoder=encoder,
    )
    print("\n".join(report.lines()))
    return 1 if report.errors else 0


def load_tokenizer(path: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    where = Path(path).expanduser()
    try:
        return AutoTokenizer.from_pretrained(
            str(where) if where.exists() else path, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load a tokenizer: {error}", key="--tokenizer", value=path) from error
