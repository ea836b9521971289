"""Rows of the keys that say which rule or server scores, and what reward workers may do."""

from __future__ import annotations

import functools
import time
from typing import Any

from burnish.isolation.probe import worker_mode

from ..reward.server import Server
from . import observe as see
from .gathering import BUFFERED, shaped_scores
from .kit import USER, Case
from .reward import IN_A_WORKER, function
from .row import Row

NO_FUNCTION = ("custom_reward_function.path=null",)
OURS = (IN_A_WORKER, f"custom_reward_function.path={USER / 'scoring.py'}")


ARRIVALS: list[float] = []  # when the failing server was asked


@functools.cache
def failing() -> Server:
    """A server that is slow to say that it cannot."""

    def respond(request: dict[str, Any], number: int) -> tuple[int, bytes]:
        ARRIVALS.append(time.monotonic())
        time.sleep(0.05)
        return 500, b"no"

    return Server(respond)


ONE_SERVER = (*NO_FUNCTION, lambda kit: f"reward.remote_url={failing().url}")
QUICK = (*ONE_SERVER, "reward.remote_wait=0.01")


def requests(case: Case) -> int:
    """How often the server is asked about one sample."""
    before = len(failing().requests)
    see.scored(case)
    return len(failing().requests) - before


def waits(case: Case) -> bool:
    """Is there a pause between the two tries, as the server sees it?"""
    see.scored(case)
    first, second = ARRIVALS[-2:]
    return second - first > 0.9


def said(case: Case) -> str:
    """What the problem says first: a failure, or that it took too long."""
    return see.scored(case)[2].partition(" from ")[0]


def isolation_row(key: str, value: str, name: str, *, network: bool, read_only: bool) -> Row:
    """A row of a key that systems without namespaces refuse."""
    given = (*OURS, function(name))
    if worker_mode(network=network, read_only=read_only)[0] is not None:
        return Row(key, value, see.score_problem, given)
    return Row(key, value, see.score_problem, given, expected="not supported on this system", refused=True)


ROWS = [
    isolation_row("reward.isolate", "true", "writes", network=True, read_only=True),
    isolation_row("reward.network", "false", "connects", network=False, read_only=False),
    Row("reward.verifiers", "[step,acc]", see.score_value, NO_FUNCTION, expected=-1.0, refused_without=True),
    Row(
        "reward.verifier_weights",
        "[3,0.5]",
        see.score_value,
        (*NO_FUNCTION, "reward.verifiers=[acc,step]"),
        expected=-3.0,
    ),
    Row(
        "reward.remote_url",
        str(USER / "scoring.py"),
        see.score_value,
        NO_FUNCTION,
        expected=0.125,
        refused_without=True,
    ),
    Row("reward.remote_retries", "2", requests, QUICK, expected=2, long=True),
    Row("reward.remote_wait", "0.01", waits, (*ONE_SERVER, "reward.remote_retries=2"), expected=False, long=True),
    Row("reward.remote_timeout", "0.01", said, QUICK, expected="no response within 0.01 s"),
    Row(
        "reward_model.reward_kwargs",
        "{factor:3.0}",
        see.score_value,
        (f"reward_model.reward_manager={USER / 'scoring.py'}:scaled",),
        expected=6.0,
    ),
    Row("reward_model.overlong_buffer.max_resp_len", "2", shaped_scores, BUFFERED),
]
