"""`strategy: megatron`: what Megatron's keys are read as, and what is refused."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.config.derive import derive
from burnish.errors import UserError, UserErrors

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
MEGATRON = f"{ACTOR}.strategy=megatron"
FOUR = (MEGATRON, "trainer.n_gpus_per_node=4")


def loaded(*overrides: str):
    return load([*GIVEN, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", *overrides])


def refused(*overrides: str) -> dict[str, UserError]:
    with pytest.raises((UserError, UserErrors)) as caught:
        loaded(*overrides)
    errors = caught.value.errors if isinstance(caught.value, UserErrors) else [caught.value]
    return {error.key: error for error in errors}


def test_megatron_keys_are_translated():
    offloads = [f"{ACTOR}.megatron.param_offload=true", f"{ACTOR}.megatron.optimizer_offload=true"]
    made = loaded(*FOUR, *offloads, f"{ACTOR}.megatron.dtype=fp32", f"{ACTOR}.megatron.context_parallel_size=2")
    actor = made.cfg.actor_rollout_ref.actor
    assert actor.fsdp_config.param_offload and actor.fsdp_config.optimizer_offload
    assert actor.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert actor.ulysses_sequence_parallel_size == 2
    assert actor.optim.decay_matrices_only
    message = " ".join(made.notices)
    assert f"{ACTOR}.megatron.param_offload is interpreted as {ACTOR}.fsdp_config.param_offload=true." in message
    assert f"{MEGATRON} is interpreted as {ACTOR}.optim.decay_matrices_only=true." in message
    assert derive(made.cfg) == []


def test_the_critics_settings_are_elsewhere():
    made = loaded(*FOUR, "critic.enable=true", "critic.megatron.param_offload=true", "critic.megatron.dtype=fp32")
    fsdp = made.cfg.critic.model.fsdp_config
    assert fsdp.param_offload and fsdp.mixed_precision.param_dtype == "fp32"
    assert not made.cfg.actor_rollout_ref.actor.fsdp_config.param_offload


def test_megatron_keys_have_no_effect_with_other_strategies():
    made = loaded(f"{ACTOR}.megatron.param_offload=true", f"{ACTOR}.optim.lr_decay_style=linear")
    actor = made.cfg.actor_rollout_ref.actor
    assert (actor.fsdp_config.param_offload, actor.optim.lr_decay_style) == (False, "constant")
    assert not actor.optim.decay_matrices_only
    assert len(made.notices) == 2 and all("only used with strategy=megatron" in line for line in made.notices)


def test_full_granularity_recomputes_whole_layers():
    section = f"{ACTOR}.megatron.override_transformer_config"
    full = [f"{section}.recompute_granularity=full", f"{section}.recompute_method=uniform"]
    made = loaded(
        *FOUR,
        *full,
        f"+{section}.recompute_num_layers=2",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    )
    model = made.cfg.actor_rollout_ref.model
    assert model.enable_gradient_checkpointing
    assert (model.recompute.method, model.recompute.num_layers) == ("uniform", 2)
    selective = loaded(
        *FOUR,
        f"{section}.recompute_granularity=selective",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    )
    assert not selective.cfg.actor_rollout_ref.model.enable_gradient_checkpointing


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("recompute_granularity=some", "no such granularity"),
        ("rotary_interleaved=true", "Megatron's model code"),
        ("moe_router_dtype=fp32", "not supported yet (MoE options)"),
    ],
)
def test_a_field_of_megatrons_model_is_known_or_refused(field, message):
    key = f"{ACTOR}.megatron.override_transformer_config.{field.partition('=')[0]}"
    errors = refused(*FOUR, f"+{ACTOR}.megatron.override_transformer_config.{field}")
    assert message in errors[key].problem


def test_a_megatron_kernel_gives_a_notice():
    made = loaded(*FOUR, f"+{ACTOR}.megatron.override_transformer_config.apply_rope_fusion=true")
    assert any(
        "apply_rope_fusion=true has no effect here: it selects a Megatron-Core kernel" in line for line in made.notices
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("override_mcore_model_config", "{a: 1}", "Megatron-Core"),
    ],
)
def test_what_stays_pending(key, value, message):
    errors = refused(
        *FOUR, f"+{ACTOR}.megatron.{key}={value}" if "{" in str(value) else f"{ACTOR}.megatron.{key}={value}"
    )
    assert any(
        found.startswith(f"{ACTOR}.megatron.{key}") and message in error.problem for found, error in errors.items()
    )


@pytest.mark.parametrize(
    ("sizes", "allowed", "hint"),
    [
        (("tensor_model_parallel_size=3",), [1, 2, 4], "tensor_model_parallel_size=4"),
        (("tensor_model_parallel_size=4", "context_parallel_size=2"), [1, 2], "tensor_model_parallel_size=2"),
        (("context_parallel_size=3",), None, "context_parallel_size=1"),
    ],
)
def test_ranks_divide_into_groups(sizes, allowed, hint):
    errors = refused(*FOUR, *(f"{ACTOR}.megatron.{size}" for size in sizes))
    error = errors[f"{ACTOR}.megatron.tensor_model_parallel_size"]
    assert (error.allowed, error.hint) == (allowed, f"{ACTOR}.megatron.{hint}")
    assert "the 4 ranks" in error.problem


def test_adapters_are_not_shared_out():
    errors = refused(*FOUR, f"{ACTOR}.megatron.tensor_model_parallel_size=2", "actor_rollout_ref.model.lora_rank=4")
    error = errors[f"{ACTOR}.megatron.tensor_model_parallel_size"]
    assert "LoRA" in error.problem and "actor_rollout_ref.model.lora_rank=0" in error.hint


def test_the_exact_kl_needs_both_models_on_the_same_ranks():
    exact = (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=full")
    tensor = f"{ACTOR}.megatron.tensor_model_parallel_size=2"
    key = f"{REF}.megatron.tensor_model_parallel_size"
    assert refused(*FOUR, *exact, tensor)[key].hint == f"{key}=2"
    assert loaded(*FOUR, *exact, tensor, f"{key}=2").cfg.actor_rollout_ref.ref.megatron.tensor_model_parallel_size == 2


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("lr_decay_style=linear", "warmup_style=cosine"), "lr_decay_style"),
        (("min_lr=1e-7", "min_lr_ratio=0.5"), "min_lr"),
        (("min_lr=1e-5",), "min_lr"),
        (("lr_warmup_init=1e-5",), "lr_warmup_init"),
        (("lr_decay_style=WSD",), "lr_wsd_decay_steps"),
    ],
)
def test_schedules_that_contradict_themselves_are_refused(settings, key):
    errors = refused(*FOUR, *(f"{ACTOR}.optim.{setting}" for setting in settings))
    assert [*errors] == [f"{ACTOR}.optim.{key}"]


def test_two_equal_schedules_are_accepted():
    twice = ("lr_decay_style=linear", "warmup_style=linear", "min_lr=5e-7", "min_lr_ratio=0.5")
    optim = loaded(*FOUR, *(f"{ACTOR}.optim.{setting}" for setting in twice)).cfg.actor_rollout_ref.actor.optim
    assert (optim.lr, optim.min_lr) == (1e-6, 5e-7)


def test_verls_own_megatron_file():
    made = load(GIVEN, config_name="ppo_megatron_trainer")
    assert made.cfg.actor_rollout_ref.actor.strategy == "megatron"
    assert made.cfg.actor_rollout_ref.actor.optim.lr_decay_style == "constant"
