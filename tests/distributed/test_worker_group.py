"""Worker processes as the controller sees them: what they answer, and what becomes of those that fail."""

from __future__ import annotations

import os

import pytest

from burnish.distributed.processes import Processes, describe_exit
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import UserError, WorkerDied

THING = "tests.distributed.things:Thing"


@pytest.fixture
def make_group(monkeypatch):
    """Two workers, each with a Thing that knows its rank."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    groups = []

    def make():
        groups.append(WorkerGroup(["rank 0", "rank 1"], Processes()))
        groups[-1].build(THING, [(0, 10), (1, 10)])
        return groups[-1]

    yield make
    for group in groups:
        group.close()


@pytest.fixture
def group(make_group):
    return make_group()


@pytest.fixture(scope="module")
def shared_group():
    """For tests that end no worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.getcwd())
        group = WorkerGroup(["rank 0", "rank 1"], Processes())
        group.build(THING, [(0, 10), (1, 10)])
    yield group
    group.close()


def test_all_workers_answer_in_order_of_rank(shared_group):
    assert shared_group.call("add", 5) == [15, 16]
    assert shared_group.submit(1, "add", number=7).result(10) == 18


def test_only_ranks_that_have_a_result_answer(shared_group):
    assert shared_group.call("add_on", 1, 5) == [16]
    assert shared_group.call("add_on", 2, 5) == []
    assert shared_group.call("nothing") == [None, None]  # None is a result


def test_calls_are_done_one_after_the_other(shared_group):
    results = [shared_group.submit(0, "order") for _ in range(20)]
    assert [result.result(10) for result in results] == list(range(1, 21))


def test_a_concurrent_method_is_done_beside_others(shared_group):
    waiting = shared_group.submit(0, "wait_for_release")
    shared_group.submit(0, "release").result(10)
    assert waiting.result(10) is True


def test_a_future_is_answered_when_it_is_done(shared_group):
    assert shared_group.call("later") == ["later", "later"]


def test_streamed_results_arrive_one_by_one_and_fail_one_by_one(shared_group):
    first, second, third = shared_group.submit_streaming(0, 3, "stream")
    assert first.result(10) == "first"
    assert not second.done() and not third.done()
    shared_group.submit(0, "finish_stream").result(10)
    assert second.result(10) == "second"
    with pytest.raises(UserError, match="the third failed"):
        third.result(10)
    for future in shared_group.submit_streaming(0, 2, "mistype"):
        with pytest.raises(UserError, match="no such thing"):
            future.result(10)
    assert shared_group.submit_streaming(0, 0, "nothing_to_stream") == []


def test_a_users_mistake_comes_back_as_it_is_and_ends_nobody(shared_group):
    with pytest.raises(UserError, match="no such thing") as caught:
        shared_group.call("mistype")
    assert (caught.value.key, caught.value.value, caught.value.hint) == ("a.key", 3, "a.key=4")
    assert shared_group.call("add", 0) == [10, 11]


def test_one_failure_ends_a_call_that_others_would_wait_in_for_ever(group):
    with pytest.raises(ValueError, match="the worker's own words") as caught:
        group.call("fail_on", 1)
    assert "in fail_on" in caught.value.__notes__[0]  # where it happened, over there
    assert all(group.starter.exit_reason(name) for name in group.names), "nobody waits for ever"


def test_a_result_that_cannot_be_sent_is_an_error(shared_group):
    with pytest.raises(TypeError, match="cannot be sent"):
        shared_group.submit(0, "unsendable").result(10)
    assert shared_group.submit(0, "add", 1).result(10) == 11


def test_a_worker_that_dies_is_named_and_fails_what_waits_for_it(group):
    with pytest.raises(WorkerDied, match=r"rank 1 was killed by SIGKILL"):
        group.submit(1, "die").result(10)
    with pytest.raises(WorkerDied, match="rank 1"):
        group.submit(1, "add", 1).result(10)
    assert group.submit(0, "add", 1).result(10) == 11


def test_a_collective_broken_by_a_dead_worker_names_the_worker(group):
    with pytest.raises(WorkerDied, match=r"rank 1 was killed by SIGKILL"):
        group.call("break_with", 1)


def test_a_worker_whose_construction_fails_is_an_error(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    group = WorkerGroup(["only"], Processes())
    with pytest.raises(UserError, match="cannot be made"):
        group.build("tests.distributed.things:Unbuildable", [(0,)])
    group.close()


def test_a_process_that_never_calls_is_named():
    class Silent(Processes):
        def start(self, names, address):
            super().start(names, "127.0.0.1:1")  # nobody listens there

    with pytest.raises(WorkerDied, match="lonely ended with exit code 1"):
        WorkerGroup(["lonely"], Silent(), timeout=20)


def test_ranks_of_several_machines_share_a_secret_and_a_store(monkeypatch):
    """As between machines: TCP, a shared secret, and a store that rank 0 hosts."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.setenv("BURNISH_SECRET", "s" * 40)
    group = WorkerGroup(["rank 0", "rank 1"], Processes(), host="127.0.0.1")
    try:
        address = group.new_rendezvous()
        assert address.startswith("127.0.0.1:")
        group.build("tests.security.peers:Rank", [(rank, 2, address) for rank in range(2)])
        assert group.call("sum") == [1.0, 1.0]
    finally:
        group.close()


@pytest.mark.long
def test_a_worker_with_another_secret_is_named(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.setenv("BURNISH_SECRET", "s" * 40)

    class Other(Processes):
        def start(self, names, address):
            monkeypatch.setenv("BURNISH_SECRET", "t" * 40)
            super().start(names, address)

    with pytest.raises(WorkerDied, match="rank 0 ended with exit code 1"):
        WorkerGroup(["rank 0"], Other(), host="127.0.0.1", timeout=600)


def test_closing_ends_the_processes(group):
    pids = [group.starter.pid(name) for name in group.names]
    group.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (-9, "SIGKILL"), (-15, "SIGTERM")])
def test_an_exit_code_in_words(code, words):
    assert words in describe_exit(code)
