import fsspec
import pytest

from burnish.training.checkpoint import Checkpoints
from burnish.training.mirror import Mirror


@pytest.fixture(params=["memory", "local"])
def url(request, tmp_path):
    """A place elsewhere: in memory, or a local folder."""
    if request.param == "local":
        return str(tmp_path / "elsewhere")
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    return "memory://test_mirror/run"


@pytest.fixture
def save(tmp_path):
    """save(step, folder="run"): a checkpoint, and the checkpoints of its folder."""

    def make(step, folder="run"):
        checkpoints = Checkpoints(tmp_path / folder)
        checkpoints.save(step, {"actor": lambda role: (role / "weights").write_text(f"w{step}")}, {"step": step})
        return checkpoints

    return make


def put_fails(monkeypatch, url, when):
    """Copies fail while `when` holds something."""
    kind = type(fsspec.core.url_to_fs(url)[0])
    put_file = kind.put_file

    def put(self, *arguments, **more):
        if when:
            raise OSError("no route")
        return put_file(self, *arguments, **more)

    monkeypatch.setattr(kind, "put_file", put)


def test_a_new_machine_resumes_from_the_newest_copy(save, url, tmp_path):
    for step in (1, 2):
        checkpoints = save(step)
        assert Mirror(url).upload(checkpoints, step) is None
    elsewhere = Checkpoints(tmp_path / "new machine")
    folder, damaged = Mirror(url).fetch_latest(elsewhere)
    assert folder == elsewhere.path(2) and damaged == []
    assert (folder / "actor" / "weights").read_text() == "w2"
    assert elsewhere.latest_good() == (folder, [])
    assert Mirror(url).holds(folder)


def test_nothing_there_is_a_new_start(url, tmp_path):
    assert Mirror(url).fetch_latest(Checkpoints(tmp_path / "run")) == (None, [])


def test_a_failed_copy_is_reported_and_retried(save, url, monkeypatch):
    broken = [True]
    put_fails(monkeypatch, url, broken)
    mirror = Mirror(url)
    told = mirror.upload(save(1), 1)
    assert "step 1 was not uploaded, and will be retried with the next one: trainer.default_hdfs_dir=" in told
    assert "OSError: no route" in told
    broken.clear()
    assert mirror.upload(save(2), 2) is None
    assert mirror._steps() == [1, 2]


def test_another_process_makes_up_for_it_too(save, url, monkeypatch):
    broken = [True]
    put_fails(monkeypatch, url, broken)
    assert Mirror(url).upload(save(1), 1) is not None
    broken.clear()
    assert Mirror(url).upload(save(2), 2) is None
    assert Mirror(url)._steps() == [1, 2]


def test_a_copy_without_its_manifest_does_not_count(save, url, tmp_path):
    for step in (1, 2):
        Mirror(url).upload(save(step), step)
    filesystem, root = fsspec.core.url_to_fs(url)
    filesystem.rm(f"{root}/global_step_2/manifest.json")
    folder, _ = Mirror(url).fetch_latest(Checkpoints(tmp_path / "new"))
    assert folder.name == "global_step_1"


def test_a_damaged_copy_is_named_and_the_one_before_it_taken(save, url, tmp_path):
    for step in (1, 2):
        Mirror(url).upload(save(step), step)
    filesystem, root = fsspec.core.url_to_fs(url)
    filesystem.pipe_file(f"{root}/global_step_2/actor/weights", b"rot")
    folder, damaged = Mirror(url).fetch_latest(Checkpoints(tmp_path / "new"))
    assert folder.name == "global_step_1"
    assert len(damaged) == 1 and "global_step_2 is damaged (actor/weights has changed)" in damaged[0]
    assert not (tmp_path / "new" / "global_step_2").exists()


def test_later_copies_of_an_earlier_run_do_not_count(save, url, tmp_path):
    for step in (1, 9):
        Mirror(url).upload(save(step), step)
    Mirror(url).upload(save(2, "anew"), 2)
    assert Mirror(url).fetch_latest(Checkpoints(tmp_path / "new"))[0].name == "global_step_2"


def test_what_was_copied_is_not_copied_again(save, url, monkeypatch):
    """Forgetting the critic's part changes a local manifest; the copy keeps it."""
    mirror = Mirror(url)
    mirror.upload(save(1), 1)
    checkpoints = save(2)
    (checkpoints.path(1) / "manifest.json").write_text('{"files": {}}')
    mirror.upload(checkpoints, 2)
    Mirror(url).upload(save(3), 3)
    assert not mirror.holds(checkpoints.path(1))
    assert mirror.remote.read("global_step_1/actor/weights") == b"w1"


def test_the_best_one_is_named_there_too(save, url, tmp_path):
    checkpoints = save(1)
    checkpoints.save(2, {}, {"step": 2}, best=1)
    mirror = Mirror(url)
    assert mirror.upload(checkpoints, 2) is None
    assert mirror.remote.read("best_checkpointed_iteration.txt") == b"1"
