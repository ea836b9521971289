import errno
import hashlib
import json

import pytest

from burnish.errors import UserError
from burnish.training.checkpoint import Checkpoints, damage, read_manifest, read_trainer


def writer(text):
    """A role that writes two files, one in a folder of its own."""

    def write(folder):
        (folder / "weights.bin").write_text(text)
        (folder / "huggingface").mkdir()
        (folder / "huggingface" / "config.json").write_text("{}")

    return write


def full_disk(folder):
    (folder / "weights.bin").write_text("half of it")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run")


@pytest.fixture
def save(checkpoints):
    """save(step, ...): checkpoints of an actor and a critic."""

    def run(*steps):
        for step in steps:
            roles = {"actor": writer(f"actor {step}"), "critic": writer(f"critic {step}")}
            checkpoints.save(step, roles, {"step": step, "seed": 7})

    return run


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_checkpoint_holds_every_role_the_trainer_and_a_manifest(checkpoints, save):
    save(3)
    folder = checkpoints.path(3)
    parts = [f"{role}/{name}" for role in ("actor", "critic") for name in ("huggingface/config.json", "weights.bin")]
    assert names(folder) == sorted([*parts, "manifest.json", "trainer.json"])
    assert read_trainer(folder) == {"step": 3, "seed": 7}
    assert damage(folder) is None


def test_the_manifest_has_size_and_hash_of_every_file(checkpoints, save):
    save(3)
    folder = checkpoints.path(3)
    manifest = read_manifest(folder)
    assert sorted([*manifest, "manifest.json"]) == names(folder)
    for name, fact in manifest.items():
        content = (folder / name).read_bytes()
        assert fact == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_the_tracker_names_the_newest(checkpoints, save):
    save(3, 10)
    assert (checkpoints.folder / "latest_checkpointed_iteration.txt").read_text() == "10"
    assert checkpoints.steps() == [3, 10]
    assert checkpoints.latest_good() == (checkpoints.path(10), [])


def test_without_a_tracker_the_newest_folder_counts(checkpoints, save):
    save(3, 10)
    (checkpoints.folder / "latest_checkpointed_iteration.txt").unlink()
    assert checkpoints.latest_good() == (checkpoints.path(10), [])


def test_no_folder_is_no_checkpoint(checkpoints):
    assert checkpoints.steps() == []
    assert checkpoints.latest_good() == (None, [])


def test_other_things_in_the_folder_are_no_checkpoints(checkpoints, save):
    save(3)
    for name in ("global_step_best", "global_step_", "rollouts"):
        (checkpoints.folder / name).mkdir()
    (checkpoints.folder / "global_step_9").write_text("a file")
    assert checkpoints.steps() == [3]


def change_a_byte(folder):
    (folder / "actor" / "weights.bin").write_text("actor X")


def cut_off(folder):
    (folder / "critic" / "weights.bin").write_text("")


def lose_a_file(folder):
    (folder / "actor" / "huggingface" / "config.json").unlink()


def lose_the_manifest(folder):
    (folder / "manifest.json").unlink()


def break_the_manifest(folder):
    (folder / "manifest.json").write_text('{"files": {')


def replace_the_manifest(folder):
    (folder / "manifest.json").write_text("[]")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (change_a_byte, "actor/weights.bin has changed"),
        (cut_off, "critic/weights.bin has changed"),
        (lose_a_file, "actor/huggingface/config.json is missing"),
        (lose_the_manifest, "no manifest.json"),
        (break_the_manifest, "manifest.json cannot be read"),
        (replace_the_manifest, "manifest.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(checkpoints, save, harm, said):
    save(1, 2, 3)
    harm(checkpoints.path(3))
    found, told = checkpoints.latest_good()
    assert found == checkpoints.path(2)
    assert len(told) == 1 and said in told[0] and str(checkpoints.path(3)) in told[0]


def test_all_damaged_ones_are_named(checkpoints, save):
    save(1, 2)
    for step in (1, 2):
        change_a_byte(checkpoints.path(step))
    found, told = checkpoints.latest_good()
    assert found is None
    assert [str(checkpoints.path(step)) in line for step, line in zip((2, 1), told, strict=True)] == [True, True]


def test_a_killed_save_is_ignored_and_cleaned_by_the_next(checkpoints, save):
    save(2)
    partial = checkpoints.folder / ".global_step_3.partial"
    (partial / "actor").mkdir(parents=True)
    (partial / "actor" / "weights.bin").write_text("half")
    assert checkpoints.steps() == [2]
    assert checkpoints.latest_good() == (checkpoints.path(2), [])
    save(4)
    assert not partial.exists()
    assert checkpoints.steps() == [2, 4]


def test_a_full_disk_keeps_the_old_checkpoint_and_names_it(checkpoints, save):
    save(2)
    with pytest.raises(UserError) as caught:
        checkpoints.save(4, {"actor": writer("actor 4"), "critic": full_disk}, {"step": 4})
    assert caught.value.key == "trainer.default_local_dir"
    assert str(checkpoints.path(2)) in caught.value.text()
    assert "No space left on device" in caught.value.text()
    assert checkpoints.steps() == [2] and damage(checkpoints.path(2)) is None
    assert (checkpoints.folder / "latest_checkpointed_iteration.txt").read_text() == "2"
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "global_step_2",
        "latest_checkpointed_iteration.txt",
    ]


def test_a_full_disk_at_the_first_save_says_that_there_is_none(checkpoints):
    with pytest.raises(UserError, match="there is no earlier checkpoint"):
        checkpoints.save(1, {"actor": full_disk}, {"step": 1})


def test_saving_a_step_again_replaces_it(checkpoints, save):
    save(2)
    checkpoints.save(2, {"actor": writer("again")}, {"step": 2})
    assert (checkpoints.path(2) / "actor" / "weights.bin").read_text() == "again"
    assert not (checkpoints.path(2) / "critic").exists()
    assert damage(checkpoints.path(2)) is None


def test_old_checkpoints_are_forgotten(checkpoints, save):
    save(1, 2, 3, 4)
    checkpoints.keep(actor=2, critic=None)
    assert checkpoints.steps() == [3, 4]
    checkpoints.keep(actor=None, critic=None)
    assert checkpoints.steps() == [3, 4]


def test_the_critics_part_may_be_forgotten_earlier(checkpoints, save):
    save(1, 2, 3, 4)
    checkpoints.keep(actor=3, critic=1)
    assert [(checkpoints.path(step) / "critic").exists() for step in (2, 3, 4)] == [False, False, True]
    assert [damage(checkpoints.path(step)) for step in checkpoints.steps()] == [None, None, None]
    checkpoints.keep(actor=3, critic=1)
    assert not any(name.startswith("critic") for name in read_manifest(checkpoints.path(2)))


def test_checkpoints_of_an_earlier_run_are_neither_taken_up_nor_in_the_way(checkpoints, save):
    """A run that starts anew in an old folder saves lower steps than those that lie there."""
    save(8, 10)
    save(2)
    assert checkpoints.latest_good() == (checkpoints.path(2), [])
    checkpoints.keep(actor=1, critic=1)
    assert checkpoints.steps() == [2, 8, 10]
    save(4)
    checkpoints.keep(actor=1, critic=1)
    assert checkpoints.steps() == [4, 8, 10]


def test_trainer_state_is_plain_json(checkpoints, save):
    save(5)
    assert json.loads((checkpoints.path(5) / "trainer.json").read_text())["step"] == 5


def test_the_best_one_is_kept_whole_beyond_the_last_ones(checkpoints, save):
    save(1, 2)
    checkpoints.save(3, {"actor": writer("3"), "critic": writer("3")}, {"step": 3}, best=1)
    assert checkpoints.best() == 1
    checkpoints.keep(actor=1, critic=1)
    assert checkpoints.steps() == [1, 3] and (checkpoints.path(1) / "critic").is_dir()
    save(4)
    assert checkpoints.best() is None, "a save without a best one forgets it"
    checkpoints.keep(actor=1, critic=1)
    assert checkpoints.steps() == [4]


def test_a_best_one_that_is_not_there_replaces_no_other(checkpoints, save):
    save(1)
    checkpoints.mark_best(1)
    checkpoints.mark_best(2)
    assert checkpoints.best() == 1
    (checkpoints.folder / "best_checkpointed_iteration.txt").write_text("nonsense")
    assert checkpoints.best() is None
