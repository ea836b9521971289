import json

import pytest

from burnish.data.source import raw_rows
from burnish.errors import UserError


def rows_of(source):
    rows = raw_rows(str(source), subset=None, split="train")
    return [rows.row(number) for number in range(len(rows))]


def test_a_file(write):
    assert rows_of(write("raw.jsonl", [{"a": 1}, {"a": 2}])) == [{"a": 1}, {"a": 2}]


def test_a_folder_of_objects_in_the_order_of_their_numbers(tmp_path):
    for topic, number in [("algebra", 10), ("algebra", 9), ("number_theory", 1)]:
        (tmp_path / topic).mkdir(exist_ok=True)
        (tmp_path / topic / f"{number}.json").write_text(json.dumps({"problem": f"{topic} {number}"}))
    assert [row["problem"] for row in rows_of(tmp_path)] == ["algebra 9", "algebra 10", "number_theory 1"]


def test_a_folder_never_mixes_training_and_test_rows(tmp_path, write):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match=r"several datasets; choose one.*Allowed: test, train"):
        rows_of(tmp_path)
    write("train.jsonl", [{"a": 1}])
    with pytest.raises(UserError, match=r"Allowed: train\.jsonl"):
        rows_of(tmp_path)


def test_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match=r"no \.json files"):
        rows_of(tmp_path)


@pytest.mark.parametrize("source", ["nowhere.jsonl", "./nowhere", "/no/such/folder"])
def test_a_missing_file_is_not_looked_for_on_the_hub(source):
    with pytest.raises(UserError, match="no such file"):
        rows_of(source)
