import json

import pytest

from burnish.loop.validate import validate

SAMPLED = (
    "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_greedy_response_per_prompt(make_run, rows):
    run = make_run(val_dataset=rows(5, source="held-out"), reward=lambda solution_str: len(solution_str))
    metrics = validate(run)
    assert set(metrics) == {"val-core/held-out/reward/mean@1"}
    assert metrics == validate(run)


def test_several_responses_per_prompt(make_run, rows):
    run = make_run(*SAMPLED, "actor_rollout_ref.rollout.val_kwargs.n=4", val_dataset=rows(3))
    names = set(validate(run))
    assert "val-core/digits/reward/mean@4" in names
    assert {"val-core/digits/reward/best@4/mean", "val-aux/digits/reward/best@2/mean"} <= names
    assert "val-aux/digits/reward/worst@4/mean" in names and "val-aux/digits/reward/std@4" in names


def test_the_mean_is_that_of_the_scores(make_run, rows, tmp_path):
    run = make_run(
        *SAMPLED,
        "actor_rollout_ref.rollout.val_kwargs.n=2",
        f"trainer.validation_data_dir={tmp_path / 'val'}",
        val_dataset=rows(5),
        reward=lambda solution_str: len(solution_str) / 7,
    )
    metrics = validate(run)
    written = read(tmp_path / "val" / "0.jsonl")
    assert len(written) == 10
    assert metrics["val-core/digits/reward/mean@2"] == pytest.approx(sum(row["score"] for row in written) / 10)
    assert all(row["score"] == pytest.approx(len(row["output"]) / 7) for row in written)


def test_every_source_has_its_own_numbers_and_extras_are_measured(make_run, rows):
    def reward(solution_str, extra_info):
        return {"score": 0.25, "acc": float(extra_info["number"] == 0), "note": "text is no number"}

    run = make_run(val_dataset=[*rows(2, source="one"), *rows(1, source="two")], reward=reward)
    assert validate(run) == {
        "val-core/one/acc/mean@1": 0.5,
        "val-aux/one/reward/mean@1": 0.25,
        "val-core/two/acc/mean@1": 1.0,
        "val-aux/two/reward/mean@1": 0.25,
    }


def test_the_batch_size_changes_no_number(make_run, rows):
    reward = len
    whole = validate(make_run(val_dataset=rows(7), reward=lambda solution_str: reward(solution_str)))
    parts = make_run(
        "data.val_batch_size=3", out="other", val_dataset=rows(7), reward=lambda solution_str: len(solution_str)
    )
    assert validate(parts) == whole


def test_generations_are_shown_where_asked_for(make_run, rows, tmp_path):
    run = make_run("trainer.log_val_generations=3", "trainer.logger=[file]", val_dataset=rows(6))
    run.step = 4
    validate(run)
    table = read(tmp_path / "run" / "tables" / "val_generations" / "4.jsonl")
    assert len(table) == 3
    assert {"step", "input", "output", "score"} == set(table[0])
    assert "+" in table[0]["input"]


def test_a_record_says_what_was_asked_answered_and_scored(make_run, rows, tmp_path):
    run = make_run(
        f"trainer.validation_data_dir={tmp_path / 'val'}",
        val_dataset=rows(2),
        reward=lambda solution_str: {"score": 1.0, "remark": "fine"},
    )
    validate(run)
    first, second = read(tmp_path / "val" / "0.jsonl")
    assert (first["gts"], second["gts"]) == ("0", "2")
    assert "1+1" in second["input"] and second["score"] == 1.0 and second["remark"] == "fine"
    assert second["finish_reason"] in ("stop", "length") and second["sample"] == 0


def test_the_scorers_extras_never_hide_the_record(make_run, rows, next_prompts):

    run = make_run(reward=lambda solution_str: {"score": 0.5, "input": "mine", "output": "mine"})
    batch = run.rollout.collect(next_prompts(run), step=1)
    assert [row["output"] for row in run.recorder.trajectory_records(batch)] == batch["response_text"]
