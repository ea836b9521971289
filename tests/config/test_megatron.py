"""`strategy: megatron`: what Megatron's keys are read as, and what is refused."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.config.derive import derive
from burnish.config.megatron import frozen_routers
from burnish.config.optim import optimizer_arguments
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
        ("moe_z_loss_coeff=0.001", "routers have no z-loss"),
        ("moe_router_bias_update_rate=0.1", "the bias of routers"),
        ("hidden_dropout=0.1", "no dropout of hidden states"),
        ("fp8=e4m3", "training in 8 bits"),
        ("attention_dropout=1", "not a probability"),
        ("moe_router_load_balancing_type=sinkhorn", "no such way to balance experts"),
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


def test_fields_that_are_off_are_accepted_in_silence():
    section = f"{ACTOR}.megatron.override_transformer_config"
    off = ("moe_z_loss_coeff=0", "hidden_dropout=0.0", "mtp_num_layers=0", "moe_router_bias_update_rate=0")
    plain, made = loaded(*FOUR), loaded(*FOUR, *(f"+{section}.{field}" for field in off))
    assert made.notices == plain.notices


def test_experts_are_balanced_by_megatrons_loss():
    section = f"{ACTOR}.megatron.override_transformer_config"
    weight, way = f"+{section}.moe_aux_loss_coeff=0.01", f"+{section}.moe_router_load_balancing_type=seq_aux_loss"
    actor = loaded(*FOUR, weight, way).cfg.actor_rollout_ref.actor
    assert (actor.aux_loss_coef, actor.aux_loss_scope) == (0.01, "seq_aux_loss")
    made = loaded(*FOUR, weight)
    assert made.cfg.actor_rollout_ref.actor.aux_loss_coef == 0
    assert any("moe_aux_loss_coeff=0.01 has no effect here: experts are balanced without" in n for n in made.notices)
    assert "needs the weight of the loss" in refused(*FOUR, way)[f"{section}.moe_aux_loss_coeff"].problem
    critic = [part.replace(ACTOR, "critic") for part in (weight, way)]
    errors = refused(*FOUR, "critic.enable=true", *critic)
    assert "only the policy's experts" in next(iter(errors.values())).problem


def test_attention_dropout_is_one_of_the_models_config():
    field = "megatron.override_transformer_config.attention_dropout=0.1"
    made = loaded(*FOUR, f"+{ACTOR}.{field}", f"+{REF}.{field}")
    assert made.cfg.actor_rollout_ref.model.override_config == {"attention_dropout": 0.1}
    assert any(line.startswith(f"{REF}.{field} has no effect here: this role is not trained") for line in made.notices)
    assert derive(made.cfg) == []


def test_arguments_of_megatrons_model():
    key = f"{ACTOR}.megatron.override_mcore_model_config"
    freezing = loaded(*FOUR, f"+{key}.moe_config.freeze_moe_router=true").cfg.actor_rollout_ref.actor
    assert frozen_routers(ACTOR, freezing) == f"{key}.moe_config.freeze_moe_router"
    assert frozen_routers(ACTOR, loaded(*FOUR).cfg.actor_rollout_ref.actor) is None
    for entry in ("a", "moe_config.b"):
        error = refused(*FOUR, f"+{key}.{entry}=1")[f"{key}.{entry}"]
        assert error.allowed == ["moe_config.freeze_moe_router"]
    ref = key.replace(ACTOR, REF)
    assert any("this role is not trained" in line for line in loaded(*FOUR, f"+{ref}.a=1").notices)


def test_arguments_of_the_optimizer():
    key = f"{ACTOR}.optim.override_optimizer_config"
    fields = ("adam_beta1=0.8", "adam_eps=1e-6", "weight_decay=0.5", "optimizer_cpu_offload=true", "overlap_x=true")
    made = loaded(*FOUR, *(f"+{key}.{field}" for field in fields))
    actor = made.cfg.actor_rollout_ref.actor
    assert (actor.optim.betas, actor.optim.weight_decay) == ([0.8, 0.999], 0.5)
    assert optimizer_arguments(actor.optim) == {"eps": 1e-6}
    assert actor.fsdp_config.optimizer_offload
    assert any("overlap_x=true has no effect here" in line for line in made.notices)
    assert derive(made.cfg) == []
    whole = loaded(*FOUR, f"+{key}.optimizer_cpu_offload=true", f"+{key}.optimizer_offload_fraction=0")
    assert not whole.cfg.actor_rollout_ref.actor.fsdp_config.optimizer_offload


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        (FOUR, "epps=1", "no such argument"),
        (FOUR, "exp_avg_dtype=bf16", "float32"),
        (FOUR, "decoupled_weight_decay=false", "decoupled"),
        (FOUR, "lr=1e-3", "a key of its own"),
        (FOUR, "eps=small", "not a number"),
        ((), "adam_eps=1e-6", "no such argument"),
        ((), "dampening=0.1", "no such argument"),
        ((), "nesterov=true", "needs a momentum"),
    ],
)
def test_an_argument_of_the_optimizer_is_known_or_refused(given, field, problem):
    key = f"{ACTOR}.optim.override_optimizer_config.{field}"
    assert problem in refused(*given, f"+{key}")[key.partition("=")[0]].problem


def test_sgd_has_megatrons_momentum_and_no_betas():
    sgd, key = f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.override_optimizer_config"
    assert optimizer_arguments(loaded(sgd).cfg.actor_rollout_ref.actor.optim) == {}
    made = loaded(*FOUR, sgd, f"{ACTOR}.optim.betas=[0.8,0.9]")
    assert optimizer_arguments(made.cfg.actor_rollout_ref.actor.optim) == {"momentum": 0.9}
    assert any("an argument of another optimizer" in line for line in made.notices)
    given = loaded(*FOUR, sgd, f"+{key}.momentum=0.5").cfg.actor_rollout_ref.actor.optim
    assert optimizer_arguments(given) == {"momentum": 0.5}


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


def test_only_dora_needs_whole_matrices():
    words = (*FOUR, f"{ACTOR}.megatron.tensor_model_parallel_size=2", "actor_rollout_ref.model.lora_rank=4")
    assert loaded(*words).cfg.actor_rollout_ref.model.lora_rank == 4
    error = refused(*words, "actor_rollout_ref.model.lora.type=dora")[f"{ACTOR}.megatron.tensor_model_parallel_size"]
    assert "DoRA" in error.problem and "actor_rollout_ref.model.lora.type=lora" in error.hint


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
