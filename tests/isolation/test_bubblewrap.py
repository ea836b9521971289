"""The command line of bubblewrap; where it is installed, tests of programs run with it too."""

import os

import pytest

from burnish.isolation import bubblewrap, probe
from burnish.isolation.plan import BUBBLEWRAP, ROOT, USER, Plan


def plan(**changes):
    values = {
        "readable": ["/usr", "/no/such/folder"],
        "writable": [],
        "limits": {"file_mb": 64},
        "bubblewrap": "/bwrap",
    }
    return Plan(**values | changes)


def test_everything_is_its_own_and_read_only():
    words = bubblewrap.command(plan(), 7, ["python", "-c", "start"])
    assert words[0] == "/bwrap" and words[-4:] == ["--", "python", "-c", "start"]
    for word in (
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-net",
        "--die-with-parent",
        "--clearenv",
    ):
        assert word in words
    assert words[words.index("--info-fd") + 1] == "7"
    assert "/no/such/folder" not in words and "--bind" not in words and "/dev/zero" not in words
    assert words[words.index("--remount-ro") + 1] == "/"


def test_what_may_be_written(tmp_path):
    words = bubblewrap.command(plan(writable=[str(tmp_path)], network=True, throwaway=True), 7, ["x"])
    assert words[words.index("--bind") + 1] == str(tmp_path)
    assert "--unshare-net" not in words
    assert words[words.index("--remount-ro") + 1] == "/proc"


def test_the_process_id_of_the_init_process():
    reader, writer = os.pipe()
    os.write(writer, b'{\n    "child-pid": 4711,\n    "cgroup-namespace": 1\n}\n')
    assert bubblewrap.read_process_id(reader) == 4711
    os.close(writer)
    with pytest.raises(OSError, match="bubblewrap could not make the namespaces"):
        bubblewrap.read_process_id(reader)
    os.close(reader)


def test_ordinary_users_prefer_it(monkeypatch):
    monkeypatch.setattr(probe.shutil, "which", lambda name: "/usr/bin/bwrap")
    monkeypatch.setattr(probe.os, "geteuid", lambda: 1000)
    assert probe._program_modes() == [BUBBLEWRAP, USER]
    monkeypatch.setattr(probe.os, "geteuid", lambda: 0)
    assert probe._program_modes() == [ROOT, BUBBLEWRAP, USER]
    monkeypatch.setattr(probe.shutil, "which", lambda name: None)
    assert probe._program_modes() == [ROOT, USER]
