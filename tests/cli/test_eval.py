"""burnish eval on the command line."""

import json

import pytest

from burnish.cli.main import main


@pytest.fixture
def responses(tmp_path):
    rows = [
        {
            "data_source": source,
            "reward_model": {"ground_truth": "2"},
            "responses": ["#### 2", "#### 3"] if source == "openai/gsm8k" else [r"\boxed{2}", r"\boxed{2}"],
        }
        for source in ("openai/gsm8k", "openai/gsm8k", "lighteval/MATH")
    ]
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_table_by_data_source(responses, capsys):
    assert main(["eval", f"data.path={responses}", "reward.num_workers=0"]) == 0
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["│", "openai/gsm8k", "│", "2", "│", "4", "│", "0.500"] in [line[:8] for line in lines]
    assert "pass@2" in printed.out
    assert "(all)" in printed.out
    assert "failed" not in printed.out, "a column without a number is left out"
    assert "3/3 rows" in printed.err


def test_json_output_is_one_object(responses, capsys):
    assert main(["eval", f"data.path={responses}", "reward.num_workers=0", "ray_init.num_cpus=2", "--json"]) == 0
    printed = capsys.readouterr()
    output = json.loads(printed.out)
    assert output["sources"]["lighteval/MATH"]["score"] == 1.0
    assert output["all"]["interval"] is not None
    assert output["metrics"]["test_score/openai/gsm8k"] == 0.5
    assert "ray_init.num_cpus=2 has no effect here" in printed.err


def test_workers_score_too(responses, capsys):
    assert main(["eval", f"data.path={responses}", "reward.num_workers=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["responses"] == 6


def test_only_failed_responses_give_status_one(responses, tmp_path, capsys):
    (tmp_path / "broken.py").write_text("def compute_score():\n    raise ValueError('no idea')\n")
    own = f"custom_reward_function.path={tmp_path / 'broken.py'}"
    assert main(["eval", f"data.path={responses}", own, "reward.num_workers=0"]) == 1
    printed = capsys.readouterr()
    assert "failed" in printed.out
    assert "reward problem (6 times): raised ValueError: no idea" in printed.err


def test_user_error_gives_status_one(responses, capsys):
    assert main(["eval", f"data.path={responses}", "data.response_key=answers"]) == 1
    assert "data.response_key='answers'" in " ".join(capsys.readouterr().err.split())


def test_resolved_config(responses, capsys):
    assert main(["eval", f"data.path={responses}", "--cfg"]) == 0
    assert "response_key: responses" in capsys.readouterr().out


def test_config_file(responses, tmp_path, capsys):
    (tmp_path / "evaluation.yaml").write_text(f"data:\n  path: {responses}\nreward:\n  num_workers: 0\n")
    assert main(["eval", "--config-path", str(tmp_path), "--config-name", "evaluation", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["rows"] == 3
