"""Run programs in an isolation mode: in this process, or as an ordinary user in another one.

As a script, it runs the programs that it reads from stdin, one JSON object per line.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from unittest import mock

from burnish.isolation import probe
from burnish.isolation.plan import WEAK
from burnish.isolation.probe import PER_PROCESS, SUM, Isolation
from burnish.reward.sandbox import local
from burnish.reward.sandbox.local import LocalRunner
from burnish.reward.sandbox.result import RunResult
from burnish.reward.sandbox.settings import SandboxSettings


def forced(mode):
    """The result of `isolation` if only this mode worked."""
    strong = mode != WEAK
    return Isolation(strong, strong, strong, strong, True, True, SUM if strong else PER_PROCESS, mode, "forced")


def run_program(code, stdin="", *, mode=None, language="python", **settings):
    """Run a program in this mode (None: the strongest) and return its RunResult."""
    settings = SandboxSettings(**{"timeout": 10.0, "memory_mb": 256} | settings)
    with ExitStack() as stack:
        if mode is not None:
            for module in (probe, local):
                stack.enter_context(mock.patch.object(module, "isolation", lambda: forced(mode)))
        run = stack.enter_context(LocalRunner(settings).prepare(code, language))
        return run(stdin)


class UserPrograms:
    """A process of an ordinary user that runs programs."""

    def __init__(self, options):
        command = [sys.executable, "-m", "tests.isolation.programs"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)

    def run(self, code, stdin="", **options):
        print(json.dumps([code, stdin, options]), file=self._process.stdin, flush=True)
        return RunResult(**json.loads(self._process.stdout.readline()))

    def close(self):
        self._process.communicate()


if __name__ == "__main__":
    for line in sys.stdin:
        code, stdin, options = json.loads(line)
        print(json.dumps(asdict(run_program(code, stdin, **options))), flush=True)
