"""EngineHandle over two worker processes: per-request completion, one engine per prompt, session affinity."""

from __future__ import annotations

import os
import time

import pytest

from burnish.distributed.processes import Processes
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import WorkerDied
from burnish.loop.handles import EngineHandle, RemoteWeights
from burnish.models.model_input import Media, ModelInput
from burnish.rollout.engine import Request, Sampling


@pytest.fixture(scope="module")
def group():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.getcwd())
        group = WorkerGroup(["rank 0", "rank 1"], Processes())
        group.build("tests.loop.engine_worker:EngineWorker", [(0,), (1,)])
    yield group
    group.close()


@pytest.fixture
def handle(group):
    yield EngineHandle(group, "gloo", 1)
    release(group)


def request(*ids, session=None, image=None):
    media = () if image is None else (Media("image", image, 0, 1),)
    return Request(ModelInput(ids, media), Sampling(max_tokens=4), seed=1, session=session)


def rank_of(future):
    return future.result(10).ids[0]


def release(group):
    group.call("call_role", "engine", "release")


def test_a_finished_response_arrives_before_a_slow_one_of_its_group(handle, group):
    first, second, third = handle.generate([request(1, 2)] * 3)
    assert first.result(10).finish_reason == "stop"
    assert not second.done() and not third.done()
    handle.abort([second, first])
    assert second.result(10).finish_reason == "abort" and not third.done()
    release(group)
    rank, call, number = third.result(10).ids
    assert [rank, call] == first.result(10).ids[:2], "one prompt is one call of one engine: it is prefilled once"
    assert number == 2
    assert handle._in_flight == handle._prompt_ranks == {} and not handle._num_in_flight


def test_prompts_are_distributed_round_robin_and_stay_with_their_engine(handle, group):
    futures = handle.generate([request(1), request(1), request(2), request(3)])
    late = handle.generate([request(1)])  # an episode that starts later, of a prompt that is in flight
    rank_of(futures[0])  # the engine has the call's other requests too
    release(group)
    assert [rank_of(future) for future in [*futures, *late]] == [0, 0, 1, 0, 0]
    assert [rank_of(future) for future in handle.generate([request(1)])] == [1], "no more: its turn"


def test_prompts_with_other_images_are_other_prompts(handle, group):
    futures = handle.generate([request(1, image=b"cat"), request(1, image=b"dog"), request(1, image=b"cat")])
    rank_of(futures[0])  # the engine has the third one too
    release(group)
    assert [rank_of(future) for future in futures] == [0, 1, 0]


def ended_sessions(group):
    return [group.submit(rank, "call_role", "engine", "ended_sessions").result(10) for rank in range(2)]


def test_requests_of_a_session_go_to_the_engine_that_holds_it(handle, group):
    opening = handle.generate([request(1, session="a"), request(2, session="b")])
    assert [rank_of(future) for future in opening] == [0, 1]
    for turn in range(3):
        futures = handle.generate([request(2, turn, session="b"), request(1, turn, session="a")])
        assert [rank_of(future) for future in futures] == [1, 0]
    handle.end_session("b")
    handle.end_session("unknown")
    deadline = time.monotonic() + 60
    while (sessions := ended_sessions(group)) == [[], []] and time.monotonic() < deadline:
        time.sleep(0.02)  # nobody waits for the end of a session
    assert sessions == [[], ["b"]]
    assert handle._session_ranks == {"a": 0}


def test_weights_in_worker_processes_stay_there(handle, group):
    with pytest.raises(TypeError, match="EngineHandle"):
        list(RemoteWeights(group))
    with pytest.raises(TypeError, match="worker processes only"):
        handle.load_weights([], 1)


@pytest.mark.timeout(60)
def test_a_lost_engine_ends_a_weight_transfer_at_once(monkeypatch):
    """The policy and the other engine wait for it, up to the transfer's timeout."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    groups = [WorkerGroup(names, Processes()) for names in (["policy"], ["engine 0", "engine 1"])]
    try:
        for group in groups:
            group.build("tests.loop.engine_worker:LeavingWorker", [(rank,) for rank in range(group.size)])
        with pytest.raises(WorkerDied, match="engine 1"):
            EngineHandle(groups[1], "gloo", 1).load_weights(RemoteWeights(groups[0]), 1)
    finally:
        for group in groups:
            group.kill("the test", "ended")
            group.close()
