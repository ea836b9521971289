"""burnish data: convert raw data to training files, or check a file."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from burnish.data.prepare import PREPARERS, Recipe
from burnish.errors import UserError
from burnish.registry import Entry


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `data` and its subcommands."""
    parser = subparsers.add_parser("data", help="prepare training files, or check one", description=__doc__)
    parser.set_defaults(run=run)
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    for entry in PREPARERS.entries.values():
        _add_preparer(commands, entry)
    _add_environment(commands)
    _add_shapes(commands)
    check = commands.add_parser("check", help="check a file; exit status 1 if it has errors")
    check.set_defaults(data_run=run_check)
    check.add_argument("file", metavar="FILE", help=".parquet, .jsonl or .json")
    check.add_argument("--tokenizer", metavar="PATH", help="measure prompts with this model's tokenizer and template")
    check.add_argument(
        "--trust-remote-code", action="store_true", help="allow the tokenizer to run code of its repository"
    )
    check.add_argument(
        "--max-prompt-length", type=int, metavar="N", help="report longer prompts as errors (requires --tokenizer)"
    )
    check.add_argument("--prompt-key", default="prompt", metavar="COLUMN")
    check.add_argument("--reward-fn-key", default="data_source", metavar="COLUMN")
    check.add_argument("--image-key", default="images", metavar="COLUMN", help="images, which are all decoded")
    check.add_argument("--video-key", default="videos", metavar="COLUMN", help="videos, which are all decoded")
    return parser


def _add_preparer(commands: argparse._SubParsersAction, entry: Entry) -> None:
    recipe: Recipe = entry.metadata["recipe"]
    parser = commands.add_parser(entry.name, help=entry.metadata["about"])
    parser.set_defaults(data_run=run_prepare)
    parser.add_argument("source", metavar="SRC", help="file, folder of .json objects, or Hugging Face dataset")
    parser.add_argument("out", metavar="OUT", help="parquet file to write")
    parser.add_argument("--prompt-key", default=recipe.prompt_key, metavar="COLUMN", help="default: %(default)s")
    parser.add_argument("--answer-key", default=recipe.answer_key, metavar="COLUMN", help="default: %(default)s")
    if recipe.image_key is not None:
        parser.add_argument("--image-key", default=recipe.image_key, metavar="COLUMN", help="default: %(default)s")
    parser.add_argument("--no-answer", action="store_true", help="the rows have no answer, and the reward needs none")
    parser.add_argument(
        "--data-source",
        default=recipe.data_source,
        metavar="NAME",
        help="selects the reward function and groups metrics",
    )
    parser.add_argument("--instruction", default=recipe.instruction, metavar="TEXT", help="appended to every question")
    parser.add_argument("--system", default="", metavar="TEXT", help="system message of every prompt")
    parser.add_argument("--split", default="train", help="split of a Hugging Face dataset; saved in extra_info")
    parser.add_argument("--subset", default=entry.metadata["subset"], help="subset of a Hugging Face dataset")
    parser.add_argument("--skip-bad", action="store_true", help="skip rows without a usable answer")


def _add_environment(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("env", help="prompts from an environment: its first observations")
    parser.set_defaults(data_run=run_environment)
    parser.add_argument(
        "name",
        metavar="NAME",
        help="gymnasium, textarena, reasoning_gym, verifiers, openenv, or path/to/file.py:Class",
    )
    parser.add_argument("out", metavar="OUT", help="parquet file to write")
    parser.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="arguments of the environment")
    parser.add_argument("--size", type=int, default=1000, metavar="N", help="rows (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first row; the next has the next")
    parser.add_argument("--system", default="", metavar="TEXT", help="system message of every prompt")
    parser.add_argument("--split", default="train", help="saved in extra_info")


def _add_shapes(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "vision-shapes", help="images of colored shapes, drawn here, with questions about them"
    )
    parser.set_defaults(data_run=run_shapes)
    parser.add_argument("out", metavar="OUT", help="parquet file to write")
    parser.add_argument("--task", default="count", metavar="NAME", help="count, color or shape (default: %(default)s)")
    parser.add_argument("--size", type=int, default=1000, metavar="N", help="rows (default: %(default)s)")
    parser.add_argument("--image-size", type=int, default=56, metavar="N", help="pixels a side (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="rows of equal seed and split are equal")
    parser.add_argument("--question", metavar="TEXT", help="instead of the task's own")
    parser.add_argument("--split", default="train", help="rows of splits differ; saved in extra_info")


def run_shapes(args: argparse.Namespace) -> int:
    """Draw the images and write them with their questions."""
    from burnish.data.files import write_parquet
    from burnish.data.shapes import shape_rows

    rows = shape_rows(args.task, args.size, args.seed, size=args.image_size, split=args.split, question=args.question)
    rows = list(rows)
    write_parquet(rows, args.out)
    print(f"wrote {len(rows)} rows to {args.out}")
    return 0


def run(args: argparse.Namespace) -> int:
    return args.data_run(args)


def run_environment(args: argparse.Namespace) -> int:
    """Write one row per seed."""
    from burnish.config.overrides import read_overrides
    from burnish.data.files import write_parquet
    from burnish.log.console import activity, get_stderr
    from burnish.rollout.environments.environment import load_environment
    from burnish.rollout.environments.rows import environment_rows

    if args.size < 1:
        raise UserError("must be at least 1", key="--size", value=args.size)
    overrides, errors = read_overrides(args.arguments)
    if errors:
        raise UserError(errors[0].problem, key="KEY=VALUE", value=" ".join(args.arguments), hint="id=FrozenLake-v1")
    kwargs = {override.key_or_group: override.value() for override in overrides}
    factory = load_environment(args.name, kwargs, "NAME")
    with activity(f"{args.size} prompts from {args.name}", console=get_stderr()):
        rows = list(environment_rows(factory, args.size, args.seed, args.system, args.split))
    write_parquet(rows, args.out)
    print(f"wrote {len(rows)} rows to {args.out}")
    return 0


def run_prepare(args: argparse.Namespace) -> int:
    """Convert SRC to OUT."""
    from burnish.data.files import write_parquet
    from burnish.data.prepare import prepare
    from burnish.data.source import raw_rows
    from burnish.log.console import activity, get_stderr

    recipe = dataclasses.replace(
        PREPARERS[args.data_command].metadata["recipe"],
        prompt_key=args.prompt_key,
        answer_key=None if args.no_answer else args.answer_key,
        data_source=args.data_source,
        instruction=args.instruction,
        system=args.system,
        split=args.split,
        image_key=getattr(args, "image_key", None),
    )
    with activity(f"reading {args.source}", console=get_stderr()):
        rows = raw_rows(args.source, subset=args.subset, split=args.split)
    with activity(f"converting {len(rows)} rows", console=get_stderr()):
        prepared = prepare(args.data_command, rows, recipe)
    if prepared.bad and (not args.skip_bad or not prepared.rows):
        number, why = prepared.bad[0]
        total = len(prepared.bad) + len(prepared.rows)
        problem = f"{len(prepared.bad)} of {total} rows are not usable (first: row {number}, {why})"
        raise UserError(
            problem, key="SRC", value=args.source, hint="--skip-bad to skip them" if prepared.rows else None
        )
    write_parquet(prepared.rows, args.out)
    skipped = f", skipped {len(prepared.bad)}" if prepared.bad else ""
    print(f"wrote {len(prepared.rows)} rows to {args.out}{skipped}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Print a summary of a file and its errors."""
    from burnish.data.check import check_rows
    from burnish.data.encode import PromptEncoder
    from burnish.data.files import read_file
    from burnish.log.console import activity, get_stderr

    if args.max_prompt_length is not None and not args.tokenizer:
        raise UserError(
            "requires a tokenizer", key="--max-prompt-length", value=args.max_prompt_length, hint="--tokenizer PATH"
        )
    encoder = None
    if args.tokenizer:
        with activity(f"loading the tokenizer {args.tokenizer}", console=get_stderr()):
            encoder = PromptEncoder(load_tokenizer(args.tokenizer, args.trust_remote_code), {})
    try:
        with activity(f"reading {args.file}", console=get_stderr()):
            rows = read_file(args.file, key="FILE")
    except UserError as error:
        print(f"error: {error}")
        return 1
    if encoder is not None and {args.image_key, args.video_key} & rows.kinds.keys():
        encoder = dataclasses.replace(encoder, vision=load_vision(args.tokenizer, encoder.tokenizer, args))
    with activity(f"checking {len(rows)} rows", console=get_stderr()):
        report = check_rows(
            rows,
            prompt_key=args.prompt_key,
            reward_fn_key=args.reward_fn_key,
            max_prompt_length=args.max_prompt_length,
            encoder=encoder,
            image_key=args.image_key,
            video_key=args.video_key,
        )
    print("\n".join(report.lines()))
    return 1 if report.errors else 0


def load_vision(path: str, tokenizer: Any, args: argparse.Namespace) -> Any:
    """The encoder of images and videos of this model; None for a text model."""
    from burnish.models.load import ModelSource, load_config
    from burnish.models.vision.encoder import load_vision_encoder
    from burnish.models.vision.family import vision_family

    source = ModelSource(path, key="--tokenizer", trust_remote_code=args.trust_remote_code)
    if vision_family(load_config(source), "--tokenizer") is None:
        return None
    return load_vision_encoder(source, tokenizer)


def load_tokenizer(path: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    local = Path(path).expanduser()
    try:
        return AutoTokenizer.from_pretrained(
            str(local) if local.exists() else path, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the tokenizer: {error}", key="--tokenizer", value=path) from error
