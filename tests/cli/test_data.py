import argparse
import contextlib
import json
import subprocess
import sys

import PIL.Image
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from burnish.cli.data import add_parser, run
from burnish.data.files import read_file
from burnish.demo.tiny_vision import make_vision_model
from burnish.errors import UserError


def burnish_data(*words):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["data", *map(str, words)])
    assert args.run is run
    return run(args)


@pytest.fixture
def lines(tmp_path):
    def write(name, rows):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


GSM8K = [{"question": f"{n}+1?", "answer": f"It is\n#### {n + 1}"} for n in range(3)]


@pytest.fixture
def activities(monkeypatch):
    """What was shown as under way, on standard error."""
    shown = []

    def activity(text, *, console):
        assert console.stderr
        shown.append(text)
        return contextlib.nullcontext()

    monkeypatch.setattr("burnish.log.console.activity", activity)
    return shown


def test_gsm8k_then_check(lines, tmp_path, capsys, activities):
    out, raw = tmp_path / "made" / "train.parquet", lines("raw.jsonl", GSM8K)
    assert burnish_data("gsm8k", raw, out) == 0
    printed = capsys.readouterr()
    assert printed.out == f"wrote 3 rows to {out}\n"
    rows = read_file(str(out))
    assert [rows.row(n)["reward_model"]["ground_truth"] for n in range(3)] == ["1", "2", "3"]
    assert burnish_data("check", out) == 0
    printed = capsys.readouterr()
    assert "3 rows" in printed.out.splitlines()[0]
    assert activities == [f"reading {raw}", "converting 3 rows", f"reading {out}", "checking 3 rows"]


def test_math_from_a_folder(tmp_path):
    for number in (1, 2):
        problem = {"problem": f"p{number}", "solution": rf"\boxed{{{number}}}", "type": "Algebra"}
        (tmp_path / f"{number}.json").write_text(json.dumps(problem))
    out = tmp_path / "out.parquet"
    assert burnish_data("math", tmp_path, out, "--split", "test") == 0
    row = read_file(str(out)).row(1)
    assert row["data_source"] == "lighteval/MATH"
    assert row["reward_model"]["ground_truth"] == "2"
    assert row["extra_info"]["split"] == "test"


def test_jsonl_with_its_options(lines, tmp_path):
    raw = lines("raw.jsonl", [{"q": "hi", "a": "ho"}])
    words = ["--prompt-key", "q", "--answer-key", "a", "--data-source", "mine", "--instruction", "Go.", "--system", "S"]
    burnish_data("jsonl", raw, tmp_path / "out.parquet", *words)
    row = read_file(str(tmp_path / "out.parquet")).row(0)
    assert [message["content"] for message in row["prompt"]] == ["S", "hi\n\nGo."]
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("mine", "ho")


def test_jsonl_without_answers(lines, tmp_path, capsys):
    raw, out = lines("raw.jsonl", [{"prompt": "hi"}]), tmp_path / "out.parquet"
    burnish_data("jsonl", raw, out, "--no-answer", "--data-source", "mine")
    assert "reward_model" not in read_file(str(out)).row(0)
    assert burnish_data("check", out) == 0
    assert "warning: no column 'reward_model'" in capsys.readouterr().out


def test_bad_rows_stop_unless_skipped(lines, tmp_path, capsys):
    raw, out = lines("raw.jsonl", [*GSM8K, {"question": "x", "answer": "none"}]), tmp_path / "out.parquet"
    with pytest.raises(UserError, match=r"1 of 4 rows are not usable \(first: row 3.*--skip-bad"):
        burnish_data("gsm8k", raw, out)
    assert not out.exists()
    assert burnish_data("gsm8k", raw, out, "--skip-bad") == 0
    assert "wrote 3 rows" in (printed := capsys.readouterr().out) and "skipped 1" in printed
    with pytest.raises(UserError, match="1 of 1 rows are not usable"):
        burnish_data("gsm8k", lines("bad.jsonl", [{"question": "x", "answer": "none"}]), out, "--skip-bad")


def test_check_of_an_invalid_file(lines, capsys):
    bad = lines("bad.jsonl", [{"prompt": "a", "data_source": "s", "reward_model": {"ground_truth": None}}])
    assert burnish_data("check", bad) == 1
    assert "error: reward_model.ground_truth is missing" in capsys.readouterr().out


def test_check_of_an_unreadable_file(tmp_path, capsys):
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    assert burnish_data("check", tmp_path / "bad.parquet") == 1
    assert "not a readable parquet file" in capsys.readouterr().out
    assert burnish_data("check", tmp_path / "missing.parquet") == 1
    assert "no such file" in capsys.readouterr().out


def test_check_with_other_column_names(lines):
    file = lines("a.jsonl", [{"chat": "a", "task": "s", "reward_model": {"ground_truth": 1}}])
    assert burnish_data("check", file) == 1
    assert burnish_data("check", file, "--prompt-key", "chat", "--reward-fn-key", "task") == 0


def test_check_with_tokenizer(lines, tokenizer_folder, capsys):
    file = lines(
        "a.jsonl", [{"prompt": "x" * n, "data_source": "s", "reward_model": {"ground_truth": 1}} for n in (3, 9)]
    )
    assert burnish_data("check", file, "--tokenizer", tokenizer_folder) == 0
    assert "prompt tokens: shortest 4, median 10" in capsys.readouterr().out
    assert burnish_data("check", file, "--tokenizer", tokenizer_folder, "--max-prompt-length", 9) == 1
    assert "more than 9 tokens: 1 rows (1)" in capsys.readouterr().out


def test_check_of_lengths_requires_a_tokenizer(lines, tmp_path):
    file = lines("a.jsonl", [{"prompt": "x"}])
    with pytest.raises(UserError, match="--tokenizer PATH"):
        burnish_data("check", file, "--max-prompt-length", 9)
    with pytest.raises(UserError, match="cannot load the tokenizer"):
        burnish_data("check", file, "--tokenizer", tmp_path)


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    make_vision_model(folder, "qwen2_5_vl", hidden=32, layers=1)
    return folder


def test_shapes_then_check(tmp_path, capsys, vision_folder, tokenizer_folder, activities):
    out = tmp_path / "shapes.parquet"
    assert burnish_data("vision-shapes", out, "--task", "color", "--size", 6, "--seed", 3, "--image-size", 56) == 0
    rows = read_file(str(out))
    assert len(rows) == 6 and rows.row(5)["data_source"] == "burnish/shapes"
    again = tmp_path / "again.parquet"
    burnish_data("vision-shapes", again, "--task", "color", "--size", 6, "--seed", 3, "--image-size", 56)
    assert read_file(str(again)).fingerprint == rows.fingerprint
    capsys.readouterr()
    assert burnish_data("check", out, "--tokenizer", vision_folder, "--max-prompt-length", 100) == 0
    shown = capsys.readouterr().out
    assert "images: 6; pixels: smallest 56x56" in shown and "prompt tokens: shortest" in shown
    assert burnish_data("check", out, "--tokenizer", vision_folder, "--max-prompt-length", 5) == 1
    assert "the prompt has more than 5 tokens: 6 rows" in capsys.readouterr().out


def test_geo3k_with_another_column(lines, tmp_path, capsys):
    picture = tmp_path / "figure.png"
    PIL.Image.new("RGB", (30, 20)).save(picture)
    raw = lines("raw.jsonl", [{"problem": "<image>x?", "figures": ["figure.png"], "answer": "5"}])
    out = tmp_path / "geo.parquet"
    assert burnish_data("geo3k", raw, out, "--image-key", "figures") == 0
    capsys.readouterr()
    assert burnish_data("check", out) == 0
    assert "images: 1; pixels: smallest 30x20" in capsys.readouterr().out
    with pytest.raises(UserError, match="1 of 1 rows are not usable"):
        burnish_data("geo3k", lines("none.jsonl", [{"problem": "x?", "images": ["a.png"], "answer": "5"}]), out)


def test_parser_imports_neither_torch_nor_arrow():
    code = "import sys, burnish.cli.data; print({'torch', 'pyarrow', 'transformers'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
