"""Rules of credit and losses: each broken one names the key and says what to type."""

import pytest

from burnish.config import load
from burnish.config.rules import check_rules
from burnish.errors import UserError

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
SECTION = "algorithm.rollout_correction"
CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"


def checked(*overrides):
    return check_rules(load([*GIVEN, *overrides], check=False).cfg)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([f"{SECTION}.rollout_is=token", f"{SECTION}.rollout_is_threshold=x"], f"{SECTION}.rollout_is_threshold"),
        ([f"{SECTION}.rollout_rs=token_k1"], f"{SECTION}.rollout_rs_threshold"),
        ([f"{SECTION}.rollout_is=token", f"{CAP}=2"], CAP),
        ([f"{SECTION}.loss_type=reinforce"], f"{SECTION}.loss_type"),
        ([f"{SECTION}.use_policy_gradient=true"], f"{SECTION}.use_policy_gradient"),
        (["algorithm.use_pf_ppo=true", "algorithm.adv_estimator=grpo"], "algorithm.use_pf_ppo"),
        (["algorithm.reward_clip_range=[1]"], "algorithm.reward_clip_range"),
        (["algorithm.reward_clip_range=[1,-1]"], "algorithm.reward_clip_range"),
    ],
)
def test_a_broken_rule_names_its_key(overrides, key):
    errors, _ = checked(*overrides)
    assert [error.key for error in errors] == [key]
    assert errors[0].hint


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{SECTION}.rollout_is=sequence", f"{SECTION}.rollout_is_threshold=0.5_5"],
        [f"{SECTION}.bypass_mode=true", f"{SECTION}.loss_type=reinforce", f"{SECTION}.rollout_is=token"],
        [f"{SECTION}.rollout_rs=token_k1,seq_max_k3", f"{SECTION}.rollout_rs_threshold=0.5_2.0,3"],
        ["algorithm.use_pf_ppo=true"],
        ["algorithm.reward_clip_range=[-10,10]"],
        [f"{CAP}=2"],
    ],
)
def test_what_is_legal_is_let_through(overrides):
    assert checked(*overrides) == ([], [])


@pytest.mark.parametrize(("override", "named"), [(f"{SECTION}.rollout_is=token", "rollout_is"), (f"{CAP}=2", CAP)])
def test_bypass_mode_reports_that_weights_have_no_effect(override, named):
    errors, remarks = checked(f"{SECTION}.bypass_mode=true", override)
    assert errors == [] and len(remarks) == 1
    assert named in remarks[0] and "has no effect" in remarks[0]


def test_a_measure_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'geometric'"):
        load([*GIVEN, f"{SECTION}.rollout_rs=geometrik"], check=False)


def test_keys_of_disabled_features_give_notices():
    given = [*GIVEN, "algorithm.pf_ppo.weight_pow=3", f"{SECTION}.rollout_is_batch_normalize=true"]
    notices = load([*given, f"{SECTION}.rollout_rs_threshold=2"]).notices
    for switch in ("algorithm.use_pf_ppo", f"{SECTION}.rollout_is=null)", f"{SECTION}.rollout_rs=null)"):
        assert any(switch in notice for notice in notices)
