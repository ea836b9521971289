"""Plan: what the launcher is told to do; and how its processes report."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETUP_FAILED = 125  # exit status when the program could not be started
# Modes: namespaces made by root, by an ordinary user, by bubblewrap for one, or none.
ROOT, USER, BUBBLEWRAP, WEAK = "root", "user", "bubblewrap", "weak"
PARENT_EXITED = "parent exited"  # why everything was killed, beside the limits
# Views of the file system. With the last two, the process is this user and sees all files of the host; READ_ONLY_HOST
# has no devices, no unix sockets of others, and can write only to env["TMPDIR"], which it finds empty.
MINIMAL, HOST, READ_ONLY_HOST = "minimal", "host", "read-only host"


class Plan:
    """Instructions for the launcher."""

    argv: list[str]
    mode: str
    env: dict[str, str]
    folder: str
    uid: int | None  # unprivileged id outside the namespace, if the launcher is root
    lifeline: int  # read end of a pipe without data: when the parent closes the other end, everything is killed
    report: int | None = None  # descriptor to write the result to
    pass_fds: tuple[int, ...] = ()
    files: dict[str, str]  # name -> text, written to the folder before the program starts
    readable: list[str]
    writable: list[str]
    view: str = MINIMAL
    network: bool = False
    filter_calls: bool = True
    throwaway: bool = False
    limits: dict[str, Any]  # fields of Limits
    cgroup: str | None = None  # a folder in which control groups can be created
    bubblewrap: str | None = None  # the program bwrap
    inner: tuple[int, int, int] | None = None  # for the init process in bubblewrap: its pipes, and /proc of the host

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:1000]


def send(descriptor: int, text: str) -> None:
    """Write a short text; the reader may be gone."""
    try:
        os.write(descriptor, text.encode("utf-8", "replace"))
    except OSError:
        return


def to_json(result: dict[str, Any]) -> str:
    """A flat dict as JSON; the json module takes longer to import than this to run."""
    items = []
    for name, value in result.items():
        if value is None:
            text = "null"
        elif isinstance(value, str):
            safe = "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\u{min(ord(c), 0xFFFD):04x}" for c in value)
            text = f'"{safe}"'
        else:
            text = repr(value)
        items.append(f'"{name}": {text}')
    return "{" + ", ".join(items) + "}"
