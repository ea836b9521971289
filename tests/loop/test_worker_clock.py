"""WorkerClock: spans of calls, and one span while an engine has requests."""

from concurrent.futures import Future

from burnish.loop.worker_clock import PHASES, WorkerClock


def test_calls_have_the_phase_that_the_main_process_waits_in():
    clock = WorkerClock()
    for role, method in PHASES:
        with clock.of_call(role, method):
            pass
    with clock.of_call("policy", "device"):
        pass
    assert [name for name, _, _ in clock.take()] == list(PHASES.values())
    assert clock.take() == []


def test_an_engine_is_busy_from_the_first_request_to_the_last_answer():
    clock, futures = WorkerClock(), [Future() for _ in range(4)]
    clock.generating(futures[:2])
    futures[0].set_result(None)
    clock.generating(futures[2:3])  # comes before the others are done
    futures[1].set_result(None)
    assert clock.take() == []
    futures[2].set_exception(RuntimeError("lost"))
    (first,) = clock.take()
    assert first[0] == "gen" and first[2] >= 0
    futures[3].set_result(None)  # done at once
    clock.generating(futures[3:])
    assert [name for name, _, _ in clock.take()] == ["gen"]
    clock.generating([])
    assert clock.take() == []
