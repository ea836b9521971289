import json

import pytest
import torch

from burnish.errors import UserError

ROLLOUT = "actor_rollout_ref.rollout"
KEY = f"{ROLLOUT}.skip_dump_dir"


@pytest.fixture
def skipping(make_run, tmp_path):
    """skipping(*overrides): a run that keeps its responses in tmp_path/kept."""
    names = iter("abcdef")

    def make(*overrides, **arguments):
        settings = (f"{ROLLOUT}.skip_rollout=true", f"{KEY}={tmp_path / 'kept'}")
        return make_run(*settings, *overrides, out=next(names), **arguments)

    return make


def counted(run):
    """How many requests the engine gets from now on."""
    calls, generate = [], run.rollout.engine.generate
    run.rollout.engine.generate = lambda requests: calls.extend(requests) or generate(requests)
    return calls


def test_the_first_run_generates_and_the_next_one_reads(skipping, next_prompts, tmp_path):
    first = skipping()
    made = [first.rollout.collect(next_prompts(first), step=step) for step in (1, 2)]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["1.jsonl", "2.jsonl"]
    second = skipping()
    with torch.no_grad():
        for parameter in second.learner.policy.backend.model.parameters():
            parameter.mul_(0.5)
    second.sync_weights()
    asked = counted(second)
    for step, expected in enumerate(made, 1):
        batch = second.rollout.collect(next_prompts(second), step=step)
        assert batch["responses"].lists() == expected["responses"].lists()
        assert torch.equal(batch["rollout_log_probs"].flat, expected["rollout_log_probs"].flat)
        assert batch["finish_reason"] == expected["finish_reason"] and batch["uid"] == expected["uid"]
    assert asked == []


def test_recordings_of_0_1_are_read(skipping, next_prompts, tmp_path):
    """The limit of prompt and response together had another name."""
    first = skipping(f"{ROLLOUT}.max_model_len=30")
    expected = first.rollout.collect(next_prompts(first), step=1)
    file = tmp_path / "kept" / "1.jsonl"
    assert '"max_total_tokens": 30' in file.read_text()
    file.write_text(file.read_text().replace('"max_total_tokens"', '"room"'))
    second = skipping(f"{ROLLOUT}.max_model_len=30")
    assert second.rollout.collect(next_prompts(second), step=1)["responses"].lists() == expected["responses"].lists()


def test_rewards_are_given_anew(skipping, next_prompts):
    first = skipping(reward=lambda solution_str: 0.0)
    first.rollout.collect(next_prompts(first), step=1)
    second = skipping(reward=lambda solution_str: 2.0)
    batch = second.rollout.collect(next_prompts(second), step=1)
    assert [sum(row) for row in batch["token_level_scores"].lists()] == [2.0] * 8


def test_validation_is_generated(skipping, next_prompts, tmp_path):
    run = skipping()
    asked = counted(run)
    run.rollout.collect_validation(next_prompts(run))
    assert len(asked) == 4 and not (tmp_path / "kept").exists()


def test_greedy_answers_are_kept_too(skipping, next_prompts):
    runs = [skipping("algorithm.adv_estimator=remax") for _ in range(2)]
    asked = counted(runs[1])
    scores = [run.rollout.collect(next_prompts(run), step=1)["greedy_scores"] for run in runs]
    assert torch.equal(*scores) and asked == []


def test_filtered_steps_are_read_too(skipping):
    def reward(solution_str, extra_info):
        return float(len(solution_str)) + float(sum(map(ord, solution_str))) if extra_info["number"] % 2 else 1.0

    settings = ("algorithm.filter_groups.enable=true", "data.gen_batch_size=7")
    runs = [skipping(*settings, reward=reward) for _ in range(2)]
    asked = counted(runs[1])
    first, second = (run.rollout.collect(run.rollout.next_prompts(), step=1) for run in runs)
    assert first["responses"].lists() == second["responses"].lists() and asked == []
    assert runs[0].rollout.sampler.state_dict() == runs[1].rollout.sampler.state_dict()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (f"{ROLLOUT}.temperature=0.7", "was sampled with other settings"),
        (f"{ROLLOUT}.n=3", "has no trajectory for a sample"),
        ("trainer.seed=7", "has no trajectory for a sample"),
    ],
)
def test_responses_of_another_run_are_refused(skipping, next_prompts, other, said):
    first = skipping()
    first.rollout.collect(next_prompts(first), step=1)
    second = skipping(other)
    with pytest.raises(UserError, match=said) as caught:
        second.rollout.collect(next_prompts(second), step=1)
    assert caught.value.key == KEY


def test_fewer_responses_than_were_kept_are_read(skipping, next_prompts):
    first = skipping(f"{ROLLOUT}.n=3")
    made = first.rollout.collect(next_prompts(first), step=1)
    second = skipping()
    batch = second.rollout.collect(next_prompts(second), step=1)
    assert batch["responses"].lists() == made.select([r for r in range(12) if r % 3 < 2])["responses"].lists()


@pytest.mark.parametrize("text", ["nonsense\n{}\n", json.dumps({"seed": 1}) + "\n"])
def test_a_file_of_something_else_is_refused(skipping, next_prompts, tmp_path, text):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "1.jsonl").write_text(text)
    run = skipping()
    with pytest.raises(UserError, match="cannot be read as recorded trajectories"):
        run.rollout.collect(next_prompts(run), step=1)


def test_a_folder_that_cannot_be_made_is_named(skipping, next_prompts, tmp_path):
    (tmp_path / "kept").write_text("a file")
    run = skipping()
    with pytest.raises(UserError, match="cannot write trajectories there") as caught:
        run.rollout.collect(next_prompts(run), step=1)
    assert caught.value.key == KEY


def test_a_failed_step_keeps_nothing(skipping, next_prompts, tmp_path):
    def reward(solution_str):
        raise ValueError("no")

    run = skipping("reward.on_error=stop", reward=reward)
    with pytest.raises(UserError, match="ValueError: no"):
        run.rollout.collect(next_prompts(run), step=1)
    assert not (tmp_path / "kept").exists()
