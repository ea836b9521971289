"""Control groups, with a folder that stands in for the kernel's: these tests run where no group is delegated."""

import os

import pytest

from burnish.isolation import cgroup, spawn
from burnish.isolation.cgroup import Cgroup, find_parent, remove_stale

FILES = ("memory.max", "memory.oom.group", "memory.swap.max", "memory.events", "pids.max", "cgroup.procs")
LIMITS = {"memory_mb": 64, "processes": 10}


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """A folder in which new folders have the files of a control group, and can be removed with them."""
    make, remove = os.mkdir, os.rmdir

    def mkdir(name, *arguments, **options):
        make(name, *arguments, **options)
        for file in FILES:
            (tmp_path / name / file).write_text("oom 0\noom_kill 0\n" if file == "memory.events" else "")

    def rmdir(name, **options):
        for file in (tmp_path / name).iterdir():
            file.unlink()
        remove(name, **options)

    monkeypatch.setattr(cgroup.os, "mkdir", mkdir)
    monkeypatch.setattr(cgroup.os, "rmdir", rmdir)
    return tmp_path


def test_a_group_has_the_limits_and_is_removed(parent):
    group = Cgroup(str(parent), LIMITS)
    folder = parent / group.name
    written = {name: (folder / name).read_text() for name in FILES[:3]}
    assert written == {"memory.max": str(64 * 2**20), "memory.oom.group": "1", "memory.swap.max": "0"}
    assert (folder / "pids.max").read_text() == "11"  # and the init process
    group.join()
    assert (folder / "cgroup.procs").read_text() == "0"
    assert not group.ran_out_of_memory()
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.ran_out_of_memory()
    group.remove()
    assert list(parent.iterdir()) == []


def test_without_limits_none_is_written(parent):
    group = Cgroup(str(parent), {"memory_mb": None, "processes": None})
    assert (parent / group.name / "memory.max").read_text() == ""


def test_groups_of_killed_runs_are_removed(tmp_path):
    for name in (f"{cgroup.PREFIX}1-a", f"{cgroup.PREFIX}2-b", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / f"{cgroup.PREFIX}2-b" / "in use").touch()
    remove_stale(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == [f"{cgroup.PREFIX}2-b", "other"]


@pytest.fixture
def hierarchy(tmp_path, monkeypatch):
    """hierarchy(path, delegated): this process is in the group `path`; memory is delegated below `delegated`."""

    def make(path, delegated, root="/"):
        mount = tmp_path / "cgroup"
        folder = mount / os.path.relpath(path, root)
        folder.mkdir(parents=True, exist_ok=True)
        for one in [folder, *folder.parents]:
            if mount in (one, *one.parents):
                below = one == mount / delegated.lstrip("/")
                (one / "cgroup.subtree_control").write_text("cpu memory pids\n" if below else "cpu\n")
                (one / "cgroup.procs").touch()
        (tmp_path / "self").write_text(f"4:memory:/old\n0::{path}\n")
        (tmp_path / "mounts").write_text(
            f"22 1 0:21 / /proc rw - proc proc rw\n31 22 0:28 {root} {mount} rw shared:9 - cgroup2 cgroup2 rw\n"
        )
        monkeypatch.setattr(cgroup, "_SELF", str(tmp_path / "self"))
        monkeypatch.setattr(cgroup, "_MOUNTS", str(tmp_path / "mounts"))
        return mount

    return make


def test_the_nearest_delegated_group_is_used(hierarchy):
    mount = hierarchy("/user.slice/user@1000.service/app.slice/run.scope", "/user.slice/user@1000.service/app.slice")
    assert find_parent() == str(mount / "user.slice/user@1000.service/app.slice")


def test_a_container_with_its_own_root_of_groups(hierarchy):
    mount = hierarchy("/docker/abc/run", "/", root="/docker/abc")
    assert find_parent() == str(mount)


def test_without_delegation_there_is_none(hierarchy, monkeypatch):
    hierarchy("/system.slice/ssh.service", "/elsewhere")
    assert find_parent() is None
    monkeypatch.setattr(cgroup, "_SELF", "/no/such/file")
    assert find_parent() is None


def test_a_group_that_cannot_be_joined_is_not_used(parent, monkeypatch):
    monkeypatch.setattr(spawn, "find_parent", lambda: str(parent))
    assert spawn._cgroup_parent.__wrapped__() == str(parent)
    monkeypatch.setattr(spawn, "Cgroup", lambda *_: (_ for _ in ()).throw(PermissionError))
    assert spawn._cgroup_parent.__wrapped__() is None
