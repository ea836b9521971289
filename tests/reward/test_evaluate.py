import asyncio
import time

from burnish.reward.evaluate import Evaluator, Setup, pack
from burnish.reward.source import FromCallable


def evaluator(function, timeout=5.0, before_each=lambda address: None):
    return Evaluator(Setup(FromCallable(function), {}, timeout, 0, []), before_each)


def test_before_each_gets_the_seed_key(sample):
    seen = []
    one = evaluator(lambda solution_str: 1.0, before_each=seen.append)
    one.evaluate(pack(sample(uid="row-7", number=3)))
    assert seen == ["row-7/3"]
    one.loop.close()


def test_exceptions_become_outcomes(sample):
    class Rude(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def raises(ground_truth):
        raise ground_truth

    one = evaluator(raises)
    for error, text in (
        (ValueError("bad"), "raised ValueError: bad in test_evaluate.py:"),
        (SystemExit(3), "raised SystemExit: 3"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (MemoryError(), "ran out of memory (reward.memory_mb=0)"),
    ):
        outcome = one.evaluate(pack(sample(truth=error)))
        assert outcome.kind == "raised"
        assert outcome.text.startswith(text)
    one.caller_of("").function = lambda ground_truth: (_ for _ in ()).throw(Rude())
    assert one.evaluate(pack(sample())).text.startswith("raised ")
    one.loop.close()


def test_a_sample_that_cannot_be_unpickled():
    one = evaluator(lambda solution_str: 1.0)
    assert one.evaluate(b"no pickle").kind == "raised"
    assert "in the sample" in one.evaluate(b"no pickle").text
    one.loop.close()


def test_async_samples_run_concurrently_with_individual_time_limits(sample):
    async def nap(extra_info):
        await asyncio.sleep(extra_info["seconds"])
        return extra_info["seconds"]

    one = evaluator(nap, timeout=0.5)
    assert one.is_async
    outcomes = {}
    started = time.perf_counter()
    seconds = [0.1, 30, 0.1, 0.05]
    one.evaluate_concurrently([pack(sample(extra={"seconds": s})) for s in seconds], outcomes.__setitem__)
    assert time.perf_counter() - started < 5
    assert [outcomes[i].value for i in (0, 2, 3)] == [0.1, 0.1, 0.05]
    assert outcomes[1].kind == "timed out"
    assert outcomes[1].text.startswith("timed out after 0.5 s in test_evaluate.py:")
    one.loop.close()


def test_a_timeout_error_of_the_function_is_an_exception(sample):
    async def gives_up(solution_str):
        raise TimeoutError("the judge did not answer")

    one = evaluator(gives_up)
    assert one.evaluate(pack(sample())).text.startswith("raised TimeoutError: the judge did not answer")
    one.loop.close()
