import pytest

from burnish.data.check import check_rows
from burnish.data.encode import PromptEncoder
from burnish.data.files import ListRows


def text_of(report):
    return "\n".join(report.lines())


def test_a_good_file_has_no_errors(sums):
    report = check_rows(ListRows(sums(5)))
    assert not report.errors and not report.warnings
    text = text_of(report)
    assert "dataset: 5 rows" in text
    assert "prompt (list)" in text
    assert "data sources: sums (5)" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt": None}, "the prompt must be a list of messages or a string, not NoneType: 1 rows (2)"),
        ({"prompt": []}, "the prompt has no messages: 1 rows (2)"),
        ({"prompt": [{"role": "user", "content": " "}]}, "the prompt is empty: 1 rows (2)"),
        ({"prompt": [{"role": "human", "content": "x"}]}, "unknown role 'human'"),
        ({"prompt": [{"from": "human"}]}, "message 0 of the prompt must be an object with 'role' and 'content'"),
        ({"data_source": None}, "'data_source' must be a name, not nothing: 1 rows (2)"),
        ({"data_source": 3}, "'data_source' must be a name, not number"),
        ({"reward_model": {"style": "rule"}}, "reward_model.ground_truth is missing: 1 rows (2)"),
        ({"reward_model": "5"}, "'reward_model' must be an object, not text"),
        ({"extra_info": [1]}, "'extra_info' must be an object, not list"),
    ],
)
def test_errors_name_their_rows(change, problem, sums):
    rows = sums(4)
    rows[2].update(change)
    report = check_rows(ListRows(rows))
    assert f"error: {problem}" in text_of(report)
    assert len(report.errors) == 1


def test_missing_columns(sums):
    rows = [{"question": row["prompt"]} for row in sums(2)]
    report = check_rows(ListRows(rows))
    assert list(report.errors) == ["no column 'prompt'", "no column 'data_source'"]
    assert any("reward_model" in problem for problem in report.warnings)


def test_warnings_are_not_errors(sums):
    rows = sums(3) + sums(2)
    rows[1]["prompt"].append({"role": "assistant", "content": "hm"})
    report = check_rows(ListRows(rows))
    assert not report.errors
    assert "warning: duplicate prompt: 1 rows (3)" in text_of(report)
    assert "warning: the prompt ends with an assistant turn: 1 rows (1)" in text_of(report)


def test_many_rows_are_counted_and_a_few_shown(sums):
    rows = [{**row, "data_source": ""} for row in sums(20)]
    assert "20 rows (0, 1, 2, 3, 4, ...)" in text_of(check_rows(ListRows(rows)))


def test_lengths_with_a_tokenizer(sums, tokenizer):
    encoder = PromptEncoder(tokenizer, {})
    rows = sums(9) + sums(1, text="x" * 40)
    rows[3]["prompt"] = [{"role": "user", "content": "a"}, {"role": "narrator", "content": "b"}]
    report = check_rows(ListRows(rows), encoder=encoder, max_prompt_length=30)
    short = len(encoder.ids(check_prompt("0+0=")))
    assert f"prompt tokens: shortest {short}, median {short}" in text_of(report)
    assert f"longest {short + 36}" in text_of(report)
    assert "error: the prompt has more than 30 tokens: 1 rows (9)" in text_of(report)
    assert any("the chat template failed: " in problem and "no narrators" in problem for problem in report.errors)


def check_prompt(text):
    from burnish.data.prompt import read_prompt

    return read_prompt({"prompt": text}, "prompt", "here")
