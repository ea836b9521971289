"""burnish doctor: check a command (batch arithmetic, memory plan, known mistakes) and this machine; plan layouts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from burnish.cli.launch_input import LaunchInput, add_trust, add_version, looking_at, not_translated, translate_input
from burnish.cli.layout import wrap
from burnish.cli.run import describe_blockers
from burnish.dialects.report import summarize
from burnish.errors import ExitStatus, UserError
from burnish.sizing import GIB

if TYPE_CHECKING:
    from burnish.dialects.report import Translation
    from burnish.doctor.examine import Examination
    from burnish.doctor.machine import Device, Machine
    from burnish.doctor.memory import Phase, Plan
    from burnish.doctor.planner.report import Report

DEFAULT_MEMORY = 80 * GIB
COLORS = {"refused": "red", "warning": "yellow", "note": "cyan"}


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add the `doctor` command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check a command for mistakes and memory use, and show what this machine can run",
        description="burnish doctor [--json] [-- COMMAND... | SCRIPT.sh | FILE.yaml], or"
        " burnish doctor --plan 64xH100 key=value ... | -- COMMAND... | SCRIPT.sh | FILE.yaml",
    )
    add_version(parser)
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a launch command after --, a script, or a YAML")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--gpu-memory", type=float, metavar="GB", help="memory of a GPU; default: this machine's, or 80"
    )
    parser.add_argument("--shape", metavar="MODEL", help="known model, or folder with a config.json, for the policy")
    parser.add_argument(
        "--plan", metavar="GPUS", help="find the fastest layouts for a run on these GPUs: 64xH100, or 2x8xA100"
    )
    add_trust(parser, ", and run the model's own code")
    parser.add_argument("--no-files", action="store_true", help="do not check data files and Python files")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 no problem, 2 cannot be translated, 3 refused or too big for memory, 4 not supported yet."""
    with looking_at(args.words[0] if args.words and os.path.isfile(args.words[0]) else None, trust=args.trust):
        return _run(args) if args.plan is None else _plan(args)


def _plan(args: argparse.Namespace) -> int:
    """Layouts for the GPUs that --plan names. Exit status 3 where none fits."""
    from burnish.doctor.planner.report import HINT, plan_run

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    typed = all("=" in word and not word.startswith("-") for word in words)
    try:
        if not words:
            raise UserError("no run to plan", key="--plan", value=args.plan, hint=HINT.replace("64xH100", args.plan))
        overrides: Any = words
        if not typed:
            translation, _ = choose_command(translate_input(args.words, args.assume, trust=args.trust))
            if translation.job != "train":
                problem = f"only training runs can be planned, not `burnish {translation.job}`"
                raise UserError(problem, key="--plan", value=args.plan, hint=HINT)
            overrides = translation.overrides()
        capacity = None if args.gpu_memory is None else int(args.gpu_memory * GIB)
        report = plan_run(args.plan, overrides, model=args.shape, capacity=capacity, pins=typed)
    except UserError as error:
        return _report_error(error, args.json)
    if args.json:
        print(json.dumps({"plan": report.to_json()}))
    else:
        _show_plan(report)
    return ExitStatus.OK if report.found.best else ExitStatus.REFUSED


def _show_plan(report: Report) -> None:
    for style, text in report.lines():
        if style == "title":
            _title(text)
        elif style == "setting":
            _print(f"    {text}")
        else:
            _print(wrap(text, "  ", "    "))


def _run(args: argparse.Namespace) -> int:
    from burnish.doctor.examine import examine
    from burnish.doctor.machine import describe_machine

    examination, notes, status = None, [], ExitStatus.OK
    if args.words:
        try:
            launch_input = translate_input(args.words, args.assume, trust=args.trust)
            translation, notes = choose_command(launch_input)
            device = _smallest_device()
            capacity = int(args.gpu_memory * GIB) if args.gpu_memory else device.memory if device else DEFAULT_MEMORY
            examination = examine(
                translation,
                capacity=capacity,
                shape=args.shape,
                check_files=not args.no_files,
                device=device.name if device else None,
                trust=args.trust,
            )
            status = max(examination.exit_status, launch_input.run_status)
        except UserError as error:
            return _report_error(error, args.json)
    if not args.json:
        print("doctor: looking at this machine ...", file=sys.stderr, flush=True)
    machine = describe_machine()
    if args.json:
        output: dict[str, Any] = {"machine": machine.to_json()}
        output |= {name: None for name in ("understood", "arithmetic", "memory", "estimate")} | {"findings": []}
        output |= {} if examination is None else examination.to_json()
        print(json.dumps(output | {"notes": notes}, default=str))
    else:
        show(machine, examination, notes, args.words)
    return status


def choose_command(launch_input: LaunchInput) -> tuple[Translation, list[str]]:
    """The first training command of a script, or else its first command; and notes on all of them."""
    translations, notes = launch_input.translations, list(launch_input.notes)
    chosen = next((translation for translation in translations if translation.job == "train"), translations[0])
    if len(translations) > 1:
        notes.append(
            f"the script starts {len(translations)} translatable commands; this report covers the first training"
        )
    for number, translation in enumerate(translations, 1):
        if translation is not chosen and translation.blockers():
            notes.append(
                f"`burnish run` does not start command {number} (`burnish {translation.job}`,"
                f" exit status {translation.run_status:d}): {describe_blockers(translation)}"
            )
    return chosen, notes


def _smallest_device() -> Device | None:
    from burnish.doctor.machine import cuda_devices

    return min(cuda_devices(), key=lambda device: device.memory, default=None)


def _report_error(error: UserError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.text()}))
    else:
        from burnish.log.console import say_error

        say_error(error.text())
    return not_translated(error)


def show(machine: Machine, examination: Examination | None, notes: list[str], words: list[str]) -> None:
    """Print all sections: the command and its findings first, this machine last."""
    if examination is not None:
        _show_translation(examination, notes)
        _show_findings(examination)
        _show_arithmetic(examination)
        _show_estimate(examination)
        _show_memory(examination)
    _show_machine(machine)


def _print(text: str, style: str = "") -> None:
    """Print text that is already wrapped, so that no key is broken."""
    from burnish.log.console import Console

    Console().print(text, style=style or None, soft_wrap=True)


def _title(text: str) -> None:
    _print(f"\n{wrap(text)}", "bold")


def _show_translation(examination: Examination, notes: list[str]) -> None:
    translation = examination.translation
    _title(f"Command: {translation.dialect}, translated to `burnish {translation.job}`")
    if examination.exit_status:
        _print(wrap(f"{_VERDICTS[examination.exit_status]} (exit status {examination.exit_status:d}).", "  "), "red")
    _print(wrap(f"{summarize(translation)} `burnish convert` lists them.", "  "))
    for note in (*translation.notes, *notes):
        _print(wrap(note, "  "))


_VERDICTS = {
    ExitStatus.REFUSED: "The run would not start or would stop: see the findings and the memory plan",
    ExitStatus.UNSUPPORTED: "The run would not start: some settings are not supported yet",
}


def _show_arithmetic(examination: Examination) -> None:
    if not examination.arithmetic:
        return
    _title("Batch arithmetic")
    width = max(map(len, examination.arithmetic))
    for name, value in examination.arithmetic.items():
        _print(f"  {name.replace('_', ' '):<{width}}  {_number(value)}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _show_estimate(examination: Examination) -> None:
    estimate = examination.estimate
    if estimate is None:
        return
    _title(f"Step time: about {_duration(estimate.step)} (an estimate, not measured)")
    phases = ", ".join(f"{name} {_duration(seconds)}" for name, seconds in estimate.seconds.items())
    _print(wrap(phases, "  "))
    for line in estimate.assumptions:
        _print(wrap(line, "  assumes: ", "           "))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _show_memory(examination: Examination) -> None:
    plan = examination.plan
    if plan is None:
        return
    _title(f"Memory of one GPU ({plan.capacity / GIB:.0f} GiB): peak of each phase in GiB")
    for role, match in examination.shapes.items():
        billions = match.shape.parameters / 1e9
        estimated = "" if match.shape.exact else " (estimated)"
        _print(wrap(f"{role}: {billions:.2f} B parameters, from {match.source}{estimated}", "  ", "    "))
    width = max(len(phase.name) for phase in plan.phases)
    for phase in plan.phases:
        fits = phase.bytes <= plan.capacity
        verdict = ("fits" if not _is_low(plan, phase) else "few sequences") if fits else "TOO BIG"
        line = f"  {phase.name:<{width}}  {phase.bytes / GIB:>6.1f}  {verdict}"
        _print(line, "red" if not fits else "yellow" if _is_low(plan, phase) else "")
        parts = ", ".join(f"{part.role} {part.name} {part.bytes / GIB:.1f}".strip() for part in phase.parts)
        _print(wrap(f"{parts}. {phase.note}" if phase.note else parts, "      "), "dim")
    for note in plan.notes:
        _print(wrap(note, "  ", "    "))
    if plan.too_big:
        _print("  Fixes, cheapest first:" if examination.fixes else "  No setting makes it fit; use a smaller model.")
    for number, fix in enumerate(examination.fixes, 1):
        _print(wrap(f"{number}. {fix.text()}", "  ", "     "))
    if examination.fixes and not examination.fixes[-1].fits:
        _print("  It still does not fit; use a smaller model or larger GPUs.")


def _is_low(plan: Plan, phase: Phase) -> bool:
    """Whether this is the rollout, and its cache holds few of the sequences."""
    return phase is plan.phases[0] and plan.concurrency is not None and plan.concurrency.is_low


def _show_findings(examination: Examination) -> None:
    _title(f"Findings ({len(examination.findings)})" if examination.findings else "Findings: none")
    for finding in examination.findings:
        _print(wrap(f"{finding.severity}: {finding.text}", "  ", "    "), COLORS[finding.severity])
        if finding.type:
            _print(wrap(f"type: {finding.type}", "      "))


def _show_machine(machine: Machine) -> None:
    _title("This machine")
    gpus = ", ".join(f"{device.name} ({device.memory / GIB:.0f} GiB)" for device in machine.devices) or "no CUDA device"
    installed = [f"{name} {number}" for name, number in machine.libraries.items() if number is not None]
    missing = [name for name, number in machine.libraries.items() if number is None]
    available = {
        noun: ", ".join(name for name, is_available in names.items() if is_available)
        for noun, names in (("engines", machine.engines), ("loggers", machine.loggers))
    }
    shared = "none" if machine.shared_memory is None else f"{machine.shared_memory / GIB:.1f} GiB free"
    lines = (
        f"Python {machine.python} on {machine.system}, {machine.cpus} CPUs, {machine.memory / GIB:.0f} GiB; {gpus}",
        f"installed: {', '.join(installed)}",
        f"not installed: {', '.join(missing) or 'nothing'}",
        *(f"available {noun}: {names}" for noun, names in available.items()),
        f"bf16 on the CPU: {machine.bf16}",
        *(f"isolation of {who}: {promise}" for who, promise in machine.isolation.items()),
        f"disk: {machine.free_disk / GIB:.0f} GiB free here; /dev/shm: {shared}",
    )
    for line in lines:
        _print(wrap(line, "  ", "    "))
