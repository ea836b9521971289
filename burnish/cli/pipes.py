"""A closed pipe, as in `burnish explain --json | head`, ends a command quietly."""

from __future__ import annotations

import functools
import os
import select
import sys
from collections.abc import Callable

from burnish.errors import ExitStatus


def quiet_broken_pipe(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate the entry point: no traceback once the reader of the output is gone."""

    @functools.wraps(main)
    def wrapper(argv: list[str] | None = None) -> int:
        try:
            status = main(argv)
            sys.stdout.flush()  # here, not at exit, where Python prints the error itself
            return status
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich has redirected the output and exits with 1
                return ExitStatus.BROKEN_PIPE
            raise
        except BrokenPipeError:
            if not output_is_closed():
                raise  # a pipe of the run, such as that of a worker
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitStatus.BROKEN_PIPE

    return wrapper


def output_is_closed() -> bool:
    """Whether standard output is a pipe that nobody reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
