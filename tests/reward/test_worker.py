import json
import os
import pickle
import random
import subprocess
import sys

import pytest

from burnish.errors import UserError
from burnish.reward.call import Inputs
from burnish.reward.evaluate import Setup, pack
from burnish.reward.process import WorkerProcess, parse_first_message
from burnish.reward.source import FromCallable, FromFile, FromRules
from burnish.reward.worker import Ready, seed_random


def test_importing_the_worker_is_light():
    code = "import sys, json, burnish.reward.worker; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    heavy = {"torch", "transformers", "numpy", "omegaconf", "burnish.batch", "burnish.config"}
    assert not heavy & set(loaded)


def start(source, **changes):
    setup = Setup(source, {}, timeout=5.0, memory_mb=0, withheld=[])
    payload = pickle.dumps(Setup(**(vars(setup) | changes)))
    return WorkerProcess(payload, 5.0, dict(os.environ), os.getcwd())


def test_it_reports_ready_and_replies_in_order(sample):
    worker = start(FromRules())
    ready = Ready(concurrent=False, memory_limited=False, inputs=Inputs())
    assert parse_first_message(worker.channel.receive()) == ready
    worker.channel.send(pickle.dumps((3, 5.0, [pack(sample("42")), pack(sample("41"))])))
    assert [json.loads(worker.channel.receive()) for _ in range(5)] == [
        [3, "started"],
        [3, 0, 1.0, {}, None, "", ""],
        [3, "started"],
        [3, 1, 0.0, {}, None, "", ""],
        [3, "done"],
    ]
    worker.stop()


def test_it_exits_when_the_parent_closes_the_pipe():
    worker = start(FromRules())
    worker.channel.receive()
    worker.channel.close()
    assert worker.exit_reason() == "exit status 0"
    worker.stop()


def test_a_function_that_cannot_be_loaded_is_a_user_error(reward_file):
    for code, text in (
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def other(): pass", "has no 'compute_score'. Allowed: other. Type: custom_reward_function.name=other"),
    ):
        worker = start(FromFile(reward_file(code, f"file_{len(code)}.py"), "compute_score"))
        with pytest.raises(UserError) as error:
            worker.handle_ready(worker.channel.receive())
        assert text in str(error.value)
        worker.stop()


def test_output_is_part_of_the_reply(sample):
    def chatty(solution_str):
        print("hello", solution_str)
        os.system("echo from a child")
        return 1.0

    worker = start(FromCallable(chatty))
    worker.channel.receive()
    for response in ("one", "two"):
        worker.channel.send(pickle.dumps((1, 5.0, [pack(sample(response))])))
        _, reply, _ = (json.loads(worker.channel.receive()) for _ in range(3))
        assert reply[-1] == f"hello {response}\nfrom a child"
    worker.stop()


def test_seeding_depends_on_the_key_only():
    before = random.getstate()
    try:
        draws = []
        for key in ("row-1/0", "row-1/1", "row-1/0"):
            seed_random(key)
            draws.append(random.random())
    finally:
        random.setstate(before)
    assert draws[0] == draws[2] != draws[1]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise MemoryError()", "MemoryError. Likely cause: out of memory: reward.memory_mb=300"),
        ("raise ImportError('libtorch.so: failed to map segment from shared object')", "cause: out of memory"),
        (
            "print('pthread_create failed for thread 3 of 16')\nraise KeyboardInterrupt",
            "OpenBLAS interrupts the process",
        ),
        ('import threading\nraise RuntimeError("can\'t start new thread")', "a thread could not be started"),
    ],
)
def test_a_limit_that_stops_an_import_is_named(reward_file, code, text):
    worker = start(FromFile(reward_file(f"x = 1\n{code}", f"file_{len(text)}.py"), "compute_score"), memory_mb=300)
    with pytest.raises(UserError) as error:
        worker.handle_ready(worker.channel.receive())
    message = error.value
    worker.stop()
    assert text in str(message)
    assert "reward.memory_mb=8192" in str(message)
    assert f"file_{len(text)}.py" in str(message) and ", line " in str(message)
    assert ("pthread_create failed for thread 3 of 16" in str(message)) == ("print" in code)


def test_the_memory_limit_does_not_count_what_imports_map(reward_file, sample):
    """A CUDA build of torch maps gigabytes; the limit is for the function."""
    code = """
        import mmap, sys
        mapped = mmap.mmap(-1, 600 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        def compute_score(solution_str):
            return float(len(bytearray(int(solution_str) * 2**20)))
    """
    worker = start(FromFile(reward_file(code), "compute_score"), memory_mb=200)
    assert parse_first_message(worker.channel.receive()).memory_limited
    worker.channel.send(pickle.dumps((1, 5.0, [pack(sample("50")), pack(sample("900"))])))
    _, fits, _, too_large = (json.loads(worker.channel.receive()) for _ in range(4))
    worker.stop()
    assert fits[2] == 50 * 2**20
    assert "ran out of memory (reward.memory_mb=200)" in too_large[5]


def test_a_file_that_imports_torch_and_numpy_loads_with_the_default_limits(reward_file, sample, scorer, monkeypatch):
    """Also where libraries would start a thread per core, as on a machine with many."""
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "64")
    code = """
        import numpy as np, torch
        def compute_score(solution_str):
            product = torch.from_numpy(np.ones((64, 64)) @ np.ones((64, 64)))
            return float(product.sum() / 64**3) * torch.get_num_threads()
    """
    assert scorer(path=reward_file(code)).score([sample()])[0].value == 1.0
