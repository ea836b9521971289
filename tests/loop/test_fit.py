import json
import os
import signal

import pytest

from burnish.loop.fit import fit
from burnish.training.checkpoint import damage
from burnish.view.runs import RunReader

from ..rollout.engines.builtin.drafting import verify_all


def checkpoints(folder):
    return sorted(int(path.name.removeprefix("global_step_")) for path in folder.glob("global_step_*"))


def test_saving_and_validating_every_so_many_steps_and_at_the_end(launch, rows, tmp_path):
    steps = ("trainer.total_training_steps=5", "trainer.save_freq=2", "trainer.test_freq=3")
    result = launch(*steps, val_dataset=rows(2))
    assert checkpoints(tmp_path / "run") == [2, 4, 5]
    assert list(result.validation) == [0, 3, 5]
    assert result.step == 5 and not result.interrupted
    assert result.metrics["val-core/digits/reward/mean@1"] == result.validation[5]["val-core/digits/reward/mean@1"]
    assert result.metrics["training/global_step"] == 5


def test_never_saving_and_never_validating(launch, rows, tmp_path):
    result = launch("trainer.val_before_train=false", val_dataset=rows(2))
    assert checkpoints(tmp_path / "run") == []
    assert result.validation == {}


def test_only_so_many_checkpoints_are_kept(launch, tmp_path):
    keep = ("trainer.max_actor_ckpt_to_keep=2", "trainer.max_critic_ckpt_to_keep=1")
    launch("trainer.total_training_steps=3", "trainer.save_freq=1", "algorithm.adv_estimator=gae", *keep)
    folders = [tmp_path / "run" / f"global_step_{step}" for step in (2, 3)]
    assert checkpoints(tmp_path / "run") == [2, 3]
    assert [(folder / "critic").exists() for folder in folders] == [False, True]
    assert [damage(folder) for folder in folders] == [None, None]


def test_validating_only(launch, rows, tmp_path):
    result = launch("trainer.val_only=true", "trainer.save_freq=1", dataset=[], val_dataset=rows(3))
    assert list(result.validation) == [0] and result.step == 0
    assert result.metrics == result.validation[0]
    assert checkpoints(tmp_path / "run") == []


def test_steps_run_across_epochs(launch, tmp_path):
    result = launch("trainer.total_training_steps=5", "trainer.total_epochs=1")
    assert result.step == 5 and result.metrics["training/epoch"] == 1
    text = [(tmp_path / "run" / "rollouts" / f"{step}.jsonl").read_text().splitlines() for step in range(1, 6)]
    uids = [{json.loads(line)["uid"] for line in lines} for lines in text]
    assert len(set.union(*uids[:3])) == 12, "the first epoch has every prompt once"
    assert all(uid.endswith("-0") for step in uids[:3] for uid in step)
    assert all(uid.endswith("-1") for step in uids[3:] for uid in step)


def test_without_a_number_of_steps_epochs_count(launch):
    assert launch("trainer.total_training_steps=null", "trainer.total_epochs=1").step == 3


def test_the_run_folder(launch, rows, tmp_path):
    stats = "actor_rollout_ref.rollout.disable_log_stats=false"
    launch("trainer.logger=[file]", "trainer.test_freq=1", stats, val_dataset=rows(2))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"config.yaml", "command.txt", "environment.json", "metrics.jsonl", "rollouts"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    step = lines[1]["data"]
    assert {"timing_s/step", "timing_s/gen", "timing_s/testing", "perf/throughput", "engine/tokens"} <= set(step)
    assert {"critic/score/mean", "response_length/mean", "actor/entropy", "training/rollout_probs_diff_max"} <= set(
        step
    )


def test_numbers_are_logged_every_so_many_steps_and_at_the_end(launch, rows, metric_lines):
    steps = ("trainer.total_training_steps=5", "trainer.log_freq=3", "trainer.test_freq=2", "trainer.logger=[file]")
    result = launch(*steps, val_dataset=rows(2))
    logged = dict(metric_lines())
    assert [step for step, line in logged.items() if "critic/score/mean" in line] == [3, 5]
    assert [step for step, line in logged.items() if any(name.startswith("val-core/") for name in line)] == [0, 2, 4, 5]
    assert logged[2] == result.validation[2]


def test_rollouts_go_where_asked(launch, tmp_path):
    launch(f"trainer.rollout_data_dir={tmp_path / 'elsewhere'}")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["1.jsonl", "2.jsonl"]
    assert not (tmp_path / "run" / "rollouts").exists()


def test_the_tokens_of_every_step_are_recorded(launch, tmp_path):
    launch("trainer.logger=[file]")
    reader = RunReader(tmp_path / "run")
    assert reader.token_steps() == [1, 2] and sorted(reader.timeline()) == [1, 2]
    assert {"gen", "update_actor", "step"} <= {name for name, _, _ in reader.timeline()[2]["spans"]}
    samples, tokens = reader.step_file(2).samples, reader.token_file(2)
    assert tokens.scores.tolist() == pytest.approx([sample.score for sample in samples])
    columns = tokens.row(0)
    assert {"advantages", "old_log_probs", "entropys"} <= set(columns)
    assert "".join(reader.texts.texts(columns["ids"].tolist())).startswith(samples[0].response)
    started, finished = tokens.times()[0]
    assert started < finished


def test_recording_changes_nothing(launch, tmp_path):
    texts = []
    for name, keep in (("on", 5), ("off", 0)):
        launch(f"trainer.default_local_dir={tmp_path / name}", f"trainer.rollout_keep={keep}")
        texts.append((tmp_path / name / "rollouts" / "2.jsonl").read_text())
        assert (tmp_path / name / "tokens").exists() == (keep > 0)
    assert texts[0] == texts[1]


def test_reward_problems_are_counted_and_named(launch, tmp_path):
    def reward(solution_str, extra_info):
        return float("nan") if extra_info["number"] < 6 else 1.0

    result = launch("trainer.total_training_steps=3", "trainer.logger=[file]", reward=reward)
    lines = [json.loads(line)["data"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["reward/failed"] for line in lines) == 12, "six of twelve prompts, two responses each"
    notes = (tmp_path / "run" / "notes.txt").read_text()
    assert "returned nan instead of a finite number in test_fit.py:reward" in notes
    assert result.step == 3


def test_ctrl_c_finishes_the_step_saves_and_says_so(launch, ctrl_c_at, tmp_path):
    handler = signal.getsignal(signal.SIGINT)  # a shell that runs us in the background has it ignored
    steps = ("trainer.total_training_steps=5", "trainer.logger=[file]")
    result = launch(*steps, reward=ctrl_c_at(10))
    assert result.interrupted and result.step == 2
    assert checkpoints(tmp_path / "run") == [2]
    assert "stopped after step 2" in (tmp_path / "run" / "notes.txt").read_text()
    assert signal.getsignal(signal.SIGINT) == handler
    again = launch(*steps)
    assert again.step == 5 and not again.interrupted


def test_ctrl_c_does_not_validate_a_step_that_was_not_due(launch, ctrl_c_at, rows):
    result = launch("trainer.total_training_steps=5", "trainer.test_freq=4", reward=ctrl_c_at(3), val_dataset=rows(2))
    assert result.interrupted and list(result.validation) == [0]


@pytest.mark.parametrize("save_freq", [-1, 1])
def test_ctrl_c_between_two_steps_saves_too(make_run, tmp_path, monkeypatch, save_freq):
    run = make_run("trainer.total_training_steps=5", f"trainer.save_freq={save_freq}")
    log = run.recorder.loggers.log

    def press_ctrl_c(step, metrics):
        log(step, metrics)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run.recorder.loggers, "log", press_ctrl_c)
    assert fit(run).interrupted
    assert checkpoints(tmp_path / "run") == [1]


def test_a_second_ctrl_c_stops_at_once(launch, tmp_path):
    def reward(solution_str):
        os.kill(os.getpid(), signal.SIGINT)
        return 0.0

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        launch("trainer.total_training_steps=5", reward=reward)
    assert checkpoints(tmp_path / "run") == []
    assert signal.getsignal(signal.SIGINT) == handler


def test_a_run_that_is_done_does_nothing_more(launch, metric_lines):
    steps = ("trainer.save_freq=2", "trainer.logger=[file]")
    launch(*steps)
    before = metric_lines()
    result = launch(*steps)
    assert result.step == 2 and not result.interrupted
    assert metric_lines() == before


def test_drafts_are_counted(make_run):
    """A step's drafts, also where no other statistics of the engine are logged."""
    drafts = "actor_rollout_ref.rollout.speculative.enable=true"
    run = make_run("data.max_response_length=16", "trainer.total_training_steps=1", drafts)
    verify_all(run.rollout.engine, lambda sequence: [5] * 4)
    metrics = fit(run).metrics
    assert metrics["rollout/draft_tokens"] >= metrics["rollout/draft_accepted"] >= 0
    assert metrics["rollout/draft_tokens"] > 0 and "engine/tokens" not in metrics
