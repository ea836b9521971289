"""The first rows of real files, whatever their format; made rows have the columns that the config names."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.config import load
from burnish.data.files import read_file
from burnish.rehearsal.made import MADE, subject_of
from burnish.rehearsal.rows import HEADS, count_rows, exists


def write(path, rows):
    writers = {
        ".parquet": lambda: pq.write_table(pa.Table.from_pylist(rows), path),
        ".jsonl": lambda: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
        ".json": lambda: path.write_text(json.dumps(rows)),
        ".csv": lambda: path.write_text("prompt,n\n" + "".join(f"{row['prompt']},{row['n']}\n" for row in rows)),
    }
    writers[path.suffix]()


@pytest.mark.parametrize("ending", HEADS)
@pytest.mark.parametrize("there", [3, 50])
def test_the_head_of_a_file(tmp_path, ending, there):
    path, out = tmp_path / f"all{ending}", tmp_path / f"some{ending}"
    write(path, [{"prompt": f"p{number}", "n": number} for number in range(there)])
    found, total = HEADS[ending](path, out, 8)
    rows = read_file(str(out))
    assert len(rows) == 8 and found == min(there, 8)
    assert [rows.row(number)["prompt"] for number in range(8)] == [f"p{number % min(there, 8)}" for number in range(8)]
    assert total in (str(there), "many")


def test_rows_are_counted_as_far_as_it_matters(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [{"prompt": "p", "n": 1}] * 30)
    assert (count_rows(str(path), 100), count_rows(str(path), 10), count_rows("/no.jsonl", 10)) == (30, 10, None)


def test_a_place_to_fill_in_is_no_file(tmp_path):
    assert not exists("./") and not exists("/no/such/file") and exists(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("there/gsm8k/train.parquet", "openai/gsm8k"),
        ("there/math/train.parquet", "DigitalLearningGmbH/MATH-lighteval"),
        ("OpenRLHF/dapo-math-17k", "math_dapo"),
        ("there/searchR1_processed/train.parquet", "searchR1_nq"),
        ("there/geo3k/train.parquet", "hiyouga/geometry3k"),
        ("there/codecontests.jsonl", "codecontests"),
        ("there/full_hh_rlhf/rl/train.parquet", "train"),
    ],
)
def test_the_subject_of_a_dataset(name, source):
    assert subject_of(name).source == source


def test_made_prompts_have_the_columns_that_were_named():
    keys = ["data.prompt_key=question", "data.reward_fn_key=origin", "data.label_key=label"]
    rows, _ = MADE["train"](load(keys, check=False).cfg, "gsm8k", 2)
    assert rows[1]["question"][0]["role"] == "user" and rows[1]["origin"] == "openai/gsm8k"
    assert rows[0]["label"] == rows[0]["reward_model"]["ground_truth"]


def test_made_rows_of_a_handler():
    keys = ["data.handler.name=AlpacaStyleInstructionHandler", "data.handler.map_keys={prompt:problem,response:answer}"]
    rows, _ = MADE["train"](load(keys, check=False).cfg, "deepscaler", 1)
    assert set(rows[0]) >= {"problem", "answer"}


def test_made_examples_are_nested_as_they_are_read():
    keys = ["data.prompt_key=extra_info", "data.response_key=extra_info"]
    keys += ["data.prompt_dict_keys=[question]", "data.response_dict_keys=[answer]"]
    rows, _ = MADE["sft"](load(keys, job="sft", check=False).cfg, "gsm8k", 1)
    assert set(rows[0]["extra_info"]) == {"question", "answer"}
    turns, _ = MADE["sft"](load(["data.multiturn.enable=true"], job="sft", check=False).cfg, "chat", 1)
    assert [message["role"] for message in turns[0]["messages"]] == ["user", "assistant"]
