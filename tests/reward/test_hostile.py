"""Hostile reward functions and hostile model output. Other samples must not be affected."""

import os
import re
import socket
import time
from pathlib import Path

import pytest

from burnish.isolation.probe import worker_mode
from burnish.reward.sample import Sample
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings

FALLBACK = -7.0
ISOLATED = (
    worker_mode(network=False, read_only=True)[0] is not None
)  # else the run says what does not hold; see test_isolation

# What the sample's problem says; None: there is none, the attack did nothing.
# The limit of the process, or the watcher that sums all processes: whichever is first.
OUT_OF_MEMORY = "ran out of memory|used more than reward.memory_mb"
ATTACKS = {
    "raises": "raised ValueError: bad",
    "raises exit": "raised SystemExit",
    "raises interrupt": "raised KeyboardInterrupt",
    "raises its own": "raised .*Rude",
    "raises stop": "raised StopIteration",
    "exits": r"the worker died \(exit status 0\)",
    "aborts": "the worker died",
    "crashes": "the worker died",
    "nan": "returned nan",
    "infinity": "returned -inf",
    "a list": "returned list",
    "a text": "returned str",
    "nothing": "returned NoneType",
    "no score": "without 'score'",
    "no number": "returned no number",
    "a slow number": "timed out",
    "unspeakable extras": "raised RuntimeError: no name",
    "cyclic extras": "returned extras nested more than 16 times",
    "huge extras": "returned 20 MiB of extras|timed out",
    "sleeps": "timed out after 1.5 s",
    "sleeps and ignores signals": "timed out",
    "is busy whatever happens": "timed out",
    "holds the interpreter": "timed out",
    "never ends in C": "timed out",
    "large power": f"timed out|{OUT_OF_MEMORY}",
    "recursion": f"raised RecursionError|timed out|{OUT_OF_MEMORY}|died",
    "recursion without a limit": f"timed out|{OUT_OF_MEMORY}|the worker died",
    "floods stdout": "raised OSError|timed out",
    "memory": OUT_OF_MEMORY,
    "memory in small pieces": f"{OUT_OF_MEMORY}|timed out",
    "closes files": "the worker died",
    "speaks for itself": "the worker died|timed out",
    "half a message": "timed out",
    "endless message": "the worker died|timed out",
    "replaces json": "the worker died",
    "empties sys.modules": None,
    "replaces the worker": "the worker died",
    "goes elsewhere": None,
    "sets handlers": None,
    "mutates its arguments": None,
    "forks": None,
    "reads secrets": "ATTACKS_TOKEN looks like a secret and is withheld",
}
BY_PROCESSES = {
    "fork bomb": "the worker died|timed out",
    "memory of children": "used more than reward.memory_mb|timed out",
    "kills its parent": None,
    "kills everybody": None,
    "kills its group": "the worker died",
    "leaves a child": "the worker died",
}
BEYOND = {
    "writes outside": "Read-only file system",
    "deletes outside": "Read-only file system",
    "writes inside": None,
    "uses the network": "raised OSError: .*unreachable",
}


class Field:
    """The results of all attacks of a list: each sample is followed by one that is fine."""

    def __init__(self, attacks, folder, **settings):
        self.outside = Path(folder)
        (self.outside / "precious").write_text("still here")
        self.extra = {"kept": True}
        path = str(Path(__file__).with_name("attacks.py"))
        defaults = {"path": path, "num_workers": 4, "timeout": 1.5, "memory_mb": 400, "fallback_score": FALLBACK}
        with Scorer(RewardSettings(**(defaults | settings))) as scorer:
            samples = [Sample("any", text, "42", self.extra, name, 0) for name in attacks for text in (name, "fine")]
            scores = iter(scorer.score(samples))
            self.scores = {name: (next(scores), next(scores)) for name in attacks}
            self.problems = scorer.drain_problems()


def field_of(attacks, tmp_path_factory, **settings):
    listener = socket.create_server(("127.0.0.1", 0))
    folder = tmp_path_factory.mktemp("outside")
    with pytest.MonkeyPatch.context() as patch, listener:
        patch.setenv("ATTACKS_OUTSIDE", str(folder))
        patch.setenv("ATTACKS_PORT", str(listener.getsockname()[1]))
        patch.setenv("ATTACKS_TOKEN", "hunter2")
        return Field(attacks, folder, **settings)


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    return field_of(ATTACKS, tmp_path_factory)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return field_of(BY_PROCESSES if ISOLATED else {}, tmp_path_factory)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    settings = {"isolate": True, "network": False} if ISOLATED else {}
    return field_of(BEYOND if ISOLATED else {}, tmp_path_factory, **settings)


def check(field, name, expected):
    attacked, fine = field.scores[name]
    assert (fine.value, fine.problem) == (1.0, None)
    if expected is None:
        assert (attacked.value, attacked.problem) == (1.0, None)
        return
    assert attacked.value == FALLBACK
    assert re.search(expected, attacked.problem), attacked.problem
    assert any(problem.first.uid == name or problem.count > 1 for problem in field.problems)  # the log can name it


def test_the_number_of_attacks():
    assert len({**ATTACKS, **BY_PROCESSES, **BEYOND}) >= 50


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_fails_only_its_own_sample(field, name):
    check(field, name, ATTACKS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", BY_PROCESSES if ISOLATED else [])
def test_an_attack_does_not_reach_other_processes(processes, name):
    check(processes, name, BY_PROCESSES[name])


@pytest.mark.parametrize("name", BEYOND if ISOLATED else [])
def test_outside_its_folder_a_worker_can_only_read(closed, name):
    check(closed, name, BEYOND[name])


@pytest.mark.long
def test_nothing_is_left_behind(field, processes, closed):
    assert field.extra == {"kept": True}
    for one in (field, processes, closed):
        assert (one.outside / "precious").read_text() == "still here"
        assert not (one.outside / "written").exists()
    alive = processes.outside / "alive"
    assert alive.exists() == ISOLATED
    size = alive.stat().st_size if ISOLATED else 0
    time.sleep(0.1)
    assert (alive.stat().st_size if ISOLATED else 0) == size
    assert os.getcwd() != "/"


# What a model might write, and rules that read it.
TEXTS = {
    "code": r"\boxed{__import__('os').system('touch was_run')}",
    "code in an answer line": "Answer: __import__('os').system('touch was_run')",
    "tower of powers": r"\boxed{9**9**9**9}",
    "tower in LaTeX": r"\boxed{9^{9^{9^{9}}}}",
    "large factorial": r"\boxed{999999999!}",
    "nested fractions": r"\boxed{" + r"\frac{" * 40 + "1" + "}{2}" * 40 + "}",
    "deep braces": r"\boxed{" * 20_000 + "}" * 20_000,
    "many boxes": r"\boxed{1}" * 50_000,
    "slow power": r"\boxed{\sin(x)^{999}}",
    "long number": r"\boxed{" + "9" * 100_000 + "}",
    "regex": "<think>" + "</think> " * 20_000,
    "spaces": r"\boxed{" + " " * 100_000 + "7",
    "steps": "\n-" * 100_000,
    "null": "\x00\\boxed{\x00}",
    "surrogates": "\ud800\\boxed{\udfff}",
    "other digits": r"\boxed{٣٥} \boxed{３５} Answer: ３５",
    "right to left": "\u202e\\boxed{43}\u202c",
    "invisible": "\\boxed{3\u200b5}",
    "format string": r"\boxed{%s%n{0.__class__}}",
}
RULES = {"numina_olympiads": 0.0, "hiyouga/geometry3k": 0.0, "lighteval/MATH": 0.0, "aime24": -1.0, "searchR1_nq": 0.0}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Every rule's score of every text, and the verifiers'; in workers with the usual limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        names = ("acc", "strict_format", "format", "step", "base_acc", "acc_for_ppo", "acc_for_dapo", "retool_reward")
        with (
            Scorer(RewardSettings(num_workers=2)) as rules,
            Scorer(RewardSettings(num_workers=1, verifiers=names)) as verifiers,
        ):
            futures = {
                (text, rule): rules.submit(Sample(rule, TEXTS[text], "34", {}, "u", 0))
                for text in TEXTS
                for rule in RULES
            }
            verified = {
                text: verifiers.submit(Sample("any", TEXTS[text], "34", {"num_tool_calls": 0}, "u", 0))
                for text in TEXTS
            }
            scores = {key: future.result(60) for key, future in futures.items()}
            return scores, {text: future.result(60) for text, future in verified.items()}, os.listdir()


@pytest.mark.parametrize("text", TEXTS)
def test_hostile_text_scores_nothing_and_is_fast(graded, text):
    scores, verified, _ = graded
    for rule, wrong in RULES.items():
        assert (scores[text, rule].value, scores[text, rule].problem) == (wrong, None), rule
    assert verified[text].problem is None
    assert verified[text].extras["acc"] < 0
    assert verified[text].extras["base_acc"] == verified[text].extras["acc_for_ppo"] == 0.0


def test_text_is_never_executed(graded):
    assert graded[2] == []
