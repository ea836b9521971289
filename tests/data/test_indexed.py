from pathlib import Path

import fsspec
import numpy as np
import pytest

from burnish.data.find import Finder
from burnish.data.indexed import IndexedColumn, IndexedRows
from burnish.data.load import load_train
from burnish.errors import UserError

from .packed import write_field

KEY = "data.train_files"
TOKENS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16])
@pytest.mark.parametrize("per_row", [1, 2])
def test_every_type_of_numbers_comes_back(tmp_path, kind, per_row):
    write_field(tmp_path / "rl", "input_ids", TOKENS, kind, per_row)
    column = IndexedColumn.open(str(tmp_path / "rl"), "input_ids", key=KEY)
    assert [column.row(number) for number in range(len(column))] == TOKENS


def test_rows_are_prompts_answers_and_further_fields(tmp_path, tokenizer):
    prefix = str(tmp_path / "rl")
    write_field(prefix, "input_ids", TOKENS)
    write_field(prefix, "attention_mask", [[0, 1, 1, 1], [1, 1], [1, 1, 0]], np.int8)
    answers = [tokenizer("42")["input_ids"], [-100, *tokenizer("7 ")["input_ids"]], [1]]
    write_field(prefix, "labels", answers)
    write_field(prefix, "level", [[3], [1], [2]])
    rows = IndexedRows(prefix, ["labels", "level"], tokenizer, key=KEY)
    assert [rows.row(number)["prompt_ids"] for number in range(3)] == [[6, 7, 8], [9, 10], [11, 12]]
    assert [rows.row(number)["reward_model"]["ground_truth"] for number in range(3)] == ["42", "7", ""]
    assert rows.row(1)["extra_info"] == {"level": [1]}
    assert rows.where(1) == f"{prefix}, row 1"


def test_a_prefix_is_a_dataset(tmp_path, tokenizer, config):
    prefix = str(tmp_path / "rl")
    write_field(prefix, "input_ids", TOKENS)
    write_field(prefix, "labels", [tokenizer(text)["input_ids"] for text in "123"])
    cfg = config(train_files=[prefix], additional_keys=["labels"], shuffle=False)
    batch = load_train(cfg, tokenizer, run_seed=0).batch([0, 2], 0)
    assert batch["prompt_ids"].lists() == [TOKENS[0], TOKENS[2]]
    assert batch["ground_truth"] == ["1", "3"]
    assert batch["data_source"] == ["rl", "rl"]


def test_the_numbers_stay_on_the_disk(tmp_path):
    write_field(tmp_path / "rl", "input_ids", TOKENS)
    assert isinstance(IndexedColumn.open(str(tmp_path / "rl"), "input_ids", key=KEY).numbers, np.memmap)


def test_a_folder_may_have_the_name_of_a_prefix(tmp_path, tokenizer):
    (tmp_path / "data").mkdir()
    write_field(tmp_path / "data", "input_ids", TOKENS)
    assert len(Finder(KEY, "train", tokenizer=tokenizer).rows(str(tmp_path / "data"))) == 3


def test_a_remote_prefix(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    index = Path(write_field(tmp_path / "rl", "input_ids", TOKENS))
    for file in (index, index.with_suffix(".bin")):
        fsspec.filesystem("memory").put_file(str(file), f"/test_indexed/{file.name}")
    rows = Finder(KEY, "train", tokenizer=tokenizer).rows("memory://test_indexed/rl")
    assert rows.row(1)["prompt_ids"] == TOKENS[1]


def test_the_fingerprint_is_of_the_content(tmp_path, tokenizer):
    for name, tokens in (("a", TOKENS), ("b", TOKENS), ("c", TOKENS[::-1])):
        write_field(tmp_path / name, "input_ids", tokens)
    a, b, c = (IndexedRows(str(tmp_path / name), [], tokenizer, key=KEY).fingerprint for name in "abc")
    assert a == b != c


def test_bad_files_are_named(tmp_path, tokenizer):
    prefix = str(tmp_path / "rl")

    def refused(problem, keys=()):
        with pytest.raises(UserError, match=problem):
            IndexedRows(prefix, keys, tokenizer, key=KEY)

    index = Path(write_field(prefix, "input_ids", TOKENS))
    refused(r"data\.train_files='.*rl': no such file: .*rl_packed_labels_document\.idx", ["labels"])
    write_field(prefix, "labels", [[1]])
    refused("different numbers of rows: input_ids 3, labels 1", ["labels"])
    whole = index.read_bytes()
    index.write_bytes(whole[:-4])
    refused(r"rl_packed_input_ids_document\.idx is truncated")
    index.write_bytes(b"x" + whole[1:])
    refused("is not a Megatron index of version 1")
    index.write_bytes(whole[:10])
    refused("is not a Megatron index of version 1")
    write_field(prefix, "input_ids", TOKENS, np.float32)
    refused("holds float32, not tokens")
    write_field(prefix, "input_ids", TOKENS)
    index.with_suffix(".bin").write_bytes(b"1234")
    refused(r"rl_packed_input_ids_document\.bin has 4 of 36 bytes")
    write_field(prefix, "input_ids", [])
    refused("no rows")


def test_a_mask_of_another_length_names_the_row(tmp_path, tokenizer):
    write_field(tmp_path / "rl", "input_ids", TOKENS)
    write_field(tmp_path / "rl", "attention_mask", [[1] * 4, [1], [1] * 3])
    with pytest.raises(UserError, match="rl, row 1: 2 tokens and a mask of 1"):
        IndexedRows(str(tmp_path / "rl"), [], tokenizer, key=KEY).row(1)
