import os
import random
import threading

import pytest


def test_it_runs_in_this_process_and_needs_no_pickling(scorer, sample):
    lock = threading.Lock()  # could not travel to a worker

    def function(solution_str):
        with lock:
            return {"score": len(solution_str), "process": os.getpid()}

    with scorer(function, num_workers=0) as one:
        scores = one.score([sample("a"), sample("bbb")])
    assert [score.value for score in scores] == [1.0, 3.0]
    assert scores[0].extras == {"process": os.getpid()}


def test_problems_are_reported_as_in_workers(scorer, sample):
    one = scorer(lambda solution_str: float("nan"), num_workers=0, fallback_score=-1.0)
    score = one.score([sample()])[0]
    assert score.value == -1.0
    assert "returned nan" in score.problem


def test_the_global_generator_is_not_seeded(scorer, sample):
    random.seed(5)
    expected = random.random()
    random.seed(5)
    scorer(lambda solution_str: 1.0, num_workers=0).score([sample()])
    assert random.random() == expected


def test_async_functions_work_and_closing_cancels(scorer, sample):
    gate = threading.Event()

    async def judge(solution_str):
        gate.wait(5)
        return 0.5

    one = scorer(judge, num_workers=0)
    futures = [one.submit(sample()) for _ in range(3)]
    threading.Timer(0.1, gate.set).start()
    one.close()
    assert futures[0].result().value == 0.5
    assert futures[2].cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        one.submit(sample())
