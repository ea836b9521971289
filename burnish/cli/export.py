"""burnish export: convert a checkpoint to a Hugging Face folder."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.jobs.export import ExportOptions


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "export",
        help="convert a checkpoint to a Hugging Face folder",
        description="Writes weights, config and tokenizer of a checkpoint in Hugging Face format. Supports checkpoints"
        " of Burnish and FSDP checkpoints of verl.",
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="a run folder (newest checkpoint), a global_step_N folder, or its actor folder",
    )
    parser.add_argument(
        "out",
        type=Path,
        nargs="?",
        metavar="OUT",
        help="output folder; must be empty or not exist; optional with --push",
    )
    parser.add_argument(
        "--best", action="store_true", help="with a run folder, the checkpoint with the best validation score"
    )
    parser.add_argument("--critic", action="store_true", help="export the critic instead of the policy")
    parser.add_argument("--adapter", action="store_true", help="export only the LoRA adapter, in peft's format")
    parser.add_argument("--ema", action="store_true", help="export the EMA weights")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, bf16 or fp16 (default: as stored)")
    parser.add_argument("--base", metavar="MODEL", help="new path of the adapter's base model, if it was moved")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow the model to run code of its repository"
    )

    parser.add_argument(
        "--card", action="store_true", help="add a model card (README.md, curves.png) written from the run folder"
    )
    parser.add_argument("--push", metavar="REPO", help="upload to this repository of the Hugging Face hub, with a card")
    parser.add_argument(
        "--private",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with --push, create a private repository (default), or a public one",
    )


def run(args: argparse.Namespace) -> int:
    from burnish.errors import UserError
    from burnish.log.console import activity, get_stderr

    if args.push is not None:
        from burnish.jobs.push import check_repo

        check_repo(args.push)
    elif args.out is None:
        raise UserError("no output folder", hint="burnish export CHECKPOINT OUT, or --push OWNER/NAME")
    with activity("loading PyTorch", console=get_stderr()):
        from burnish.jobs.export import ExportOptions

    options = ExportOptions(
        critic=args.critic,
        best=args.best,
        adapter=args.adapter,
        average=args.ema,
        dtype=args.dtype,
        base=args.base,
        trust_remote_code=args.trust_remote_code,
    )
    if args.out is not None:
        _export(args, args.out, options)
        return 0
    with tempfile.TemporaryDirectory(prefix="burnish-export-") as folder:
        _export(args, Path(folder) / "model", options)
    return 0


def _export(args: argparse.Namespace, out: Path, options: ExportOptions) -> None:
    from burnish.jobs.export import export
    from burnish.jobs.model_card import write_card
    from burnish.jobs.push import push
    from burnish.log.console import activity, get_console, get_stderr

    console, stderr = get_console(), get_stderr()
    with activity(f"exporting {args.checkpoint}", console=stderr):
        folder = export(args.checkpoint, out, options)
        if args.card or args.push is not None:
            write_card(folder, out, args.push)
    if args.out is not None:
        console.print(f"{folder} -> {out}")
    if args.push is not None:
        with activity(f"uploading to {args.push}", console=stderr):
            retry = "the same command again" if args.out is None else f"hf upload {args.push} {shlex.quote(str(out))}"
            url = push(out, args.push, private=args.private, retry=retry)
        console.print(f"{folder} -> {url}")
