"""The best checkpoint: found by validation, kept beyond the last ones, known after a resume, exported by name."""

import json
import math

import pytest
from safetensors.torch import load_file

import burnish.training.checkpoint as checkpoint
from burnish.cli.main import main
from burnish.errors import UserError
from burnish.jobs.export import ExportOptions, export
from burnish.loop.best import Best, measure
from burnish.loop.fit import fit
from burnish.training.checkpoint import Checkpoints, damage

NAME = "val-core/digits/reward/mean@1"
STEPS = ("trainer.total_training_steps=5", "trainer.test_freq=1", "trainer.max_actor_ckpt_to_keep=1")


def test_the_first_of_the_best_is_the_best():
    best = Best("a")
    seen = [best.improves(step, {"a": value}) for step, value in enumerate([0.2, math.nan, 0.5, 0.5, 0.4], 1)]
    assert seen == [True, False, True, False, False]
    assert (best.step, best.value, best.by) == (3, 0.5, "a")


def test_without_a_metric_nothing_is_best():
    best = Best()
    assert not best.improves(1, {"a": 1.0}) and best.state_dict() == {}


def test_auto_is_the_mean_over_data_sources():
    found = {"val-core/x/reward/mean@4": 0.2, "val-core/y/acc/mean@4": 0.6, "val-core/x/reward/best@4": 0.9}
    found["val-aux/x/length/mean@4"] = 7.0
    assert measure("auto", found) == pytest.approx(0.4)


def test_a_metric_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(UserError, match=r"trainer\.best_metric_key='b': .*Allowed: auto, a, c"):
        measure("b", {"c": 1.0, "a": 1.0})


def test_the_best_step_is_restored_for_the_same_metric_only():
    state = {"step": 3, "value": 0.5, "by": "a"}
    same, other, none = Best("a"), Best("b"), Best()
    for best in (same, other, none):
        best.load_state_dict(state)
    assert same.state_dict() == none.state_dict() == state and other.step is None
    assert not same.improves(4, {"a": 0.4}) and other.improves(4, {"b": 0.1})
    none.load_state_dict({})
    assert none.step == 3


@pytest.fixture
def values(monkeypatch):
    """values(0.1, 0.5, ...): what the validations of steps 1, 2, ... give."""

    def give(*numbers):
        monkeypatch.setattr("burnish.loop.fit.validate", lambda run: {NAME: numbers[run.step - 1] if run.step else 0.0})

    return give


def test_it_is_kept_beyond_the_last_ones_and_can_be_exported(make_run, rows, values, tmp_path, weights, monkeypatch):
    values(0.1, 0.7, 0.3, 0.5, 0.6)
    run = make_run(*STEPS, "trainer.save_freq=1", f"trainer.best_metric_key={NAME}", val_dataset=rows(2))
    snapshots = {}
    save = Checkpoints.save

    def remember(self, step, *arguments, **more):
        snapshots[step] = weights(run.learner.policy)
        return save(self, step, *arguments, **more)

    monkeypatch.setattr(Checkpoints, "save", remember)
    fit(run)
    folder = Checkpoints(tmp_path / "run")
    assert folder.steps() == [2, 5] and folder.best() == 2
    assert (tmp_path / "run" / "best_checkpointed_iteration.txt").read_text() == "2"
    assert damage(folder.path(2)) is None
    read = export(tmp_path / "run", tmp_path / "best", ExportOptions(best=True))
    assert read == folder.path(2) / "actor"
    exported = load_file(tmp_path / "best" / "model.safetensors")
    assert all(exported[name].equal(snapshots[2][name]) for name in exported)
    assert not all(exported[name].equal(snapshots[5][name]) for name in exported)


def test_it_is_saved_where_no_save_was_due(make_run, rows, values, tmp_path):
    values(0.1, 0.7, 0.3, 0.5, 0.6)
    fit(make_run(*STEPS, f"trainer.best_metric_key={NAME}", "trainer.logger=[file]", val_dataset=rows(2)))
    folder = Checkpoints(tmp_path / "run")
    assert folder.steps() == [2] and folder.best() == 2, "step 1 was the best for a while, and made room"
    notes = (tmp_path / "run" / "notes.txt").read_text()
    assert notes.count("is the best so far") == 2 and f"step 2 is the best so far: {NAME} is 0.7" in notes


@pytest.mark.parametrize("beside", ["false", "true"])
def test_a_full_disk_does_not_cost_the_best(make_run, rows, values, monkeypatch, beside, saved_before_each_step):
    """Refused at its own step, it is written with the state of that step once there is room."""
    values(0.1, 0.7, 0.3, 0.5, 0.6)
    settings = (*STEPS, "trainer.save_freq=1", f"trainer.best_metric_key={NAME}")
    fit(whole := make_run(*settings, out="whole", val_dataset=rows(2)))
    write, refused = checkpoint._write_manifest, []

    def refuse(folder):
        if folder.name == ".global_step_2.partial" and len(refused) < 2:
            refused.append(folder)
            raise OSError(28, "No space left on device")
        write(folder)

    monkeypatch.setattr("burnish.training.checkpoint._write_manifest", refuse)
    run = make_run(*settings, f"actor_rollout_ref.actor.checkpoint.async_save={beside}", val_dataset=rows(2))
    saved_before_each_step(run)
    fit(run)
    assert len(refused) == 2 and run.recorder.checkpoints.best() == 2 and run.recorder.checkpoints.steps() == [2, 5]
    for name, fact in checkpoint.read_manifest(run.recorder.checkpoints.path(2)).items():
        same = checkpoint.read_manifest(whole.recorder.checkpoints.path(2))[name] == fact
        assert same or name == "trainer.json", name
    states = [checkpoint.read_trainer(each.recorder.checkpoints.path(2)) for each in (run, whole)]
    assert [state.pop("experiment") is not None for state in states] and states[0] == states[1]


def test_a_disk_full_to_the_last_step_does_not_cost_the_best(
    make_run, rows, values, monkeypatch, saved_before_each_step
):
    """There is room only when nothing follows: it is written then, and the run still goes on from its last step."""
    values(0.1, 0.7, 0.3, 0.5, 0.6)
    write, refused = checkpoint._write_manifest, []

    def refuse(folder):
        if folder.name == ".global_step_2.partial" and not run.recorder.checkpoints.path(5).exists():
            refused.append(folder)
            raise OSError(28, "No space left on device")
        write(folder)

    monkeypatch.setattr("burnish.training.checkpoint._write_manifest", refuse)
    run = make_run(*STEPS, "trainer.save_freq=1", f"trainer.best_metric_key={NAME}", val_dataset=rows(2))
    saved_before_each_step(run)
    fit(run)
    assert len(refused) == 4 and run.recorder.checkpoints.steps() == [2, 5] and run.recorder.checkpoints.best() == 2
    assert run.recorder.checkpoints.latest_good() == (run.recorder.checkpoints.path(5), [])


def test_a_resumed_run_knows_it(make_run, rows, values, ctrl_c_at, tmp_path):
    values(0.7, 0.1, 0.2, 0.3, 0.4)
    settings = (*STEPS, "trainer.save_freq=1", "trainer.best_metric_key=auto")
    first = make_run(*settings, val_dataset=rows(2), reward=ctrl_c_at(8 + 3))
    assert fit(first).step == 2
    first.close()
    (tmp_path / "run" / "best_checkpointed_iteration.txt").unlink()  # killed between the seal and the pointer
    second = make_run(*settings, val_dataset=rows(2))
    assert second.step == 2 and second.recorder.best.step == 1 and second.recorder.checkpoints.best() == 1
    fit(second)
    assert second.recorder.checkpoints.steps() == [1, 5] and second.recorder.checkpoints.best() == 1
    state = json.loads((second.recorder.checkpoints.path(5) / "trainer.json").read_text())
    assert state["best"] == {"step": 1, "value": 0.7, "by": "auto"}


def test_a_new_start_forgets_the_old_best(make_run, rows, values):
    values(0.7, 0.1, 0.2, 0.3, 0.4)
    fit(make_run(*STEPS, "trainer.best_metric_key=auto", val_dataset=rows(2)))
    run = make_run(*STEPS, "trainer.resume_mode=disable", "trainer.save_freq=5", val_dataset=rows(2))
    assert run.recorder.checkpoints.best() == 1, "nothing is lost before something new is written"
    fit(run)
    assert run.recorder.checkpoints.best() is None


def test_a_wrong_metric_is_found_out_by_the_first_validation(make_run, rows, values):
    values(*[0.5] * 5)
    run = make_run(*STEPS, "trainer.best_metric_key=acc", val_dataset=rows(2))
    with pytest.raises(UserError, match=r"no such validation metric.*val-core/digits/reward/mean@1"):
        fit(run)
    assert run.step == 0
    later = make_run(*STEPS, "trainer.best_metric_key=acc", "trainer.val_before_train=false", val_dataset=rows(2))
    with pytest.raises(UserError, match="no such validation metric"):
        fit(later)
    assert later.recorder.checkpoints.steps() == [1], "what was done is kept"


def test_a_best_checkpoint_needs_validation(settings):
    from burnish.config import load

    with pytest.raises(UserError, match=r"trainer\.best_metric_key='auto'.*Type: trainer\.test_freq=10"):
        load(settings("trainer.best_metric_key=auto"), given=["data.train_files", "data.val_files"])
    with pytest.raises(UserError, match=r"trainer\.best_metric_key needs validation files"):
        load(settings("trainer.best_metric_key=auto", "trainer.test_freq=1"), given=["data.train_files"])


def test_exporting_the_best_of_a_run_that_has_none(launch, tmp_path, capsys):
    launch("trainer.save_freq=1", "trainer.total_training_steps=1")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--best"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "--best: " in told and "trainer.best_metric_key" in told and not (tmp_path / "out").exists()
