"""burnish export: a checkpoint as a Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "export",
        help="turn a checkpoint into a Hugging Face folder",
        description="Writes the weights, config and tokenizer of a checkpoint as transformers loads them. Reads our"
        " checkpoints and verl's FSDP ones.",
    )
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="a run folder (its newest), a global_step_N, or its actor"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write; must be empty or not there")
    parser.add_argument("--best", action="store_true", help="of a run folder, the checkpoint whose validation was best")
    parser.add_argument("--critic", action="store_true", help="the value model instead of the policy")
    parser.add_argument("--adapter", action="store_true", help="the LoRA adapter alone, in peft's format")
    parser.add_argument("--ema", action="store_true", help="the moving average of the weights")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, bf16 or fp16 (default: as stored)")
    parser.add_argument("--base", metavar="MODEL", help="the model under the adapter, where it has moved")
    parser.add_argument("--trust-remote-code", action="store_true", help="let the model's repository run its own code")


def run(args: argparse.Namespace) -> int:
    from burnish.jobs.export import ExportOptions, export  # torch is loaded only now
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
