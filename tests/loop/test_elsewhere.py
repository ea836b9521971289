"""Runs whose data, models and checkpoints lie elsewhere; samplers and generators of a user's own."""

import json
import shutil

import fsspec
import pytest

from burnish.errors import UserError
from burnish.loop.fit import fit

HDFS = "trainer.default_hdfs_dir=memory://test_elsewhere/run"
FOUR = ("trainer.total_training_steps=4", "trainer.logger=[file]", "trainer.save_freq=2")

CLASSES = '''
import torch


class Curriculum:
    """By score: prompts that went badly come back first."""

    def __init__(self, data_source, data_config):
        self.scores = torch.zeros(len(data_source))
        self.source = data_source

    def __iter__(self):
        while True:
            worst = int(self.scores.argmin())
            self.scores[worst] += 0.01
            yield worst

    def update(self, batch):
        scores = batch["token_level_scores"]
        for info, values in zip(batch["extra_info"], scores.lists()):
            self.scores[info["number"]] += sum(values)

    def state_dict(self):
        return {"scores": self.scores}

    def load_state_dict(self, state):
        self.scores = state["scores"]


class Sums:
    """A new sum after each step."""

    def __init__(self, config):
        self.count = 0

    def generate(self, dataset):
        self.count += 1
        row = dataset[0]
        return [{**row, "prompt": [{"role": "user", "content": f"{self.count}+1"}], "extra_info": {"made": self.count}}]

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
'''


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def classes(tmp_path):
    (tmp_path / "classes.py").write_text(CLASSES)
    return tmp_path / "classes.py"


def test_data_and_model_may_be_remote(make_run, model_folder, memory, rows, tmp_path, weights, equal):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    memory.put(str(model_folder), "/test_elsewhere/model", recursive=True)
    memory.put_file(str(tmp_path / "rows.jsonl"), "/test_elsewhere/rows.jsonl")
    url = "memory://test_elsewhere"
    files = (f"data.val_files={url}/rows.jsonl", "trainer.val_before_train=false")
    there = make_run(*files, f"actor_rollout_ref.model.path={url}/model", f"critic.model.path={url}/model", out="there")
    here = make_run(out="here")
    fit(there)
    fit(here)
    assert equal(weights(there.learner.policy), weights(here.learner.policy))
    assert there.rollout.val_data.rows.name == f"{url}/rows.jsonl"


def test_a_remote_model_that_is_not_there_is_named(make_run):
    with pytest.raises(UserError, match=r"actor_rollout_ref\.model\.path='memory://nowhere': no such file or folder"):
        make_run("actor_rollout_ref.model.path=memory://nowhere")


def test_a_run_resumes_from_the_copies_of_its_checkpoints(make_run, memory, tmp_path, weights, equal):
    whole = make_run(*FOUR, out="whole")
    fit(whole)
    fit(make_run(*FOUR, HDFS, out="first"))
    assert {"global_step_2", "global_step_4"} <= {name.split("/")[3] for name in memory.store if "global" in name}
    memory.rm("/test_elsewhere/run/global_step_4", recursive=True)
    second = make_run(*FOUR, HDFS, out="second")
    assert second.step == 2 and f"resumed from {tmp_path / 'second' / 'global_step_2'}" in second.recorder.notices
    fit(second)
    assert equal(weights(second.learner.policy), weights(whole.learner.policy))


def test_the_local_checkpoint_goes_before_the_copy(make_run, memory):
    fit(make_run(*FOUR, HDFS, out="run"))
    shutil.rmtree(make_run(*FOUR, HDFS, out="run").recorder.checkpoints.path(4))
    assert make_run(*FOUR, HDFS, out="run").step == 2


def test_a_failed_copy_is_reported_and_the_run_continues(make_run, memory, monkeypatch):
    def put_file(self, *arguments, **more):
        raise OSError("no route")

    run = make_run(*FOUR, HDFS)
    said = []
    monkeypatch.setattr(run.recorder.loggers, "note", said.append)
    monkeypatch.setattr(type(memory), "put_file", put_file)
    assert fit(run).step == 4
    failures = [line.partition(",")[0] for line in said if "uploaded" in line]
    assert failures == [f"the checkpoint of step {n} was not uploaded" for n in (2, 4)]
    assert [step for step in run.recorder.checkpoints.steps()] == [2, 4]


def test_a_loaded_checkpoint_is_deleted_if_there_is_a_copy(make_run, memory, tmp_path):
    forget = "trainer.del_local_ckpt_after_load=true"
    fit(make_run(*FOUR, out="run"))
    kept = make_run(*FOUR, forget, out="run")
    assert kept.step == 4 and kept.recorder.checkpoints.path(4).is_dir()
    assert any("kept" in line and "no copy of it elsewhere" in line for line in kept.recorder.notices)
    fit(make_run(*FOUR, HDFS, out="other"))
    gone = make_run(*FOUR, HDFS, forget, out="other")
    assert (
        gone.step == 4 and not gone.recorder.checkpoints.path(4).exists() and gone.recorder.checkpoints.path(2).exists()
    )


def test_a_remote_checkpoint_to_resume_from(make_run, memory, tmp_path):
    fit(make_run(*FOUR, HDFS, out="run"))
    path = "trainer.resume_from_path=memory://test_elsewhere/run/global_step_2"
    mode = "trainer.resume_mode=resume_path"
    run = make_run(*FOUR, mode, path, out="new")
    assert run.step == 2 and list((tmp_path / "cache").rglob("trainer.json"))
    run = make_run(*FOUR, mode, path, "trainer.del_local_ckpt_after_load=true", out="new")
    assert run.step == 2 and not list((tmp_path / "cache").rglob("trainer.json"))


@pytest.mark.parametrize("name", ["Curriculum", "Sums"])
def test_two_steps_and_two_more_are_four(make_run, classes, name, weights, equal, ctrl_c_at, metric_lines, tmp_path):
    asked = {
        "Curriculum": (f"data.sampler.class_path={classes}", "data.sampler.class_name=Curriculum"),
        "Sums": (f"data.datagen.path={classes}", "data.datagen.name=Sums", "data.train_batch_size=12"),
    }[name]
    steps = ("trainer.total_training_steps=5", "trainer.logger=[file]", *asked)
    whole = make_run(*steps, out="whole")
    fit(whole)
    per_step = 2 * (12 if name == "Sums" else 4)
    first = make_run(*steps, out="halves", reward=ctrl_c_at(2 * per_step + 1))
    assert fit(first).interrupted and first.step == 3
    first.close()
    second = make_run(*steps, out="halves")
    assert second.step == 3
    fit(second)
    assert equal(weights(second.learner.policy), weights(whole.learner.policy))
    assert metric_lines(tmp_path / "halves") == metric_lines(tmp_path / "whole")
    assert len(second.rollout.train_data) == len(whole.rollout.train_data)
    if whole.rollout.growth is not None:
        assert len(whole.rollout.train_data) == 12 + 5
        text = (tmp_path / "whole" / "rollouts" / "5.jsonl").read_text()
        assert "1+1" in text, "a row that was made is trained on"
    else:
        assert (second.rollout.sampler.sampler.scores == whole.rollout.sampler.sampler.scores).all()


def test_a_curriculum_without_state_is_reported(make_run, classes):
    classes.write_text(CLASSES.replace("def state_dict", "def no_state"))
    run = make_run(f"data.sampler.class_path={classes}", "data.sampler.class_name=Curriculum")
    assert any("data.sampler.class_name" in line and "state_dict" in line for line in run.recorder.notices)


def test_a_checkpoint_of_another_sampler_is_refused(make_run, classes):
    fit(make_run(*FOUR))
    with pytest.raises(UserError, match="the checkpoint is of another sampler"):
        sampler = (f"data.sampler.class_path={classes}", "data.sampler.class_name=Curriculum")
        make_run(*FOUR, *sampler, "trainer.resume_changes=accept")
