"""How responses come to their rewards: one by one, a batch at a time, or with their whole texts."""

import pytest

BATCH = "reward_model.reward_manager=batch"


def sizes(solution_strs, extra_infos):
    return [{"score": info["number"] % 2, "batch": len(solution_strs)} for info in extra_infos]


def batches(batch):
    return {extras["batch"] for extras in batch["reward_extras"]}


def test_a_batch_manager_is_called_once_for_all_responses_of_a_step(make_run, next_prompts, rows):
    run = make_run(BATCH, "actor_rollout_ref.rollout.val_kwargs.n=3", reward=sizes, val_dataset=rows(2))
    for step in (1, 2):
        batch = run.rollout.collect(next_prompts(run), step)
        assert len(batch) == 8
        assert batches(batch) == {8}
    validated = run.rollout.collect_validation(run.rollout.val_data.batch(range(2), epoch=0))
    assert batches(validated) == {6}


def test_greedy_responses_are_a_batch_of_their_own(make_run, next_prompts):
    run = make_run(BATCH, "algorithm.adv_estimator=remax", reward=sizes)
    assert batches(run.rollout.collect(next_prompts(run), step=1)) == {8}


def test_filtering_waits_for_whole_rounds_and_never_for_ever(make_run):
    def noisy(solution_strs):
        return [float(text.count("7")) for text in solution_strs]

    run = make_run(BATCH, "algorithm.filter_groups.enable=true", "data.gen_batch_size=4", reward=noisy)
    for step in (1, 2, 3):
        assert len(run.rollout.collect(run.rollout.next_prompts(), step)) == 8


@pytest.fixture
def reward_file(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    starts = queries[0].startswith(prompts[0])\n"
        "    return {'rewards': [1.0], 'extra_logs': {'prompt': prompts, 'query': queries, 'starts': starts}}\n"
    )
    return path


def test_a_remote_reward_gets_whole_texts_with_special_tokens(make_run, next_prompts, reward_file):
    run = make_run(f"reward.remote_url={reward_file}", reward=None)
    prompts = next_prompts(run)
    batch = run.rollout.collect(prompts, step=1)
    for row in range(len(batch)):
        extras, ids = batch["reward_extras"][row], batch["prompt_ids"][row].tolist()
        assert extras["prompt"] == run.recorder.tokenizer.decode(ids)
        assert extras["query"] == run.recorder.tokenizer.decode([*ids, *batch["responses"][row].tolist()])
        assert extras["starts"] is True
        assert f"{batch['extra_info'][row]['number']}+" in extras["prompt"]


def test_other_rewards_are_spared_the_texts(make_run, next_prompts):
    run = make_run()
    assert not run.rollout.scorer.scorer.reads_prompts
    asked = []
    submit = run.rollout.scorer.scorer.submit
    run.rollout.scorer.scorer.submit = lambda sample: asked.append(sample) or submit(sample)
    run.rollout.collect(next_prompts(run), step=1)
    assert {(sample.prompt, sample.query) for sample in asked} == {("", "")}
