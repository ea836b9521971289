"""A run does not resume as another experiment by mistake."""

import json
import shutil

import pytest

import burnish
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.errors import UserError
from burnish.training.checkpoint import _write_manifest
from burnish.training.state import load_role

SAVING = "trainer.save_freq=1"
ACCEPT = "trainer.resume_changes=accept"
REWARD = "def compute_score(solution_str):\n    return solution_str.count('{digit}') / 9\n"


def nines(solution_str):
    return solution_str.count("9") / max(1, len(solution_str))


@pytest.fixture
def saved(launch):
    """A run of two steps with its checkpoints."""
    return launch(SAVING).folder


@pytest.fixture
def refusal(make_run):
    """refusal(*overrides): the error of a run that does not resume; it names no traceback and how to go on."""

    def run(*overrides, **arguments):
        with pytest.raises(UserError) as caught:
            make_run(SAVING, *overrides, **arguments)
        text = caught.value.text()
        assert all(way in text for way in ("trainer.resume_mode=disable", "default_local_dir=", ACCEPT))
        return text

    return run


def other_model(folder, hidden=16, seed=5):
    make_model(folder, make_tokenizer("0123456789+"), hidden=hidden, layers=2, seed=seed)
    return f"actor_rollout_ref.model.path={folder}"


def test_changes_of_the_experiment_are_refused_with_old_and_new_value(saved, refusal, tmp_path, model_folder):
    text = refusal("actor_rollout_ref.rollout.n=4", "algorithm.adv_estimator=rloo", "trainer.seed=7")
    assert "actor_rollout_ref.rollout.n: 2 -> 4" in text
    assert "algorithm.adv_estimator: grpo -> rloo" in text and "trainer.seed: 1 -> 7" in text
    assert "trainer.save_freq" not in text, "harmless"
    text = refusal(other_model(tmp_path / "other"))
    assert f"actor_rollout_ref.model.path: {model_folder} -> {tmp_path / 'other'}" in text
    assert "critic" not in text, "it only follows"


def test_another_reward_is_refused(saved, refusal):
    assert "reward: passed in Python" in refusal(reward=nines)


def test_a_reward_that_is_no_longer_passed_or_newly_passed_is_refused(launch, refusal, rows):
    data = rows(source="openai/gsm8k")  # which has a built-in rule
    launch(SAVING, dataset=data)
    assert "reward: passed in Python (content" in refusal(dataset=data, reward=None)
    launch(SAVING, dataset=data, reward=None, out="rule")
    assert "reward: not passed in Python -> passed in Python" in refusal(dataset=data, out="rule")


def test_validation_that_is_newly_passed_is_refused(saved, refusal, rows):
    assert "data.val_files: not passed in Python -> passed in Python" in refusal(val_dataset=rows(2))


def test_another_reward_server_or_file_is_refused(launch, refusal, tmp_path):
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(f"def reward_func(queries, prompts, labels):\n    return [len('{name}')]\n")
    launch(SAVING, f"reward.remote_url=[{tmp_path / 'one.py'}]", reward=None)
    assert "reward.remote_url" in refusal(f"reward.remote_url=[{tmp_path / 'two.py'}]", reward=None)
    assert "reward.remote_url" in refusal("reward.remote_url=[http://elsewhere:5000/score]", reward=None)


def test_a_folder_of_another_job_is_refused(saved, tmp_path, model_folder):
    with pytest.raises(
        UserError, match=r"is of `burnish train`, not of `burnish sft`.*model.partial_pretrain="
    ) as caught:
        burnish.sft(
            [
                *("data.train_batch_size=1", "data.prompt_key=question", "data.response_key=answer"),
                *(f"trainer.default_local_dir={saved}", f"model.partial_pretrain={model_folder}", "trainer.logger=[]"),
            ],
            dataset=[{"question": "1", "answer": "2"}],
        )
    assert caught.value.key == "trainer.default_local_dir"


def test_another_data_set_is_refused_also_by_resume_path(saved, refusal, rows):
    path = (f"trainer.resume_from_path={saved / 'global_step_1'}", "trainer.resume_mode=resume_path")
    assert "data.train_files" in refusal(*path, dataset=rows(11), out="elsewhere")


def test_accepted_changes_are_listed(saved, make_run):
    run = make_run(ACCEPT, "actor_rollout_ref.rollout.n=4", SAVING)
    assert run.step == 2
    assert any("rollout.n: 2 -> 4" in notice and ACCEPT in notice for notice in run.recorder.notices)


def test_harmless_changes_are_listed_and_accepted(saved, make_run):
    run = make_run("trainer.total_training_steps=9", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1")
    assert run.step == 2
    (notice,) = [notice for notice in run.recorder.notices if "changed since" in notice]
    for change in ("total_training_steps: 2 -> 9", "save_freq: 1 -> -1", "ppo_micro_batch_size_per_gpu: null -> 1"):
        assert change in notice


def test_files_are_compared_by_content(launch, make_run, refusal, tmp_path, model_folder, monkeypatch):
    file = tmp_path / "reward.py"
    file.write_text(REWARD.format(digit=7))
    setting = f"custom_reward_function.path={file}"
    copy = tmp_path / "copy"
    shutil.copytree(model_folder, copy)
    model = f"actor_rollout_ref.model.path={copy}"
    launch(SAVING, setting, model, reward=None)
    monkeypatch.chdir(tmp_path)
    relative = ("custom_reward_function.path=reward.py", "actor_rollout_ref.model.path=./copy")
    assert not any("changed since" in notice for notice in make_run(SAVING, *relative, reward=None).recorder.notices)
    shutil.copytree(copy, tmp_path / "moved")
    moved = make_run(SAVING, setting, "actor_rollout_ref.model.path=moved", reward=None)
    assert any(f"{copy} -> {tmp_path / 'moved'}" in notice for notice in moved.recorder.notices)

    file.write_text(REWARD.format(digit=3))
    assert f"custom_reward_function.path: {file} (content" in refusal(setting, model, reward=None)
    file.write_text(REWARD.format(digit=7))
    other_model(copy)
    text = refusal(setting, model, reward=None)
    assert f"actor_rollout_ref.model.path: {copy} (content" in text and text.count("(content") == 2


def test_a_checkpoint_of_an_older_version_resumes(saved, make_run):
    folder = saved / "global_step_2"
    state = json.loads((folder / "trainer.json").read_text())
    del state["experiment"]
    (folder / "trainer.json").write_text(json.dumps(state))
    (folder / "manifest.json").unlink()
    _write_manifest(folder)
    run = make_run("actor_rollout_ref.rollout.n=4")
    assert run.step == 2 and "no record of its settings" in run.recorder.notices[0]


def test_a_model_of_another_shape_is_one_clear_error(saved, make_run, tmp_path):
    with pytest.raises(UserError, match=r"another shape .*hidden_size 16 -> 32") as caught:
        make_run(ACCEPT, other_model(tmp_path / "wide", hidden=32))
    assert caught.value.key == "actor_rollout_ref.model.path"


def test_weights_of_another_shape_are_named_where_nothing_else_tells(saved, make_run, tmp_path):
    run = make_run("trainer.resume_mode=disable", other_model(tmp_path / "wide", hidden=32))
    with pytest.raises(UserError, match="of another model or optimizer"):
        load_role(saved / "global_step_2" / "actor", run.learner.policy.backend, ["model"], key="key")


def test_a_mirror_is_compared_too(launch, refusal, tmp_path):
    mirror = f"trainer.default_hdfs_dir={tmp_path / 'mirror'}"
    launch(SAVING, mirror)
    assert "trainer.seed: 1 -> 7" in refusal(mirror, "trainer.seed=7", out="another machine")
