import json
from pathlib import Path

import fsspec
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.data.files import ListRows, Rows, parquet_path, read_file, read_files, write_parquet, write_with_column
from burnish.errors import UserError


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.json"])
def test_every_format_gives_the_rows_back(name, write, sums):
    rows = read_files([write(name, sums(10))])
    assert isinstance(rows, Rows)
    assert [rows.row(i) for i in range(len(rows))] == sums(10)
    assert rows.kinds == {
        "data_source": "text",
        "prompt": "list",
        "ability": "text",
        "reward_model": "object",
        "extra_info": "object",
    }
    assert rows.where(3).endswith(f"{name}, row 3")


def test_json_may_be_lines_or_one_object(tmp_path, sums):
    lines = tmp_path / "lines.json"
    lines.write_text("\n".join(json.dumps(row) for row in sums(3)) + "\n\n")
    assert len(read_file(str(lines))) == 3
    one = tmp_path / "one.json"
    one.write_text(json.dumps(sums(1)[0], indent=2))
    assert read_file(str(one)).row(0) == sums(1)[0]


def test_json_lines_keep_values_of_different_types(tmp_path):
    file = tmp_path / "mixed.jsonl"
    file.write_text('{"a": 1}\n{"a": "two", "b": {"c": []}}\n')
    rows = read_file(str(file))
    assert [rows.row(0), rows.row(1)] == [{"a": 1}, {"a": "two", "b": {"c": []}}]
    assert list(rows.kinds) == ["a", "b"]


def test_files_are_joined_in_order(write, sums):
    files = [write("a.parquet", sums(5)), write("b.jsonl", sums(2)), write("c.parquet", sums(3))]
    rows = read_files(files)
    assert len(rows) == 10
    assert [rows.row(i)["extra_info"]["index"] for i in range(10)] == [100, 101, 102, 103, 104, 100, 101, 100, 101, 102]
    assert rows.where(5) == f"{files[1]}, row 0"
    assert rows.where(9) == f"{files[2]}, row 2"


def test_files_may_differ_inside_an_object(write, sums):
    other = [{**row, "extra_info": {"index": 7, "level": "hard"}} for row in sums(2)]
    rows = read_files([write("a.parquet", sums(1)), write("b.parquet", other)])
    assert rows.row(1)["extra_info"] == {"index": 7, "level": "hard"}


def test_home_is_expanded(write, sums, tmp_path, monkeypatch):
    write("a.parquet", sums(2))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(read_files(["~/a.parquet"])) == 2


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_fingerprint_is_of_the_content(name, write, sums):
    first = read_file(write(name, sums(4))).fingerprint
    assert read_file(write(f"copy_{name}", sums(4))).fingerprint == first
    assert read_file(write(f"other_{name}", sums(4, text="x"))).fingerprint != first


def test_fingerprint_of_joined_files_depends_on_their_order(write, sums):
    a, b = write("a.parquet", sums(2)), write("b.parquet", sums(3))
    assert read_files([a, b]).fingerprint != read_files([b, a]).fingerprint


def test_the_fingerprint_of_a_list_is_the_same_in_every_process():
    rows = [{"a": {"y": 1, "x": b"bytes"}, "b": {"k": [1.5, None]}}]
    assert ListRows(rows).fingerprint == "a1b44b3b3770"


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"data\.val_files='.*nowhere\.parquet': no such file"):
        read_files([str(tmp_path / "nowhere.parquet")], key="data.val_files")


def test_no_files():
    with pytest.raises(UserError, match=r"no data files.*data\.train_files="):
        read_files([])


def test_folder(tmp_path):
    with pytest.raises(UserError, match="folder, not a file"):
        read_files([str(tmp_path)])


def test_a_remote_file_is_read_and_named_as_it_was_typed(write, sums, tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    fsspec.filesystem("memory").put_file(write("rows.parquet", sums(3)), "/test_files/rows.parquet")
    rows = read_files(["memory://test_files/rows.parquet"])
    assert [rows.row(number) for number in range(3)] == sums(3)
    assert rows.where(2) == "memory://test_files/rows.parquet, row 2"
    assert read_files([f"file://{write('rows.parquet', sums(3))}"]).fingerprint == rows.fingerprint


def test_unknown_ending(tmp_path):
    (tmp_path / "rows.xlsx").write_text("a,b\n")
    with pytest.raises(UserError, match=r"cannot read \.xlsx.*Allowed: \.parquet, \.arrow, \.jsonl, \.json, \.csv"):
        read_files([str(tmp_path / "rows.xlsx")])


@pytest.mark.parametrize("kind", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_files_of_both_kinds(kind, sums, tmp_path):
    table = pa.Table.from_pylist(sums(5))
    with kind(str(tmp_path / "rows.arrow"), table.schema) as out:
        out.write_table(table)
    rows = read_files([str(tmp_path / "rows.arrow")])
    assert [rows.row(number) for number in range(len(rows))] == sums(5)


def test_unreadable_arrow_is_named(tmp_path):
    (tmp_path / "bad.arrow").write_bytes(b"no arrow at all, but some bytes")
    with pytest.raises(UserError, match=r"bad\.arrow': not a readable arrow file"):
        read_files([str(tmp_path / "bad.arrow")])


def test_csv_values_stay_text(tmp_path):
    (tmp_path / "rows.csv").write_text('question,answer\n"1,\n2?",007\n3?,\n', encoding="utf-8-sig")
    rows = read_files([str(tmp_path / "rows.csv")])
    assert rows.row(0) == {"question": "1,\n2?", "answer": "007"}
    assert rows.row(1) == {"question": "3?", "answer": ""}
    assert rows.kinds == {"question": "text", "answer": "text"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,b\n1,2\n1,2,3\n", "row 1 has more values"),
        ("a,b\n1\n", "row 0 has fewer values"),
        ("a,b\n", "the file has no rows"),
        ('a\n"1', "not a readable CSV file"),
    ],
)
def test_bad_csv(content, problem, tmp_path):
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(UserError, match=rf"bad\.csv': {problem}"):
        read_files([str(tmp_path / "bad.csv")])


@pytest.mark.parametrize("content", [b"", b"not parquet at all", b"PAR1" + b"\0" * 40 + b"PAR1"])
def test_unreadable_parquet_is_named(content, tmp_path):
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.parquet': not a readable parquet file: \w+"):
        read_files([str(tmp_path / "bad.parquet")])


def test_truncated_parquet_is_named(write, sums, tmp_path):
    whole = Path(write("whole.parquet", sums(9))).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.parquet"):
        read_files([str(tmp_path / "cut.parquet")])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"a": 1}\n{"a": \n', "line 2: not valid JSON"),
        ('{"a": 1}\n[1]\n', "line 2 is a list, not an object"),
        ("\n\n", "no rows"),
        ("", "no rows"),
    ],
)
def test_bad_json_lines(content, problem, tmp_path):
    (tmp_path / "bad.jsonl").write_text(content)
    with pytest.raises(UserError, match=problem):
        read_files([str(tmp_path / "bad.jsonl")])


@pytest.mark.parametrize(
    ("content", "problem"), [("[]", "no rows"), ("[1]", "row 0 is a int"), ("3", "row 0 is a int")]
)
def test_bad_json(content, problem, tmp_path):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match=problem):
        read_files([str(tmp_path / "bad.json")])


def test_parquet_without_rows(tmp_path):
    pa.parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    with pytest.raises(UserError, match=r"empty\.parquet': the file has no rows"):
        read_files([str(tmp_path / "empty.parquet")])


def test_different_columns_are_named(write, sums):
    other = [{"prompt": "x", "data_source": "y", "label": 1}]
    with pytest.raises(
        UserError, match=r"only in .*a\.parquet: ability, extra_info, reward_model; only in .*b\.parquet: label"
    ):
        read_files([write("a.parquet", sums(1)), write("b.parquet", other)])


def test_different_types_are_named(write):
    files = [write("a.parquet", [{"prompt": "x"}]), write("b.parquet", [{"prompt": ["x"]}])]
    with pytest.raises(UserError, match="'prompt' holds text in one and list in the other"):
        read_files(files)


def test_a_column_of_nothing_fits_any(write):
    assert len(read_files([write("a.parquet", [{"a": None}]), write("b.parquet", [{"a": "x"}])])) == 2


def test_list_rows_must_be_dicts():
    with pytest.raises(UserError, match="must be dicts, row 0 is str"):
        ListRows(["a", "b"])
    with pytest.raises(UserError, match="no rows"):
        ListRows([])


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"train": [{"prompt": "a"}]}, r"not dict\. Type: dataset=dataset\['train'\]"),
        (pandas.DataFrame({"prompt": ["a"]}), r"not DataFrame\. Type: dataset=dataset\.to_dict\("),
        (iter([{"prompt": "a"}]), r"not list_iterator\. Type: dataset=list\(dataset\)"),
        ("rows.parquet", r"not str\. Type: data\.train_files=rows\.parquet"),
    ],
)
def test_what_is_no_list_of_rows_is_refused(rows, problem):
    with pytest.raises(UserError, match=problem):
        ListRows(rows)


def test_write_parquet_makes_folders_and_leaves_nothing_beside(tmp_path, sums):
    write_parquet(sums(3), tmp_path / "deep" / "out.parquet")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["out.parquet"]
    assert read_file(str(tmp_path / "deep" / "out.parquet")).row(2) == sums(3)[2]


def test_write_parquet_refuses_other_endings_and_mixed_types(tmp_path):
    with pytest.raises(UserError, match=r"must be a parquet file.*out\.parquet"):
        write_parquet([{"a": 1}], tmp_path / "out.csv")
    with pytest.raises(UserError, match=r"Type: data\.output_path=out\.parquet"):
        parquet_path("out.jsonl", "data.output_path")
    with pytest.raises(UserError, match="do not fit one parquet schema"):
        write_parquet([{"a": 1}, {"a": {"b": 2}}], tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_column_more_keeps_the_types_of_an_arrow_table(tmp_path):
    table = pa.table({"small": pa.array([1, 2], pa.int8()), "text": ["a", "b"]})
    pq.write_table(table, tmp_path / "in.parquet")
    rows = read_file(str(tmp_path / "in.parquet"))
    write_with_column(rows, "responses", [["x"], []], tmp_path / "out.parquet", "data.output_path")
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.select(["small", "text"]).equals(table) and written.column("responses").to_pylist() == [["x"], []]


def test_a_column_more_of_other_rows(tmp_path):
    rows = ListRows([{"a": 1, "b": {"c": "d"}}, {"a": None, "b": {"c": "e"}}])
    write_with_column(rows, "responses", [["x"], ["y"]], tmp_path / "out.parquet", "data.output_path")
    written = read_file(str(tmp_path / "out.parquet"))
    assert written.row(1) == {"a": None, "b": {"c": "e"}, "responses": ["y"]}
    with pytest.raises(UserError, match="must be a parquet file") as caught:
        write_with_column(rows, "responses", [["x"], ["y"]], tmp_path / "out.csv", "data.output_path")
    assert caught.value.key == "data.output_path"
