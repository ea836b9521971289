"""Running somebody's script for real, with `python`, `ray` and their kin leading to Burnish where they start training.

shims/            first on the script's PATH while it runs
  python ...      known programs go to Burnish, everything else to the real one
  functions       the same as functions of bash, for scripts that put another folder first on PATH
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
from burnish.dialects.invocation import read_command
from burnish.dialects.read import knows_command
from burnish.errors import StopNow, UserError

SHIMMED = ("python", "python3", "ray", "deepspeed", "torchrun", "accelerate")
SHIMS = "BURNISH_SHIMS"  # the folder, for the shims themselves
NOT_FOUND = 127
_PACKAGES = str(Path(__file__).resolve().parents[2])
# Words of programs that a dialect may know: anything else is passed on at once, without starting Python twice.
_HINTS = "*verl*|*openrlhf*|*recipe*|*mindspeed*|*train_*|*main_*|*burnish*|*launch*|*distributed*"

_SHIM = """#!/bin/sh
case "{name} $*" in
  ray*|{hints})
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


def run_script(path: str, args: Sequence[str] = ()) -> int:
    """Run it as it is. Its exit status."""
    from burnish.log.console import say

    bash = shutil.which("bash")
    if bash is None:
        raise UserError("bash is not installed here", hint="burnish run -- COMMAND, with the script's own command")
    say(
        f"Running {path} as it is. What it starts of verl, OpenRLHF or MindSpeed RL by {', '.join(SHIMMED)}"
        " is done by Burnish; everything else is the real program."
    )
    with tempfile.TemporaryDirectory(prefix="burnish-shims-") as folder:
        environment = os.environ | write_shims(Path(folder))
        process = subprocess.Popen([bash, path, *args], env=environment)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run inside, which saves and ends
        try:
            status = process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status


def write_shims(folder: Path) -> dict[str, str]:
    """Put the shims there; the variables with which a script finds them."""
    code = f"import sys; sys.path.append({_PACKAGES!r}); from burnish.cli.script import main; sys.exit(main())"
    for name in SHIMMED:
        text = _SHIM.format(
            name=name,
            hints=_HINTS,
            python=shlex.quote(sys.executable),
            code=shlex.quote(code),
            folder=shlex.quote(str(folder)),
            not_found=NOT_FOUND,
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    lines = [f'{name}() {{ {shlex.quote(str(folder / name))} "$@"; }}' for name in SHIMMED]
    own = os.environ.get("BASH_ENV")
    lines += [f"if [ -r {shlex.quote(own)} ]; then . {shlex.quote(own)}; fi"] if own else []
    (folder / "functions").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "BASH_ENV": str(folder / "functions"), SHIMS: str(folder)}


def main(argv: Sequence[str] | None = None) -> int:
    """What a shim calls: its name and the words after it."""
    from burnish.log.console import say, say_error

    words = list(sys.argv[1:] if argv is None else argv)
    if words[0] == "ray" and words[1:3] != ["job", "submit"]:
        say(f"`{' '.join(words[:2])}`: nothing to do, Burnish runs on this machine without Ray.")
        return 0
    if not knows_command(words):
        return _run_real(words)
    say(f"{read_command(words).entry}, started by `{words[0]}`, is done by Burnish.")  # its words may hold secrets
    _leave_shims()
    try:
        return run_command(words)
    except UserError as error:
        say_error(error.text())
        return 1
    except StopNow as stop:
        return stop.status
    except KeyboardInterrupt:
        return 130


def _run_real(words: Sequence[str]) -> int:
    """Become the real program. Its own children still find the shims."""
    from burnish.log.console import say_error

    shims = os.environ.get(SHIMS, "")
    path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != shims)
    program = shutil.which(words[0], path=path)
    if program is None:
        say_error(f"{words[0]} is not installed here, and what it would start is nothing that Burnish reads.")
        return NOT_FOUND
    os.execv(program, [program, *words[1:]])


def _leave_shims() -> None:
    """What the run itself starts by name is the real thing."""
    shims = os.environ.pop(SHIMS, None)
    if shims is not None:
        parts = os.environ.get("PATH", "").split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(part for part in parts if part != shims)
        os.environ.pop("BASH_ENV", None)
