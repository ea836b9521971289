"""burnish doctor: check a command (batch arithmetic, memory plan, known mistakes) and this machine."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.sizing import GIB

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.dialects.report import Translation
    from burnish.doctor.examine import Examination
    from burnish.doctor.machine import Machine

DEFAULT_GIB = 80.0
COLORS = {"refused": "red", "warning": "yellow", "note": "cyan"}
PAGE_WIDTH = 140  # columns if the output is not a terminal


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add the `doctor` command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check a command for mistakes and memory use, and show what this machine can run",
        description="burnish doctor [--json] [-- COMMAND... | SCRIPT.sh | FILE.yaml]",
    )
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a launch command after --, a script, or a YAML")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--gpu-memory", type=float, metavar="GB", help="memory of a GPU; default: this machine's, or 80"
    )
    parser.add_argument("--shape", metavar="MODEL", help="known model, or folder with a config.json, for the policy")
    parser.add_argument("--no-files", action="store_true", help="do not check data files and Python files")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 no errors, 3 a setting is refused or does not fit in memory, 2 the input cannot be translated."""
    from burnish.doctor.examine import examine
    from burnish.doctor.machine import describe_machine

    examination, notes = None, []
    if args.words:
        try:
            translation, notes = translate_words(args.words)
            capacity = int((args.gpu_memory or _device_gib()) * GIB)
            examination = examine(translation, capacity=capacity, shape=args.shape, check_files=not args.no_files)
        except UserError as error:
            return _report_error(error, args.json)
    machine = describe_machine()
    if args.json:
        output: dict[str, Any] = {"machine": machine.to_json()}
        output |= {name: None for name in ("understood", "arithmetic", "memory")} | {"findings": []}
        output |= {} if examination is None else examination.to_json()
        print(json.dumps(output | {"notes": notes}, default=str))
    else:
        show(machine, examination, notes, args.words)
    return 0 if examination is None else examination.exit_status


def translate_words(words: list[str]) -> tuple[Translation, list[str]]:
    """Translate a command, script or YAML; returns the translation and notes on it."""
    from burnish.dialects.translate import translate_command, translate_yaml

    first = words[0]
    if first.endswith((".yaml", ".yml")) and os.path.isfile(first):
        return translate_yaml(first, words[1:]), []
    if first.endswith(".sh") or (os.path.isfile(first) and not first.endswith(".py") and len(words) == 1):
        return _translate_script(words)
    return translate_command(words), []


def _translate_script(words: list[str]) -> tuple[Translation, list[str]]:
    """Translate the first training command of a script, or else its first translatable command."""
    from burnish.cli.scripts.record import record_script
    from burnish.dialects.translate import translate_command

    recording = record_script(words[0], words[1:])
    translations: list[Translation] = []
    last_error: UserError | None = None
    for command in recording:
        try:
            translations.append(translate_command(list(command.words), command.cwd))
        except UserError as error:
            last_error = error
    if not translations:
        raise last_error or UserError(f"{words[0]} starts no program that Burnish can translate")
    chosen = next((translation for translation in translations if translation.job == "train"), translations[0])
    notes = list(recording.notes)
    if len(translations) > 1:
        notes.append(
            f"the script starts {len(translations)} translatable commands; this report covers the first training"
        )
    return chosen, notes


def _device_gib() -> float:
    from burnish.doctor.machine import cuda_devices

    devices = cuda_devices()
    return min(device.memory for device in devices) / GIB if devices else DEFAULT_GIB


def _report_error(error: UserError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.text()}))
    else:
        from burnish.log.console import say_error

        say_error(error.text())
    return 2


def show(machine: Machine, examination: Examination | None, notes: list[str], words: list[str]) -> None:
    """Print all sections, those of the command first."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, emoji=False, highlight=False, width=PAGE_WIDTH)
    if examination is not None:
        _show_translation(console, examination, notes)
        _show_arithmetic(console, examination)
        _show_memory(console, examination)
        _show_findings(console, examination)
    _show_machine(console, machine)


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold")


def _show_translation(console: Console, examination: Examination, notes: list[str]) -> None:
    from burnish.dialects.report import STATUSES

    translation = examination.translation
    _title(console, f"Command: {translation.dialect}, translated to `burnish {translation.job}`")
    counts = ", ".join(f"{translation.count(status)} {status}" for status in STATUSES)
    console.print(f"  {counts} (`burnish convert` lists them)")
    for note in notes:
        console.print(f"  {note}")


def _show_arithmetic(console: Console, examination: Examination) -> None:
    if not examination.arithmetic:
        return
    _title(console, "Batch arithmetic")
    width = max(map(len, examination.arithmetic))
    for name, value in examination.arithmetic.items():
        console.print(f"  {name.replace('_', ' '):<{width}}  {_number(value)}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _show_memory(console: Console, examination: Examination) -> None:
    from rich.table import Table

    plan = examination.plan
    if plan is None:
        return
    _title(console, f"Memory of one GPU ({plan.capacity / GIB:.0f} GiB): peak of each phase in GiB")
    for role, match in examination.shapes.items():
        billions = match.shape.parameters / 1e9
        console.print(
            f"  {role}: {billions:.2f} B parameters, from {match.source}{'' if match.shape.exact else ' (estimated)'}"
        )
    table = Table("phase", "GiB", "fits", "components")
    for phase in plan.phases:
        parts = ", ".join(f"{part.role} {part.name} {part.bytes / GIB:.1f}".strip() for part in phase.parts)
        fits = phase.bytes <= plan.capacity
        table.add_row(
            phase.name,
            f"{phase.bytes / GIB:.1f}",
            "yes" if fits else "NO",
            f"{parts}. {phase.note}" if phase.note else parts,
            style=None if fits else "red",
        )
    console.print(table)
    for note in plan.notes:
        console.print(f"  {note}")
    if plan.too_big:
        console.print(
            "  Fixes, cheapest first:" if examination.fixes else "  No setting makes it fit; use a smaller model."
        )
    for number, fix in enumerate(examination.fixes, 1):
        console.print(f"  {number}. {fix.text()}")
    if examination.fixes and not examination.fixes[-1].fits:
        console.print("  It still does not fit; use a smaller model or larger GPUs.")


def _show_findings(console: Console, examination: Examination) -> None:
    _title(console, "Findings" if examination.findings else "Findings: none")
    for finding in examination.findings:
        console.print(f"  {finding.severity}: {finding.text}", style=COLORS[finding.severity])
        if finding.type:
            console.print(f"      type: {finding.type}")


def _show_machine(console: Console, machine: Machine) -> None:
    _title(console, "This machine")
    gpus = ", ".join(f"{device.name} ({device.memory / GIB:.0f} GiB)" for device in machine.devices) or "no CUDA device"
    console.print(
        f"  Python {machine.python} on {machine.system}, {machine.cpus} CPUs, {machine.memory / GIB:.0f} GiB; {gpus}"
    )
    installed = [f"{name} {number}" for name, number in machine.libraries.items() if number is not None]
    missing = [name for name, number in machine.libraries.items() if number is None]
    console.print(f"  installed: {', '.join(installed)}")
    console.print(f"  not installed: {', '.join(missing) or 'nothing'}")
    for noun, available in (("engines", machine.engines), ("loggers", machine.loggers)):
        console.print(
            f"  available {noun}: {', '.join(name for name, is_available in available.items() if is_available)}"
        )
    console.print(f"  bf16 on the CPU: {machine.bf16}")
    console.print(f"  sandbox: {machine.isolation}")
    shared = "none" if machine.shared_memory is None else f"{machine.shared_memory / GIB:.1f} GiB free"
    console.print(f"  disk: {machine.free_disk / GIB:.0f} GiB free here; /dev/shm: {shared}")
