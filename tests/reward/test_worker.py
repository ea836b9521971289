import json
import os
import pickle
import random
import subprocess
import sys

from burnish.errors import UserError
from burnish.reward.evaluate import Setup, pack
from burnish.reward.process import WorkerProcess
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
    assert pickle.loads(worker.channel.receive()) == Ready(concurrent=False, memory_limited=False)
    worker.channel.send(pickle.dumps((3, 5.0, [pack(sample("42")), pack(sample("41"))])))
    assert [json.loads(worker.channel.receive()) for _ in range(2)] == [
        [3, 0, 1.0, {}, None, "", ""],
        [3, 1, 0.0, {}, None, "", ""],
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
        ("def other(): pass", "has no 'compute_score'"),
    ):
        worker = start(FromFile(reward_file(code, f"file_{len(code)}.py"), "compute_score"))
        message = pickle.loads(worker.channel.receive())
        assert isinstance(message, UserError)
        assert text in str(message)
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
        assert json.loads(worker.channel.receive())[-1] == f"hello {response}\nfrom a child"
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
