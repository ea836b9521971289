"""KL, clipping, rewards and filters by stage, and refusals."""

import pytest

from .configs import items, refusals, translate

ACTOR = "actor_rollout_ref.actor"
DAPO = ("megatron_training.stage", "ray_dapo")
PPO = (("megatron_training.stage", "ray_ppo"), ("rl_config.adv_estimator", "gae"), ("critic_config.lr", 1e-5))


def test_grpo_applies_kl_in_the_loss():
    settings = translate(("rl_config.init_kl_coef", 0.2), ("rl_config.kl_penalty", "kl")).settings
    assert (settings[f"{ACTOR}.use_kl_loss"], settings[f"{ACTOR}.kl_loss_coef"]) == (True, 0.2)
    assert settings[f"{ACTOR}.kl_loss_type"] == "kl"


def test_zero_kl_coefficient_needs_no_reference():
    settings = translate(("rl_config.init_kl_coef", 0.0)).settings
    assert settings[f"{ACTOR}.use_kl_loss"] is False
    assert not [key for key in settings if key.startswith("actor_rollout_ref.ref.")]


def test_ppo_applies_kl_in_the_reward():
    on = translate(*PPO, ("rl_config.use_kl_in_reward", True), ("rl_config.init_kl_coef", 0.05)).settings
    assert (on["algorithm.use_kl_in_reward"], on["algorithm.kl_ctrl.kl_coef"]) == (True, 0.05)
    assert on["algorithm.kl_penalty"] == "low_var_kl"
    off = translate(*PPO, ("rl_config.init_kl_coef", 0.05))
    assert items(off, "rl_config.init_kl_coef")[0].status == "inert"
    assert f"{ACTOR}.use_kl_loss" not in off.settings


def test_dapo_has_no_kl():
    translation = translate(DAPO, ("rl_config.init_kl_coef", 0.2))
    assert items(translation, "rl_config.init_kl_coef")[0].status == "inert"
    assert f"{ACTOR}.use_kl_loss" not in translation.settings


def test_adaptive_kl_becomes_fixed_and_is_reported():
    adaptive = ("rl_config.kl_ctrl_type", "adaptive")
    for changes in ((adaptive,), (DAPO, adaptive), (*PPO, ("rl_config.use_kl_in_reward", True), adaptive)):
        translation = translate(*changes)
        assert translation.exit_status == 0
        item = items(translation, "rl_config.kl_ctrl_type")[0]
        assert (item.status, item.ours_value) == ("converted", "fixed")
        assert "never updates" in item.why
        assert translation.settings["algorithm.kl_ctrl.type"] == "fixed"


def test_shuffle_mini_batch():
    translation = translate(("rl_config.shuffle_mini_batch", True))
    assert translation.exit_status == 0
    assert translation.settings[f"{ACTOR}.shuffle_mini_batches"] is True
    assert f"{ACTOR}.shuffle" not in translation.settings


def test_only_gae_uses_gamma_and_lambda():
    changes = (("rl_config.gamma", 0.9), ("rl_config.lam", 0.8))
    assert "algorithm.gamma" not in translate(*changes).settings
    settings = translate(*PPO, *changes).settings
    assert (settings["algorithm.gamma"], settings["algorithm.lam"]) == (0.9, 0.8)
    assert translate(*PPO).settings["algorithm.lam"] == 0.95


def test_clipping():
    plain = translate(("rl_config.clip_ratio", 0.1)).settings
    assert (plain[f"{ACTOR}.clip_ratio"], plain[f"{ACTOR}.clip_ratio_c"]) == (0.1, None)
    higher = (
        ("rl_config.clip_higher_enable", True),
        ("rl_config.clip_ratio_low", 0.2),
        ("rl_config.clip_ratio_high", 0.28),
    )
    settings = translate(DAPO, *higher).settings
    assert (settings[f"{ACTOR}.clip_ratio_low"], settings[f"{ACTOR}.clip_ratio_high"]) == (0.2, 0.28)
    assert f"{ACTOR}.clip_ratio_high" not in translate(*higher).settings  # GRPO's loss does not use them


def test_loss_aggregation():
    by_sequence = ("rl_config.token_level_loss", False)
    assert translate(DAPO, by_sequence).settings[f"{ACTOR}.loss_agg_mode"] == "seq-mean-token-mean"
    assert f"{ACTOR}.loss_agg_mode" not in translate(by_sequence).settings
    assert (
        "entropy_coeff: 0"
        in refusals(translate(DAPO, by_sequence, ("rl_config.entropy_coeff", 0.1)))["rl_config.token_level_loss"]
    )


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("rl_config.adv_estimator", "rloo", "group_norm or gae"),
        ("rl_config.adv_estimator", "gae", "requires a critic"),
        ("rl_config.kl_penalty", 0.1, "must be a KL estimator"),
        ("rl_config.kl_penalty", "full", "must be a KL estimator"),
        ("rl_config.kl_ctrl_type", "linear", "fixed, adaptive"),
        ("rl_config.rule_reward", False, "rule_reward: true"),
        ("rl_config.verifier_function", ["acc_for_dap0"], "Did you mean 'acc_for_dapo'?"),
        ("rl_config.verifier_weight", [1.0, 1.0], "2 weights for 1 verifiers"),
    ],
)
def test_refusals(key, value, text):
    assert text in refusals(translate((key, value)))[key]


def test_verifiers_and_weights():
    names, weights = ["acc", "strict_format"], [1.0, 0.5]
    settings = translate(("rl_config.verifier_function", names), ("rl_config.verifier_weight", weights)).settings
    assert (settings["reward.verifiers"], settings["reward.verifier_weights"]) == (names, weights)


def test_megatron_reward_model_is_refused():
    refused = refusals(translate(("rl_config.rule_reward", False), ("rl_config.use_integrated_worker", False)))
    assert "reward_model.model.path" in refused["rl_config.rule_reward"]


LONG = (
    ("rl_config.overlong_buffer_enable", True),
    ("rl_config.overlong_buffer", 16),
    ("rl_config.rollout_max_tokens", 64),
)


def test_overlong_penalty():
    settings = translate(DAPO, *LONG).settings
    assert settings["reward_model.overlong_buffer.enable"] is True
    assert settings["reward_model.overlong_buffer.len"] == 16
    assert "reward_model.overlong_buffer.len" not in translate(DAPO, LONG[1]).settings
    assert (
        "max_tokens=64"
        in refusals(translate(*LONG, ("rl_config.rollout_max_tokens", 32)))["rl_config.rollout_max_tokens"]
    )
    assert "max_tokens=64" in refusals(translate(*LONG, ("rl_config.overlong_buffer", 64)))["rl_config.overlong_buffer"]


FILTER = (
    DAPO,
    ("rl_config.filter_groups_enable", True),
    ("rl_config.filter_groups_metric", "base_acc"),
    ("rl_config.filter_groups_train_batch_size", 4),
)


@pytest.mark.parametrize(("max_batches", "ours"), [(-1, 0), (0, 0), (5, 5)])
def test_group_filtering(max_batches, ours):
    settings = translate(*FILTER, ("rl_config.filter_groups_max_batches", max_batches)).settings
    assert settings["algorithm.filter_groups.enable"] is True
    assert settings["algorithm.filter_groups.metric"] == "base_acc"
    assert settings["algorithm.filter_groups.max_num_gen_batches"] == ours


def test_filter_metric_must_be_a_verifier():
    refused = refusals(translate(*FILTER, ("rl_config.filter_groups_metric", "acc")))
    assert "verifier_function=['base_acc']" in refused["rl_config.filter_groups_metric"]


def test_filter_metric_may_be_the_name_of_its_log():
    translation = translate(*FILTER, ("rl_config.filter_groups_metric", "grpo/base_acc_rewards/mean"))
    assert translation.settings["algorithm.filter_groups.metric"] == "base_acc"
    refused = refusals(translate(*FILTER, ("rl_config.filter_groups_metric", "grpo/acc_rewards/mean")))
    assert "rl_config.filter_groups_metric" in refused


def test_only_dapo_filters():
    translation = translate(*FILTER[1:])
    assert translation.settings["data.train_batch_size"] == 8
    assert items(translation, "rl_config.filter_groups_enable")[0].status == "inert"


@pytest.mark.parametrize("key", ["advantage_whiten", "num_samples_per_step", "verifier_parallel", "tp_split_expert"])
def test_unused_keys_are_reported(key):
    value = True if key in ("advantage_whiten", "tp_split_expert") else 4
    assert "never uses it" in items(translate((f"rl_config.{key}", value)), f"rl_config.{key}")[0].why


def test_packing_sizes_are_per_role():
    packing = (("rl_config.use_dynamic_bsz", True), ("rl_config.max_packing_token_size", [15000, 4000]))
    translation = translate(*packing, ("rl_config.update_max_packing_token_size", 8192))
    assert translation.settings[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 8192
    assert "no effect there either" in items(translation, "rl_config.max_packing_token_size")[0].why
