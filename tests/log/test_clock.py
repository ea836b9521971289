from __future__ import annotations

import threading

import pytest

from burnish.log.clock import Clock, speed_metrics


class Time:
    """A clock hand moved by the test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_phases_accumulate_and_take_resets():
    time = Time()
    clock = Clock(time)
    for seconds in (1.0, 2.0):
        with clock("gen"):
            time.now += seconds
    with clock("adv"):
        time.now += 0.5
    assert clock.take() == {"timing_s/gen": 3.0, "timing_s/adv": 0.5}
    assert clock.take() == {}


def test_nesting_counts_each_phase_once():
    time = Time()
    clock = Clock(time)
    with clock("step"):
        time.now += 1
        with clock("gen"), clock("step"):
            time.now += 2
    assert clock.take() == {"timing_s/step": 3.0, "timing_s/gen": 2.0}


def test_an_active_phase_is_split_between_calls():
    time = Time()
    clock = Clock(time)
    with clock("step"):
        time.now += 1
        assert clock.take() == {"timing_s/step": 1.0}
        time.now += 2
    assert clock.take() == {"timing_s/step": 2.0}


def test_an_exception_ends_the_phase():
    time = Time()
    clock = Clock(time)
    with pytest.raises(KeyError), clock("gen"):
        time.now += 1
        raise KeyError
    time.now += 10
    assert clock.take() == {"timing_s/gen": 1.0}


def test_threads_in_one_phase_count_wall_time_once():
    time = Time()
    clock = Clock(time)
    barrier = threading.Barrier(3)

    def work() -> None:
        with clock("reward"):
            barrier.wait()  # all inside
            barrier.wait()  # the hand has moved

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    barrier.wait()
    time.now += 4
    barrier.wait()
    for thread in threads:
        thread.join()
    assert clock.take() == {"timing_s/reward": 4.0}


def test_speed_metrics():
    timings = {"timing_s/gen": 2.0, "timing_s/update_actor": 3.0, "timing_s/step": 10.0, "timing_s/testing": 1.0}
    assert speed_metrics(timings, prompt_tokens=600, response_tokens=400, num_devices=2) == {
        "perf/total_num_tokens": 1000.0,
        "perf/time_per_step": 10.0,
        "perf/throughput": 50.0,
        "timing_per_token_ms/gen": 5.0,
        "timing_per_token_ms/update_actor": 3.0,
    }


def test_speed_metrics_of_an_empty_step():
    metrics = speed_metrics({"timing_s/gen": 1.0, "timing_s/step": 0.0}, prompt_tokens=0, response_tokens=0)
    assert metrics == {"perf/total_num_tokens": 0.0, "perf/time_per_step": 0.0}


def test_active_phases_and_transitions():
    clock = Clock()
    assert clock.active_phases() == "" and clock.num_transitions == 0
    with clock("step"):
        with clock("gen"), clock("gen"):
            assert clock.active_phases() == "step, gen"
        with clock("adv"):
            assert clock.active_phases() == "step, adv" and clock.num_transitions == 6
            clock.take()
            assert clock.active_phases() == "step, adv", "reading the times changes nothing"
    assert clock.active_phases() == "" and clock.num_transitions == 8
