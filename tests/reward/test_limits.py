import subprocess
import sys

import pytest

from burnish.redact import looks_secret
from burnish.reward.limits import worker_environment

SECRET = [
    "OPENAI_API_KEY",
    "HF_TOKEN",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "DB_PASSWORD",
    "GH_PAT",
]
SECRET += ["GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "my_secret", "APIKEY", "API_KEY_2", "MYSQL_PWD"]
OPEN = [
    "PATH",
    "HOME",
    "TOKENIZERS_PARALLELISM",
    "PWD",
    "OLDPWD",
    "PYTHONPATH",
    "KEYBOARD",
    "HF_HOME",
    "PATIENCE",
    "LANG",
]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name):
    assert looks_secret(name)


@pytest.mark.parametrize("name", OPEN)
def test_other_names(name):
    assert not looks_secret(name)


def test_environment_of_a_worker():
    environment = {"HF_TOKEN": "a", "MY_KEY": "b", "PATH": "c"}
    kept, withheld = worker_environment(environment, ("MY_KEY",))
    assert {name: kept[name] for name in ("MY_KEY", "PATH", "PYTHONHASHSEED")} == {
        "MY_KEY": "b",
        "PATH": "c",
        "PYTHONHASHSEED": "0",
    }
    assert withheld == ["HF_TOKEN"]


def test_memory_limit_is_enforced_or_returns_false():
    code = (
        "from burnish.reward.limits import limit_memory; print(limit_memory(256)); bytearray(2**20); bytearray(2**29)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout == "True\n") == sys.platform.startswith("linux")
    assert ("MemoryError" in done.stderr) == (done.stdout == "True\n")


def test_libraries_of_a_worker_start_one_thread_each():
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    kept, _ = worker_environment(dict.fromkeys(names, "16"), ("MKL_NUM_THREADS",))
    assert [kept[name] for name in names] == ["1", "1", "16"], "pass_env passes the user's own value"
    assert kept["TOKENIZERS_PARALLELISM"] == "false"
