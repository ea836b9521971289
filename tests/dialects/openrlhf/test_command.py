"""Flags are read as OpenRLHF's parser reads them."""

import argparse

import pytest

from burnish.dialects.openrlhf.command import read
from burnish.dialects.openrlhf.flags import PPO
from burnish.dialects.openrlhf.ppo import VOCABULARY

from .asked import good, refused, translate


def their_parser():
    """v0.9.2's parser, from the table."""
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
def test_argparse_reads_the_same(line):
    theirs = vars(their_parser().parse_args(line.split()))
    command = read(line.split(), VOCABULARY)
    assert command.misread == []
    assert {name: command.get(name) for name in PPO} == theirs


def test_the_table_has_every_flag_of_the_version_and_three_of_the_seed():
    assert len(PPO) == 139 + 3
    assert {"max_steps", "output_key", "top_k"} <= set(PPO)


@pytest.mark.parametrize(
    ("line", "theirs", "why"),
    [
        ("--advantage_estimater rloo", "--advantage_estimater", "did you mean --advantage_estimator?"),
        ("--train-batch-size 8", "--train-batch-size", "did you mean --train_batch_size?"),
        ("--vllm_sync x", "--vllm_sync", "write one of --vllm_sync_backend, --vllm_sync_with_ray"),
        ("--train_batch_size many", "--train_batch_size", "must be a whole number"),
        ("--train_batch_size 1e3", "--train_batch_size", "must be a whole number"),
        ("--eps_clip wide", "--eps_clip", "must be a number"),
        ("--eps_clip_low_high 0.2", "--eps_clip_low_high", "needs 2 values, and has 1"),
        ("--train_batch_size", "--train_batch_size", "needs 1 value, and has 0"),
        ("--kl_estimator k4", "--kl_estimator", "must be one of k1, k2, k3"),
        ("--use_kl_loss True", "True", "--use_kl_loss is a switch and takes no value"),
        ("--use_kl_loss=true", "--use_kl_loss", "takes no value"),
        ("stray", "stray", "belongs to no flag"),
    ],
)
def test_what_cannot_be_read_is_refused_in_the_users_words(line, theirs, why):
    found = refused(translate(line))
    assert why in found[theirs]


def test_an_unknown_flag_takes_its_values_along():
    (item,) = [one for one in translate("--no_such_thing 1 2 --seed 3").items if one.theirs == "--no_such_thing"]
    assert item.value == "1 2"


def test_a_flag_given_twice_counts_once_and_is_told_twice():
    translation = good("--seed 3 --seed 4")
    assert translation.settings["trainer.seed"] == 4
    assert [item.value for item in translation.items if item.theirs == "--seed"] == [4, 3]


def test_two_spellings_that_disagree_are_refused():
    assert (
        "--attn_implementation is the same setting"
        in refused(good("--flash_attn --attn_implementation sdpa"))["--flash_attn"]
    )
    assert not refused(good("--bf16 --param_dtype bf16"))


@pytest.mark.parametrize("name", sorted(VOCABULARY.flags))
def test_every_flag_has_a_meaning(name):
    """None is left to the last resort; what a flag means is in the other tests."""
    flag = VOCABULARY.flags[name]
    value = {int: "1", float: "0.5", str: flag.choices[0] if flag.choices else "x", bool: ""}[flag.kind]
    words = [value] * (flag.nargs if isinstance(flag.nargs, int) else 1)
    spelling = next(spelling for names in VOCABULARY.names for spelling, target in names.items() if target == name)
    found = [item for item in good([f"--{spelling}", *words]).items if item.theirs == f"--{spelling}"]
    assert found
    assert not any("no meaning here" in item.why for item in found)
