"""burnish export: convert a checkpoint to a Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path


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
    parser.add_argument("out", type=Path, metavar="OUT", help="output folder; must be empty or not exist")
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


def run(args: argparse.Namespace) -> int:
    from burnish.jobs.export import ExportOptions, export  # imports torch
    from burnish.log.console import get_console

    options = ExportOptions(
        critic=args.critic,
        best=args.best,
        adapter=args.adapter,
        average=args.ema,
        dtype=args.dtype,
        base=args.base,
        trust_remote_code=args.trust_remote_code,
    )
    folder = export(args.checkpoint, args.out, options)
    get_console().print(f"{folder} -> {args.out}")
    return 0
