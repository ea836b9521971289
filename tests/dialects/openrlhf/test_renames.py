"""Dotted flags translate like flat ones, except for the defaults that changed with them."""

import pytest

from burnish.dialects.openrlhf.flags import DOTTED, LATER
from burnish.dialects.openrlhf.sft_flags import SFT_ALL, SFT_DOTTED

from .commands import ACTOR, ROLLOUT, refused, translate

FLAT = (
    "--pretrain m --prompt_data d --remote_rm_url r.py --actor_num_gpus_per_node 2 --ref_num_gpus_per_node 2"
    " --vllm_num_engines 2 --colocate_all_models --vllm_enable_sleep --deepspeed_enable_sleep --zero_stage 3"
    " --micro_train_batch_size 2 --micro_rollout_batch_size 4 --train_batch_size 64 --rollout_batch_size 32"
    " --n_samples_per_prompt 4 --advantage_estimator reinforce_baseline --use_kl_loss --kl_estimator k2"
    " --init_kl_coef 1e-3 --eps_clip_low_high 0.2 0.3 --dual_clip 4 --enable_vllm_is_correction"
    " --dynamic_filtering --dynamic_filtering_reward_range 0 1 --reward_clip_range -5 5 --lora_rank 4 --seed 7"
    " --gradient_checkpointing --packing_samples --max_epochs 2 --num_episodes 3 --entropy_loss_coef 0.01"
    " --save_path out --ckpt_path state --save_steps 5 --load_checkpoint --max_ckpt_num 2 --logging_steps 4"
    " --use_tensorboard tb --temperature 0.9 --input_key q --label_key a --apply_chat_template"
)


def dotted(text):
    names = {flat: spelling for spelling, flat in DOTTED.items() if not spelling.startswith("critic.adam")}
    return [f"--{names[word[2:]]}" if word.startswith("--") else word for word in text.split()]


def test_flat_and_dotted_commands_give_the_same_settings():
    flat = translate(FLAT, "--prompt_max_len 1000 --generate_max_len 500")
    later = translate(dotted(FLAT), "--data.max_len 1500 --rollout.max_new_tokens 500")
    assert refused(flat) == refused(later) == {}
    assert flat.settings == later.settings
    assert all(item.theirs.count(".") or item.theirs[0] == "(" for item in later.items)


def test_defaults_that_changed_with_dotted_names():
    flat = translate("--pretrain m --remote_rm_url r.py --actor_num_gpus_per_node 1").settings
    base = "--actor.model_name_or_path m --reward.remote_url r.py --actor.num_gpus_per_node 1"
    later = translate(base, "--rollout.max_new_tokens 1024").settings
    changed = {key: (flat[key], later[key]) for key in flat if flat[key] != later[key]}
    assert flat.keys() == later.keys()
    assert changed == {
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": (4, 1),
        "critic.ppo_micro_batch_size_per_gpu": (4, 1),
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": (8, 1),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (8, 1),
        "critic.forward_micro_batch_size_per_gpu": (8, 1),
    }


def test_dotted_flags_configure_roles_separately():
    base = "--actor.model_name_or_path m --reward.remote_url r.py --rollout.max_new_tokens 100"
    both = translate(base, "--actor.max_norm 0.5 --actor.adam.betas 0.8 0.9 --critic.lr_scheduler constant").settings
    assert (both[f"{ACTOR}.grad_clip"], both.get("critic.grad_clip", 1.0)) == (0.5, 1.0)
    assert (both[f"{ACTOR}.optim.betas"], both["critic.optim.betas"]) == ([0.8, 0.9], [0.9, 0.95])
    assert both[f"{ACTOR}.optim.warmup_style"] == "cosine"
    assert both.get("critic.optim.warmup_style", "constant") == "constant"
    flat = translate("--pretrain m --remote_rm_url r.py --max_norm 0.5").settings
    assert flat[f"{ACTOR}.grad_clip"] == flat["critic.grad_clip"] == 0.5


@pytest.mark.parametrize(
    ("flags", "theirs"),
    [
        ("--actor.optim muon", "--actor.optim"),
        ("--actor.adam.eps 1e-6", "--actor.adam.eps"),
        ("--train.partial_rollout_enable", "--train.partial_rollout_enable"),
        ("--data.max_images_per_prompt 1", "--algo.advantage.estimator"),
    ],
)
def test_unsupported_later_features(flags, theirs):
    base = "--actor.model_name_or_path m --reward.remote_url r.py --rollout.max_new_tokens 100"
    assert theirs in refused(translate(base, flags))


def test_total_length_limit_without_response_limit():
    translation = translate("--actor.model_name_or_path m --reward.remote_url r.py --data.max_len 2048")
    assert refused(translation) == {}
    assert translation.settings["actor_rollout_ref.rollout.max_model_len"] == 2048
    assert translation.settings["data.max_response_length"] == translation.settings["data.max_prompt_length"] == 2047


def test_dotted_names_refer_to_flags():
    from burnish.dialects.openrlhf.flags import PPO

    assert set(DOTTED.values()) <= {**PPO, **LATER}.keys()
    assert set(SFT_DOTTED.values()) <= SFT_ALL.keys()
    never_dotted = {"colocate", "prompt_max_len", "generate_max_len", "use_icepop", "max_steps", "ptx_coef", "perf"}
    never_dotted |= {"actor_init_on_gpu", "ref_reward_offload"}
    assert PPO.keys() - set(DOTTED.values()) <= never_dotted
