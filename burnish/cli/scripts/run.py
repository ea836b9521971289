"""Runs a user's script, with shims for `python`, `ray` and other launchers that pass training commands to Burnish.

shims/            first on the script's PATH
  python ...      passes training commands to Burnish and all others to the real program
  functions       the same as bash functions, for scripts that change PATH
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from burnish.cli.run import run_command
from burnish.dialects.translate import find_programs
from burnish.errors import StopNow, UserError
from burnish.escape import escape_output

SHIMMED_PROGRAMS = ("python", "python3", "ray", "deepspeed", "torchrun", "accelerate")
SHIMS_VARIABLE = "BURNISH_SHIMS"  # holds the folder of the shims
ASSUME_VARIABLE = "BURNISH_AS"  # holds the argument of --as
NOT_FOUND = 127
_PACKAGES = str(Path(__file__).resolve().parents[3])
# Patterns of commands that a dialect may know. All others start directly, without a Python process to check them.
_PATTERNS = "*verl*|*openrlhf*|*recipe*|*mindspeed*|*train_*|*main_*|*burnish*|*launch*|*distributed*"

_SHIM = """#!/bin/sh
case "{name} $*" in
  ray*|{patterns})
    exec {python} -c {code} {name} "$@" ;;
esac
IFS=:
for folder in $PATH; do
  if [ "$folder" != {folder} ] && [ -x "$folder/{name}" ] && [ ! -d "$folder/{name}" ]; then
    unset IFS
    exec "$folder/{name}" "$@"
  fi
done
echo "{name}: not found" >&2
exit {not_found}
"""


def run_script(path: str, args: Sequence[str] = (), assume: str | None = None) -> int:
    """Run an unchanged script and return its exit status. `assume` is the argument of --as."""
    from burnish.log.console import say

    bash = shutil.which("bash")
    if bash is None:
        raise UserError("bash is not installed", hint="burnish run -- COMMAND, with the command that the script starts")
    say(
        f"Running {path}. Burnish takes over verl, OpenRLHF and MindSpeed RL commands that it starts with"
        f" {', '.join(SHIMMED_PROGRAMS)}; all other programs run normally."
    )
    with tempfile.TemporaryDirectory(prefix="burnish-shims-") as folder:
        environment = os.environ | write_shims(Path(folder)) | ({ASSUME_VARIABLE: assume} if assume else {})
        process = subprocess.Popen([bash, path, *args], env=environment)
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run inside handles Ctrl-C
        try:
            status = process.wait()
        finally:
            signal.signal(signal.SIGINT, previous)
    return 128 - status if status < 0 else status


def write_shims(folder: Path) -> dict[str, str]:
    """Write the shims to a folder; returns the environment variables that activate them."""
    code = f"import sys; sys.path.append({_PACKAGES!r}); from burnish.cli.scripts.run import main; sys.exit(main())"
    for name in SHIMMED_PROGRAMS:
        text = _SHIM.format(
            name=name,
            patterns=_PATTERNS,
            python=shlex.quote(sys.executable),
            code=shlex.quote(code),
            folder=shlex.quote(str(folder)),
            not_found=NOT_FOUND,
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    lines = [f'{name}() {{ {shlex.quote(str(folder / name))} "$@"; }}' for name in SHIMMED_PROGRAMS]
    user_file = os.environ.get("BASH_ENV")
    lines += [f"if [ -r {shlex.quote(user_file)} ]; then . {shlex.quote(user_file)}; fi"] if user_file else []
    (folder / "functions").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "BASH_ENV": str(folder / "functions"), SHIMS_VARIABLE: str(folder)}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the shims. `argv` is the program name and its arguments."""
    from burnish.log.console import say, say_error

    if argv is None:
        escape_output()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[0] == "ray" and words[1:3] != ["job", "submit"]:
        say(f"`{' '.join(words[:2])}`: skipped, Burnish does not need a Ray cluster here.")
        return 0
    programs = find_programs(words)
    if not programs:
        return _exec_real(words)
    say(f"{programs[0].entry}, started by `{words[0]}`: running with Burnish.")  # arguments may contain secrets
    _deactivate_shims()
    try:
        return run_command(words, os.environ.get(ASSUME_VARIABLE))
    except UserError as error:
        say_error(error.text())
        return 1
    except StopNow as stop:
        return stop.status
    except KeyboardInterrupt:
        return 130


def _exec_real(words: Sequence[str]) -> int:
    """Replace this process by the real program. Its children still use the shims."""
    from burnish.log.console import say_error

    shims = os.environ.get(SHIMS_VARIABLE, "")
    path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != shims)
    program = shutil.which(words[0], path=path)
    if program is None:
        say_error(f"{words[0]} is not installed, and Burnish cannot translate its command.")
        return NOT_FOUND
    os.execv(program, [program, *words[1:]])


def _deactivate_shims() -> None:
    """Remove the shims from PATH, so that the run starts real programs."""
    shims = os.environ.pop(SHIMS_VARIABLE, None)
    if shims is not None:
        parts = os.environ.get("PATH", "").split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(part for part in parts if part != shims)
        os.environ.pop("BASH_ENV", None)
