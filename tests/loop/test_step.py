import torch

from ..stepping import one_step


def test_each_room_adds_its_columns(make_run, next_prompts):
    run = make_run("algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true")
    batch, metrics = one_step(run)
    rooms = {"prompt_ids", "responses", "rollout_log_probs", "token_level_scores", "old_log_probs", "entropys"}
    rooms |= {"ref_log_prob", "values", "token_level_rewards", "advantages", "returns"}
    assert rooms <= set(batch)
    assert {"actor/pg_loss", "critic/vf_loss", "actor/reward_kl_penalty"} <= set(metrics)
    phases = {name.removeprefix("timing_s/") for name in run.clock.take()}
    taught = {"update_critic", "update_actor", "update_weights", "verify_weights"}
    assert phases == {"gen", "sleep", "old_log_prob", "ref", "values", "adv", "wake"} | taught


def test_a_room_that_is_not_needed_is_not_entered(make_run, next_prompts):
    run = make_run()
    batch, metrics = one_step(run)
    assert run.learner.critic is None and run.learner.reference is None
    assert "values" not in batch and "ref_log_prob" not in batch
    assert not any(name.startswith("critic/") for name in metrics)
    assert "old_log_probs" in batch, "read on the way, for the numbers of the step"


def test_the_engine_samples_with_the_new_weights(make_run, next_prompts):
    run = make_run()
    assert run.rollout.version == 1
    batch, _ = one_step(run)
    assert run.rollout.version == 2
    assert set(batch["weight_version"].flat.tolist()) == {1}
    run.step += 1
    batch, _ = one_step(run)
    assert set(batch["weight_version"].flat.tolist()) == {2}
    torch.testing.assert_close(batch["rollout_log_probs"].flat, batch["old_log_probs"].flat, rtol=0, atol=1e-4)


def test_the_cache_is_freed_while_models_are_taught(make_run, next_prompts):
    run = make_run("actor_rollout_ref.rollout.free_cache_engine=true")
    one_step(run)
    assert run.rollout.engine.stats()["sleeps"] == 1
    other = make_run("actor_rollout_ref.rollout.free_cache_engine=false", out="other")
    one_step(other)
    assert "sleeps" not in other.rollout.engine.stats()


def test_the_engine_keeps_its_weights_through_critic_warmup(make_run, next_prompts):
    """They were last sent before the first step, and the engine slept in between."""
    run = make_run("algorithm.adv_estimator=gae", "trainer.critic_warmup=2", "critic.optim.lr=1e-3")
    for _ in range(3):
        batch, _ = one_step(run)
        run.step += 1
        assert set(batch["weight_version"].flat.tolist()) == {1}
        torch.testing.assert_close(batch["rollout_log_probs"].flat, batch["old_log_probs"].flat, rtol=0, atol=1e-4)
    assert run.rollout.version == 2, "the third step taught the policy"


def test_critic_warmup_teaches_only_the_critic(make_run, next_prompts, weights, equal):
    run = make_run("algorithm.adv_estimator=gae", "trainer.critic_warmup=2", "critic.optim.lr=1e-3")
    policy, critic = weights(run.learner.policy), weights(run.learner.critic)
    for _ in range(2):
        batch, metrics = one_step(run)
        run.step += 1
        assert "old_log_probs" in batch, "the mismatch is measured in these steps too"
        assert "actor/pg_loss" not in metrics and "critic/vf_loss" in metrics
    assert equal(weights(run.learner.policy), policy) and not equal(weights(run.learner.critic), critic)
    assert run.learner.policy.optimizer.updates == 0 and run.rollout.version == 1
    _, metrics = one_step(run)
    assert "actor/pg_loss" in metrics
    assert not equal(weights(run.learner.policy), policy)
