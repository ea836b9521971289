"""UserError: layout of the message, several errors in one, suggestions, pickling."""

import pickle
import shlex
import sys
from pathlib import Path

import pytest

from burnish import errors
from burnish.errors import (
    StopNow,
    UserError,
    UserErrors,
    WorkerDied,
    install_extra,
    install_package,
    nearest,
    raise_all,
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no such file."),
        ({"key": "data.train_files"}, "data.train_files: no such file."),
        ({"key": "data.train_files", "value": "a.parquet"}, "data.train_files='a.parquet': no such file."),
        ({"key": "rollout.n", "value": 0}, "rollout.n=0: no such file."),
        ({"value": "unused without a key"}, "no such file."),
        ({"allowed": ["a", "b"]}, "no such file. Allowed: a, b."),
        ({"allowed": {"a": 1, "b": 2}}, "no such file. Allowed: a, b."),
        ({"allowed": [1, None]}, "no such file. Allowed: 1, None."),
        ({"allowed": ">= 1"}, "no such file. Allowed: >= 1."),
        ({"hint": "rollout.n=1"}, "no such file. Type: rollout.n=1"),
        (
            {"key": "rollout.n", "value": -1, "allowed": ">= 1", "hint": "rollout.n=1"},
            "rollout.n=-1: no such file. Allowed: >= 1. Type: rollout.n=1",
        ),
    ],
)
def test_a_message_has_key_value_problem_allowed_and_hint_in_this_order(fields, message):
    error = UserError("no such file", **fields)
    assert str(error) == error.text() == message


@pytest.mark.parametrize("problem", ["no such key. Did you mean seed?", "Stop!", "it failed."])
def test_a_problem_that_ends_with_punctuation_gets_no_period(problem):
    assert str(UserError(problem)) == problem


def test_fields_stay_readable():
    error = UserError("wrong", key="k", value="v", allowed=iter(["a", "b"]), hint="k=a")
    assert (error.problem, error.key, error.value, error.allowed, error.hint) == ("wrong", "k", "v", ["a", "b"], "k=a")


def test_no_error_raises_nothing():
    assert raise_all([]) is None


def test_one_error_is_raised_as_it_is():
    error = UserError("wrong", key="k")
    with pytest.raises(UserError) as caught:
        raise_all([error])
    assert caught.value is error


def test_several_errors_are_numbered_in_one():
    errors = [UserError("wrong", key="a", value=1), UserError("missing", key="b", hint="b=2")]
    with pytest.raises(UserErrors) as caught:
        raise_all(errors)
    assert str(caught.value) == "1. a=1: wrong.\n2. b: missing. Type: b=2"
    assert caught.value.errors == errors and isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("gpro", "grpo"), ("grpo", "grpo"), ("gea", "gae"), ("something else", None), ("", None)],
)
def test_the_nearest_name(name, suggestion):
    assert nearest(name, iter(["gae", "grpo", "rloo"])) == suggestion


def test_no_names_give_no_suggestion():
    assert nearest("gae", []) is None


def test_user_errors_survive_pickling():
    single = UserError("wrong", key="k", value=3, allowed=["a"], hint="k=a")
    for error in (single, UserErrors([single, UserError("missing")])):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and str(copy) == str(error)
    assert pickle.loads(pickle.dumps(single)).allowed == ["a"]


def test_a_dead_worker_names_itself_and_survives_pickling():
    copy = pickle.loads(pickle.dumps(WorkerDied("rank 3", "ran out of memory")))
    assert isinstance(copy, WorkerDied) and isinstance(copy, RuntimeError)
    assert (copy.who, copy.why, str(copy)) == ("rank 3", "ran out of memory", "rank 3 ran out of memory")


def test_a_second_signal_has_the_exit_status_of_shells():
    stop = StopNow(15)
    assert stop.status == 143 and isinstance(stop, KeyboardInterrupt)


@pytest.fixture
def activated(monkeypatch):
    monkeypatch.setattr("burnish.errors.shutil.which", lambda name: str(Path(sys.executable).parent / name))


@pytest.mark.usefixtures("activated")
def test_extras_are_installed_from_the_clone_or_by_name(monkeypatch, tmp_path):
    monkeypatch.chdir(errors.CLONE)
    assert install_extra("wandb") == 'pip install -e ".[wandb]"'
    assert install_extra("peft", "math") == 'pip install -e ".[peft,math]"'
    monkeypatch.chdir(tmp_path)
    assert install_extra("wandb") == f'cd {shlex.quote(str(errors.CLONE))} && pip install -e ".[wandb]"'
    monkeypatch.setattr(errors, "CLONE", tmp_path)  # as in site-packages: no pyproject.toml beside the package
    assert install_extra("wandb") == 'pip install "burnish[wandb]"'
    assert install_extra("vllm", upgrade=True) == 'pip install --upgrade "burnish[vllm]"'


def test_install_commands_use_this_python_if_its_environment_is_not_activated(monkeypatch):
    for pip in (None, "/usr/bin/pip"):
        monkeypatch.setattr("burnish.errors.shutil.which", lambda name: pip)
        assert install_package("triton") == f"{shlex.quote(sys.executable)} -m pip install triton"
    monkeypatch.setattr("burnish.errors.shutil.which", lambda name: str(Path(sys.executable).parent / name))
    assert install_package("triton") == "pip install triton"
