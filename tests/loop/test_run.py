import pytest

from ..stepping import one_step

PPO = ("algorithm.adv_estimator=gae",)


@pytest.mark.parametrize(
    ("overrides", "step", "reads"),
    [
        ((), 0, False),
        (("actor_rollout_ref.actor.ppo_epochs=2",), 0, True),
        (("actor_rollout_ref.actor.ppo_mini_batch_size=2",), 0, True),
        (("algorithm.use_kl_in_reward=true",), 0, True),
        (("actor_rollout_ref.actor.use_kl_loss=true",), 0, False),
        (("actor_rollout_ref.model.override_config.attention_dropout=0.1",), 0, True),
        ((*PPO, "trainer.critic_warmup=1"), 0, True),
        ((*PPO, "trainer.critic_warmup=1"), 1, False),
    ],
)
def test_old_log_probs_are_computed_unless_the_update_computes_them(make_run, overrides, step, reads):
    run = make_run(*overrides)
    assert run.learner.needs_old_log_probs(step + 1, 8, current=True) is reads


def test_skipping_old_log_probs_gives_the_same_weights(make_run, next_prompts, weights, equal, monkeypatch):
    one, other = make_run(out="one"), make_run(out="other")
    monkeypatch.setattr(other.learner.policy, "updates_once", lambda num_rows: False)
    for run in (one, other):
        for _ in range(3):
            one_step(run)
            run.step += 1
    assert "timing_s/old_log_prob" not in one.clock.take()
    assert "timing_s/old_log_prob" in other.clock.take()
    assert equal(weights(one.learner.policy), weights(other.learner.policy))


def test_closing_ends_the_engine_and_the_scorer(make_run):
    run = make_run()
    run.close()
    with pytest.raises(RuntimeError):
        run.rollout.engine.stats()
    run.close()
