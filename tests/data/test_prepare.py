import dataclasses
import io
import json

import PIL.Image
import pytest

from burnish.data.files import ListRows, read_file
from burnish.data.prepare import PREPARERS, BadRow, boxed_answer, gsm8k_answer, prepare
from burnish.errors import UserError


def recipe(name, **changes):
    return dataclasses.replace(PREPARERS[name].metadata["recipe"], **changes)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("She has 2 + 3 = <<2+3=5>>5.\n#### 5", "5"),
        ("#### 1,234,000", "1234000"),
        ("#### -7", "-7"),
        ("#### $12.50.", "12.50"),
        ("#### 1\nno, wait\n####  2", "2"),
    ],
)
def test_gsm8k_answers(answer, number):
    assert gsm8k_answer(answer) == number


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $x = \boxed{5}$.", "5"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{ {1, 2} \right\}} done", r"\left\{ {1, 2} \right\}"),
        (r"we get \boxed 3$.", "3"),
        (r"\fbox{7}", "7"),
        (r"\boxed{}", ""),
    ],
)
def test_boxed_answers(solution, answer):
    assert boxed_answer(solution) == answer


@pytest.mark.parametrize("solution", ["no box", r"\boxed{1", r"\boxed "])
def test_solutions_without_an_answer(solution):
    with pytest.raises(BadRow):
        boxed_answer(solution)


def test_gsm8k_rows_have_the_schema():
    raw = ListRows([{"question": "2 apples and 3?", "answer": "2+3=5\n#### 5"}])
    [row] = prepare("gsm8k", raw, recipe("gsm8k", split="test")).rows
    assert row["data_source"] == "openai/gsm8k"
    assert row["reward_model"] == {"style": "rule", "ground_truth": "5"}
    assert row["ability"] == "math"
    assert row["extra_info"] == {"split": "test", "index": 0, "question": "2 apples and 3?", "answer": "2+3=5\n#### 5"}
    [message] = row["prompt"]
    assert message["role"] == "user"
    assert message["content"].startswith("2 apples and 3?\n\n")
    assert "####" in message["content"]


def test_math_rows_have_the_schema():
    raw = ListRows([{"problem": "What is 1/2?", "solution": r"It is $\boxed{\frac12}$.", "level": "Level 1"}])
    [row] = prepare("math", raw, recipe("math")).rows
    assert row["data_source"] == "lighteval/MATH"
    assert row["reward_model"]["ground_truth"] == r"\frac12"
    assert r"\boxed{}" in row["prompt"][0]["content"]


def test_generic_rows():
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    raw = ListRows([{"q": "hi", "a": 1}, {"q": chat, "a": {"any": "thing"}}])
    options = recipe(
        "jsonl", prompt_key="q", answer_key="a", data_source="mine", instruction="Be brief.", system="You are kind."
    )
    first, second = prepare("jsonl", raw, options).rows
    assert first["prompt"] == [
        {"role": "system", "content": "You are kind."},
        {"role": "user", "content": "hi\n\nBe brief."},
    ]
    assert [message["content"] for message in second["prompt"]] == ["You are kind.", "a", "b", "c\n\nBe brief."]
    assert second["reward_model"]["ground_truth"] == {"any": "thing"}
    assert chat[-1]["content"] == "c"


def test_rows_without_answers():
    [row] = prepare("jsonl", ListRows([{"prompt": "hi"}]), recipe("jsonl", answer_key=None, data_source="mine")).rows
    assert "reward_model" not in row


def test_bad_rows_are_listed_with_why():
    raw = ListRows(
        [{"question": "a", "answer": "#### 1"}, {"question": "", "answer": "#### 2"}, {"question": "b", "answer": "3"}]
    )
    prepared = prepare("gsm8k", raw, recipe("gsm8k"))
    assert len(prepared.rows) == 1
    assert prepared.bad == [(1, "'question' is empty"), (2, "the answer has no '#### number'")]


def test_missing_columns_and_names():
    with pytest.raises(UserError, match=r"no column 'question'.*Allowed: problem"):
        prepare("gsm8k", ListRows([{"problem": "a"}]), recipe("gsm8k"))
    with pytest.raises(UserError, match="--data-source"):
        prepare("jsonl", ListRows([{"prompt": "a", "answer": "b"}]), recipe("jsonl"))
    with pytest.raises(UserError, match="Did you mean 'gsm8k'"):
        prepare("gsm8", ListRows([{"prompt": "a"}]), recipe("gsm8k"))


def figure(**more):
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (9, 7), "blue").save(buffer, "PNG")
    return {"problem": "<image>Find x.", "images": [{"bytes": buffer.getvalue(), "path": None}], "answer": " 5 "} | more


def test_geo3k_rows_have_their_figures(tmp_path):
    (tmp_path / "figure.png").write_bytes(figure()["images"][0]["bytes"])
    path = tmp_path / "raw.jsonl"
    path.write_text(json.dumps(figure(images=["figure.png"])) + "\n")
    for raw in (ListRows([figure()]), read_file(str(path)), ListRows([figure(images=[PIL.Image.new("RGB", (9, 7))])])):
        prepared = prepare("geo3k", raw, recipe("geo3k"))
        assert prepared.bad == []
        (row,) = prepared.rows
        assert row["data_source"] == "hiyouga/geometry3k" and row["reward_model"]["ground_truth"] == "5"
        content = row["prompt"][0]["content"]
        assert content.startswith("<image>Find x.") and "<think>" in content and "\\boxed{}" in content
        (image,) = row["images"]
        assert PIL.Image.open(io.BytesIO(image["bytes"])).size == (9, 7)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"images": []}, "1 <image> in the question, but 0 images"),
        ({"images": [{"bytes": b"x", "path": None}]}, "image 0: not an image"),
        ({"answer": " "}, "the answer is empty"),
        ({"problem": ""}, "'problem' is empty"),
    ],
)
def test_geo3k_rows_that_cannot_be_used(change, why):
    prepared = prepare("geo3k", ListRows([figure(), figure(**change)]), recipe("geo3k"))
    assert len(prepared.rows) == 1
    assert prepared.bad[0][0] == 1 and why in prepared.bad[0][1]
