import datasets
import fsspec
import pytest

from burnish.data.load import load_train, load_val, order_seed, select_rows, train_sampler
from burnish.errors import UserError


@pytest.mark.parametrize("limit", [None, -1, 10, 99])
def test_select_all_rows(limit):
    assert select_rows(10, limit, True, 0) == list(range(10))


def test_select_the_first_rows_or_some_by_seed():
    assert select_rows(100, 5, False, 0) == [0, 1, 2, 3, 4]
    some = select_rows(100, 20, True, 1)
    assert some == select_rows(100, 20, True, 1) == sorted(set(some))
    assert len(some) == 20
    assert some != select_rows(100, 20, True, 2)
    assert some != list(range(20))


def test_training_and_validation_have_their_own_files_and_limits(config, tokenizer, write, sums):
    cfg = config(
        train_files=[write("a.parquet", sums(4)), write("b.parquet", sums(2))],
        val_files=[write("v.jsonl", sums(5))],
        train_max_samples=3,
        val_max_samples=2,
    )
    train, val = load_train(cfg, tokenizer, run_seed=0), load_val(cfg, tokenizer, run_seed=0)
    assert (len(train), len(val)) == (3, 2)
    assert val.kept == [0, 1]
    assert train.fingerprint != val.fingerprint
    assert train.kept == select_rows(6, 3, True, 0)


def test_rows_of_the_python_api_go_before_files(config, tokenizer, sums):
    dataset = load_train(config(train_files=["nowhere.parquet"]), tokenizer, run_seed=0, rows=sums(3))
    assert dataset.batch([1], 0)["ground_truth"] == ["2"]


def test_data_seed_goes_before_the_seed_of_the_run(config):
    assert order_seed(config(seed=None), 7) == 7
    assert order_seed(config(seed=0), 7) == 0


def test_errors_name_the_right_key(config, tokenizer):
    with pytest.raises(UserError, match=r"data\.val_files"):
        load_val(config(val_files=["nowhere.parquet"]), tokenizer, run_seed=0)


def test_no_samples_are_an_error(config, tokenizer, sums):
    with pytest.raises(UserError, match="no rows selected"):
        load_train(config(train_max_samples=0), tokenizer, run_seed=0, rows=sums(3))


def test_the_sampler_follows_the_config(config):
    ten = range(10)
    shuffled = train_sampler(config(train_batch_size=4, seed=3), ten, run_seed=0)
    assert shuffled.next()[0] == train_sampler(config(train_batch_size=4, seed=3), ten, run_seed=9).next()[0]
    assert train_sampler(config(train_batch_size=4, shuffle=False), ten, run_seed=0).next() == ([0, 1, 2, 3], 0)


def test_a_dataset_without_data_sources_is_one(config, tokenizer, write, sums):
    bare = [{name: value for name, value in row.items() if name != "data_source"} for row in sums(2)]
    data = load_train(config(train_files=[write("my.sums.jsonl", bare)]), tokenizer, run_seed=0)
    assert data.data_sources() == {"my.sums"} and data.batch([0], 0)["data_source"] == ["my.sums"]


def test_a_column_of_data_sources_that_was_asked_for_must_be_there(config, tokenizer, write, sums):
    with pytest.raises(UserError, match=r"data\.reward_fn_key='kind': no such column in"):
        load_train(config(train_files=[write("a.jsonl", sums(2))], reward_fn_key="kind"), tokenizer, run_seed=0)


def test_files_of_two_kinds_are_joined(config, tokenizer, write, sums):
    cfg = config(train_files=[write("a.parquet", sums(2)), write("b.jsonl", sums(3))], shuffle=False)
    data = load_train(cfg, tokenizer, run_seed=0)
    assert data.batch(range(5), 0)["ground_truth"] == ["0", "2", "0", "2", "4"]


def test_files_of_different_columns_are_named(config, tokenizer, write, sums):
    files = [write("a.jsonl", sums(2)), write("b.jsonl", [{"prompt": "1", "answer": "1"}])]
    with pytest.raises(UserError, match=r"a\.jsonl and .*b\.jsonl do not have the same columns.*b\.jsonl: answer"):
        load_train(config(train_files=files), tokenizer, run_seed=0)


def test_each_set_has_its_split(config, tokenizer, sums, tmp_path):
    datasets.disable_progress_bars()
    splits = {"train": sums(4), "test": sums(2), "dev": sums(3)}
    saved = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})
    saved.save_to_disk(tmp_path / "saved")
    names = [str(tmp_path / "saved")]
    cfg = config(train_files=names, val_files=names)
    assert len(load_train(cfg, tokenizer, run_seed=0)) == 4
    assert len(load_val(cfg, tokenizer, run_seed=0)) == 2
    assert len(load_val(config(val_files=names, val_split="dev"), tokenizer, run_seed=0)) == 3


def test_a_class_gets_local_files(config, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    fsspec.filesystem("memory").pipe_file("/test_load/rows.txt", b"1+1=\n2+2=\n")
    (tmp_path / "mine.py").write_text(
        "class Lines:\n"
        "    def __init__(self, data_files, tokenizer, config, processor):\n"
        "        self.lines = open(data_files[0]).read().splitlines()\n"
        "    def __len__(self):\n"
        "        return len(self.lines)\n"
        "    def __getitem__(self, number):\n"
        "        return {'prompt': self.lines[number], 'data_source': 'sums'}\n"
    )
    cfg = config(train_files=["memory://test_load/rows.txt"])
    cfg.custom_cls.path, cfg.custom_cls.name = str(tmp_path / "mine.py"), "Lines"
    assert [row["prompt"] for row in load_train(cfg, tokenizer, run_seed=0)] == ["1+1=", "2+2="]
