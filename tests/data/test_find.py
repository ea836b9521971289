import json
import sys
import types

import datasets
import pytest

from burnish.data.find import Finder
from burnish.errors import UserError
from burnish.storage import local_path

KEY = "data.train_files"


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


def find_rows(name, split="train", **options):
    return Finder(KEY, split, **options).rows(str(name))


def contents(rows):
    return [rows.row(number) for number in range(len(rows))]


def test_a_saved_dataset(tmp_path, sums):
    datasets.Dataset.from_list(sums(5)).select([4, 0]).save_to_disk(tmp_path / "saved")
    rows = find_rows(tmp_path / "saved")
    assert contents(rows) == [sums(5)[4], sums(5)[0]]
    assert rows.where(1) == f"{tmp_path / 'saved'}, row 1"


def test_the_split_of_a_saved_dataset(tmp_path, sums):
    parts = {"train": datasets.Dataset.from_list(sums(5)), "eval": datasets.Dataset.from_list(sums(2))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert len(find_rows(tmp_path / "saved")) == 5
    assert len(find_rows(tmp_path / "saved", split="eval")) == 2
    with pytest.raises(UserError, match=r"='test': no such split in .*saved\. Allowed: train, eval\.") as caught:
        find_rows(tmp_path / "saved", split="test")
    assert caught.value.hint == "data.train_split=train"


def test_the_fingerprint_of_a_saved_dataset_is_that_of_its_content(tmp_path, sums):
    for name, count in (("one", 5), ("same", 5), ("other", 4)):
        datasets.Dataset.from_list(sums(count)).save_to_disk(tmp_path / name)
    one, same, other = (find_rows(tmp_path / name).fingerprint for name in ("one", "same", "other"))
    assert one == same != other and len(one) == 12


def test_a_damaged_saved_dataset_is_named(tmp_path):
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"data\.train_files=.*cannot load the dataset"):
        find_rows(tmp_path)


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(UserError, match="folder, not a file"):
        find_rows(tmp_path)


def hub(monkeypatch, calls):
    """A hub that has one dataset."""
    dataset = datasets.Dataset.from_list([{"prompt": "1", "label": "2"}])

    def load_dataset(name, subset, split, **where):
        calls.append((name, subset, split, where))
        return dataset

    library = types.ModuleType("datasets")
    library.load_dataset = load_dataset
    library.config = types.ModuleType("datasets.config")
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setitem(sys.modules, "datasets.config", library.config)


def test_names_of_the_hub(monkeypatch):
    calls = []
    hub(monkeypatch, calls)
    assert contents(find_rows("me/sums", split="eval")) == [{"prompt": "1", "label": "2"}]
    find_rows("sums@some/folder")
    assert calls == [("me/sums", None, "eval", {}), ("sums", None, "train", {"data_dir": "some/folder"})]


def test_files_go_before_the_hub(monkeypatch, write, sums, tmp_path):
    calls = []
    hub(monkeypatch, calls)
    monkeypatch.chdir(tmp_path)
    write("rows.jsonl", sums(3))
    assert len(find_rows("rows.jsonl")) == 3
    for missing in ("other.jsonl", "./other", "~/other", "/no/other"):
        with pytest.raises(UserError, match="no such file"):
            find_rows(missing)
    assert calls == []


def test_shared_memory_has_no_say_in_the_hub(monkeypatch):
    hub(monkeypatch, [])
    with pytest.raises(UserError, match=r"data\.use_shm=True: me/sums is read from the cache of the datasets library"):
        find_rows("me/sums", use_shm=True)


def test_shared_memory_holds_files_and_folders(monkeypatch, tmp_path, write, sums):
    monkeypatch.setattr("burnish.storage.SHARED_MEMORY", tmp_path)
    datasets.Dataset.from_list(sums(5)).save_to_disk(tmp_path / "saved")
    for name in (write("rows.jsonl", sums(5)), tmp_path / "saved"):
        rows = find_rows(name, use_shm=True)
        assert contents(rows) == sums(5)
        assert rows.name == str(name)
        copy = local_path(str(name), key=KEY, use_shm=True)
        assert str(tmp_path / "burnish-cache") in copy


def test_a_remote_folder(monkeypatch, tmp_path, sums):
    import fsspec

    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    datasets.Dataset.from_list(sums(3)).save_to_disk(tmp_path / "saved")
    fsspec.filesystem("memory").put(str(tmp_path / "saved"), "/test_find", recursive=True)
    rows = find_rows("memory://test_find")
    assert contents(rows) == sums(3) and rows.where(0) == "memory://test_find, row 0"


def test_without_the_library_the_extra_is_named(monkeypatch, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({}))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[datasets\]"'):
        find_rows(tmp_path)
