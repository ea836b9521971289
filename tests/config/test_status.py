"""Which keys act, are pending, refused or inert, and what a run says about them."""

import re

import pytest
import torch

from burnish.config import load
from burnish.config.job_status import INERT_OF, PENDING_OF, REFUSED_OF
from burnish.config.pending import FEATURES
from burnish.config.status import pending_keys, status_in, status_of
from burnish.config.tree import tree
from burnish.errors import NotSupportedYet, UserError
from burnish.loop.build_engine import check_engine_of

ROWS = (*PENDING_OF["train"], *REFUSED_OF["train"])
GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]


def test_every_missing_feature_has_pending_keys():
    assert {row.feature for rows in PENDING_OF.values() for row in rows} == set(FEATURES)


def test_every_row_fits_a_key():
    """Or a field of a key that holds a mapping."""
    keys = list(tree().leaves)
    mappings = [key for key, leaf in tree().leaves.items() if isinstance(leaf.default, dict)]
    for pattern in [row.pattern for row in ROWS] + list(INERT_OF["train"]):
        bare = pattern.partition("=")[0]
        is_field = any(map(shape(bare.rpartition(".")[0]).fullmatch, mappings))
        assert is_field or any(map(shape(bare).fullmatch, keys)), bare


def shape(pattern):
    return re.compile(".*".join(map(re.escape, pattern.split("*"))))


def test_rows_are_complete():
    for row in ROWS:
        assert (row.inert_if is None) == (row.reason is None)
    assert len({row.pattern for row in ROWS}) == len(ROWS)
    assert all(row.why.en and row.why.zh and row.instead for row in REFUSED_OF["train"])


def test_values_have_a_status_of_their_own():
    assert status_of("actor_rollout_ref.rollout.name").kind == "acts"
    assert status_of("actor_rollout_ref.rollout.name", "hf").kind == "acts"
    assert status_of("actor_rollout_ref.rollout.name", "trtllm").kind == "refused"
    assert status_of("actor_rollout_ref.actor.strategy", "megatron").kind == "acts"
    assert status_of("actor_rollout_ref.hybrid_engine", False).kind == "acts"


def test_pending_keys_lists_keys_and_values(pending_key):
    listed = dict(pending_keys())
    assert pending_key in listed
    assert "trainer.seed" not in listed and "actor_rollout_ref.rollout.name=trtllm" not in listed
    assert pending_keys("eval") == []


def test_a_pending_key_is_refused_by_name(pending_key):
    with pytest.raises(NotSupportedYet, match="not supported yet") as caught:
        load([*GIVEN, f"{pending_key}=5"])
    assert caught.value.key == pending_key and f"{pending_key}=0" in caught.value.hint


POOL = ("actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=1")
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("override", "given", "problem", "hint"),
    [
        (f"{ROLLOUT}.name=trtllm", (), "no engine for TensorRT-LLM", f"{ROLLOUT}.name=vllm"),
        (f"{ROLLOUT}.checkpoint_engine.backend=hccl", POOL, "NCCL or gloo", "backend=nccl"),
        (f"{ROLLOUT}.checkpoint_engine.backend=mooncake", POOL, "NCCL or gloo", "backend=gloo"),
        (f"{ROLLOUT}.quantization=torchao", (), "not read", f"{ROLLOUT}.quantization=fp8"),
        (f"{ROLLOUT}.agent.agent_loop_manager_class=my.Manager", (), "manager of agent loops", "default_agent_loop"),
        (
            f"{ROLLOUT}.agent.custom_async_server.path=mine.py",
            (),
            "class of a vLLM or SGLang",
            f"{ROLLOUT}.name=",
        ),
        (
            "reward_model.rollout.name=vllm",
            ("reward_model.enable=true", "reward_model.model.path=rm", "custom_reward_function.path=mine.py"),
            "no engine serves the reward model",
            "reward_kwargs",
        ),
    ],
)
def test_what_cannot_be_supported_is_refused_with_what_to_type(override, given, problem, hint):
    with pytest.raises(UserError, match=problem) as caught:
        load([*GIVEN, *given, override])
    assert override.startswith(caught.value.key) and hint in caught.value.hint
    assert not isinstance(caught.value, NotSupportedYet)


def test_a_refused_key_without_effect_gives_a_notice():
    for override, reason in (
        (f"{ROLLOUT}.checkpoint_engine.backend=nixl", "share the policy's devices"),
        ("reward_model.rollout.name=vllm", "scored by the training backend"),
    ):
        (notice,) = load([*GIVEN, override]).notices
        assert reason in notice


@pytest.mark.parametrize(
    "rounded",
    [
        (f"{ROLLOUT}.quantization=fp8", f"{ROLLOUT}.name=vllm"),
        (f"{ROLLOUT}.quantization=fp8", "trainer.device=cpu"),
        (f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_dtype=fp8_e4m3", f"{ROLLOUT}.name=vllm"),
        (f"{ROLLOUT}.engine_kwargs.builtin.kv_cache_dtype=fp8", "trainer.device=cuda", f"{ROLLOUT}.invariant=false"),
    ],
)
def test_an_engine_in_8_bits_turns_importance_weights_on(rounded):
    loaded = load([*GIVEN, *rounded])
    (notice,) = [line for line in loaded.notices if "8 bits" in line]
    assert loaded.cfg.algorithm.rollout_correction.rollout_is == "token" and rounded[0].partition("=")[0] in notice
    off = load([*GIVEN, *rounded, "algorithm.rollout_correction.rollout_is=null"])
    assert off.cfg.algorithm.rollout_correction.rollout_is is None
    assert any("rollout_is=token is recommended" in line for line in off.notices)
    capped = load([*GIVEN, *rounded, "actor_rollout_ref.actor.tis_imp_ratio_cap=2"])
    assert capped.cfg.algorithm.rollout_correction.rollout_is is None
    assert not any("8 bits" in line for line in capped.notices)


def test_what_is_not_rounded_needs_no_importance_weights():
    on_cpu = (f"{ROLLOUT}.engine_kwargs.builtin.kv_cache_dtype=fp8", "trainer.device=cpu")
    assert load([*GIVEN, *on_cpu]).cfg.algorithm.rollout_correction.rollout_is is None
    (idle,) = load([*GIVEN, f"{ROLLOUT}.use_block_quant_rollout=false"]).notices
    assert "not rounded" in idle


@pytest.mark.parametrize(
    ("name", "device", "problem"),
    [
        ("hf", "cuda", "only the engines builtin and vllm"),
        ("sglang", "cuda", "only the engines builtin and vllm"),
        ("vllm", "cpu", "on GPUs only"),
    ],
)
def test_an_engine_that_cannot_round_its_weights_is_refused(name, device, problem):
    cfg = load([*GIVEN, f"{ROLLOUT}.quantization=fp8", f"{ROLLOUT}.name={name}"]).cfg
    with pytest.raises(UserError, match=problem) as caught:
        check_engine_of(cfg.actor_rollout_ref.rollout, torch.device(device))
    assert caught.value.key == f"{ROLLOUT}.quantization"


def test_a_model_of_one_rank_is_not_sharded_whatever_the_others_have():
    judged = ("reward_model.enable=true", "reward_model.model.path=rm", "reward_model.enable_resource_pool=true")
    setting = "reward_model.model.fsdp_config.reshard_after_forward=false"
    for devices, acts in ((1, False), (2, True)):
        pool = (*judged, "reward_model.nnodes=1", f"reward_model.n_gpus_per_node={devices}")
        policy = "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=false"
        notices = [n for n in load([*GIVEN, *pool, setting, policy]).notices if "one process holds this model" in n]
        reported = sorted(line.partition(".")[0] for line in notices)
        assert reported == (["actor_rollout_ref"] if acts else ["actor_rollout_ref", "reward_model"])


def test_arguments_of_a_transport_are_known_or_refused():
    key = f"{ROLLOUT}.checkpoint_engine.engine_kwargs"
    nccl = (*POOL, f"{ROLLOUT}.checkpoint_engine.backend=nccl")
    loaded = load([*GIVEN, *nccl, f"+{key}.nccl.rebuild_group=true", f"+{key}.nixl.agent=a"])
    assert sum("forms a process group of its own" in line for line in loaded.notices) == 2
    with pytest.raises(UserError, match="'rebuild_group'") as caught:
        load([*GIVEN, *nccl, f"+{key}.nccl.rebuild_grup=true"])
    assert caught.value.key == f"{key}.nccl.rebuild_grup"
    with pytest.raises(UserError, match="not a mapping"):
        load([*GIVEN, *nccl, f"+{key}.nccl=3"])


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.rollout.quantization=null",
        "trainer.n_gpus_per_node=1",
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size=1",
        "actor_rollout_ref.rollout.multi_turn=false",
        "actor_rollout_ref.ref.strategy=fsdp",
    ],
)
def test_the_default_of_a_pending_key_is_accepted_in_silence(override):
    assert load([*GIVEN, override]).notices == []


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("actor_rollout_ref.model.use_remove_padding=false", "padded"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=true", "CPU memory"),
        ("actor_rollout_ref.model.fused_kernel_options.impl_backend=torch", "Triton runs on GPUs only"),
        ("critic.model.lora_alpha=8", "no adapter is trained"),
        ("actor_rollout_ref.model.lora.merge=true", "always receives merged weights"),
        ("actor_rollout_ref.rollout.layered_summon=true", "sent one by one"),
        ("actor_rollout_ref.rollout.multi_stage_wake_up=true", "weights are always synchronized first"),
        ("actor_rollout_ref.actor.fsdp_config.fsdp_size=2", "one process holds this model"),
        ("actor_rollout_ref.actor.megatron.seed=3", "trainer.seed"),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", "strategy=megatron"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4", "not selected"),
        ("actor_rollout_ref.rollout.engine_kwargs.builtin.shared_prefix=true", "token by token"),
        ("reward_model.micro_batch_size_per_gpu=4", "no reward model"),
        ("reward_model.model.path=folder", "no reward model"),
        ("reward.function_weight=2", "no reward model"),
        ("trainer.balance_batch=false", "the run has one process"),
        ("actor_rollout_ref.actor.strategy=fsdp2", "same backend"),
        ("ray_init.num_cpus=2", "one process"),
    ],
)
def test_a_key_without_effect_gives_a_notice(override, reason):
    notices = load([*GIVEN, override]).notices
    assert len(notices) == 1
    assert reason in notices[0]
    assert override.partition("=")[0] in notices[0]


def test_on_a_gpu_kernels_and_compiling_act():
    kernel = "actor_rollout_ref.model.fused_kernel_options.impl_backend=torch"
    compiled = "actor_rollout_ref.actor.use_torch_compile=false"
    assert load([*GIVEN, "trainer.device=cuda", kernel, compiled]).notices == []
    assert load([*GIVEN, compiled]).notices == [], "and on a CPU, where parts of the layers are in C"


def test_on_a_gpu_offloading_acts():
    asked = "actor_rollout_ref.actor.fsdp_config.param_offload=true"
    assert load([*GIVEN, "trainer.device=cuda", asked]).notices == []


@pytest.mark.parametrize(
    ("setting", "switch"),
    [
        ("data.gen_batch_size=8", "algorithm.filter_groups.enable=true"),
        ("algorithm.filter_groups.metric=acc", "algorithm.filter_groups.enable=true"),
        ("reward_model.overlong_buffer.len=64", "reward_model.overlong_buffer.enable=true"),
        ("actor_rollout_ref.rollout.skip_dump_dir=kept", "actor_rollout_ref.rollout.skip_rollout=true"),
    ],
)
def test_a_key_of_a_disabled_feature_gives_a_notice(setting, switch):
    assert any(line.startswith(f"{setting} has no effect here") for line in load([*GIVEN, setting]).notices)
    assert not any(setting in line for line in load([*GIVEN, setting, switch]).notices)


def test_a_status_within_a_run_knows_defaults_and_what_cannot_matter():
    alone = load(check=False).cfg
    several = load(["trainer.n_gpus_per_node=8", "trainer.device=cuda"], check=False).cfg
    assert status_in(alone, "trainer.nnodes", 1).kind == "acts"
    assert status_in(alone, "actor_rollout_ref.rollout.name", "trtllm").kind == "refused"
    assert status_in(alone, "actor_rollout_ref.actor.fsdp_config.fsdp_size", 4).kind == "inert"
    assert status_in(several, "actor_rollout_ref.actor.fsdp_config.fsdp_size", 4).kind == "acts"
    assert status_in(several, "actor_rollout_ref.model.use_remove_padding", False).kind == "inert"
    assert status_in(several, "algorithm.filter_groups.metric", "acc").kind == "inert"
    assert status_in(several, "algorithm.adv_estimator", "grpo").kind == "acts"


SIZES = [f"actor_rollout_ref.rollout.{name}_parallel_size" for name in ("tensor_model", "data", "expert")]
NAME, EIGHT = "actor_rollout_ref.rollout.name", "trainer.n_gpus_per_node=8"


@pytest.mark.parametrize(
    ("more", "kinds", "reason"),
    [
        ((), ("inert", "inert", "inert"), "the run has one process"),
        ((EIGHT,), ("acts", "inert", "inert"), "divides all its layers and experts over its tensor ranks"),
        ((f"{NAME}=hf", EIGHT), ("inert",) * 3, "every device has a whole hf engine"),
        ((f"{NAME}=sglang",), ("acts",) * 3, None),
        ((f"{NAME}=sglang", EIGHT), ("acts",) * 3, None),
        ((f"{NAME}=vllm", EIGHT), ("acts",) * 3, None),
    ],
)
def test_which_engines_are_spread_over_devices(more, kinds, reason):
    given = ["actor_rollout_ref.model.path=m", "data.train_files=t.parquet", "trainer.device=cpu"]
    sizes = [f"{key}={size}" for key, size in zip(SIZES, (2, 2, 4), strict=True)]
    loaded = load([*given, *sizes, *more])
    assert tuple(status_in(loaded.cfg, key, 2).kind for key in SIZES) == kinds
    notices = [notice for notice in loaded.notices if "_parallel_size" in notice]
    assert len(notices) == kinds.count("inert")
    assert reason is None or any(reason in notice for notice in notices)


@pytest.mark.parametrize(
    ("key", "used_with"),
    [
        ("algorithm.kl_ctrl.kl_coef", "algorithm.use_kl_in_reward=true"),
        ("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.type=adaptive"),
        ("actor_rollout_ref.actor.kl_loss_type", "actor_rollout_ref.actor.use_kl_loss=true"),
        ("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", "actor_rollout_ref.actor.use_kl_loss=true"),
        ("critic.optim.lr", "critic.enable=true"),
        ("critic.model.path", "algorithm.adv_estimator=gae"),
        ("algorithm.gamma", "algorithm.adv_estimator=reinforce_plus_plus"),
        ("algorithm.lam", "algorithm.adv_estimator=gae"),
        ("algorithm.lam", "algorithm.adv_estimator=mine.py:estimate"),
        ("algorithm.norm_adv_by_std_in_grpo", "algorithm.adv_estimator=grpo"),
        ("actor_rollout_ref.actor.tau_pos", "actor_rollout_ref.actor.policy_loss.loss_mode=sapo"),
        ("actor_rollout_ref.actor.policy_loss.kl_cov_ratio", "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "actor_rollout_ref.actor.use_dynamic_bsz=false"),
        ("custom_reward_function.name", "custom_reward_function.path=mine.py"),
    ],
)
def test_keys_of_the_algorithm_act_where_it_uses_them(key, used_with):
    given = [*GIVEN, "algorithm.adv_estimator=rloo", "actor_rollout_ref.actor.use_dynamic_bsz=true"]
    reward_kl = ["algorithm.use_kl_in_reward=true"] if "horizon" in key else []
    without = load([*given, *reward_kl], check=False).cfg
    used = load([*given, *reward_kl, used_with], check=False).cfg
    assert (status_in(without, key, 5).kind, status_in(used, key, 5).kind) == ("inert", "acts")
