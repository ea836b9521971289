"""The Burnish keys that each flag sets: units, names, defaults."""

import pytest

from burnish.config import load
from burnish.dialects.translate import translate_command

from .commands import ACTOR, GOOD, ROLLOUT, good, items, refused, translate

N8 = "--advantage_estimator group_norm --n_samples_per_prompt 8"
GAE = "--advantage_estimator gae"
CORRECTION = "algorithm.rollout_correction"
TABLE = [
    # batches
    ("--train_batch_size 64 --n_samples_per_prompt 8", {f"{ACTOR}.ppo_mini_batch_size": 8, f"{ROLLOUT}.n": 8}),
    ("--rollout_batch_size 256", {"data.train_batch_size": 256}),
    ("", {"data.train_batch_size": 1024, f"{ACTOR}.ppo_mini_batch_size": 128, f"{ACTOR}.shuffle": True}),
    (
        "--micro_train_batch_size 2 --micro_rollout_batch_size 16",
        {
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2,
            "critic.ppo_micro_batch_size_per_gpu": 2,
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 16,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 16,
            "critic.forward_micro_batch_size_per_gpu": 16,
        },
    ),
    ("--max_epochs 2 --num_episodes 3", {f"{ACTOR}.ppo_epochs": 2, "trainer.total_epochs": 3}),
    ("--max_steps 7", {"trainer.total_training_steps": 7}),
    ("--freezing_actor_steps 4", {"trainer.critic_warmup": 5}),
    (
        "--use_dynamic_batch --rollout_max_tokens_per_gpu 9",
        {
            f"{ACTOR}.use_dynamic_bsz": True,
            f"{ACTOR}.ppo_max_token_len_per_gpu": 16192,
            "critic.ppo_max_token_len_per_gpu": 16192,
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 9,
            "critic.forward_max_token_len_per_gpu": 9,
        },
    ),
    # optimisation
    (
        "",
        {
            f"{ACTOR}.optim.lr": 1e-6,
            "critic.optim.lr": 9e-6,
            f"{ACTOR}.optim.betas": [0.9, 0.95],
            "critic.optim.betas": [0.9, 0.95],
            f"{ACTOR}.optim.weight_decay": 0.0,
            f"{ACTOR}.optim.warmup_style": "cosine",
            f"{ACTOR}.optim.min_lr_ratio": 0.1,
            f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.03,
            f"{ACTOR}.optim.lr_step_unit": "update",
            "critic.optim.lr_step_unit": "update",
            "trainer.seed": 42,
        },
    ),
    (
        "--lr_scheduler constant",
        {f"{ACTOR}.optim.warmup_style": "constant", f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0},
    ),
    (
        "--lr_scheduler constant_with_warmup --lr_warmup_ratio 0.1",
        {f"{ACTOR}.optim.warmup_style": "constant", f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1},
    ),
    ("--max_norm 0.5", {f"{ACTOR}.grad_clip": 0.5, "critic.grad_clip": 0.5}),
    ("--enable_ema --ema_beta 0.9", {f"{ACTOR}.ema_beta": 0.9}),
    ("--aux_loss_coef 0.01", {f"{ACTOR}.aux_loss_coef": 0.01}),
    # KL
    (
        "",
        {
            "algorithm.use_kl_in_reward": True,
            "algorithm.kl_ctrl.kl_coef": 0.01,
            "algorithm.kl_clamp": 10.0,
            "algorithm.kl_order": "after",
        },
    ),
    (
        "--use_kl_loss --init_kl_coef 1e-3 --kl_estimator k3",
        {
            f"{ACTOR}.use_kl_loss": True,
            f"{ACTOR}.kl_loss_coef": 1e-3,
            f"{ACTOR}.kl_loss_type": "low_var_kl",
            f"{ACTOR}.kl_loss_clamp": 10.0,
            "algorithm.use_kl_in_reward": False,
        },
    ),
    ("--init_kl_coef 0 --use_kl_loss", {f"{ACTOR}.use_kl_loss": False, "algorithm.use_kl_in_reward": False}),
    ("--kl_estimator k2", {"algorithm.kl_penalty": "mse"}),
    (
        "--kl_target 0.2 --kl_horizon 500",
        {
            "algorithm.kl_ctrl.type": "adaptive",
            "algorithm.kl_ctrl.target_kl": 0.2,
            "algorithm.kl_ctrl.horizon": 500,
        },
    ),
    # credit
    ("", {"algorithm.whitening": "biased", "algorithm.gae_observations": "walk"}),
    (
        "--advantage_estimator reinforce --gamma 0.9",
        {"algorithm.adv_estimator": "reinforce_plus_plus", "algorithm.gamma": 0.9},
    ),
    (N8, {"algorithm.adv_estimator": "grpo", "algorithm.group_std_epsilon": 1e-9}),
    (
        "--advantage_estimator dr_grpo --n_samples_per_prompt 2",
        {
            "algorithm.adv_estimator": "grpo",
            "algorithm.norm_adv_by_std_in_grpo": False,
            f"{ACTOR}.loss_agg_mode": "token-mean",
        },
    ),
    ("--advantage_estimator rloo --n_samples_per_prompt 2", {"algorithm.adv_estimator": "rloo"}),
    (
        "--advantage_estimator reinforce_baseline --n_samples_per_prompt 2 --no_advantage_std_norm",
        {"algorithm.adv_estimator": "reinforce_plus_plus_baseline", "algorithm.whitening": "mean"},
    ),
    ("--lambd 0.95", {"algorithm.lam": 0.95}),
    ("", {"algorithm.reward_clip_range": [-10.0, 10.0]}),
    ("", {f"{ACTOR}.clip_ratio_c": None}),
    ("--dual_clip 3", {f"{ACTOR}.clip_ratio_c": 3.0}),
    ("--eps_clip 0.3", {f"{ACTOR}.clip_ratio": 0.3}),
    ("--eps_clip_low_high 0.2 0.27", {f"{ACTOR}.clip_ratio_low": 0.2, f"{ACTOR}.clip_ratio_high": 0.27}),
    ("--value_clip 0.3", {"critic.cliprange_value": 0.3}),
    ("--entropy_loss_coef 0.01", {f"{ACTOR}.entropy_coeff": 0.01}),
    (
        "--policy_loss_type gspo",
        {f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
    ),
    (
        "--overlong_buffer_len 64 --overlong_penalty_factor 0.5",
        {
            "reward_model.overlong_buffer.enable": True,
            "reward_model.overlong_buffer.len": 64,
            "reward_model.overlong_buffer.penalty_factor": 0.5,
        },
    ),
    ("--stop_properly_penalty_coef 0.0", {"reward.stop_properly_penalty": 0.0}),
    (
        "--dynamic_filtering --n_samples_per_prompt 2 --dynamic_filtering_reward_range 0.1 0.9",
        {
            "algorithm.filter_groups.enable": True,
            "algorithm.filter_groups.reward_range": [0.1, 0.9],
            "algorithm.filter_groups.metric": "scores",
        },
    ),
    # correction
    (
        "--enable_vllm_is_correction",
        {
            f"{CORRECTION}.rollout_is": "token",
            f"{CORRECTION}.rollout_is_threshold": "5.0",
            f"{CORRECTION}.rollout_is_threshold_lower": 0.5,
        },
    ),
    (
        "--enable_vllm_is_correction --use_icepop --vllm_is_truncated_threshold 0.1 3",
        {f"{CORRECTION}.rollout_is_threshold": "0.1_3.0"},
    ),
    ("--enable_vllm_is_correction --vllm_is_correction_type icepop", {f"{CORRECTION}.rollout_is_threshold": "0.5_5.0"}),
    ("--enable_vllm_is_correction --policy_loss_type gspo", {f"{CORRECTION}.bypass_mode": True}),
    # models and data
    (
        "",
        {
            "actor_rollout_ref.model.path": "m",
            "actor_rollout_ref.model.trust_remote_code": True,
            "data.train_files": ["d.jsonl"],
            "data.prompt_key": "input",
            "data.apply_chat_template": False,
            "data.truncation": "left",
            "reward.remote_url": ["r.py"],
            "reward.on_error": "stop",
        },
    ),
    (
        "--prompt_data a.jsonl,hub/b@x --prompt_data_probs 0.3,0.7",
        {"data.train_probs": [0.3, 0.7], "data.train_files": ["a.jsonl", "hub/b@x"]},
    ),
    ("--label_key y --prompt_split test", {"data.label_key": "y", "data.train_split": "test"}),
    (
        "--eval_dataset e --eval_steps 5",
        {
            "data.val_files": ["e"],
            "data.val_split": "train",
            f"{ROLLOUT}.val_kwargs.temperature": 0.6,
            f"{ROLLOUT}.val_kwargs.n": 4,
            f"{ROLLOUT}.val_kwargs.do_sample": True,
            "trainer.test_freq": 5,
            "trainer.val_before_train": False,
        },
    ),
    ("--remote_rm_url http://a,http://b", {"reward.remote_url": ["http://a", "http://b"]}),
    ("--agent_func_path agent.py", {f"{ROLLOUT}.agent.agent_func_path": "agent.py"}),
    # generation
    ("--prompt_max_len 7 --generate_max_len 9", {"data.max_prompt_length": 7, "data.max_response_length": 9}),
    ("--max_len 4096 --max_new_tokens 1000", {"data.max_prompt_length": 3096, "data.max_response_length": 1000}),
    ("--prompt_max_len 7 --max_len 2000", {f"{ROLLOUT}.max_model_len": 2000}),
    (
        "--temperature 0.7 --top_p 0.9 --top_k 5",
        {f"{ROLLOUT}.temperature": 0.7, f"{ROLLOUT}.top_p": 0.9, f"{ROLLOUT}.top_k": 5},
    ),
    # placement and memory
    (
        "--vllm_num_engines 1 --colocate_all_models",
        {
            f"{ROLLOUT}.name": "vllm",
            f"{ROLLOUT}.gpu_memory_utilization": 0.95,
            f"{ROLLOUT}.free_cache_engine": False,
            f"{ROLLOUT}.enforce_eager": False,
        },
    ),
    ("--vllm_num_engines 2", {"actor_rollout_ref.hybrid_engine": False, "rollout.n_gpus_per_node": 2}),
    ("--vllm_num_engines 2 --vllm_sync_backend gloo", {f"{ROLLOUT}.checkpoint_engine.backend": "gloo"}),
    (
        "--async_train --async_queue_size 3 --vllm_num_engines 1",
        {
            "async_training.mode": "queue",
            "async_training.queue_size": 3,
            "async_training.staleness_threshold": 3.0,
            "async_training.trigger_parameter_sync_step": 1,
            "async_training.partial_rollout": False,
            "actor_rollout_ref.hybrid_engine": False,
        },
    ),
    ("--async_train", {"async_training.mode": "one_step_off"}),
    ("", {f"{ACTOR}.fsdp_config.reshard_after_forward": False, "actor_rollout_ref.ref.fsdp_config.fsdp_size": 1}),
    ("--zero_stage 0", {f"{ACTOR}.fsdp_config.fsdp_size": 1}),
    (
        "--deepspeed_enable_sleep",
        {f"{ACTOR}.fsdp_config.optimizer_offload": True, "critic.model.fsdp_config.optimizer_offload": True},
    ),
    ("--adam_offload", {f"{ACTOR}.fsdp_config.offload_policy": True}),
    ("--ring_attn_size 2", {f"{ACTOR}.ulysses_sequence_parallel_size": 2, "critic.ulysses_sequence_parallel_size": 2}),
    (
        "--ds_tensor_parallel_size 2",
        {f"{ACTOR}.strategy": "megatron", f"{ACTOR}.megatron.tensor_model_parallel_size": 2},
    ),
    (
        "",
        {
            "actor_rollout_ref.model.enable_gradient_checkpointing": False,
            "critic.model.enable_gradient_checkpointing": False,
        },
    ),
    ("", {f"{ACTOR}.fsdp_config.mixed_precision.param_dtype": "bf16", f"{ROLLOUT}.dtype": "bfloat16"}),
    (
        "--attn_implementation kernels-community/vllm-flash-attn3",
        {"actor_rollout_ref.model.attn_implementation": "flash_attention_3"},
    ),
    (
        "--lora_rank 8 --lora_alpha 32 --lora_dropout 0.1 --target_modules q_proj v_proj --load_in_4bit",
        {
            "actor_rollout_ref.model.lora_rank": 8,
            "actor_rollout_ref.model.lora_alpha": 32.0,
            "actor_rollout_ref.model.lora_dropout": 0.1,
            "actor_rollout_ref.model.target_modules": ["q_proj", "v_proj"],
            "actor_rollout_ref.model.load_in_4bit": True,
        },
    ),
    # checkpoints and logging
    (
        "",
        {
            "trainer.export_dir": "./ckpt",
            "trainer.default_local_dir": "./ckpt/checkpoints_ppo_ray",
            "trainer.resume_mode": "disable",
            "trainer.max_actor_ckpt_to_keep": 3,
            "trainer.max_critic_ckpt_to_keep": 3,
        },
    ),
    ("--load_checkpoint --save_steps 10", {"trainer.resume_mode": "auto", "trainer.save_freq": 10}),
    ("--save_hf_ckpt", {f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"]}),
    ("--save_hf_ckpt --disable_ds_ckpt", {f"{ACTOR}.checkpoint.save_contents": ["hf_model"]}),
    (
        "--save_value_network --save_steps 5",
        {"critic.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"]},
    ),
    ("--eval_dataset e.jsonl --eval_steps 5", {"trainer.test_freq": 5, "trainer.best_metric_key": None}),
    (
        "--eval_dataset e.jsonl --eval_steps 5 --ckpt.best_metric_key=",
        {"trainer.test_freq": 5, "trainer.best_metric_key": "auto"},
    ),
    (
        "--eval_dataset e.jsonl --eval_steps 5 --ckpt.best_metric_key val-core/math/reward/mean@4",
        {"trainer.best_metric_key": "val-core/math/reward/mean@4"},
    ),
    ("--eval_dataset e.jsonl --eval_steps 5 --ckpt.best_metric_key none", {"trainer.best_metric_key": None}),
    ("--logging_steps 5", {"trainer.log_freq": 5}),
    (
        "--use_tensorboard tb --wandb_run_name r",
        {"trainer.logger": ["console", "file", "tensorboard"], "trainer.experiment_name": "r"},
    ),
]


@pytest.mark.parametrize(("flags", "ours"), TABLE, ids=[f"{number} {row[0]}" for number, row in enumerate(TABLE)])
def test_flags_set_keys(flags, ours):
    translation = good(flags)
    assert refused(translation) == {}
    loaded = load(translation.overrides(), check=False)
    values = {}
    for key in ours:
        value = loaded.cfg
        for name in key.split("."):
            value = getattr(value, name)
        values[key] = value
    assert values == ours


def test_different_defaults_are_set_explicitly():
    """Defaults that differ from Burnish's and would change the run."""
    defaults = {item.ours for item in good("--vllm_num_engines 1 --colocate_all_models").items if not item.explicit}
    assert defaults >= {
        f"{ACTOR}.clip_ratio_c",
        f"{ACTOR}.optim.betas",
        f"{ACTOR}.optim.weight_decay",
        "trainer.resume_mode",
        "data.truncation",
        f"{ACTOR}.optim.warmup_style",
        f"{ACTOR}.optim.lr_warmup_steps_ratio",
        f"{ROLLOUT}.gpu_memory_utilization",
        "algorithm.use_kl_in_reward",
        "actor_rollout_ref.model.enable_gradient_checkpointing",
        "critic.optim.lr",
        f"{ACTOR}.optim.lr_step_unit",
        "algorithm.whitening",
        "trainer.total_epochs",
        f"{ACTOR}.ppo_mini_batch_size",
        "trainer.seed",
    }


def test_no_critic_settings_without_critic():
    settings = good(N8, "--critic_learning_rate 1e-5 --value_clip 0.3 --gamma 0.9 --lambd 0.9").settings
    assert not [key for key in settings if key.startswith("critic")]
    assert "algorithm.gamma" not in settings


def test_reward_model_scores_and_initializes_the_critic():
    base = "--pretrain m --prompt_data d --reward_pretrain rm --actor_num_gpus_per_node 1 --normalize_reward"
    settings = translate(base).settings
    assert settings["reward_model.model.path"] == settings["critic.model.path"] == "rm"
    assert settings["reward_model.enable"] is settings["reward_model.normalize"] is True
    assert settings["reward_model.model.input_tokenizer"] is None
    remote = translate(base, "--remote_rm_url r.py")
    assert "reward_model.enable" not in remote.settings
    assert [item.status for item in items(remote, "--reward_pretrain")] == ["inert"]


def test_sync_backend_applies_only_to_engines_on_separate_gpus():
    key = f"{ROLLOUT}.checkpoint_engine.backend"
    for flags in ("", "--vllm_num_engines 1 --colocate_all_models"):
        translation = good(flags, "--vllm_sync_backend gloo")
        (item,) = items(translation, "--vllm_sync_backend")
        assert item.status == "inert" and "copied locally" in item.why
        assert key not in translation.settings
    assert key not in good("--vllm_num_engines 2").settings


def test_device_sharing_is_reported():
    """Critic and reference always share the policy's devices; a reward model may have its own."""
    base = "--pretrain m --prompt_data d --reward_pretrain rm --actor_num_gpus_per_node 2 --ref_num_gpus_per_node 2"
    flags = "--critic_num_gpus_per_node 4 --reward_num_gpus_per_node 4 --colocate_critic_reward --colocate_actor_ref"
    translation = translate(base, flags)
    assert translation.settings["reward_model.enable_resource_pool"] is True
    assert translation.settings["reward_model.n_gpus_per_node"] == 4
    reports = {item.theirs: (item.status, item.why) for item in translation.items}
    assert reports["--critic_num_gpus_per_node"] == ("inert", "shares the policy's devices; results are the same")
    why = (
        "the critic always shares the policy's devices; the reward model has separate GPUs (--reward_num_gpus_per_node)"
    )
    assert reports["--colocate_critic_reward"] == ("inert", why)
    assert reports["--colocate_actor_ref"] == ("inert", "the reference always shares the policy's devices")
    together = translate(base, "--colocate_all_models --colocate_critic_reward")
    assert "reward_model.enable_resource_pool" not in together.settings
    assert "separate GPUs" not in items(together, "--colocate_critic_reward")[0].why


@pytest.mark.parametrize(
    ("stage", "setting", "value", "why"),
    [
        (0, "fsdp_size", 1, "nothing is sharded"),
        (1, "reshard_after_forward", False, "gradients are sharded too, as in stage 2"),
        (2, "reshard_after_forward", False, "weights are not resharded after the forward pass"),
        (3, "reshard_after_forward", True, "weights, gradients and optimizer are sharded"),
    ],
)
def test_zero_stages(stage, setting, value, why):
    translation = good(f"--zero_stage {stage} --overlap_comm --actor_num_gpus_per_node 2 --ref_num_gpus_per_node 2")
    (item,) = [item for item in items(translation, "--zero_stage") if item.ours == f"{ACTOR}.fsdp_config.{setting}"]
    assert (item.ours_value, item.status) == (value, "converted")
    assert why in item.why
    assert "always overlaps" in items(translation, "--overlap_comm")[0].why


def test_entropy_is_off_or_only_reported():
    assert f"{ACTOR}.entropy_coeff" not in good("").settings
    (item,) = items(good("--entropy_loss_coef 0"), "--entropy_loss_coef")
    assert item.ours_value == 0 and "reports" in item.why


def test_warning_for_many_epochs():
    for epochs, warns in ((8, False), (9, True)):
        (item,) = items(good(f"--max_epochs {epochs}"), "--max_epochs")
        assert ("WARNING" in item.why) is warns


def test_train_ppo_takes_ranks_from_its_launcher():
    translation = translate("--pretrain m --reward_pretrain rm", program="train_ppo", processes={"num_gpus": "2"})
    assert translation.settings["trainer.n_gpus_per_node"] == 2
    assert refused(translation) == {}


def test_api_keys_stay_secret():
    translation = good("--use_wandb s3cr3t --wandb_org us --wandb_project p")
    assert translation.environment == {"WANDB_API_KEY": "s3cr3t", "WANDB_ENTITY": "us"}
    assert "s3cr3t" not in repr([item.plain() for item in translation.items])
    assert "s3cr3t" not in repr(translation.settings)
    assert translation.settings["trainer.logger"] == ["console", "file", "wandb"]
    assert translation.settings["trainer.project_name"] == "p"
    for flags in ("--use_wandb s3cr3t --use_wandb t0ps3cr3t", "--use_wandb_key s3cr3t", "--hf_token s3cr3t"):
        assert "cr3t" not in repr([item.plain() for item in good(flags).items])


def test_wandb_login_is_not_an_api_key():
    assert good("--use_wandb True").environment == {}


@pytest.mark.parametrize(
    ("flags", "theirs", "why"),
    [
        ("--train_batch_size 100 --n_samples_per_prompt 8", "--train_batch_size", "use 64 or 128"),
        ("--train_batch_size 96 --n_samples_per_prompt 8", "--train_batch_size", "use 64 or 128"),
        ("--train_batch_size 256 --rollout_batch_size 128", "--train_batch_size", "use 128"),
        ("--micro_train_batch_size 3", "--micro_train_batch_size", "128 samples / (3 x 1 ranks)"),
        ("--advantage_estimator group_norm", "--n_samples_per_prompt", "at least 2"),
        ("--advantage_estimator dr_grpo", "--n_samples_per_prompt", "at least 2"),
        ("--dynamic_filtering", "--n_samples_per_prompt", "at least 2"),
        (
            "--dynamic_filtering --n_samples_per_prompt 2 --dynamic_filtering_reward_range 1 0",
            "--dynamic_filtering_reward_range",
            "LOW < HIGH",
        ),
        ("--dual_clip 1", "--dual_clip", "greater than 1"),
        ("--kl_target 0.1 --use_kl_loss", "--kl_target", "is constant"),
        ("--async_train --vllm_enable_sleep --colocate_all_models", "--vllm_enable_sleep", "--async_train"),
        ("--async_train --async_queue_size 0", "--async_queue_size", "at least 1"),
        ("--colocate_all_models --vllm_num_engines 2", "--vllm_num_engines", "2 x 1 = 2 GPUs"),
        ("--vllm_num_engines 2 --vllm_sync_backend mpi", "--vllm_sync_backend", "nccl or gloo"),
        ("--colocate_all_models --ref_num_gpus_per_node 4", "--ref_num_gpus_per_node", "must equal"),
        ("--packing_samples", "--packing_samples", "--vllm_num_engines 1"),
        ("--lr_scheduler linear", "--lr_scheduler", "cosine_with_min_lr"),
        ("--load_in_4bit", "--load_in_4bit", "--lora_rank 16"),
        ("--prompt_data a,b --prompt_data_probs 1", "--prompt_data_probs", "one number per dataset"),
        ("--max_len 4096", "--max_len", "--max_new_tokens N"),
        ("--vllm_is_correction_type seq-mask-tis --enable_vllm_is_correction", "--vllm_is_correction_type", "icepop"),
        ("--use_ms", "--use_ms", "ModelScope"),
        ("--temperature -1", "--temperature", "out of range"),
        ("--attn_implementation magic", "--attn_implementation", "sdpa"),
        ("--micro_rollout_batch_size 4096", "--micro_rollout_batch_size", "0 forward passes"),
        ("--save_value_network", "--save_value_network", "--save_steps N"),
        (
            "--eval_dataset e.jsonl --eval_steps 5 --ckpt.best_metric_key eval_math_pass1",
            "--ckpt.best_metric_key",
            "val-core/DATA_SOURCE/reward/mean@N",
        ),
    ],
)
def test_invalid_combinations_are_refused(flags, theirs, why):
    assert why in refused(good(flags))[theirs]


@pytest.mark.parametrize(
    ("flags", "theirs"),
    [
        ("--eval_dataset e", "--eval_dataset"),
        ("--dynamic_filtering --n_samples_per_prompt 2", "--dynamic_filtering"),
    ],
)
def test_flags_that_require_a_custom_reward(flags, theirs):
    refusals = refused(translate("--pretrain m --reward_pretrain rm --actor_num_gpus_per_node 1", flags))
    assert "--remote_rm_url" in refusals[theirs]
    assert "--agent_func_path" in refused(translate("--pretrain m", flags))["--remote_rm_url"]


def test_weight_decay_excludes_biases_and_norms():
    settings = translate("--l2 0.1").settings
    assert settings[f"{ACTOR}.optim.weight_decay"] == 0.1
    assert settings[f"{ACTOR}.optim.decay_matrices_only"] is True


@pytest.mark.parametrize(
    ("flags", "theirs"),
    [
        ("--rollout_batch_size 7 --micro_rollout_batch_size 7", "--train_batch_size"),
        ("--actor_num_gpus_per_node 8 --ref_num_gpus_per_node 8 --ring_attn_size 3", "--ring_attn_size"),
    ],
)
def test_errors_that_follow_from_a_refused_flag_are_not_reported_apart(flags, theirs):
    """Their keys have defaults of Burnish or follow others, and no flag sets them."""
    words = ["python3", "-m", "openrlhf.cli.train_ppo_ray", *GOOD.split(), *flags.split()]
    blockers = translate_command(words).blockers()
    assert [item.theirs for item in blockers] == [theirs]
    assert "actor_rollout_ref." not in blockers[0].why


def test_variables_of_older_releases_are_flags():
    """The size of the queue was a variable of the environment before it was a flag."""
    variables = ["OPENRLHF_ASYNC_QUEUE_SIZE=3", "OPENRLHF_ASYNC_NUM_TASKS=128"]
    words = ["env", *variables, "python3", "-m", "openrlhf.cli.train_ppo_ray", *GOOD.split(), "--vllm_num_engines", "1"]
    queue = translate_command([*words, "--async_train"])
    assert queue.settings["async_training.queue_size"] == 3
    assert [item.status for item in items(queue, "OPENRLHF_ASYNC_NUM_TASKS")] == ["inert"]
    written = translate_command([*words, "--async_train", "--async_queue_size", "2"])
    assert written.settings["async_training.queue_size"] == 2
    assert [item.status for item in items(translate_command(words), "OPENRLHF_ASYNC_QUEUE_SIZE")] == ["inert"]
