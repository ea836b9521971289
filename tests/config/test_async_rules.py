"""What follows from generating ahead, and what does not go with it."""

import pytest

from burnish.config import load
from burnish.errors import UserError

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
SECTION = "async_training"
CORRECTION = "algorithm.rollout_correction"
MODES = ("one_step_off", "queue")


def loaded(*overrides):
    return load([*GIVEN, *overrides])


def notice_text(*overrides):
    return " ".join(loaded(*overrides).notices)


@pytest.mark.parametrize("mode", MODES)
def test_importance_weights_are_on_by_default(mode):
    one = loaded(f"{SECTION}.mode={mode}")
    correction = one.cfg.algorithm.rollout_correction
    assert (correction.rollout_is, correction.bypass_mode) == ("token", False)
    assert f"{CORRECTION}.rollout_is=token" in " ".join(one.notices)
    assert f"{CORRECTION}.rollout_is=null disables it" in " ".join(one.notices)
    assert loaded().cfg.algorithm.rollout_correction.rollout_is is None


@pytest.mark.parametrize(
    "own",
    [
        f"{CORRECTION}.rollout_is=null",
        f"{CORRECTION}.rollout_is=sequence",
        f"{CORRECTION}.bypass_mode=true",
        "actor_rollout_ref.actor.tis_imp_ratio_cap=3",
        "algorithm.rollout_correction.rollout_token_veto_threshold=0.1",
    ],
)
def test_explicit_correction_settings_are_kept(own):
    made = loaded(f"{SECTION}.mode=queue", own).cfg
    expected = load([*GIVEN, own]).cfg
    assert made.algorithm.rollout_correction == expected.algorithm.rollout_correction
    assert made.actor_rollout_ref.actor.tis_imp_ratio_cap == expected.actor_rollout_ref.actor.tis_imp_ratio_cap


def test_a_bound_applies_to_automatic_importance_weights():
    assert "no effect" not in notice_text(f"{SECTION}.mode=queue", f"{CORRECTION}.rollout_is_threshold=3.0")
    assert "no effect" in notice_text(f"{CORRECTION}.rollout_is_threshold=3.0")


def test_the_engines_log_probs_as_the_old_ones():
    mode, bypass = f"{SECTION}.mode=queue", f"{SECTION}.use_rollout_log_probs=true"
    correction = loaded(mode, bypass).cfg.algorithm.rollout_correction
    assert (correction.bypass_mode, correction.rollout_is) == (True, None)
    correction = loaded(mode, bypass, f"{SECTION}.compute_prox_log_prob=true").cfg.algorithm.rollout_correction
    assert (correction.bypass_mode, correction.rollout_is) == (False, "token")
    with pytest.raises(UserError, match="bypass_mode=false, which uses the trainer's"):
        loaded(mode, bypass, f"{CORRECTION}.bypass_mode=false")


def test_a_step_in_mini_batches():
    sizes = ("data.train_batch_size=0", "actor_rollout_ref.actor.ppo_mini_batch_size=32")
    one = loaded(f"{SECTION}.mode=queue", f"{SECTION}.require_batches=4", *sizes)
    assert one.cfg.data.train_batch_size == 128
    assert "4 mini-batches of 32 prompts" in " ".join(one.notices)
    assert "no effect" not in " ".join(one.notices)
    assert "data.train_batch_size sets the number" in notice_text(
        f"{SECTION}.mode=queue", f"{SECTION}.require_batches=3"
    )


def test_the_engines_own_counts_are_the_runs():
    keys = ("rollout.total_epochs=3", "rollout.test_freq=2")
    trainer = loaded(f"{SECTION}.mode=queue", f"{SECTION}.trigger_parameter_sync_step=5", *keys).cfg.trainer
    assert (trainer.total_epochs, trainer.test_freq) == (3, 10)
    trainer = loaded(f"{SECTION}.mode=one_step_off", *keys).cfg.trainer
    assert (trainer.total_epochs, trainer.test_freq) == (3, 2)
    trainer = loaded(*keys).cfg.trainer
    assert (trainer.total_epochs, trainer.test_freq) == (30, -1)
    with pytest.raises(UserError, match="less than the 1024 prompts of one step"):
        loaded(f"{SECTION}.mode=queue", "rollout.total_rollout_steps=1000")


def test_the_engine_keeps_its_cache():
    key = "actor_rollout_ref.rollout.free_cache_engine"
    one = loaded(f"{SECTION}.mode=one_step_off")
    assert not one.cfg.actor_rollout_ref.rollout.free_cache_engine and key not in " ".join(one.notices)
    assert "the engine is never idle" in notice_text(f"{SECTION}.mode=one_step_off", f"{key}=true")


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.sampler.class_path=mine.py", "data.sampler.class_name=Mine"),
        ("data.datagen.path=mine.py", "data.datagen.name=Mine"),
    ],
)
def test_a_queue_excludes_samplers_that_change_prompts_after_a_step(overrides):
    with pytest.raises(UserError, match="draws prompts ahead of steps") as caught:
        loaded(f"{SECTION}.mode=queue", *overrides)
    assert caught.value.key == overrides[0].partition("=")[0]
    assert loaded(f"{SECTION}.mode=one_step_off", *overrides).cfg.async_training.mode == "one_step_off"


def test_a_shared_device_gives_a_notice():
    assert "engine and policy share one device" in notice_text(f"{SECTION}.mode=one_step_off")
    own = "actor_rollout_ref.hybrid_engine=false"
    assert f"{own} has no effect here" in notice_text(f"{SECTION}.mode=one_step_off", own)
    with pytest.raises(UserError, match="need their own devices"):
        loaded(own)


@pytest.mark.parametrize(
    ("overrides", "quiet"),
    [
        ((f"{SECTION}.queue_size=3",), "generation and training alternate"),
        (("rollout.total_epochs=3",), "generation and training alternate"),
        ((f"{SECTION}.mode=one_step_off", f"{SECTION}.staleness_threshold=2"), "exactly one batch ahead"),
        ((f"{SECTION}.mode=queue", f"{SECTION}.compute_prox_log_prob=true"), "computes them in any case"),
        (
            (f"{SECTION}.mode=queue", "actor_rollout_ref.rollout.name=hf", f"{SECTION}.partial_rollout=false"),
            "cannot interrupt a batch",
        ),
    ],
)
def test_keys_without_effect_are_named(overrides, quiet):
    assert quiet in notice_text(*overrides)


def test_staleness_below_one_batch_gives_a_notice():
    assert "less than one batch" in notice_text(f"{SECTION}.mode=queue")
    assert "less than one batch" not in notice_text(f"{SECTION}.mode=queue", f"{SECTION}.staleness_threshold=0.5")
