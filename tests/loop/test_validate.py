import json

import pytest

from burnish.errors import UserError
from burnish.loop.recorder import trajectory_records
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
    assert [row["output"] for row in trajectory_records(batch, run.recorder.tokenizer)] == batch["response_text"]


def fails(solution_str):
    raise KeyError("label")


def test_a_validation_in_which_every_reward_fails_stops_the_run(launch, rows, capsys):
    with pytest.raises(UserError) as caught:
        launch("trainer.val_before_train=true", reward=fails, val_dataset=rows(3))
    text = str(caught.value)
    assert "the reward failed on all 3 samples of the validation at step 0" in text
    assert "raised KeyError: 'label'" in text and "test_validate.py" in text and ", line " in text


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=score"),
        ("async_training.mode=one_step_off",),
    ],
    ids=["plain", "group filter", "one step off"],
)
def test_a_step_in_which_every_reward_fails_stops_the_run(launch, more):
    with pytest.raises(UserError, match=r"the reward failed on all \d+ samples of step 1. First cause: raised Key"):
        launch(*more, reward=fails)


def test_a_run_may_go_on_without_rewards(launch):
    assert launch("reward.failure_threshold=null", reward=fails).step == 2


def test_a_trl_function_trains_on_columns_of_the_data(launch, rows, tmp_path):
    """Messages in, messages out; the columns of each row; what it prints is in the run folder."""
    path = tmp_path / "mine.py"
    path.write_text(
        "def reward(prompts, completions, answer, ground_truth, **kwargs):\n"
        "    for prompt, completion, number, truth in zip(prompts, completions, answer, ground_truth):\n"
        "        assert prompt[0]['content'] == f'{number}+{number}' and truth == str(2 * number), (prompt, number)\n"
        "        assert completion[0]['role'] == 'assistant' and 'reward_model' in kwargs\n"
        "    print('scored', len(completions))\n"
        "    return [float(len(completion[0]['content'])) for completion in completions]\n"
    )
    dataset = [{**row, "answer": number} for number, row in enumerate(rows())]
    settings = (f"custom_reward_function.path={path}", "custom_reward_function.name=reward", "reward.num_workers=1")
    batched = "reward_model.reward_manager=batch"
    for out, more in (("one", ()), ("all", (batched,))):
        result = launch(*settings, *more, out=out, reward=None, dataset=dataset)
        assert result.metrics["reward/failed"] == 0 and result.metrics["critic/score/mean"] > 0
        assert "scored" in (tmp_path / out / "reward.log").read_text()
    assert "scored 8" in (tmp_path / "all" / "reward.log").read_text()
    with pytest.raises(UserError, match=r"mine.py:reward requires 'answer', which is no column of the data"):
        launch(*settings, out="none", reward=None)
