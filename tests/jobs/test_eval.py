"""burnish eval: scoring files of responses, and invalid files."""

import json

import pyarrow.parquet as pq
import pytest

from burnish.data.files import write_parquet
from burnish.errors import UserError
from burnish.jobs.eval.run import evaluate

INLINE = "reward.num_workers=0"


def row(number, *responses, source="openai/gsm8k", **more):
    return {
        "prompt": [{"role": "user", "content": f"{number}+{number}"}],
        "data_source": source,
        "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
        "responses": list(responses),
        **more,
    }


ROWS = [
    row(1, "#### 2", "#### 3"),
    row(2, "#### 4", "#### 4"),
    row(3, r"\boxed{6}", r"\boxed{7}", source="lighteval/MATH"),
]


@pytest.fixture
def jsonl(tmp_path):
    """jsonl(rows, name): a file of these rows."""

    def write(rows, name="rows.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write


def test_built_in_rules_score_each_data_source(jsonl):
    report = evaluate([f"data.path={jsonl(ROWS)}", INLINE])
    assert list(report.sources) == ["openai/gsm8k", "lighteval/MATH"]
    gsm8k = report.sources["openai/gsm8k"]
    assert (gsm8k.rows, gsm8k.responses, gsm8k.score) == (2, 4, 0.75)
    assert gsm8k.pass_at == {1: 0.75, 2: 1.0}
    assert report.overall.score == pytest.approx((0.5 + 1.0 + 0.5) / 3)
    assert report.as_dict()["metrics"] == {"test_score/openai/gsm8k": 0.75, "test_score/lighteval/MATH": 0.5}
    assert [one.scores for one in report.scored] == [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]


def test_parquet_and_several_files(jsonl, tmp_path):
    write_parquet(ROWS[:2], tmp_path / "one.parquet")
    write_parquet(ROWS[2:], tmp_path / "two.parquet")
    both = evaluate([f"data.path={tmp_path / 'one.parquet'},{tmp_path / 'two.parquet'}", INLINE])
    whole = evaluate([f"data.path={jsonl(ROWS)}", INLINE])
    assert both.sources == whole.sources


def test_a_custom_function(jsonl, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def graded(data_source, solution_str, ground_truth, extra_info, bonus):\n"
        "    right = solution_str.endswith(ground_truth)\n"
        "    return {'score': right + bonus, 'acc': right, 'pred': solution_str[-1], 'row': extra_info['index']}\n"
    )
    custom = [f"custom_reward_function.path={tmp_path / 'mine.py'}", "custom_reward_function.name=graded"]
    rows = [row(2, "4", "4", "5", source="anything"), row(3, "6", "1", "1", source="anything")]
    report = evaluate([f"data.path={jsonl(rows)}", *custom, "custom_reward_function.reward_kwargs.bonus=10", INLINE])
    summary = report.sources["anything"]
    assert (summary.score, summary.acc) == (10.5, 0.5)
    assert summary.pass_at[3] == 1.0
    assert summary.maj_at[3] == 0.5, "the majority answer is 4 (correct) in one row and 1 (wrong) in the other"
    assert [extras["row"] for extras in report.scored[1].extras] == [1, 1, 1]


def test_a_hostile_function_fails_its_samples_only(jsonl, tmp_path):
    (tmp_path / "hostile.py").write_text(
        "import os\n"
        "def compute_score(solution_str):\n"
        "    if solution_str == 'raise': raise ValueError('no idea')\n"
        "    if solution_str == 'die': os._exit(3)\n"
        "    while solution_str == 'hang': pass\n"
        "    return 1.0\n"
    )
    rows = [row(1, "raise", "fine", "die"), row(2, "fine", "hang", "fine")]
    custom = f"custom_reward_function.path={tmp_path / 'hostile.py'}"
    limits = ["reward.num_workers=1", "reward.timeout=1", "reward.fallback_score=-1"]
    report = evaluate([f"data.path={jsonl(rows)}", custom, *limits])
    assert [one.scores for one in report.scored] == [[-1.0, 1.0, -1.0], [1.0, -1.0, 1.0]]
    assert report.overall.failed == 3
    assert sum(problem.count for problem in report.problems) == 3
    assert report.failed_sources == []


def test_on_error_stop(jsonl, tmp_path):
    (tmp_path / "broken.py").write_text("def compute_score(solution_str):\n    raise ValueError('no idea')\n")
    custom = [f"custom_reward_function.path={tmp_path / 'broken.py'}", INLINE]
    assert evaluate([f"data.path={jsonl(ROWS)}", *custom]).failed_sources == ["openai/gsm8k", "lighteval/MATH"]
    with pytest.raises(UserError, match="no idea"):
        evaluate([f"data.path={jsonl(ROWS)}", *custom, "reward.on_error=stop"])


def test_rows_and_a_function_from_python():
    report = evaluate([INLINE], rows=ROWS, reward=lambda solution_str: len(solution_str))
    assert report.overall.best_at[2] == pytest.approx((6 + 6 + 9) / 3)


def test_one_string_is_one_response(jsonl):
    rows = [{**row(1), "responses": "#### 2"}, {**row(2), "responses": "#### 5"}]
    summary = evaluate([f"data.path={jsonl(rows)}", INLINE]).overall
    assert (summary.responses, summary.score, summary.best_at) == (2, 0.5, {})


def test_columns_of_other_names(jsonl):
    rows = [{"answers": ["#### 2"], "set": "openai/gsm8k", "truth": "2"}]
    keys = ["data.response_key=answers", "data.data_source_key=set", "data.reward_model_key=truth"]
    assert evaluate([f"data.path={jsonl(rows)}", *keys, INLINE]).sources["openai/gsm8k"].score == 1.0


def test_a_reward_that_needs_no_ground_truth(jsonl):
    rows = [{"responses": ["abc"], "data_source": "any"}]
    settings = [f"data.path={jsonl(rows)}", "data.reward_model_key=null", INLINE]
    assert evaluate(settings, reward=lambda solution_str, ground_truth: ground_truth is None).overall.score == 1.0


def test_a_remote_reward_reads_the_prompt(jsonl, tmp_path):
    (tmp_path / "remote.py").write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    rows = zip(queries, prompts, labels)\n"
        "    return [float(q == p + '#### 2' and p == '1+1' and label == '2') for q, p, label in rows]\n"
    )
    rows = [{**row(1, "#### 2", "#### 3"), "question": "9+9"}]
    settings = [f"data.path={jsonl(rows)}", f"reward.remote_url={tmp_path / 'remote.py'}", INLINE]
    assert evaluate(settings).scored[0].scores == [1.0, 0.0]
    assert evaluate([*settings, "data.prompt_key=question"]).scored[0].scores == [0.0, 0.0]
    with pytest.raises(UserError, match="no such column") as caught:
        evaluate([*settings, "data.prompt_key=task"])
    assert caught.value.key == "data.prompt_key"


# output


@pytest.mark.parametrize("source", ["jsonl", "parquet"])
def test_scored_rows_are_written_as_parquet(jsonl, tmp_path, source):
    write_parquet(ROWS, tmp_path / "rows.parquet")
    path = {"jsonl": jsonl(ROWS), "parquet": str(tmp_path / "rows.parquet")}[source]
    out = tmp_path / "new" / "scored.parquet"
    evaluate([f"data.path={path}", f"data.output_path={out}", INLINE], reward=lambda: {"score": 1, "why": "so"})
    written = pq.read_table(out).to_pylist()
    assert [one["responses"] for one in written] == [one["responses"] for one in ROWS]
    assert written[0]["scores"] == [1.0, 1.0]
    assert json.loads(written[0]["reward_extras"][1]) == {"why": "so"}
    assert written[0]["reward_problems"] == ["", ""]


def test_scored_rows_are_written_as_json_lines(jsonl, tmp_path):
    out = tmp_path / "scored.jsonl"
    evaluate([f"data.path={jsonl(ROWS)}", f"data.output_path={out}", INLINE])
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["scores"] for one in written] == [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]
    assert written[0]["reward_problems"] == [None, None]
    assert written[2]["data_source"] == "lighteval/MATH"


def test_an_invalid_output_is_refused_before_scoring(jsonl, tmp_path):
    def never():
        raise AssertionError("nothing is scored")

    with pytest.raises(UserError, match=r"cannot write \.txt") as caught:
        evaluate([f"data.path={jsonl(ROWS)}", "data.output_path=scored.txt", INLINE], reward=never)
    assert caught.value.hint == "data.output_path=scored.parquet"
    twice = jsonl([{**one, "scores": [1]} for one in ROWS])
    with pytest.raises(UserError, match="already has a column 'scores'"):
        evaluate([f"data.path={twice}", f"data.output_path={tmp_path / 'o.parquet'}", INLINE], reward=never)


# what can be wrong


def test_a_missing_column_is_named_with_the_existing_ones(jsonl):
    rows = [{"response": ["a"], "data_source": "x", "reward_model": {}}]
    with pytest.raises(UserError, match="Did you mean 'response'") as caught:
        evaluate([f"data.path={jsonl(rows)}"])
    assert caught.value.key == "data.response_key"
    assert caught.value.allowed == "its columns data_source, response, reward_model"
    assert caught.value.hint == "data.response_key=response"


@pytest.mark.parametrize(
    ("responses", "actual"), [([], "nothing"), (None, "nothing"), ([1, "a"], "a list with int"), (5, "int")]
)
def test_invalid_responses_are_reported_with_their_row(jsonl, responses, actual):
    path = jsonl([ROWS[0], {**ROWS[1], "responses": responses}])
    with pytest.raises(UserError, match=f"row 1: the responses must be .* not {actual}"):
        evaluate([f"data.path={path}"])


def test_a_data_source_without_a_rule_is_refused(jsonl):
    with pytest.raises(UserError, match="no built-in rule for this data source"):
        evaluate([f"data.path={jsonl([row(1, 'a', source='mine')])}", INLINE])


def test_a_row_without_a_data_source_is_reported(jsonl):
    with pytest.raises(UserError, match="row 1 has no 'data_source'"):
        evaluate([f"data.path={jsonl([ROWS[0], {**ROWS[1], 'data_source': None}])}", INLINE])


def test_an_invalid_extra_info_is_reported(jsonl):
    with pytest.raises(UserError, match="'extra_info' must be an object"):
        evaluate([f"data.path={jsonl([row(1, 'a', extra_info='b')])}", INLINE])


@pytest.mark.parametrize(("path", "problem"), [("", "no data files"), ("nowhere.parquet", "no such file")])
def test_a_missing_file(path, problem):
    with pytest.raises(UserError, match=problem) as caught:
        evaluate([f"data.path={path}"] if path else [])
    assert caught.value.key == "data.path"


def test_more_responses_than_may_be_pending(jsonl, monkeypatch):
    monkeypatch.setattr("burnish.jobs.eval.run.MAX_PENDING", 3)
    report = evaluate([f"data.path={jsonl(ROWS * 4)}", INLINE])
    assert [one.scores for one in report.scored] == [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]] * 4


def test_a_trl_function_reads_columns(jsonl, tmp_path):
    (tmp_path / "trl.py").write_text(
        "def reward(prompts, completions, answer, **kwargs):\n"
        "    return [float((p, c, a) == ('q', 'yes', 1)) for p, c, a in zip(prompts, completions, answer)]\n"
    )
    row = {"prompt": "q", "responses": ["yes", "no"], "data_source": "d", "reward_model": {}, "answer": 1}
    custom = [f"custom_reward_function.path={tmp_path / 'trl.py'}", "custom_reward_function.name=reward"]
    report = evaluate([f"data.path={jsonl([row])}", *custom, INLINE])
    assert report.scored[0].scores == [1.0, 0.0]
    del row["answer"]
    with pytest.raises(UserError, match=r"trl.py:reward requires 'answer', which is no column of the data"):
        evaluate([f"data.path={jsonl([row])}", *custom, INLINE])
