"""The first rows of real files of every format; synthetic rows have the columns that the config names."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.config import load
from burnish.data.files import read_file
from burnish.rehearsal.rows import HEADS, count_rows, exists
from burnish.rehearsal.synthetic import SYNTHETIC_ROWS, subject_of


def write(path, rows):
    writers = {
        ".parquet": lambda: pq.write_table(pa.Table.from_pylist(rows), path),
        ".jsonl": lambda: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
        ".json": lambda: path.write_text(json.dumps(rows)),
        ".csv": lambda: path.write_text("prompt,n\n" + "".join(f"{row['prompt']},{row['n']}\n" for row in rows)),
    }
    writers[path.suffix]()


@pytest.mark.parametrize("ending", HEADS)
@pytest.mark.parametrize("num_rows", [3, 50])
def test_the_head_of_a_file(tmp_path, ending, num_rows):
    path, out = tmp_path / f"all{ending}", tmp_path / f"some{ending}"
    write(path, [{"prompt": f"p{number}", "n": number} for number in range(num_rows)])
    written, total = HEADS[ending](path, out, 8)
    rows = read_file(str(out))
    assert len(rows) == 8 and written == min(num_rows, 8)
    assert [rows.row(number)["prompt"] for number in range(8)] == [
        f"p{number % min(num_rows, 8)}" for number in range(8)
    ]
    assert total in (str(num_rows), "many")


def test_rows_are_counted_up_to_a_limit(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [{"prompt": "p", "n": 1}] * 30)
    assert (count_rows(str(path), 100), count_rows(str(path), 10), count_rows("/no.jsonl", 10)) == (30, 10, None)


def test_a_placeholder_is_no_file(tmp_path):
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


def test_synthetic_prompts_have_the_configured_columns():
    keys = ["data.prompt_key=question", "data.reward_fn_key=origin", "data.label_key=label"]
    rows, _ = SYNTHETIC_ROWS["train"](load(keys, check=False).cfg, "gsm8k", 2)
    assert rows[1]["question"][0]["role"] == "user" and rows[1]["origin"] == "openai/gsm8k"
    assert rows[0]["label"] == rows[0]["reward_model"]["ground_truth"]


def test_synthetic_rows_of_a_handler():
    keys = ["data.handler.name=AlpacaStyleInstructionHandler", "data.handler.map_keys={prompt:problem,response:answer}"]
    rows, _ = SYNTHETIC_ROWS["train"](load(keys, check=False).cfg, "deepscaler", 1)
    assert set(rows[0]) >= {"problem", "answer"}


def test_synthetic_examples_are_nested_as_configured():
    keys = ["data.prompt_key=extra_info", "data.response_key=extra_info"]
    keys += ["data.prompt_dict_keys=[question]", "data.response_dict_keys=[answer]"]
    rows, _ = SYNTHETIC_ROWS["sft"](load(keys, job="sft", check=False).cfg, "gsm8k", 1)
    assert set(rows[0]["extra_info"]) == {"question", "answer"}
    turns, _ = SYNTHETIC_ROWS["sft"](load(["data.multiturn.enable=true"], job="sft", check=False).cfg, "chat", 1)
    assert [message["role"] for message in turns[0]["messages"]] == ["user", "assistant"]
