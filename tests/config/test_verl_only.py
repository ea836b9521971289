"""Keys of verl without a counterpart, and values that mean "not set"."""

import pytest

from burnish.config import load
from burnish.config.overrides import entry_of, read_overrides
from burnish.config.settings import Settings
from burnish.config.tree import tree
from burnish.config.verl_only import VERL_ONLY, find_verl_only
from burnish.errors import UserError, UserErrors

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"


def collected(*overrides, job="train"):
    settings = Settings(tree(job))
    parsed, errors = read_overrides(overrides)
    settings.add_all(entry_of(override) for override in parsed)
    settings.errors += errors
    return settings


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (f"{MODEL}.mtp.enable=True", "MTP layers are neither loaded nor trained"),
        (f"{MODEL}.mtp={{enable:true,method:mtp}}", "MTP layers are neither loaded nor trained"),
        (f"++{MODEL}.mtp.enable=True", "MTP layers are neither loaded nor trained"),
        (f"{ACTOR}.qat.enable=True", "quantization-aware training"),
        (f"+{ACTOR}.qat.enable=true", "quantization-aware training"),
        (f"{ACTOR}.optim.optimizer_impl=bitsandbytes.optim", "other optimizer libraries"),
        ("distillation.enabled=True", "on-policy distillation"),
        ("trainer.v1.trainer_mode=separate_async", "under this name"),
        ("actor_rollout_ref.ref.megatron.router_replay.mode=R2", "only the policy's update"),
        ("reward.reward_manager.source=importlib", "custom reward managers"),
        ("model_engine=veomni", "not a choice"),
    ],
)
def test_features_are_refused_by_name(override, says):
    (error,) = collected(override).errors
    assert says in error.problem
    assert error.hint or error.allowed


def test_hint_goes_on_without_the_feature():
    hints = {
        key: collected(f"{key}=True").errors[0].hint
        for key in (f"{MODEL}.mtp.enable", f"{ACTOR}.fsdp_config.qat.enable")
    }
    assert hints == {key: f"{key}=false" for key in hints}
    for hint in hints.values():
        assert collected(hint).errors == []


@pytest.mark.parametrize(
    "override",
    [
        f"{MODEL}.mtp.enable_train=False",
        f"{MODEL}.mtp.speculative_algorithm=EAGLE",
        f"{MODEL}.tiled_mlp.enabled=False",
        f"{MODEL}.lora.dropout_position=pre",
        f"{ACTOR}.optim.optimizer=AdamW",
        f"{ACTOR}.optim.zero_indexed_step=False",
        f"{ACTOR}.optim.override_optimizer_config=null",
        f"{ACTOR}.optim.muon_momentum=0.9",
        f"{ACTOR}.fsdp_config.seed=42",
        f"{ACTOR}.fsdp_config.full_determinism=False",
        f"{ACTOR}.fsdp_config.turbo_config.distributed.tensor_parallel_size=1",
        f"{ACTOR}.megatron.use_remove_padding=True",
        f"{ACTOR}.megatron.dist_ckpt_optim_fully_reshardable=True",
        f"{ACTOR}.megatron.offload.param.target=null",
        f"{ACTOR}.rollout_n=8",
        f"{ACTOR}.calculate_sum_pi_squared=True",
        f"{ACTOR}.checkpoint.strict=True",
        f"{ACTOR}.profiler.finish_hook_cmd=null",
        f"{ROLLOUT}.logprobs_mode=processed_logprobs",
        f"{ROLLOUT}.scheduling_policy=priority",
        f"{ROLLOUT}.disaggregation.enabled=False",
        f"{ROLLOUT}.trace.max_samples_per_step_per_worker=2",
        f"{ROLLOUT}.multi_turn.function_tool_path=null",
        f"+{ROLLOUT}.limit_images=5",
        "critic.fsdp.entropy_from_logits_chunk_size=2048",
        "critic.model.lora_adapter_path=null",
        "data.audio_key=null",
        "reward.reward_manager.module.name=custom_reward_manager",
        "reward_model.reward_loop_source=null",
        "sandbox_fusion.max_concurrent=null",
        "transfer_queue.backend.storage_backend=SimpleStorage",
        "trainer.v1.sampler.max_off_policy_threshold=8",
        "global_profiler.global_tool_config.precision_debugger.strict=False",
    ],
)
def test_newer_keys_that_change_no_result_are_accepted(override):
    settings = collected(override)
    assert settings.errors == []
    assert settings.values or settings.notices


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        (f"{ACTOR}.fsdp_config.dtype=float16", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "float16"),
        ("critic.fsdp.dtype=float16", "critic.model.fsdp_config.mixed_precision.param_dtype", "float16"),
        ("critic.fsdp.ulysses_sequence_parallel_size=2", "critic.ulysses_sequence_parallel_size", 2),
        (f"{ROLLOUT}.nnodes=1", "rollout.nnodes", 1),
        (f"{ROLLOUT}.full_determinism=True", f"{ROLLOUT}.invariant", True),
        (f"{ROLLOUT}.full_determinism=False", f"{ROLLOUT}.invariant", None),
        (f"{ROLLOUT}.skip.enable=True", f"{ROLLOUT}.skip_rollout", True),
        ("skip.rollout.dump_dir=/d", f"{ROLLOUT}.skip_dump_dir", "/d"),
        (
            f"{MODEL}.gradient_checkpointing_kwargs.activations_checkpoint_method=uniform",
            f"{MODEL}.recompute.method",
            "uniform",
        ),
    ],
)
def test_newer_and_older_spellings(override, key, value):
    settings = collected(override)
    assert settings.errors == []
    assert {name: setting.value for name, setting in settings.values.items()} == {key: value}


@pytest.mark.parametrize(
    "override",
    [
        "trainer.nnodes=",
        "trainer.n_gpus_per_node=",
        "trainer.test_freq=null",
        "data.train_batch_size=",
        f"{ACTOR}.optim.lr_warmup_steps=null",
        f"{ACTOR}.optim.warmup_style=null",
        "reward_model.enable=null",
        "reward_model.reward_manager=null",
        "algorithm.rollout_correction.rollout_is_threshold=null",
        "trainer.project_name=null",
    ],
)
def test_null_and_empty_mean_not_set(override):
    settings = collected(override)
    assert settings.errors == []
    assert settings.values == {}
    assert "not set, so its default applies" in settings.notices[0]
    assert ("shell variable" in settings.notices[0]) is override.endswith("=")


def test_null_removes_an_earlier_value_and_other_spellings_stay():
    key = f"{ACTOR}.optim.warmup_style"
    assert collected(f"{key}=cosine", f"{key}=null").values == {}
    for order in (1, -1):
        overrides = [f"{key}=null", f"{ACTOR}.optim.lr_scheduler_type=cosine"][::order]
        settings = collected(*overrides)
        assert settings.errors == []
        assert settings.values[key].value == "cosine"
        models = ["reward_model.model.path=null", "reward.reward_model.model_path=m"][::order]
        assert collected(*models).values["reward_model.model.path"].value == "m"


def test_null_turns_a_switch_off_as_in_verl():
    assert collected("trainer.val_before_train=null").values["trainer.val_before_train"].value is False


def test_unknown_keys_are_still_errors():
    with pytest.raises((UserError, UserErrors), match="no such key"):
        load([f"{ACTOR}.use_prefix_group=true"], check=False)
    assert find_verl_only("data.seeed", "train") is None


def test_rows_do_not_shadow_keys():
    """A key that exists in the tree is never reported as missing."""
    for job, rows in VERL_ONLY.items():
        exact = {row.pattern for row in rows if "*" not in row.pattern}
        assert exact & set(tree(job).leaves) == set()
