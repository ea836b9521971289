"""One factor scales all sizes; sizes that divided each other still do."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.config.status import check_supported
from burnish.rehearsal.folding import fold
from burnish.rehearsal.plan import Plan, in_user_names, value_of
from burnish.rehearsal.rehearse import left_out
from burnish.rehearsal.scale import micro_batch_size, scale, scale_factor


def plan_of(tmp_path, *keys, job="train"):
    loaded = load(keys, job=job, check=False)
    return Plan(job, loaded.cfg, {key: setting.value for key, setting in loaded.settings.items()}, tmp_path)


@pytest.mark.parametrize(
    ("batch", "mini", "prompts", "small"),
    [(1024, 256, 4, 1), (1024, 1024, 2, 2), (512, 128, 4, 1), (1024, 16, 4, 1), (96, 32, 3, 1), (2, 1, 2, 1)],
)
def test_the_factor(batch, mini, prompts, small):
    factor = scale_factor(batch, mini)
    assert (batch // factor, max(1, mini // factor)) == (prompts, small)


@pytest.mark.parametrize(
    ("batch", "real_micro", "real_batch", "size"), [(4, 4, 16, 1), (4, 8, 16, 2), (4, 16, 16, 4), (6, 1, 2, 3)]
)
def test_the_number_of_micro_batches_is_kept_roughly(batch, real_micro, real_batch, size):
    assert micro_batch_size(batch, real_micro, real_batch) == size and batch % size == 0


def test_the_scaled_config_is_valid(tmp_path):
    plan = plan_of(
        tmp_path,
        "actor_rollout_ref.model.path=m",
        "data.train_files=t",
        "data.train_batch_size=512",
        "data.max_response_length=20480",
        "actor_rollout_ref.rollout.n=16",
        "actor_rollout_ref.rollout.max_model_len=22528",
        "actor_rollout_ref.rollout.min_tokens=100",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=22528",
        "reward_model.reward_manager=dapo",
        "reward_model.reward_kwargs.max_resp_len=20480",
        "reward_model.reward_kwargs.overlong_buffer_cfg={enable:true,len:4096,penalty_factor:1.0,log:false}",
        "trainer.nnodes=16",
        "trainer.n_gpus_per_node=8",
        "trainer.critic_warmup=5",
    )
    scale(plan, 1, real_tokenizer=False)
    fold(plan)
    cfg = plan.load().cfg  # checks the rules
    assert (cfg.data.train_batch_size, cfg.actor_rollout_ref.rollout.n, cfg.trainer.total_training_steps) == (4, 2, 1)
    assert cfg.reward_model.overlong_buffer.enable and cfg.reward_model.overlong_buffer.len == 2  # 12 x 4096 / 20480
    assert cfg.actor_rollout_ref.actor.ppo_max_token_len_per_gpu >= cfg.data.max_prompt_length + 12
    assert "data.train_batch_size: 512 -> 4 (divided by 128)" in plan.scaled
    assert any("critic_warmup: 5 -> 0" in line for line in plan.scaled)


def test_streamed_prompts_are_a_mini_batch(tmp_path):
    plan = plan_of(tmp_path, "data.train_batch_size=0", "rollout.nnodes=1", "rollout.n_gpus_per_node=8")
    scale(plan, 1, real_tokenizer=False)
    assert plan.settings["data.train_batch_size"] > 0


def test_unsupported_keys_are_dropped_with_a_line_each(tmp_path, pending_key):
    plan = plan_of(
        tmp_path,
        f"{pending_key}=5",
        "actor_rollout_ref.rollout.agent.custom_async_server.path=server.py",
        "actor_rollout_ref.rollout.name=sglang",
        "actor_rollout_ref.actor.strategy=megatron",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4",
        "trainer.n_gpus_per_node=8",
        "trainer.default_hdfs_dir=hdfs://there",
        "actor_rollout_ref.model.override_config.num_hidden_layers=4",
    )
    fold(plan)
    pending, refused = plan.dropped
    assert pending_key in pending and "MoE options" in pending and "SGLang server" in refused
    assert any("sglang" in line for line in plan.folded) and any("instead of all ranks" in line for line in plan.folded)
    assert plan.settings["actor_rollout_ref.actor.strategy"] == "megatron"  # its schedules work in one process too
    assert any("num_hidden_layers=4 is ignored" in line for line in plan.folded)
    loaded = load([f"{key}={value}" for key, value in plan.settings.items() if "dir" not in key], check=False)
    assert check_supported(loaded.cfg, loaded.settings) == []
    assert plan.settings["trainer.device"] == "cpu" and plan.settings["trainer.resume_mode"] == "disable"
    assert str(plan.settings["trainer.default_local_dir"]).startswith(str(tmp_path))


def test_every_change_to_a_setting_has_a_line(tmp_path):
    """Also to keys that no list of the report knows: they are compared one by one."""
    plan = plan_of(
        tmp_path,
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        "data.train_files=t",
        "data.train_batch_size=64",
        "data.truncation=error",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.rollout.enforce_eager=true",
        "actor_rollout_ref.rollout.dtype=bfloat16",
        "actor_rollout_ref.model.override_config.num_hidden_layers=4",
        *("trainer.save_freq=20", "trainer.test_freq=5", "trainer.total_epochs=3", "trainer.nnodes=2"),
    )
    settings = dict(plan.settings)
    scale(plan, 1, real_tokenizer=False)
    fold(plan)
    lines = [*plan.scaled, *plan.folded, *plan.dropped, *left_out(plan, settings)]
    ran = load(values=plan.settings, check=False)
    changed = {key for key, value in settings.items() if ran.settings.get(key) != value}
    assert {"trainer.save_freq", "data.truncation"} <= changed
    silent = [
        key for key in changed if value_of_run(ran.cfg, key) != settings[key] and not any(key in x for x in lines)
    ]
    assert silent == []
    for key in ("actor_rollout_ref.actor.fsdp_config.param_offload", "actor_rollout_ref.rollout.enforce_eager"):
        assert any(line.startswith(f"{key}=true: ") for line in lines)  # the same value, without effect on a CPU


def value_of_run(cfg, key):
    try:
        return value_of(cfg, key, "train")
    except KeyError:
        return None


def test_messages_use_the_users_names():
    words = {"actor_rollout_ref.rollout.n": "--n_samples_per_prompt", "data.train_files": "data.path"}
    text = "actor_rollout_ref.rollout.n=1: see actor_rollout_ref.rollout.name and data.train_files."
    assert in_user_names(text, words) == "--n_samples_per_prompt 1: see actor_rollout_ref.rollout.name and data.path."
