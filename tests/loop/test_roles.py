import pytest

from burnish.config import load
from burnish.errors import UserError
from burnish.loop.build_engine import eos_ids
from burnish.loop.roles import policy_source
from burnish.training.packing import MicroBatchSize


def test_a_run_without_a_model_asks_which():
    with pytest.raises(UserError) as caught:
        policy_source(load(check=False).cfg)
    assert caught.value.key == "actor_rollout_ref.model.path"


def test_a_response_ends_at_the_models_or_the_tokenizers_end(make_run):
    run = make_run()
    model, tokenizer = run.learner.policy.backend.model, run.recorder.tokenizer
    assert eos_ids(model.generation_config, tokenizer) == (tokenizer.eos_token_id,)
    model.generation_config.eos_token_id = [7, 5]
    assert eos_ids(model.generation_config, tokenizer) == tuple(sorted({5, 7, tokenizer.eos_token_id}))
    model.generation_config.eos_token_id = None
    assert eos_ids(model.generation_config, tokenizer) == (tokenizer.eos_token_id,)


def test_each_role_is_cut_by_its_own_keys(make_run):
    run = make_run(
        "algorithm.adv_estimator=gae",
        "algorithm.use_kl_in_reward=true",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=3",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
        "critic.ppo_micro_batch_size_per_gpu=8",
        "critic.forward_micro_batch_size_per_gpu=5",
    )
    assert run.learner.policy.plan.micro_batch == MicroBatchSize(
        rows=2
    ) and run.learner.policy.inference_micro_batch == MicroBatchSize(rows=3)
    assert run.learner.reference.micro_batch == MicroBatchSize(rows=4)
    assert run.learner.critic.plan.micro_batch == MicroBatchSize(
        rows=8
    ) and run.learner.critic.inference_micro_batch == MicroBatchSize(rows=5)


def test_mini_batches_count_prompts_with_all_their_responses(make_run):
    run = make_run("actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=3")
    assert run.learner.policy.plan.mini_rows == 6


def test_gradient_checkpointing_follows_its_key(make_run):
    on = make_run("algorithm.adv_estimator=gae", "actor_rollout_ref.model.enable_gradient_checkpointing=true")
    off = make_run(
        "algorithm.adv_estimator=gae",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "critic.model.enable_gradient_checkpointing=false",
        out="off",
    )
    assert (
        on.learner.policy.backend.model.is_gradient_checkpointing
        and on.learner.critic.backend.model.is_gradient_checkpointing
    )
    assert not off.learner.policy.backend.model.is_gradient_checkpointing
    assert not off.learner.critic.backend.model.is_gradient_checkpointing


def test_a_schedule_in_updates_counts_those_of_a_step(make_run):
    run = make_run(
        "actor_rollout_ref.actor.ppo_mini_batch_size=3",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.actor.optim.lr_step_unit=update",
        "trainer.total_training_steps=5",
    )
    assert run.learner.policy.optimizer.rate.total == 5 * 2 * 2, (
        "four prompts make a mini-batch of three and one of one"
    )
