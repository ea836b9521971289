"""burnish view: look at runs in a browser."""

from __future__ import annotations

import argparse
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.cli.view_text import add_text_arguments, show_text

if TYPE_CHECKING:
    from burnish.view.runs import RunReader

PLANNED_CAPACITY = 80 * 2**30  # of the device: it decides the size of the engine's cache in the plan


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "view",
        help="look at runs in a browser: curves, health, samples, tokens",
        description="Serves a page about runs on this machine, live while they train. It only reads run folders."
        " On another machine, type `ssh -L 8642:127.0.0.1:8642 HOST` first and open the printed URL here.",
    )
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="RUN_OR_FOLDER",
        help="run folders (trainer.default_local_dir), or folders with runs below them (default: . )",
    )
    parser.add_argument("--port", type=int, default=8642, help="port; 0 takes a free one (default: 8642)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name of this machine to accept in URLs"
    )
    parser.add_argument("--export", type=Path, metavar="FILE.html", help="write one self-contained page and stop")
    parser.add_argument(
        "--steps", type=int, default=3, metavar="N", help="steps whose samples are exported (default: 3)"
    )
    add_text_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from burnish.errors import UserError
    from burnish.view.api import ViewApi
    from burnish.view.runs import find_runs

    folders = args.folders or [Path()]
    runs = find_runs(folders)
    if not runs:
        names = ", ".join(str(folder) for folder in folders)
        raise UserError(f"no run in {names}", hint="burnish view RUN_FOLDER (trainer.default_local_dir)")
    if args.text:
        return show_text(args, runs)
    api = ViewApi(runs, memory_plan, lambda: find_runs(folders))
    if args.export is not None:
        return _export(args, api)
    return _serve(args, api)


def _export(args: argparse.Namespace, api: Any) -> int:
    from burnish.log.console import say
    from burnish.view.export import export_page

    size = export_page(api, args.export, num_steps=args.steps)
    say(f"{args.export} ({size / 1e6:.1f} MB): open it in a browser, no server is needed")
    return 0


def _serve(args: argparse.Namespace, api: Any) -> int:
    from burnish.log.console import say
    from burnish.view.runs import MAX_FOUND
    from burnish.view.server import serve

    def started(url: str) -> None:
        count = len(api.run_list)
        newest = "the newest " if count == MAX_FOUND else ""
        say(f"{newest}{count} run{'s' if count != 1 else ''}. Ctrl-C ends the viewer; runs are not affected. Open:")
        say(url)
        if args.host in ("0.0.0.0", "::"):
            say("from other machines, without encryption: " + re.sub(r"//[^/]*:", f"//{socket.gethostname()}:", url))

    hosts = frozenset({socket.gethostname().lower(), *(name.lower() for name in args.allow_host)})
    serve(api, args.host, args.port, hosts, started)
    return 0


def memory_plan(run: RunReader) -> dict[str, Any] | None:
    """Doctor's memory plan of a run, where the run folder holds a model whose shape is known."""
    from burnish.config import load
    from burnish.doctor.memory import Shapes, train_plan
    from burnish.doctor.shapes import find_shape

    checkpoints = [checkpoint.path / "actor" / "huggingface" for checkpoint in run.checkpoints()]
    folders = [folder for folder in (run.path / "model", *checkpoints) if (folder / "config.json").is_file()]
    if not folders or "actor_rollout_ref" not in run.config():
        return None
    cfg = load([], config_path=str(run.path), config_name="config", job="train", check=False).cfg
    return train_plan(cfg, Shapes(find_shape(str(folders[0])).shape), PLANNED_CAPACITY).to_json()
