import pytest

from burnish.data.load import load_train, load_val, order_seed, pick, train_sampler
from burnish.errors import UserError


@pytest.mark.parametrize("limit", [None, -1, 10, 99])
def test_pick_all(limit):
    assert pick(10, limit, True, 0) == list(range(10))


def test_pick_the_first_or_some_by_seed():
    assert pick(100, 5, False, 0) == [0, 1, 2, 3, 4]
    some = pick(100, 20, True, 1)
    assert some == pick(100, 20, True, 1) == sorted(set(some))
    assert len(some) == 20
    assert some != pick(100, 20, True, 2)
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
    assert train.kept == pick(6, 3, True, 0)


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
    with pytest.raises(UserError, match="no rows are left to use"):
        load_train(config(train_max_samples=0), tokenizer, run_seed=0, rows=sums(3))


def test_the_sampler_follows_the_config(config):
    shuffled = train_sampler(config(train_batch_size=4, seed=3), 10, run_seed=0)
    assert shuffled.next()[0] == train_sampler(config(train_batch_size=4, seed=3), 10, run_seed=9).next()[0]
    assert train_sampler(config(train_batch_size=4, shuffle=False), 10, run_seed=0).next() == ([0, 1, 2, 3], 0)
