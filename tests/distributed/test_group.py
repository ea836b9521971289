"""Worker processes as the controller sees them: what they answer, and what becomes of those that fail."""

from __future__ import annotations

import os
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from burnish.distributed.group import Group
from burnish.distributed.processes import Processes, told
from burnish.errors import UserError, WorkerDied

THING = "tests.distributed.things:Thing"


@pytest.fixture
def group(monkeypatch):
    """Two workers, each with a Thing that knows its rank."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    made = Group(["rank 0", "rank 1"], Processes())
    made.build(THING, [(0, 10), (1, 10)])
    yield made
    made.close()


def test_all_workers_answer_in_order_of_rank(group):
    assert group.call("add", 5) == [15, 16]
    assert group.submit(1, "add", number=7).result(10) == 18


def test_calls_are_done_one_after_the_other(group):
    answers = [group.submit(0, "order") for _ in range(20)]
    assert [answer.result(10) for answer in answers] == list(range(11, 31))


def test_a_concurrent_method_is_done_beside_others(group):
    waiting = group.submit(0, "wait_for_release")
    group.submit(0, "release").result(10)
    assert waiting.result(10) is True


def test_a_future_is_answered_when_it_is_done(group):
    assert group.call("later") == ["later", "later"]


def test_a_users_mistake_comes_back_as_it_is_and_ends_nobody(group):
    with pytest.raises(UserError, match="no such thing") as caught:
        group.call("mistype")
    assert (caught.value.key, caught.value.value, caught.value.hint) == ("a.key", 3, "a.key=4")
    assert group.call("add", 0) == [10, 11]


def test_one_failure_ends_a_call_that_others_would_wait_in_for_ever(group):
    started = time.monotonic()
    with pytest.raises(ValueError, match="the worker's own words") as caught:
        group.call("fail_on", 1)
    assert "in fail_on" in caught.value.__notes__[0]  # where it happened, over there
    assert time.monotonic() - started < 30


def test_what_cannot_be_sent_is_told(group):
    with pytest.raises(TypeError, match="cannot be sent"):
        group.submit(0, "unsendable").result(10)
    assert group.submit(0, "add", 1).result(10) == 11


def test_a_worker_that_dies_is_named_and_fails_what_waits_for_it(group):
    with pytest.raises(WorkerDied, match=r"rank 1 was killed by SIGKILL"):
        group.submit(1, "die").result(10)
    with pytest.raises(WorkerDied, match="rank 1"):
        group.submit(1, "add", 1).result(10)
    assert group.submit(0, "add", 1).result(10) == 11


def test_a_collective_that_a_death_broke_is_told_as_the_death(group):
    with pytest.raises(WorkerDied, match=r"rank 1 was killed by SIGKILL"):
        group.call("break_with", 1)


def test_a_worker_that_cannot_be_made_is_told(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    group = Group(["only"], Processes())
    with pytest.raises(UserError, match="cannot be made"):
        group.build("tests.distributed.things:Unbuildable", [(0,)])
    group.close()


def test_a_process_that_never_calls_is_named():
    class Silent(Processes):
        def start(self, names, address, secret):
            super().start(names, (address[0], 1), secret)  # nobody listens there

    with pytest.raises(WorkerDied, match="lonely ended with exit code 1"):
        Group(["lonely"], Silent(), patience=20)


def test_a_stranger_is_not_let_in(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    refused = []

    class Intruded(Processes):
        def start(self, names, address, secret):
            threading.Thread(target=self.intrude, args=(names, address, secret)).start()

        def intrude(self, names, address, secret):
            try:
                Client(address, authkey=b"a guess")
            except AuthenticationError as error:
                refused.append(error)
            super().start(names, address, secret)

    group = Group(["rank 0"], Intruded())
    group.build(THING, [(0,)])
    assert group.call("add", 2) == [2]
    assert len(refused) == 1
    group.close()


def test_closing_ends_the_processes(group):
    pids = [group.starter.pid(name) for name in group.names]
    group.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (-9, "SIGKILL"), (-15, "SIGTERM")])
def test_an_exit_code_in_words(code, words):
    assert words in told(code)
