import os
import stat
import subprocess
import sys

import pytest

from burnish.models.compile_cache import VARIABLE, keep_compiled_programs

COMPILE = """
import torch
from torch._dynamo.utils import counters
from burnish.models.compile_cache import keep_compiled_programs
keep_compiled_programs()
torch.compile(lambda x: x.sin() * 2)(torch.ones(64))
print(counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")  # restores it afterwards
    monkeypatch.delenv(VARIABLE)
    return tmp_path


def test_programs_are_kept_in_a_private_folder_of_this_version(home):
    keep_compiled_programs()
    folder = os.environ[VARIABLE]
    assert folder.startswith(f"{home}/burnish/compiled/torch-")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_a_folder_of_the_environment_is_used(home, monkeypatch):
    monkeypatch.setenv(VARIABLE, "mine")
    keep_compiled_programs()
    assert os.environ[VARIABLE] == "mine" and not list(home.iterdir())


def test_inductors_own_default_is_nobodys_choice(home, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/var/tmp")
    monkeypatch.setenv(VARIABLE, "/var/tmp/torchinductor_me")
    keep_compiled_programs()
    assert os.environ[VARIABLE].startswith(f"{home}/burnish/compiled/")


def test_a_folder_that_others_can_write_is_not_used(home):
    keep_compiled_programs()
    folder = os.environ[VARIABLE]
    del os.environ[VARIABLE]
    os.chmod(folder, 0o777)
    keep_compiled_programs()
    assert VARIABLE not in os.environ


@pytest.mark.long
def test_a_second_process_does_not_compile_again(home):
    runs = [subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True) for _ in range(2)]
    assert [run.stdout.split() for run in runs] == [["1", "0"], ["0", "1"]], runs[0].stderr
