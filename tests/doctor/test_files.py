"""Files that a config names: missing, unreadable, without the columns, broken on import."""

from __future__ import annotations

import json

import pytest

from burnish.config import load
from burnish.data.files import write_parquet
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.doctor import files
from burnish.doctor.files import UserFile, check_data, check_examples, check_template, check_user_file, user_files
from burnish.doctor.rules import REFUSED, WARNING

ROW = {
    "prompt": [{"role": "user", "content": "1+1?"}],
    "data_source": "sums",
    "reward_model": {"style": "rule", "ground_truth": "2"},
}


def check(tmp_path, rows, *overrides, name="t.parquet"):
    write_parquet(rows, tmp_path / name)
    cfg = load([f"data.train_files={tmp_path / name}", *overrides], check=False).cfg
    return check_data(cfg.data, "data.train_files", cfg.data.train_files)


def test_good_rows_are_counted(tmp_path):
    result = check(tmp_path, [ROW] * 7)
    assert (result.num_rows, result.findings) == (7, ())
    assert result.first == ROW


def test_a_missing_column_is_refused(tmp_path):
    (finding,) = check(tmp_path, [ROW], "data.prompt_key=question").findings
    assert finding.severity == REFUSED
    assert "no column 'question'; the columns are prompt, data_source, reward_model" in finding.text


def test_a_missing_ground_truth_is_refused_without_a_label_key(tmp_path):
    broken = {**ROW, "reward_model": {"style": "rule", "ground_truth": ""}, "answer": "2"}
    assert "ground_truth is missing" in check(tmp_path, [broken]).findings[0].text
    assert check(tmp_path, [broken], "data.label_key=answer").findings == ()


def test_rows_without_ground_truth_or_source(tmp_path):
    (finding,) = check(tmp_path, [{"prompt": "1+1?"}]).findings
    assert finding.severity == WARNING
    assert "no ground truth" in finding.text


def test_a_missing_file_is_a_warning(tmp_path):
    cfg = load([f"data.train_files={tmp_path}/no.parquet"], check=False).cfg
    result = check_data(cfg.data, "data.train_files", cfg.data.train_files)
    assert result.num_rows is None
    assert [finding.severity for finding in result.findings] == [WARNING]


def test_an_unreadable_file_is_refused(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"no parquet")
    cfg = load([f"data.train_files={tmp_path}/t.parquet"], check=False).cfg
    result = check_data(cfg.data, "data.train_files", cfg.data.train_files)
    assert [finding.severity for finding in result.findings] == [REFUSED]


def test_examples_of_supervised_training_have_their_columns(tmp_path):
    write_parquet([{"question": "a", "answer": "b"}], tmp_path / "t.parquet")
    cfg = load([f"data.train_files={tmp_path}/t.parquet"], job="sft", check=False).cfg
    assert check_examples(cfg, "data.train_files", cfg.data.train_files).findings == ()
    cfg.data.response_key = "reply"
    (finding,) = check_examples(cfg, "data.train_files", cfg.data.train_files).findings
    assert "no column 'reply'" in finding.text


def test_all_python_files_of_a_config_are_found():
    cfg = load(
        [
            "custom_reward_function.path=a.py",
            "data.custom_cls.path=b.py",
            "data.custom_cls.name=Rows",
            "algorithm.adv_estimator=c.py:mine",
            "reward.remote_url=d.py",
        ],
        check=False,
    ).cfg
    assert [(file.path, file.name) for file in user_files(cfg)] == [
        ("a.py", "compute_score"),
        ("b.py", "Rows"),
        ("c.py", "mine"),
        ("d.py", "reward_func"),
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def compute_score(): return 1", None),
        ("def other(): return 1", "has no 'compute_score'"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "exited with status"),
    ],
)
def test_python_files_are_imported_in_a_child_process(tmp_path, code, message):
    path = tmp_path / "mine.py"
    path.write_text(code)
    finding = check_user_file(UserFile("custom_reward_function.path", str(path), "compute_score"))
    assert (finding is None) == (message is None)
    if finding is not None:
        assert finding.severity == REFUSED
        assert message in finding.text


def test_an_import_has_a_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "IMPORT_TIMEOUT", 1.5)
    path = tmp_path / "mine.py"
    path.write_text("while True: pass")
    finding = check_user_file(UserFile("custom_reward_function.path", str(path), "compute_score"))
    assert "longer than" in finding.text


def test_a_missing_python_file_is_a_warning(tmp_path):
    finding = check_user_file(UserFile("custom_reward_function.path", str(tmp_path / "no.py"), "compute_score"))
    assert finding.severity == WARNING


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, make_tokenizer("0123456789+?"), hidden=16, layers=1, seed=0)
    return folder


def test_the_template_renders_the_first_row(model):
    cfg = load([f"actor_rollout_ref.model.path={model}"], check=False).cfg
    assert check_template(cfg, ROW) is None
    cfg.data.max_prompt_length = 3
    assert "the first prompt has" in check_template(cfg, ROW).text


def test_a_template_that_fails_is_refused(model):
    cfg = load([f"actor_rollout_ref.model.path={model}"], check=False).cfg
    cfg.actor_rollout_ref.model.custom_chat_template = "{{ raise_exception('only system') }}"
    finding = check_template(cfg, ROW)
    assert finding.severity == REFUSED
    assert "fails on the first row" in finding.text


def test_without_a_tokenizer_no_template_is_rendered(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    cfg = load([f"actor_rollout_ref.model.path={tmp_path}"], check=False).cfg
    assert check_template(cfg, ROW) is None
