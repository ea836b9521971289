import shutil

import pytest

from burnish.config import load
from burnish.errors import UserError, UserErrors
from burnish.loop.build import build, check_names
from burnish.loop.build_data import total_steps


def test_all_wrong_names_are_reported_at_once(settings):
    cfg = load(settings(), given=["data.train_files"]).cfg
    cfg.algorithm.adv_estimator = "gpro"
    cfg.actor_rollout_ref.rollout.name = "bultin"
    cfg.actor_rollout_ref.actor.policy_loss.loss_mode = "vanila"
    cfg.trainer.resume_mode = "sometimes"
    with pytest.raises(UserErrors) as caught:
        check_names(cfg)
    told = {error.key: error.text() for error in caught.value.errors}
    assert "Did you mean 'grpo'?" in told["algorithm.adv_estimator"]
    assert "Did you mean 'builtin'?" in told["actor_rollout_ref.rollout.name"]
    assert "Did you mean 'vanilla'?" in told["actor_rollout_ref.actor.policy_loss.loss_mode"]
    assert "auto" in told["trainer.resume_mode"]


def test_right_names_pass(settings):
    cfg = load(settings(), given=["data.train_files"]).cfg
    assert check_names(cfg) is None


@pytest.fixture
def model_without_weights(model_folder, tmp_path):
    """A model that cannot be loaded: whatever else is wrong must be found before."""
    folder = tmp_path / "no weights"
    shutil.copytree(model_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return f"actor_rollout_ref.model.path='{folder}'"


def refused(launch, *overrides, **arguments):
    with pytest.raises(UserError) as caught:
        launch(*overrides, **arguments)
    return caught.value


def test_a_model_without_weights_is_refused(launch, model_without_weights):
    assert refused(launch, model_without_weights).key == "actor_rollout_ref.model.path"


def test_a_data_source_without_a_reward_is_named_before_the_model_is_loaded(launch, model_without_weights, rows):
    error = refused(launch, model_without_weights, reward=None, dataset=rows(6, source="openai/gsm9k"))
    assert error.key == "data_source" and error.value == "openai/gsm9k"
    assert "Did you mean 'openai/gsm8k'?" in error.text()


def test_validation_sources_are_checked_too(launch, model_without_weights, rows):
    train, val = rows(6, source="openai/gsm8k"), rows(2, source="nobody/knows")
    error = refused(launch, model_without_weights, reward=None, dataset=train, val_dataset=val)
    assert error.value == "nobody/knows"


def test_wrong_data_is_found_before_the_model_is_loaded(launch, model_without_weights, rows):
    assert "max_prompt_length" in refused(launch, model_without_weights, "data.max_prompt_length=3").text()
    assert refused(launch, model_without_weights, dataset=rows(3)).key == "data.train_batch_size"


def test_a_reward_that_cannot_be_called_is_found_before_the_model_is_loaded(launch, model_without_weights):
    error = refused(launch, model_without_weights, reward=lambda solution_str, weight: 0.0)
    assert "'weight'" in error.text()


def test_validation_only_needs_something_to_validate(settings):
    cfg = load(settings("trainer.val_only=true"), given=["data.val_files"]).cfg
    with pytest.raises(UserError, match="no validation data") as caught:
        build(cfg)
    assert caught.value.key == "trainer.val_only"


@pytest.mark.parametrize(
    ("overrides", "critic", "reference"),
    [
        ((), False, False),
        (("algorithm.adv_estimator=gae",), True, False),
        (("critic.enable=true",), True, False),
        (("actor_rollout_ref.actor.use_kl_loss=true",), False, True),
        (("algorithm.use_kl_in_reward=true",), False, True),
    ],
)
def test_the_roles_that_the_config_asks_for(make_run, overrides, critic, reference):
    run = make_run(*overrides)
    assert (run.learner.critic is not None, run.learner.reference is not None) == (critic, reference)


def test_training_and_validation_sample_in_their_own_way(make_run):
    run = make_run(
        "actor_rollout_ref.rollout.temperature=0.8",
        "actor_rollout_ref.rollout.top_k=7",
        "actor_rollout_ref.rollout.val_kwargs.top_p=0.5",
        "actor_rollout_ref.rollout.ignore_eos=true",
    )
    assert (run.rollout.sampling.temperature, run.rollout.sampling.top_k, run.rollout.sampling.top_p) == (0.8, 7, 1.0)
    assert (run.rollout.val_sampling.greedy, run.rollout.val_sampling.top_p) == (True, 0.5)
    assert run.rollout.sampling.max_tokens == run.rollout.val_sampling.max_tokens == 5
    assert run.rollout.sampling.ignore_eos and run.rollout.val_sampling.ignore_eos


def test_the_length_of_the_run(make_run, settings):
    run = make_run("trainer.total_training_steps=null", "trainer.total_epochs=7")
    assert run.total_steps == 7 * 3
    assert total_steps(load(settings(), given=["data.train_files"]).cfg, type("Data", (), {"sampler": None})()) == 0
