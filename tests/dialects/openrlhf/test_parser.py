"""The parser of OpenRLHF flags agrees with argparse."""

import argparse

import pytest

from burnish.dialects.openrlhf.flags import PPO
from burnish.dialects.openrlhf.parser import parse
from burnish.dialects.openrlhf.ppo import FLAG_SET

from .commands import good, items, refused, translate


def argparse_parser():
    """v0.9.2's argument parser, built from the list of flags."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in PPO.values():
        if flag.nargs == 0:
            parser.add_argument(f"--{flag.name}", action="store_true")
        else:
            nargs = None if flag.nargs == 1 else flag.nargs
            parser.add_argument(f"--{flag.name}", type=flag.kind, default=flag.default, nargs=nargs)
    return parser


@pytest.mark.parametrize(
    "line",
    [
        "--train_batch_size 64",
        "--train_batch_size=64",
        "--colocate_all",
        "--micro_t 2 --micro_r 4",
        "--reward_clip_range -5 5",
        "--reward_clip -1.5 .5",
        "--freezing_actor_steps -1",
        "--init_kl_coef 1e-5",
        "--target_modules q_proj v_proj --lora_rank 8",
        "--target_modules",
        "--eps_clip 0.1 --eps_clip_low_high 0.2 0.3",
        "--prompt_data a,b --input_template=Q:{}",
        "--kl_e k3 --use_kl",
        "--max_epochs 1 --max_epochs 3",
    ],
)
def test_parser_matches_argparse(line):
    expected = vars(argparse_parser().parse_args(line.split()))
    command = parse(line.split(), FLAG_SET)
    assert command.unparsed == []
    assert {name: command.get(name) for name in PPO} == expected


def test_number_of_flags():
    assert len(PPO) == 139 + 3
    assert {"max_steps", "output_key", "top_k"} <= set(PPO)


@pytest.mark.parametrize(
    ("line", "theirs", "why"),
    [
        ("--advantage_estimater rloo", "--advantage_estimater", "did you mean --advantage_estimator?"),
        ("--train-batch-size 8", "--train-batch-size", "did you mean --train_batch_size?"),
        ("--vllm_sync x", "--vllm_sync", "write one of --vllm_sync_backend, --vllm_sync_with_ray"),
        ("--train_batch_size many", "--train_batch_size", "must be an integer"),
        ("--train_batch_size 1e3", "--train_batch_size", "must be an integer"),
        ("--eps_clip wide", "--eps_clip", "must be a number"),
        ("--eps_clip_low_high 0.2", "--eps_clip_low_high", "takes 2 values, got 1"),
        ("--train_batch_size", "--train_batch_size", "takes 1 value, got 0"),
        ("--use_wandb --kl_horizon 3", "--use_wandb", "got 0 (maybe a shell variable is not set)"),
        ("--advantage_estimator grpo", "--advantage_estimator", "Did you mean group_norm?"),
        ("--actor_lr 1", "--actor_lr", "did you mean --actor_learning_rate?"),
        ("--temprature 1", "--temprature", "did you mean --temperature?"),
        ("--rollout.temprature 1", "--rollout.temprature", "did you mean --rollout.temperature?"),
        ("--kl_estimator k4", "--kl_estimator", "must be one of k1, k2, k3"),
        ("--use_kl_loss True", "True", "--use_kl_loss is a switch and takes no value"),
        ("--use_kl_loss=true", "--use_kl_loss", "takes no value"),
        ("stray", "stray", "does not belong to a flag"),
    ],
)
def test_invalid_flags_are_refused(line, theirs, why):
    assert why in refused(translate(line))[theirs]


def test_unknown_flag_keeps_its_values():
    (item,) = items(translate("--no_such_thing 1 2 --seed 3"), "--no_such_thing")
    assert item.value == "1 2"


def test_repeated_flag_counts_once_and_is_reported_twice():
    translation = good("--seed 3 --seed 4")
    assert translation.settings["trainer.seed"] == 4
    assert [item.value for item in translation.items if item.theirs == "--seed"] == [4, 3]


def test_conflicting_spellings_are_refused():
    assert (
        "--attn_implementation is the same setting"
        in refused(good("--flash_attn --attn_implementation sdpa"))["--flash_attn"]
    )
    assert not refused(good("--bf16 --param_dtype bf16"))


@pytest.mark.parametrize("name", sorted(FLAG_SET.flags))
def test_every_flag_is_handled(name):
    """No flag reaches the fallback refusal; other tests check its meaning."""
    flag = FLAG_SET.flags[name]
    value = {int: "1", float: "0.5", str: flag.choices[0] if flag.choices else "x", bool: ""}[flag.kind]
    words = [value] * (flag.nargs if isinstance(flag.nargs, int) else 1)
    spelling = next(spelling for names in FLAG_SET.names for spelling, target in names.items() if target == name)
    flag_items = items(good([f"--{spelling}", *words]), f"--{spelling}")
    assert flag_items
    assert not any("but not supported" in item.why for item in flag_items)
