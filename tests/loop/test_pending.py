"""Batches on disk: what is read is what was written, and no object is made from what a file says."""

import json
import math

import pytest
import torch

from burnish.batch import Ragged
from burnish.errors import UserError
from burnish.loop.pending import pending_writer, read_pending
from burnish.loop.step import ScoredBatch, produce
from burnish.reward.sample import Score


def assert_same(one, other):
    assert set(one) == set(other)
    for name in one:
        column, wanted = one[name], other[name]
        assert type(column) is type(wanted), name
        if isinstance(column, Ragged):
            assert torch.equal(column.flat, wanted.flat) and torch.equal(column.lengths, wanted.lengths), name
            assert column.flat.dtype == wanted.flat.dtype
        elif isinstance(column, torch.Tensor):
            assert torch.equal(column, wanted) and column.dtype == wanted.dtype, name
        else:
            assert column == wanted, name


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("algorithm.adv_estimator=remax", "data.return_raw_chat=true", "data.return_full_prompt=true"),
        ("actor_rollout_ref.rollout.logprobs=2", "data.return_raw_input_ids=true"),
    ],
)
def test_a_gathered_batch_comes_back(make_run, tmp_path, overrides):
    run = make_run(*overrides)
    made = [produce(run.rollout, step) for step in (9, 10)]
    pending_writer(made, run.rollout.train_data)(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        *("10.json", "10.safetensors", "9.json", "9.safetensors")
    ]
    read = read_pending(tmp_path, run.rollout.train_data)
    assert [one.step for one in read] == [9, 10]
    for one, wanted in zip(read, made, strict=True):
        if "top_log_probs" in wanted.batch:  # JSON has no tuples
            pairs = [[[list(pair) for pair in top] for top in row] for row in wanted.batch["top_log_probs"]]
            assert one.batch["top_log_probs"] == pairs
            names = [name for name in wanted.batch if name != "top_log_probs"]
            assert_same(one.batch.keep(*names), wanted.batch.keep(*names))
        else:
            assert_same(one.batch, wanted.batch)
        assert (one.epoch, one.metrics, one.notes) == (wanted.epoch, wanted.metrics, wanted.notes)


def test_whole_rows_do_not_come_back(make_run, tmp_path):
    """Agents and some rewards read them while a batch is generated; a scored batch does not carry them."""
    run = make_run()
    made = produce(run.rollout, 1)
    run.rollout.train_data.with_rows = True
    pending_writer([made], run.rollout.train_data)(tmp_path)
    (read,) = read_pending(tmp_path, run.rollout.train_data)
    assert_same(read.batch, made.batch)


def test_reward_extras_and_scores_before_the_reward_model_survive(make_run, tmp_path):
    run = make_run()
    prompts = run.rollout.train_data.batch([3, 1], epoch=2)
    extras = [
        {"acc": 0.1 + 0.2, "why": "naïve \ud800", "parts": (1, None)},
        {"nan": math.inf, "t": torch.tensor([1.5])},
    ]
    batch = prompts.add(
        responses=Ragged.of([[1, 2], []], torch.int64),
        function_score=[Score(0.3, extras[0]), Score(-1e-300, {}, "it failed")],
        reward_extras=extras,
        odd=[object, {1: b"bytes"}],
    )
    notes = ["a line"]
    pending_writer([ScoredBatch(4, batch, 2, {"reward/failed": 1.0}, notes)], run.rollout.train_data)(tmp_path)
    (read,) = read_pending(tmp_path, run.rollout.train_data)
    assert read.batch["reward_extras"][0] == {"acc": 0.1 + 0.2, "why": "naïve \ud800", "parts": [1, None]}
    assert read.batch["reward_extras"][1] == {"nan": math.inf, "t": [1.5]}
    first, second = read.batch["function_score"]
    assert (first.value, second) == (0.3, Score(-1e-300, {}, "it failed"))
    assert read.batch["odd"] == ["<class 'object'>", {"1": "b'bytes'"}]
    assert read.batch["extra_info"] == prompts["extra_info"]
    assert (read.step, read.epoch, read.metrics, read.notes) == (4, 2, {"reward/failed": 1.0}, notes)


def test_what_the_data_says_is_read_from_the_data(make_run, tmp_path):
    run = make_run()
    one = produce(run.rollout, 1)
    pending_writer([one], run.rollout.train_data)(tmp_path)
    kept = json.loads((tmp_path / "1.json").read_text())["columns"]
    assert "uid" in kept and not {"ground_truth", "extra_info", "data_source"} & set(kept)


def test_other_data_is_refused(make_run, rows, tmp_path):
    run = make_run()
    one = produce(run.rollout, 1)
    pending_writer([one], run.rollout.train_data)(tmp_path)
    other = make_run(dataset=rows(9), out="other")
    with pytest.raises(UserError, match="prompts that are not in this data") as caught:
        read_pending(tmp_path, other.rollout.train_data)
    assert caught.value.key == "data.train_files"


def test_an_empty_folder_has_no_pending_batches(make_run, tmp_path):
    assert read_pending(tmp_path / "nowhere", make_run().rollout.train_data) == []
