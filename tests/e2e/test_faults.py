"""Runs that are killed at random instants, stopped, or harmed in other ways end as one that nobody touched.

bench/faults.py does the same more often, and makes the table of docs/reliability.md.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before  # the script's folder must not stay: its agents.py would hide a library of that name
    return module


faults = load_script("faults")
Instant = sys.modules["killing"].Instant
# How often each is tried here; kill -9 five times in all.
KILLS = {
    "kill -9, GRPO": 2,
    "kill -9, PPO with a critic": 1,
    "kill -9, checkpoints written beside the run": 1,
    "kill -9, one step off": 1,
}
MANY = 15  # of each, in `make test-all`
# Tests of the packages do these in one process; nodes of Ray start slowly on two cores.
ALSO_ELSEWHERE = {name for name in faults.FAULTS if "(Ray)" in name} | {
    "kill -9, PPO with a critic",
    "kill -9, checkpoints written beside the run",
    "kill -9, one step off",
    "disk full while saving",
    "checkpoint file truncated or a bit flipped",
    "a worker dies again and again",
    "a rank of two is killed",
    "kill -9, two ranks",
    "the tracker is unreachable or hangs",
}
# They need libraries of `make test-all`; a handful of kills each.
CONVERSATIONS = {name: 4 for name in faults.FAULTS if "conversations" in name}
ALSO_ELSEWHERE |= CONVERSATIONS.keys()
NAMES = [
    pytest.param(name, marks=[pytest.mark.long] if name in ALSO_ELSEWHERE else [], id=name) for name in faults.FAULTS
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = faults.Bench(tmp_path_factory.mktemp("faults") / "bench", kills=1, tries=1, seed=0)
    yield made
    made.close()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost(bench, name):
    bench.kills = (KILLS | CONVERSATIONS).get(name, 0)
    counts = faults.FAULTS[name](bench)
    assert counts.tried >= max(1, bench.kills)
    assert counts.survived == counts.tried and counts.lost == [], counts


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", KILLS)
def test_nothing_is_lost_however_often(bench, name):
    bench.kills = MANY
    counts = faults.FAULTS[name](bench)
    assert counts.tried == counts.survived == MANY and counts.lost == [], counts


def test_the_comparison_sees_what_differs(bench, tmp_path):
    """A run with another seed differs in everything that is compared; without a look, nothing would be held."""
    one = bench.baseline(*faults.GRPO)
    other = bench.baseline(*faults.GRPO, "trainer.seed=2")
    found = faults.differences(one.folder, other.folder)
    assert [line.partition(":")[0] for line in found][:3] == ["state", "metrics", "rollouts"]
    assert "state: " in faults.differences(one.folder, tmp_path)[0], "a run that left nothing is no equal"


def test_a_command_that_is_abandoned_does_not_hold_up_the_next(bench):
    """As where a test runs into its time limit."""

    def give_up(pid: int) -> None:
        raise TimeoutError(pid)

    baseline = bench.baseline(*faults.GRPO)
    with pytest.raises(TimeoutError) as raised:
        baseline.run(bench.new_folder(), at=Instant("gen", 1, 0.0), do=give_up)
    with pytest.raises(ProcessLookupError):
        os.kill(raised.value.args[0], 0)
    assert baseline.run(bench.new_folder()).status == 0


def test_every_fault_is_on_the_page():
    page = (BENCH.parent / "docs" / "reliability.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")}
    assert set(faults.FAULTS) <= rows
