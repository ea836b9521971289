"""Recognition of OpenRLHF programs behind launchers."""

import pytest

from burnish.dialects.openrlhf.dialect import OpenRLHF
from burnish.dialects.registry import DIALECTS
from burnish.dialects.translate import translate_command
from burnish.errors import UserError

FLAGS = ["--pretrain", "m", "--remote_rm_url", "r.py", "--actor_num_gpus_per_node", "1"]
RAY = ["ray", "job", "submit", "--address=http://127.0.0.1:8265", "--runtime-env-json={}", "--"]
SFT = ["--pretrain", "m", "--dataset", "d", "--output_key", "a"]


@pytest.mark.parametrize(
    ("words", "job"),
    [
        (["python3", "-m", "openrlhf.cli.train_ppo_ray", *FLAGS], "train"),
        (["python", "openrlhf/cli/train_ppo_ray.py", *FLAGS], "train"),
        (
            [*RAY, "python3", "-m", "openrlhf.cli.train_ppo_ray", *FLAGS],
            "train",
        ),
        (["deepspeed", "--module", "openrlhf.cli.train_sft", *SFT], "sft"),
        (["deepspeed", "--num_gpus", "2", "--module", "openrlhf.cli.train_sft", *SFT], "sft"),
    ],
)
def test_command_behind_launchers(words, job):
    translation = translate_command(words)
    assert (translation.dialect, translation.job) == ("openrlhf", job)
    assert translation.exit_status == 0


def test_openrlhf_is_registered():
    dialect = DIALECTS["openrlhf"].load()()
    assert isinstance(dialect, OpenRLHF)
    assert not dialect.knows_config({"megatron_training": {}})


def test_config_files_are_refused():
    with pytest.raises(UserError, match="no config files"):
        OpenRLHF().translate_config({})


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("train_dpo", "preference training"),
        ("serve_rm", "--remote_rm_url"),
        ("train_magic", "unknown OpenRLHF program"),
    ],
)
def test_other_programs_are_refused(program, text):
    with pytest.raises(UserError) as caught:
        translate_command(["python3", "-m", f"openrlhf.cli.{program}", "--beta", "0.1"])
    assert text in str(caught.value)
    assert "openrlhf.cli.train_sft" in str(caught.value)
