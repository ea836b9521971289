import os
import pickle
import time

import pytest

from burnish.reward.evaluate import Setup, pack
from burnish.reward.process import Job, WorkerProcess
from burnish.reward.source import FromCallable


def start(function, timeout=5.0):
    setup = pickle.dumps(Setup(FromCallable(function), {}, timeout, 0, []))
    worker = WorkerProcess(setup, timeout, dict(os.environ), os.getcwd())
    worker.handle_ready(worker.channel.receive())
    return worker


def jobs(sample, *responses):
    return [Job(sample(response), pack(sample(response)), future=None) for response in responses]


def test_replies_are_matched_and_the_deadline_is_extended(sample):
    worker = start(lambda solution_str: len(solution_str))
    assert worker.idle
    assert worker.deadline is None
    sent = jobs(sample, "a", "bb")
    worker.send(sent)
    first_deadline = worker.deadline
    assert not worker.idle
    for _ in range(2):  # it has begun, and replies
        assert worker.parse_message(worker.channel.receive()) is None and worker.started
    job, outcome = worker.parse_message(worker.channel.receive())  # it has begun the next one
    assert (job, outcome.value) == (sent[0], 1.0)
    assert worker.deadline > first_deadline
    assert worker.parse_message(worker.channel.receive()) is None
    assert not worker.idle  # until it is done with the chunk
    job, outcome = worker.parse_message(worker.channel.receive())
    assert (job, outcome.value) == (sent[1], 2.0)
    assert worker.idle
    assert worker.deadline is None
    worker.stop()


def test_the_first_unfinished_job_is_the_culprit(sample):
    def die_on_b(solution_str):
        if solution_str == "b":
            os._exit(7)
        return 0.0

    worker = start(die_on_b)
    sent = jobs(sample, "a", "b", "c")
    worker.send(sent)
    for _ in range(3):
        worker.parse_message(worker.channel.receive())
    with pytest.raises(EOFError):
        worker.channel.receive()
    assert worker.exit_reason() == "exit status 7"
    culprit, others = worker.take_unfinished()
    assert culprit is sent[1]
    assert list(others) == [sent[2]]
    worker.stop()


def test_replies_are_never_unpickled(sample, tmp_path):
    worker = start(lambda solution_str: 1.0)

    class Evil:
        def __reduce__(self):
            return (tmp_path / "was_run").touch, ()

    for reply in (
        pickle.dumps(Evil()),
        b"[0, 0]x",
        b"[0, 9, 1.0]",
        b"[5, 0, 1.0]",
        b"7",
        b"[0, {}, 1.0]",
        b"\xff",
        b'[0, 0, "1"]',
        b"[0, 0, NaN]",
        b"[0, 0, 1.0, []]",
        b'[0, 0, 1.0, {}, "odd"]',
        b'[0, "started", "twice"]',
        b"[0, 0, 1" + b"0" * 4000 + b"]",
        b"[0, 0, 1e16]",
        b"[0, 0, -Infinity]",
        b'[0, 0, 1.0, {"a": 1' + b"0" * 30 + b"}]",
        b'[0, 0, 1.0, {"a": ' + b"[" * 20 + b"]" * 20 + b"}]",
        b'[0, 0, 1.0, {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
        b'[0, 0, 1.0, {}, "raised", "' + b"x" * 10**6 + b'"]',
    ):
        worker.jobs, worker.started = dict(enumerate(jobs(sample, "a"))), True
        with pytest.raises(EOFError, match="invalid reply"):
            worker.parse_message(reply)
    assert not (tmp_path / "was_run").exists()
    worker.stop()


def test_an_async_chunk_has_no_culprit_unless_one_job_is_left(sample):
    async def judge(solution_str):
        return 0.0

    worker = start(judge)
    sent = jobs(sample, "a", "b")
    worker.jobs = dict(enumerate(sent))
    culprit, others = worker.take_unfinished()
    assert culprit is None
    assert list(others) == sent
    worker.jobs = {0: sent[0]}
    assert worker.take_unfinished()[0] is sent[0]
    worker.stop()


def test_stop_kills_children_and_returns_the_output(sample, tmp_path):
    sign_of_life = tmp_path / "alive"

    def start_child_and_hang(solution_str):
        import subprocess

        print("about to hang")
        subprocess.Popen(["sh", "-c", f"while true; do echo x >> {sign_of_life}; sleep 0.02; done"])
        time.sleep(60)

    worker = start(start_child_and_hang)
    worker.send(jobs(sample, "a"))
    until = time.monotonic() + 10
    while not sign_of_life.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert "about to hang" in worker.stop()
    time.sleep(0.1)
    last = sign_of_life.read_text()
    time.sleep(0.15)
    assert sign_of_life.read_text() == last
