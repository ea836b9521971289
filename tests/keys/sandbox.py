"""Rows of sandbox.* and reward_model.sandbox_fusion.*: what becomes of answers that are programs."""

from __future__ import annotations

import functools
import json
import threading
from contextlib import ExitStack
from unittest import mock

from burnish.isolation.probe import Isolation
from burnish.reward.sample import Sample
from burnish.reward.sandbox import local
from burnish.reward.sandbox.settings import num_cpus

from ..reward.sandbox.service import Server, run_payload, slowly
from .kit import Case, Kit
from .row import Row

FUSION = "reward_model.sandbox_fusion"
NOTHING = Isolation(False, False, False, False, True, True, "weak", "programs cannot be isolated here")


def code_file(kit: Kit) -> str:
    """Prompts whose answers are programs."""
    path = kit.root / "code.jsonl"
    if not path.exists():
        lines = kit.train_file.read_text().splitlines()
        rows = [json.loads(line) | {"data_source": "taco"} for line in lines]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.train_files={path}"


CODE = (code_file, "custom_reward_function.path=null")
ANYWHERE = (*CODE, "sandbox.allow_weak=true")  # where nothing can be isolated, these keys act all the same


@functools.cache
def server(slow: bool = False) -> Server:
    """A sandbox service that runs until the tests end."""
    found = Server(slowly if slow else lambda payload, count: run_payload(payload))
    threading.Thread(target=found.serve_forever, daemon=True).start()
    return found


def at(service: Server) -> str:
    return f"{FUSION}.url={service.url}"


def answered(case: Case, code: str, outputs: list[str], count: int = 1) -> list[str]:
    """What became of each test case of an answer, for each of `count` such answers."""
    truth = json.dumps({"inputs": ["" for _ in outputs], "outputs": outputs})
    samples = [Sample("taco", f"```python\n{code}\n```", truth, {}, "uid", number) for number in range(count)]
    return [score.extras["cases"] for score in case.run.rollout.scorer.scorer.score(samples)]


def sleeping(case: Case) -> list[str]:
    return answered(case, "import time; time.sleep(1)", [""])


def greedy(case: Case) -> list[str]:
    return answered(case, "x = bytearray(200 * 2**20)", [""])


def talking(case: Case) -> list[str]:
    return answered(case, "print('x' * 5000)", ["x" * 5000])


def counting(case: Case) -> list[str]:
    return answered(case, "print(1)", ["1", "2", "1"])


def unsafe_notice(case: Case) -> str:
    """What the run says about its sandbox, on a system that isolates nothing."""
    with mock.patch.object(local, "isolation", lambda: NOTHING):
        return case.run.rollout.scorer.scorer.notices[0]


def programs_at_once(case: Case) -> int:
    """How many programs there are at the same time."""
    lock, running, peak = threading.Lock(), [0], [0]
    real = local.LocalRunner._run

    def counted(*arguments, **more):
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        try:
            return real(*arguments, **more)
        finally:
            with lock:
                running[0] -= 1

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(local.LocalRunner, "_run", counted))
        answered(case, "import time; time.sleep(0.3)", [""], count=num_cpus() + 2)
    return peak[0]


def requests_there(case: Case) -> int:
    """Requests at the service until an answer with two cases is scored; the first one is the run's own trial."""
    server().payloads.clear()
    answered(case, "print(1)", ["1", "1"])
    return len(server().payloads)


def memory_there(case: Case) -> int:
    answered(case, "print(1)", ["1"])
    return server().payloads[-1]["memory_limit_MB"]


def requests_at_once(case: Case) -> int:
    server(slow=True).max_running = 0
    answered(case, "print(1)", ["1", "1"], count=2)
    return server(slow=True).max_running


ROWS = [
    Row("sandbox.allow_weak", "true", unsafe_notice, CODE, refused_without=True),
    Row("sandbox.timeout", "0.3", sleeping, ANYWHERE, expected=["T"], long=True),
    Row("sandbox.memory_mb", "64", greedy, ANYWHERE, expected=["M"]),
    Row("sandbox.output_kb", "1", talking, ANYWHERE, expected=["O"]),
    Row("sandbox.max_cases", "2", counting, ANYWHERE, expected=["PW"]),
    Row("sandbox.max_parallel", "1", programs_at_once, ANYWHERE, expected=1, long=True)
    if num_cpus() > 1
    else Row("sandbox.max_parallel", "3", programs_at_once, ANYWHERE, expected=3, long=True),
    Row(f"{FUSION}.url", lambda kit: server().url, requests_there, ANYWHERE, expected=3),
    Row(
        f"{FUSION}.max_concurrent",
        "1",
        requests_at_once,
        (*CODE, lambda kit: at(server(slow=True))),
        expected=1,
        long=True,
    ),
    Row(f"{FUSION}.memory_limit_mb", "99", memory_there, (*CODE, lambda kit: at(server())), expected=99),
]
