"""Rows of the keys that only SGLang reads. It is not started: one sees the command line that would start it."""

from __future__ import annotations

import sys

import pytest

import burnish.rollout.engines.sglang.engine
from burnish.rollout.engines.sglang.server import command_line

from ..sglang_server import STANDINS, python_path
from .kit import Case
from .row import Row

ROLLOUT = "actor_rollout_ref.rollout"
CHOSEN = (f"{ROLLOUT}.name=sglang",)


class Seen(Exception):
    """The command line, instead of a server."""


def words(case: Case) -> list[str]:
    """Of the server, but for its port."""

    def start(arguments: dict, python: str | None, variables: dict) -> None:
        raise Seen(command_line(arguments | {"port": 1}))

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STANDINS)
        patch.setenv("PYTHONPATH", python_path())  # its arguments are read by another process
        patch.setattr(burnish.rollout.engines.sglang.engine, "Server", start)
        try:
            case.run.close()
        except Seen as seen:
            return seen.args[0]
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
                del sys.modules[name]
    raise AssertionError("no server was to be started")


ROWS = [Row(f"{ROLLOUT}.engine_kwargs.sglang", "{attention_backend:triton}", words, CHOSEN)]
