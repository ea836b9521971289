import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from burnish.errors import UserError
from burnish.reward.process import WorkerProcess


def test_a_hanging_sample_fails_only_itself(scorer, sample):
    def hang_on_b(solution_str):
        if solution_str == "b":
            time.sleep(60)
        return float(len(solution_str))

    one = scorer(hang_on_b, timeout=0.5)
    scores = one.score([sample(response) for response in ("a", "b", "ccc", "dd")])
    assert [score.value for score in scores] == [1.0, 0.0, 3.0, 2.0]
    assert scores[1].problem == "timed out after 0.5 s in test_pool.py:hang_on_b"
    assert one.problems == {"timed out": 1}


def test_a_catastrophic_regular_expression_is_stopped(scorer, sample):
    def backtrack(solution_str):
        import re

        return float(bool(re.fullmatch(r"(a+)+b", solution_str)))

    one = scorer(backtrack, timeout=0.4)
    scores = one.score([sample("a" * 60), sample("aab")])
    assert "timed out" in scores[0].problem
    assert scores[1].value == 1.0


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "ctypes.string_at(0)"])
def test_a_dying_worker_fails_only_its_sample(scorer, sample, reward_file, end):
    path = reward_file(
        f"""
        import ctypes, os
        def compute_score(solution_str):
            if solution_str == "die":
                print("last words", flush=True)
                {end}
            return 1.0
        """
    )
    one = scorer(path=path)
    scores = one.score([sample(response) for response in ("a", "die", "b")])
    assert [score.value for score in scores] == [1.0, 0.0, 1.0]
    assert scores[1].problem.startswith("the worker died (")
    assert "in my_reward.py:compute_score\n" in scores[1].problem
    assert "last words" in scores[1].problem
    assert one.problems == {"died": 1}


def test_memory_is_limited(scorer, sample, caplog):
    def bomb(solution_str):
        return float(len(bytearray(2**29)) if solution_str == "bomb" else 1)

    caplog.set_level("INFO", logger="burnish.reward")
    bombed, fine = scorer(bomb, memory_mb=256).score([sample("bomb"), sample("a")])
    assert fine.value == 1.0
    if "not enforced on this system" in caplog.text:
        assert not sys.platform.startswith("linux")
    else:
        assert "ran out of memory (reward.memory_mb=256) in test_pool.py:bomb" in bombed.problem


def test_a_worker_killed_while_idle_is_replaced(scorer, sample):
    one = scorer(lambda solution_str: {"score": 1.0, "process": os.getpid()}, isolate=False)
    process = one.score([sample()])[0].extras["process"]
    os.kill(process, signal.SIGKILL)
    after = one.score([sample()])[0]
    assert after.value == 1.0
    assert after.extras["process"] != process


def test_a_sample_is_retried_if_something_else_killed_its_worker(scorer, sample, tmp_path):
    def killed_the_first_time(solution_str):
        mark = tmp_path / solution_str
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    one = scorer(killed_the_first_time)
    assert [score.value for score in one.score([sample("a"), sample("b")])] == [1.0, 1.0]
    assert one.problems == {}


def test_replaced_workers_are_logged_once_with_a_count(scorer, sample, caplog):
    def die(solution_str):
        os._exit(3)

    one = scorer(die)
    assert all("exit status 3" in score.problem for score in one.score([sample("a"), sample("b"), sample("c")]))
    one.close()
    lines = [record.getMessage() for record in caplog.records if "replaced" in record.getMessage()]
    assert lines[0] == "a reward worker was replaced: the worker died (exit status 3)"
    assert len(lines) == 2 and lines[1].startswith("3 reward workers were replaced: ")


def test_workers_share_the_work(scorer, sample, tmp_path):
    def wait_for_the_other(solution_str):
        (tmp_path / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return {"score": 1.0, "process": os.getpid()}

    one = scorer(wait_for_the_other, num_workers=2, timeout=90, isolate=False)  # isolated ones have the same pid
    scores = one.score([sample() for _ in range(4)])
    assert len({score.extras["process"] for score in scores}) == 2


def test_async_samples_overlap_in_one_worker(scorer, sample):
    async def judge(solution_str):
        await asyncio.sleep(0.2)
        return 1.0

    one = scorer(judge)
    started = time.perf_counter()
    assert {score.value for score in one.score([sample() for _ in range(60)])} == {1.0}
    assert time.perf_counter() - started < 5  # one after the other would take 12 s


def test_the_culprit_of_an_async_chunk_is_found(scorer, sample):
    async def judge(solution_str):
        await asyncio.sleep(0.01)
        if solution_str == "die":
            os._exit(1)
        return 1.0

    one = scorer(judge)
    scores = one.score([sample(response) for response in ("a", "b", "die", "c")])
    assert [score.value for score in scores] == [1.0, 1.0, 0.0, 1.0]
    assert scores[2].problem.startswith("the worker died (exit status 1)")


def test_submitting_from_many_threads(scorer, sample):
    one = scorer(lambda solution_str: float(solution_str), num_workers=2)
    results = {}

    def submit(start):
        results[start] = [one.submit(sample(str(start + i))).result().value for i in range(20)]

    threads = [threading.Thread(target=submit, args=(start,)) for start in range(0, 100, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[start] == [float(start + i) for i in range(20)] for start in range(0, 100, 20))


def test_fast_samples_are_sent_in_chunks(scorer, sample, monkeypatch):
    sizes = []
    send = WorkerProcess.send
    monkeypatch.setattr(WorkerProcess, "send", lambda worker, jobs: sizes.append(len(jobs)) or send(worker, jobs))
    one = scorer(num_workers=2)
    one.score([sample() for _ in range(1000)])
    assert sum(sizes) == 1000
    assert max(sizes) > 1


def test_closing_does_not_wait_for_a_hanging_function(scorer, sample):
    one = scorer(lambda solution_str: time.sleep(60))
    running, waiting = one.submit(sample()), one.submit(sample())
    time.sleep(0.2)
    started = time.perf_counter()
    one.close()
    assert time.perf_counter() - started < 3
    with pytest.raises(RuntimeError, match="closed before this sample was scored"):
        running.result()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        one.submit(sample())


def test_a_function_that_can_no_longer_be_loaded_fails_all_samples(scorer, sample, reward_file):
    path = reward_file("import os\ndef compute_score(solution_str): os._exit(1)")
    one = scorer(path=path, on_error="fallback")
    os.unlink(path)
    for future in [one.submit(sample()) for _ in range(3)]:
        with pytest.raises(UserError, match="reward workers failed to start 3 times"):
            future.result(timeout=20)
    with pytest.raises(UserError, match="reward workers failed to start 3 times"):
        one.submit(sample())


def test_workers_exit_when_the_parent_is_killed(tmp_path):
    lock = tmp_path / "lock"
    script = tmp_path / "script.py"
    script.write_text(
        "import time\n"
        "from burnish.reward.sample import Sample\n"
        "from burnish.reward.score import Scorer\n"
        "from burnish.reward.settings import RewardSettings\n"
        "def hold(solution_str):\n"
        "    import fcntl, sys\n"
        "    sys.held = open(solution_str, 'w')\n"
        "    fcntl.flock(sys.held, fcntl.LOCK_EX)\n"
        "    return 1.0\n"
        "scorer = Scorer(RewardSettings(num_workers=1), hold)\n"  # no __main__ guard needed
        f"print(scorer.score([Sample('s', {str(lock)!r}, 't', {{}}, 'u', 0)]), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert "value=1.0" in parent.stdout.readline()
    with lock.open() as file:
        assert not _locked(file)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        until = time.monotonic() + 20
        while not _locked(file) and time.monotonic() < until:
            time.sleep(0.05)
        assert _locked(file)  # the kernel releases the lock of a dead worker


def _locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
