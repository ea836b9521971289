"""Which keys act, are pending or inert, and what a run says about them."""

import re

import pytest

from burnish.config import load
from burnish.config.pending import CONDITIONS, INERT, PENDING, WAITS
from burnish.config.status import pending_keys, status_of
from burnish.config.tree import tree
from burnish.errors import UserError

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
OPTIM = (
    "{lr,lr_warmup_steps,lr_warmup_steps_ratio,min_lr_ratio,num_cycles,warmup_style,total_training_steps,"
    "weight_decay,betas,lr_step_unit}"
)
ROLE = (
    "{ppo_mini_batch_size,ppo_micro_batch_size,ppo_micro_batch_size_per_gpu,use_dynamic_bsz,"
    "ppo_max_token_len_per_gpu,grad_clip,ppo_epochs,shuffle,data_loader_seed,loss_agg_mode}"
)
MICRO = (
    "{log_prob_micro_batch_size,log_prob_micro_batch_size_per_gpu,log_prob_use_dynamic_bsz,"
    "log_prob_max_token_len_per_gpu}"
)

# Every key with a behaviour in this piece of work.
ACTING = [
    "data.{train_files,val_files,prompt_key,reward_fn_key,max_prompt_length,max_response_length,train_batch_size}",
    "data.{val_batch_size,shuffle,validation_shuffle,seed,filter_overlong_prompts,filter_overlong_prompts_workers}",
    "data.{truncation,custom_cls.path,custom_cls.name,apply_chat_template_kwargs,trust_remote_code,tokenizer}",
    "data.{return_raw_chat,return_full_prompt,return_raw_input_ids,train_max_samples,val_max_samples}",
    "actor_rollout_ref.model.{path,tokenizer_path,override_config,external_lib,trust_remote_code}",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    f"actor_rollout_ref.actor.{ROLE}",
    f"actor_rollout_ref.actor.optim.{OPTIM}",
    "actor_rollout_ref.actor.{clip_ratio,clip_ratio_low,clip_ratio_high,clip_ratio_c,loss_scale_factor,tau_pos,tau_neg}",
    "actor_rollout_ref.actor.policy_loss.{loss_mode,clip_cov_ratio,clip_cov_lb,clip_cov_ub,kl_cov_ratio,ppo_kl_coef}",
    "actor_rollout_ref.actor.{entropy_coeff,use_kl_loss,kl_loss_coef,kl_loss_type}",
    "actor_rollout_ref.actor.checkpoint.{save_contents,load_contents}",
    f"actor_rollout_ref.ref.{MICRO}",
    f"actor_rollout_ref.rollout.{MICRO}",
    "actor_rollout_ref.rollout.{name,temperature,top_k,top_p,n,ignore_eos,do_sample,prompt_length,response_length}",
    "actor_rollout_ref.rollout.{dtype,gpu_memory_utilization,free_cache_engine,max_model_len,max_num_seqs}",
    "actor_rollout_ref.rollout.{max_num_batched_tokens,disable_log_stats,invariant}",
    "actor_rollout_ref.rollout.val_kwargs.{temperature,top_k,top_p,n,do_sample}",
    f"critic.{ROLE}",
    f"critic.optim.{OPTIM}",
    "critic.{enable,cliprange_value,forward_micro_batch_size,forward_micro_batch_size_per_gpu}",
    "critic.{forward_max_token_len_per_gpu,checkpoint.save_contents,checkpoint.load_contents}",
    "critic.model.{path,override_config,external_lib,trust_remote_code,enable_gradient_checkpointing}",
    "custom_reward_function.{path,name,reward_kwargs}",
    "reward.{num_workers,timeout,memory_mb,on_error,fallback_score,pass_env}",
    "reward_model.reward_manager",
    "algorithm.{gamma,lam,adv_estimator,norm_adv_by_std_in_grpo,use_kl_in_reward,kl_penalty}",
    "algorithm.kl_ctrl.{type,kl_coef,horizon,target_kl}",
    "trainer.{total_epochs,total_training_steps,project_name,experiment_name,logger,log_val_generations,seed,device}",
    "trainer.{rollout_data_dir,validation_data_dir,save_freq,resume_mode,resume_from_path,val_before_train,val_only}",
    "trainer.{remove_previous_ckpt_in_save,test_freq,critic_warmup,default_local_dir}",
    "trainer.{max_actor_ckpt_to_keep,max_critic_ckpt_to_keep}",
]


def spread(pattern):
    found = re.search(r"\{(.*)\}", pattern)
    if not found:
        return [pattern]
    return [pattern.replace(found.group(0), name) for name in found.group(1).split(",")]


ACTING_KEYS = [key for pattern in ACTING for key in spread(pattern)]


def test_exactly_the_acting_keys_act():
    acting = {key for key in tree().leaves if status_of(key).kind == "acts"}
    assert acting == set(ACTING_KEYS)


def test_every_row_fits_a_key():
    keys = list(tree().leaves)
    for pattern in [row.pattern for row in PENDING] + list(INERT):
        bare = pattern.partition("=")[0]
        shape = re.compile(".*".join(map(re.escape, bare.split("*"))))
        assert any(shape.fullmatch(key) for key in keys), pattern


def test_rows_are_complete():
    for row in PENDING:
        assert row.waits_for in WAITS
        assert (row.inert_if is None) == (row.reason is None)
        assert row.inert_if is None or row.inert_if in CONDITIONS
    assert len({row.pattern for row in PENDING}) == len(PENDING)


def test_values_have_a_status_of_their_own():
    assert status_of("actor_rollout_ref.rollout.name").kind == "acts"
    assert status_of("actor_rollout_ref.rollout.name", "hf").kind == "acts"
    assert status_of("actor_rollout_ref.rollout.name", "vllm").kind == "pending"
    assert status_of("actor_rollout_ref.actor.strategy", "fsdp2").kind == "inert"
    assert status_of("actor_rollout_ref.actor.strategy", "megatron").kind == "pending"
    assert status_of("actor_rollout_ref.hybrid_engine", False).kind == "pending"


def test_pending_keys_lists_keys_and_values():
    listed = dict(pending_keys())
    assert "actor_rollout_ref.model.lora_rank" in listed
    assert "actor_rollout_ref.rollout.name=vllm" in listed
    assert "trainer.seed" not in listed
    assert len(pending_keys("eval")) == len(tree("eval").leaves)


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.rollout.name=sglang",
        "actor_rollout_ref.model.lora_rank=8",
        "trainer.n_gpus_per_node=8",
        "actor_rollout_ref.rollout.multi_turn=true",
        "reward_model.reward_kwargs.max_resp_len=3",
        "actor_rollout_ref.actor.use_torch_compile=true",
    ],
)
def test_a_pending_key_is_refused_by_name(override):
    with pytest.raises(UserError, match="waits for") as caught:
        load([*GIVEN, override])
    assert caught.value.key in override or caught.value.key.startswith(override.partition("=")[0])


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.model.lora_rank=0",
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
        ("actor_rollout_ref.actor.fsdp_config.fsdp_size=2", "one process"),
        ("actor_rollout_ref.actor.megatron.seed=3", "Megatron"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4", "not selected"),
        ("reward_model.micro_batch_size_per_gpu=4", "no reward model"),
        ("trainer.balance_batch=false", "balance"),
        ("actor_rollout_ref.actor.strategy=fsdp2", "same backend"),
        ("ray_init.num_cpus=2", "one process"),
    ],
)
def test_a_key_without_effect_is_said(override, reason):
    notices = load([*GIVEN, override]).notices
    assert len(notices) == 1
    assert reason in notices[0]
    assert override.partition("=")[0] in notices[0]


def test_on_a_gpu_offloading_is_pending():
    with pytest.raises(UserError, match="offloading"):
        load([*GIVEN, "trainer.device=cuda", "actor_rollout_ref.actor.fsdp_config.param_offload=true"])
