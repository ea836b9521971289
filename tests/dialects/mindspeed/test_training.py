"""Arithmetic of batches, lengths, schedules and parallel layouts."""

import pytest

from .configs import items, refusals, translate

ACTOR, MODEL, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "model", "rollout", "ref"))
DAPO = ("megatron_training.stage", "ray_dapo")
PPO = (("megatron_training.stage", "ray_ppo"), ("rl_config.adv_estimator", "gae"), ("critic_config.lr", 5e-6))
SHARDED = (("rl_config.actor_resource.num_npus", 8), ("actor_config.tensor_model_parallel_size", 4))
FILTER = (
    DAPO,
    ("rl_config.filter_groups_enable", True),
    ("rl_config.filter_groups_train_batch_size", 4),
    ("rl_config.filter_groups_metric", "base_acc"),
)
LORA = ("megatron_training.lora_target_modules", ["linear_qkv"])

TABLE = [
    # batches
    ((), "data.train_batch_size", 8),
    ((("rl_config.mini_batch_size", 64),), f"{ACTOR}.ppo_mini_batch_size", 8),
    (FILTER, "data.train_batch_size", 4),
    (FILTER, "data.gen_batch_size", 8),
    ((*FILTER, ("rl_config.mini_batch_size", 8)), f"{ACTOR}.ppo_mini_batch_size", 4),
    ((), f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", 2),
    ((("rl_config.ref_forward_micro_batch_size", 16),), f"{REF}.log_prob_micro_batch_size_per_gpu", 16),
    ((("rl_config.epochs", 3),), f"{ACTOR}.ppo_epochs", 3),
    ((("rl_config.use_dynamic_bsz", True),), f"{ACTOR}.ppo_max_token_len_per_gpu", 4096),
    # rewards
    ((("rl_config.num_cpus_for_local_task", 1.0),), "reward.num_workers", 1),
    ((("rl_config.num_cpus_for_local_task", 3.5),), "reward.num_workers", 4),
    # data
    ((), "data.train_files", ["./data/packed"]),
    ((("megatron_training.no_shuffle", True),), "data.shuffle", False),
    ((), "data.filter_overlong_prompts", True),
    ((), "trainer.seed", 1234),
    # the run
    ((), "trainer.total_training_steps", 10),
    ((), "trainer.save_freq", 5),
    ((("actor_config.save", "./out"),), "trainer.default_local_dir", "./out"),
    ((), "trainer.resume_mode", "disable"),
    ((("actor_config.no_save_optim", True),), f"{ACTOR}.checkpoint.save_contents", ["model"]),
    # precision and memory
    ((), f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "bf16"),
    ((), f"{ROLLOUT}.dtype", "bfloat16"),
    ((), f"{MODEL}.enable_gradient_checkpointing", False),
    ((("actor_config.recompute_granularity", "full"),), f"{MODEL}.enable_gradient_checkpointing", True),
    ((("actor_config.recompute_granularity", "selective"),), f"{MODEL}.enable_gradient_checkpointing", False),
    (
        (("actor_config.recompute_granularity", "full"), ("actor_config.recompute_num_layers", 3)),
        f"{MODEL}.recompute.num_layers",
        3,
    ),
    ((("actor_config.swap_attention", True),), f"{MODEL}.enable_activation_offload", True),
    ((("actor_config.swap_optimizer", True),), f"{ACTOR}.fsdp_config.optimizer_offload", True),
    ((("generate_config.offload_train_param", True),), f"{ACTOR}.fsdp_config.param_offload", True),
    ((("actor_config.attention_dropout", 0.1),), f"{MODEL}.override_config.attention_dropout", 0.1),
    # the optimizer
    ((("actor_config.lr_decay_style", "cosine"), ("actor_config.min_lr", 1e-7)), f"{ACTOR}.optim.min_lr_ratio", 0.1),
    (("actor_config.lr_decay_style",), f"{ACTOR}.optim.warmup_style", "linear"),
    ((("actor_config.lr_warmup_fraction", 0.1),), f"{ACTOR}.optim.lr_warmup_steps_ratio", 0.1),
    ((), f"{ACTOR}.optim.lr_step_unit", "update"),
    ((("actor_config.adam_beta2", 0.95),), f"{ACTOR}.optim.betas", [0.9, 0.95]),
    ((("actor_config.clip_grad", 0.5),), f"{ACTOR}.grad_clip", 0.5),
    # the schedule covers 10 x 8 prompts, and two epochs consume 16 per iteration
    ((("rl_config.epochs", 2), ("actor_config.lr_warmup_fraction", 0.1)), f"{ACTOR}.optim.total_training_steps", 5),
    # layouts
    (SHARDED, f"{ACTOR}.strategy", "megatron"),
    (SHARDED, f"{ACTOR}.megatron.tensor_model_parallel_size", 4),
    (SHARDED, f"{REF}.megatron.tensor_model_parallel_size", 4),
    (SHARDED, "trainer.n_gpus_per_node", 8),
    ((*SHARDED, LORA), f"{ACTOR}.megatron.tensor_model_parallel_size", 1),
    ((*SHARDED, ("generate_config.offload_train_grad", True)), f"{ACTOR}.megatron.grad_offload", True),
    (
        (
            ("generate_config.enable_expert_parallel", True),
            ("generate_config.infer_expert_parallel_size", 8),
            ("generate_config.infer_tensor_parallel_size", 2),
        ),
        f"{ROLLOUT}.expert_parallel_size",
        16,
    ),
    (("generate_config.infer_tensor_parallel_size",), f"{ROLLOUT}.tensor_model_parallel_size", 8),
    # LoRA
    ((LORA,), f"{MODEL}.lora_rank", 8),
    ((LORA, ("megatron_training.lora_r", 128)), f"{MODEL}.lora_rank", 128),
    ((LORA,), f"{MODEL}.target_modules", ["linear_qkv"]),
    # the critic
    (PPO, "critic.optim.lr", 5e-6),
    ((*PPO, ("rl_config.cliprange_value", 0.2)), "critic.cliprange_value", 0.2),
    ((*PPO, ("critic_config.micro_batch_size", 1)), "critic.ppo_micro_batch_size_per_gpu", 1),
    ((*PPO, ("critic_config.lr_decay_style", "constant")), "critic.optim.warmup_style", "constant"),
]


@pytest.mark.parametrize(("changes", "key", "value"), TABLE)
def test_arithmetic(changes, key, value):
    translation = translate(*changes)
    assert translation.exit_status == 0, refusals(translation)
    assert translation.settings[key] == pytest.approx(value)


def test_reason_shows_the_arithmetic():
    translation = translate(("actor_config.lr_decay_style", "cosine"), ("actor_config.min_lr", 1e-7))
    assert items(translation, "actor_config.min_lr")[0].why == "min_lr / lr = 1e-07 / 1e-06"
    larger = translate(("rl_config.mini_batch_size", 64))
    assert items(larger, "rl_config.mini_batch_size")[0].why == "prompts per update: min(64, 8)"


@pytest.mark.parametrize(
    ("change", "key", "text"),
    [
        (
            ("actor_config.lr_decay_style", "inverse-square-root"),
            "actor_config.lr_decay_style",
            "constant, linear, cosine",
        ),
        (("megatron_training.seq_length", 32), "megatron_training.seq_length", "max_prompt_length: 32"),
        (("generate_config.max_model_len", 60), "generate_config.max_model_len", "seq_length=64"),
        (("megatron_training.split", "949,50,1"), "megatron_training.split", "write 100,0,0"),
        (("megatron_training.bf16", False), "megatron_training.bf16", "bf16: true"),
        (("generate_config.dtype", "float16"), "generate_config.dtype", "bfloat16 only"),
        (("megatron_training.hidden_dropout", 0.1), "megatron_training.hidden_dropout", "hidden_dropout: 0.0"),
        (("actor_config.optimizer", "sgd"), "actor_config.optimizer", "optimizer: adam"),
        (("megatron_training.ai_framework", "mindspore"), "megatron_training.ai_framework", "PyTorch"),
        (
            ("generate_config.infer_pipeline_parallel_size", 2),
            "generate_config.infer_pipeline_parallel_size",
            "write 1",
        ),
        (("actor_config.pipeline_model_parallel_size", 2), "rl_config.actor_resource.num_npus", "= 2 devices"),
        (("megatron_training.is_pairwise_dataset", True), "megatron_training.is_pairwise_dataset", "DPO"),
        ("actor_config.lr", "actor_config.lr", "lr: 1e-6"),
        ("megatron_training.data_path", "megatron_training.data_path", "prefix"),
        ("megatron_training.tokenizer_name_or_path", "megatron_training.tokenizer_name_or_path", "Hugging Face"),
        ("megatron_training.global_batch_size", "megatron_training.global_batch_size", "global_batch_size"),
    ],
)
def test_inexact_settings_are_refused(change, key, text):
    assert text in refusals(translate(change))[key]


def test_missing_dropout_defaults_to_a_tenth():
    refused = refusals(translate("megatron_training.hidden_dropout"))
    assert "MindSpeed RL's default" in refused["megatron_training.hidden_dropout"]
    attention = translate("megatron_training.attention_dropout")
    item = items(attention, "megatron_training.attention_dropout")[0]
    assert (item.ours_value, item.explicit) == (0.1, False)


def test_schedule_that_ends_between_iterations_is_refused():
    refused = refusals(translate(("rl_config.epochs", 3), ("actor_config.lr_decay_style", "cosine")))
    assert "not a whole number" in refused["rl_config.epochs"]


def test_parallel_sizes_of_one_need_no_megatron():
    translation = translate(("actor_config.tensor_model_parallel_size", 1), ("actor_config.sequence_parallel", True))
    assert f"{ACTOR}.strategy" not in translation.settings
    assert items(translation, "actor_config.sequence_parallel")[0].status == "inert"


@pytest.mark.parametrize(
    ("total", "nodes", "per_node"), [(1, 1, 1), (4, 1, 4), (8, 1, 8), (16, 2, 8), (64, 8, 8), (256, 32, 8), (12, 2, 6)]
)
def test_devices_are_nodes_of_eight(total, nodes, per_node):
    settings = translate(("rl_config.actor_resource.num_npus", total)).settings
    assert (settings.get("trainer.nnodes", 1), settings["trainer.n_gpus_per_node"]) == (nodes, per_node)


@pytest.mark.parametrize("name", ["pipeline_model_parallel_size", "expert_model_parallel_size"])
def test_pipeline_stages_and_expert_parallelism_are_kept(name):
    translation = translate(("rl_config.actor_resource.num_npus", 8), (f"actor_config.{name}", 2))
    assert translation.settings[f"{ACTOR}.megatron.{name}"] == 2
    assert translation.settings[f"{ACTOR}.strategy"] == "megatron"


def test_expert_parallelism_is_kept_beside_tensor_parallelism():
    sizes = [("actor_config.tensor_model_parallel_size", 2), ("actor_config.expert_model_parallel_size", 2)]
    translation = translate(("rl_config.actor_resource.num_npus", 8), *sizes)
    for name in ("tensor_model_parallel_size", "expert_model_parallel_size"):
        assert translation.settings[f"{ACTOR}.megatron.{name}"] == 2


STAGED = (("rl_config.actor_resource.num_npus", 2), ("actor_config.pipeline_model_parallel_size", 2))


def test_layers_of_a_chunk_become_a_number_of_chunks():
    chosen = (*STAGED, ("actor_config.num_layers", 12), ("actor_config.num_layers_per_virtual_pipeline_stage", 2))
    assert translate(*chosen).settings[f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size"] == 3


def test_layers_that_do_nothing_become_numbers_of_layers():
    chosen = (*STAGED, ("actor_config.num_layers", 12), ("actor_config.noop_layers", "0,10,11"))
    key = f"{ACTOR}.megatron.override_transformer_config.num_layer_list"
    assert translate(*chosen).settings[key] == [5, 4]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("num_layers_per_virtual_pipeline_stage", 5, "must divide the 6 layers"),
        ("noop_layers", "12", "below num_layers = 12"),
        ("noop_layers", "first", "below num_layers = 12"),
    ],
)
def test_chunks_and_layers_that_do_not_fit_are_refused(name, value, why):
    translation = translate(*STAGED, ("actor_config.num_layers", 12), (f"actor_config.{name}", value))
    (refused,) = items(translation, f"actor_config.{name}")
    assert refused.status == "refused" and why in refused.why


def test_dropout_is_written_out_whether_or_not_the_model_is_here(tmp_path, monkeypatch):
    """A conversion must not depend on the files of the machine that converts."""
    monkeypatch.chdir(tmp_path)
    key = f"{MODEL}.override_config.attention_dropout"
    assert translate().settings[key] == 0.0
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"attention_dropout": 0.1}')
    assert translate().settings[key] == 0.0


def test_block_recomputation_counts_layers_of_every_stage():
    changes = [("recompute_granularity", "full"), ("recompute_method", "block"), ("recompute_num_layers", 4)]
    pipeline = [("rl_config.actor_resource.num_npus", 2), ("actor_config.pipeline_model_parallel_size", 2)]
    translation = translate(*pipeline, *((f"actor_config.{name}", value) for name, value in changes))
    assert translation.settings[f"{MODEL}.recompute.num_layers"] == 4
    assert translation.settings[f"{MODEL}.recompute.method"] == "block"


def test_layerwise_expert_balancing_is_converted():
    chosen = (("defaults", [{"model": "qwen3_30b_a3b"}]), ("megatron_training.model", "qwen3_30b_a3b"))
    translation = translate(*chosen)
    scope = next(item for item in translation.items if item.ours == f"{ACTOR}.aux_loss_scope")
    assert (scope.status, scope.ours_value) == ("converted", "layer")
    assert translation.settings[f"{ACTOR}.aux_loss_coef"] == 0.001 / 8


def test_critic_config_without_critic_is_inert():
    assert items(translate(("critic_config.lr", 1e-5)), "critic_config.lr")[0].status == "inert"
