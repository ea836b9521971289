"""Copies of what lies elsewhere, on fsspec's file system in memory and on the local one."""

import errno
import os
import shutil
import sys
import threading
from pathlib import Path

import fsspec
import pytest

import burnish.storage
from burnish.errors import UserError
from burnish.storage import (
    RemoteFolder,
    check_exists,
    content_hash,
    disk_full,
    has_weights,
    is_remote,
    local_path,
    model_folder,
    similar_path,
)

KEY = "data.train_files"


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """An empty file system behind memory://, and a cache folder of this test."""
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def shm(tmp_path, monkeypatch):
    monkeypatch.setattr(burnish.storage, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


def downloads(filesystem, monkeypatch):
    """The paths fetched from now on."""
    fetched, get_file = [], type(filesystem).get_file

    def counted(self, source, target, **more):
        fetched.append(source)
        return get_file(self, source, target, **more)

    monkeypatch.setattr(type(filesystem), "get_file", counted)
    return fetched


def test_what_counts_as_remote():
    assert is_remote("s3://bucket/a.parquet") and is_remote("hdfs://host:9000/a") and is_remote("memory://a")
    for here in ("a.parquet", "/rows/a.parquet", "Qwen/Qwen2.5-0.5B", "file:///a", "pkg://a.b", "C:a"):
        assert not is_remote(here)


def test_local_paths_stay_as_they_are(tmp_path):
    assert local_path("~/a.parquet", key=KEY) == "~/a.parquet"
    assert local_path(f"file://{tmp_path}/a", key=KEY) == f"{tmp_path}/a"


def test_a_file_is_fetched_once(memory, monkeypatch):
    memory.pipe_file("/bucket/rows.jsonl", b"one")
    fetched = downloads(memory, monkeypatch)
    first, second = local_path("memory://bucket/rows.jsonl", key=KEY), local_path("memory://bucket/rows.jsonl", key=KEY)
    assert first == second and Path(first).read_bytes() == b"one" and Path(first).name == "rows.jsonl"
    assert len(fetched) == 1


def test_a_changed_file_is_fetched_again_even_if_its_size_is_the_same(memory):
    memory.pipe_file("/bucket/rows.jsonl", b"one")
    old = local_path("memory://bucket/rows.jsonl", key=KEY)
    memory.pipe_file("/bucket/rows.jsonl", b"two")
    new = local_path("memory://bucket/rows.jsonl", key=KEY)
    assert Path(new).read_bytes() == b"two"
    assert not Path(old).exists()


def test_a_copy_that_lost_bytes_is_fetched_again(memory):
    memory.pipe_file("/bucket/rows.jsonl", b"whole")
    copy = Path(local_path("memory://bucket/rows.jsonl", key=KEY))
    copy.write_bytes(b"wh")
    assert Path(local_path("memory://bucket/rows.jsonl", key=KEY)).read_bytes() == b"whole"


def test_a_folder_comes_with_all_below_it(memory):
    for name in ("config.json", "model.safetensors", "onnx/model.onnx"):
        memory.pipe_file(f"/models/tiny/{name}", name.encode())
    folder = Path(local_path("memory://models/tiny/", key="actor_rollout_ref.model.path"))
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == {name: name for name in ("config.json", "model.safetensors", "onnx/model.onnx")}
    assert folder.name == "tiny"


def test_a_broken_download_is_never_used(memory, monkeypatch, tmp_path):
    memory.pipe_file("/m/a", b"aaaa")
    memory.pipe_file("/m/b", b"bbbb")
    get_file = type(memory).get_file

    def broken(self, source, target, **more):
        get_file(self, source, target, **more)
        if source.endswith("b"):
            raise ConnectionError("the line is dead")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "get_file", broken)
        with pytest.raises(UserError, match=r"model\.path='memory://m'.*ConnectionError: the line is dead"):
            local_path("memory://m", key="model.path")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert sorted(path.name for path in Path(local_path("memory://m", key="model.path")).iterdir()) == ["a", "b"]


def test_an_incomplete_download_is_an_error(memory, monkeypatch):
    memory.pipe_file("/a", b"aaaa")
    monkeypatch.setattr(type(memory), "get_file", lambda self, source, target, **more: Path(target).write_bytes(b"aa"))
    with pytest.raises(UserError, match="has 2 of 4 bytes"):
        local_path("memory://a", key=KEY)


def test_two_at_once_fetch_once(memory, monkeypatch):
    memory.pipe_file("/rows", b"x" * 1000)
    fetched = downloads(memory, monkeypatch)
    found = []
    threads = [threading.Thread(target=lambda: found.append(local_path("memory://rows", key=KEY))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 4 and len(fetched) == 1


def test_what_is_not_there_is_named(memory):
    with pytest.raises(UserError, match=r"data\.train_files='memory://no/where': no such file"):
        local_path("memory://no/where", key=KEY)


def test_an_unknown_scheme_is_named(memory):
    with pytest.raises(UserError, match=r"data\.train_files='nope://a'.*nope"):
        local_path("nope://a", key=KEY)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[remote\]"'):
        local_path("memory://a", key=KEY)


def test_shared_memory_holds_a_copy_until_the_file_changes(shm, tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text("one")
    copy = Path(local_path(str(source), key=KEY, use_shm=True))
    assert copy.read_text() == "one" and shm in copy.parents and copy.name == "rows.jsonl"
    made = copy.stat().st_ino
    assert Path(local_path(str(source), key=KEY, use_shm=True)).stat().st_ino == made
    source.write_text("two")  # of the same size
    os.utime(source, ns=(1, 1))
    assert Path(local_path(str(source), key=KEY, use_shm=True)).read_text() == "two"


def test_shared_memory_holds_folders(shm, tmp_path):
    (tmp_path / "model" / "inner").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "inner" / "a").write_text("a")
    copy = Path(local_path(str(tmp_path / "model"), key="critic.model.path", use_shm=True))
    assert (copy / "inner" / "a").read_text() == "a" and (copy / "config.json").read_text() == "{}"


def test_too_little_shared_memory_is_an_error(shm, tmp_path, monkeypatch):
    (tmp_path / "rows").write_text("12345")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 6, 4))
    with pytest.raises(UserError, match=r"data\.use_shm=True.*GB left\. Type: data\.use_shm=false"):
        local_path(str(tmp_path / "rows"), key=KEY, use_shm=True)
    assert [path for path in shm.rglob("rows")] == []


def test_no_shared_memory_is_an_error(shm, tmp_path):
    (tmp_path / "rows").write_text("12345")
    shm.rmdir()
    with pytest.raises(UserError, match=r"data\.use_shm=True: this machine has no .*shm"):
        local_path(str(tmp_path / "rows"), key=KEY, use_shm=True)


def test_a_remote_file_goes_to_shared_memory_too(memory, shm):
    memory.pipe_file("/rows.jsonl", b"one")
    copy = Path(local_path("memory://rows.jsonl", key=KEY, use_shm=True))
    assert copy.read_bytes() == b"one" and shm in copy.parents


@pytest.mark.parametrize("url", ["memory://ckpt", "local"])
def test_a_remote_stores_and_returns_folders(memory, tmp_path, url, monkeypatch):
    place = RemoteFolder(str(tmp_path / "there") if url == "local" else url, "trainer.default_hdfs_dir")
    assert place.names() == [] and place.read("latest.txt") is None
    folder = tmp_path / "global_step_1"
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "weights").write_text("w")
    (folder / "a_manifest.json").write_text("m")
    put = []
    put_file = type(memory).put_file
    monkeypatch.setattr(type(memory), "put_file", lambda self, a, b, **k: (put.append(b), put_file(self, a, b, **k)))
    place.put(folder, last="a_manifest.json")
    place.put(folder, last="a_manifest.json")
    place.write("latest.txt", b"1")
    assert place.names() == ["global_step_1", "latest.txt"] and place.read("latest.txt") == b"1"
    assert [name.rpartition("/")[2] for name in put] in ([], ["weights", "a_manifest.json"] * 2)
    place.fetch("global_step_1", tmp_path / "back")
    assert (tmp_path / "back" / "actor" / "weights").read_text() == "w"
    assert (tmp_path / "back" / "a_manifest.json").read_text() == "m"


# Model paths


def hugging_face(folder, weights=True):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if weights:
        (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("name", ["/nowhere/model", "./modle", "~/nowhere", "../modle", "a/b/c", "models/qwen"])
def test_a_mistyped_path_is_refused_without_asking_a_hub(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(UserError, match="no such folder") as caught:
        check_exists(name, key="model.path")
    assert caught.value.key == "model.path" and caught.value.value == name


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen2.5-0.5B", "s3://bucket/a/b", "hf://a/b/c"])
def test_a_hub_name_or_a_remote_path_is_none(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert check_exists(name, key="model.path") is None


def test_a_similar_path_is_suggested(tmp_path):
    hugging_face(tmp_path / "models" / "tiny")
    assert similar_path(tmp_path / "modles" / "tiny") == tmp_path / "models" / "tiny"
    assert similar_path(tmp_path / "models" / "tinny") == tmp_path / "models" / "tiny"
    assert similar_path(tmp_path / "xyz") is None
    with pytest.raises(UserError, match=f"did you mean {tmp_path}/models/tiny") as caught:
        check_exists(str(tmp_path / "models" / "tiny2"), key="model.path")
    assert caught.value.hint == f"model.path={tmp_path}/models/tiny"


def test_the_model_of_a_run_folder(tmp_path):
    run = tmp_path / "run"
    steps = [hugging_face(run / f"global_step_{step}" / "actor" / "huggingface", weights=False) for step in (9, 10)]
    assert model_folder(run) == steps[1] and not has_weights(steps[1])
    assert model_folder(run / "global_step_9") == model_folder(run / "global_step_9" / "actor") == steps[0]
    (run / "latest_checkpointed_iteration.txt").write_text("9")
    assert model_folder(run) == steps[0], "a new start in an old folder"
    final = hugging_face(run / "model")
    assert model_folder(run) == steps[0], "the model is of an earlier run, for this one is not finished"
    (run / "finished.json").write_text("{}")
    assert model_folder(run) == final and has_weights(final)
    assert model_folder(final) is None and model_folder(tmp_path) is None and model_folder(tmp_path / "none") is None


def test_a_copy_has_the_same_hash_and_a_change_another(tmp_path):
    one = hugging_face(tmp_path / "one")
    (one / "large").write_bytes(bytes(5 << 20))
    shutil.copytree(one, tmp_path / "two")
    assert content_hash(one) == content_hash(tmp_path / "two")
    (tmp_path / "two" / "large").write_bytes(bytes((5 << 20) - 1) + b"1")
    assert content_hash(one) != content_hash(tmp_path / "two")
    (one / "config.json").write_text("[]")
    assert len({content_hash(one), content_hash(tmp_path / "two"), content_hash(one / "config.json")}) == 3


def test_a_full_disk_is_recognized_by_number_text_and_cause():
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = UserError("cannot save")
    wrapped.__cause__ = full
    for error in (full, OSError(errno.EDQUOT, "x"), RuntimeError("write: No space left on device"), wrapped):
        assert disk_full(error) == "disk full: "
    assert disk_full(OSError(errno.EACCES, "Permission denied")) == ""
    assert disk_full(RuntimeError(f"disk full: {full}")) == "", "it is said once"
