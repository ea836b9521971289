"""What `burnish run` refuses, convert, doctor and rehearse refuse too, with the same exit status."""

from __future__ import annotations

import argparse
import json

import pytest

from burnish.cli import convert, doctor, rehearse, run
from burnish.config import device, load
from burnish.config.explain import UNSUPPORTED, describe_all
from burnish.config.status import check_supported
from burnish.config.tree import kinds, tree
from burnish.config.values import written_as
from burnish.dialects.translate import translate_command
from burnish.errors import ExitStatus, NotSupportedYet

VERL = ("python3", "-m", "verl.trainer.main_ppo")
COMMAND = (
    *VERL,
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "data.train_files=/there/gsm8k/train.parquet",
    "data.val_files=null",
    "data.train_batch_size=16",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "trainer.n_gpus_per_node=1",
)
# Contexts in which conditional keys are supported, refused, or without effect.
CONTEXTS = (
    (),
    (
        "actor_rollout_ref.actor.strategy=megatron",
        "critic.strategy=megatron",
        "actor_rollout_ref.ref.strategy=megatron",
    ),
    ("actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=1"),
    ("reward_model.enable=true", "reward_model.model.path=rm", "actor_rollout_ref.rollout.name=sglang"),
)


def other_value(leaf):
    """A valid value that is not the default."""
    types = set(kinds(leaf.hint))
    if leaf.facts.allowed:
        return next(name for name in leaf.facts.allowed if name != leaf.default)
    if bool in types:
        return not leaf.default
    if int in types or float in types:
        return (2 if leaf.default != 2 else 4) if int in types else 0.5
    if list[int] in types:
        return [2]
    if leaf.free:
        return {"a": 1}
    return ["x"] if any(str(kind).startswith("list") for kind in types) else "x"


def unsupported_settings():
    """One setting for every key that is pending or refused, and for every such value of another key."""
    for row in describe_all():
        if row.status in UNSUPPORTED:
            yield row.key, other_value(tree("train").leaves[row.key])
        yield from ((row.key, value) for value in row.unsupported_values)


@pytest.mark.parametrize("context", CONTEXTS, ids=("plain", "megatron", "engine_pool", "reward_model"))
def test_checks_refuse_a_key_exactly_if_loading_does(context, pending_key):
    """For every pending or refused key: `burnish run` refuses it if and only if the checks do."""
    base = [*COMMAND[3:], *context]
    settings = [f"{key}={written_as(value)}" for key, value in [*unsupported_settings(), (pending_key, 5)]]
    loaded = load([*base, *settings], check=False)
    refused = {error.key for error in check_supported(loaded.cfg, loaded.settings)}
    translation = translate_command(["burnish", "train", *base, *settings])
    assert pending_key in refused and len(refused) > 3
    assert {item.ours for item in translation.blockers()} >= refused


@pytest.mark.parametrize("fifth", range(5))
def test_one_unsupported_key_is_enough(fifth, pending_key):
    settings = [*unsupported_settings(), (pending_key, 5)]
    key, value = settings[fifth * (len(settings) - 1) // 4]
    base, setting = COMMAND[3:], f"{key}={written_as(value)}"
    loaded = load([*base, setting], check=False)
    errors = check_supported(loaded.cfg, loaded.settings)
    pending = bool(errors) and isinstance(errors[0], NotSupportedYet)
    expected = ExitStatus.UNSUPPORTED if pending else ExitStatus.REFUSED if errors else ExitStatus.OK
    assert translate_command(["burnish", "train", *base, setting]).run_status == expected


def parse(module, *words):
    parser = argparse.ArgumentParser()
    module.add_parser(parser.add_subparsers())
    return parser.parse_args([module.__name__.rpartition(".")[2], *words])


REFUSED_COMMANDS = (
    ("actor_rollout_ref.model.path=OpenGVLab/InternVL3-8B", ExitStatus.REFUSED),
    ("data.audio_key=audios", ExitStatus.REFUSED),
    ("trainer.log_val_generations=5", ExitStatus.UNSUPPORTED),  # pending_key
    ("actor_rollout_ref.rollout.name=trtllm", ExitStatus.REFUSED),
    ("algorithm.adv_estimatr=grpo", ExitStatus.REFUSED),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5", ExitStatus.REFUSED),
)


@pytest.mark.parametrize(("setting", "status"), REFUSED_COMMANDS, ids=lambda value: str(value))
def test_every_command_exits_with_the_same_status(setting, status, pending_key, monkeypatch, capsys):
    monkeypatch.setattr("burnish.rehearsal.rehearse._rehearse_plan", lambda plan, steps: None)  # reads, does not run
    name = setting.lstrip("+").partition("=")[0]
    words = ["--", *COMMAND, setting]
    assert run.run(parse(run, *words)) == status
    assert name in capsys.readouterr().err
    assert convert.run(parse(convert, *words)) == status
    assert name in " ".join(capsys.readouterr().out.splitlines()[:14])  # among the first lines
    assert doctor.run(parse(doctor, "--gpu-memory", "80", "--no-files", *words)) == status
    assert name in " ".join(capsys.readouterr().out.splitlines()[:16])
    assert rehearse.run(parse(rehearse, *words)) == status
    assert name in " ".join(capsys.readouterr().out.splitlines()[:8])


def test_accepted_command_exits_with_zero(capsys):
    assert convert.run(parse(convert, "--", *COMMAND)) == ExitStatus.OK
    assert doctor.run(parse(doctor, "--gpu-memory", "80", "--no-files", "--", *COMMAND)) == ExitStatus.OK
    assert "does not start" not in capsys.readouterr().out


MACHINE_KEYS = (
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",
    "actor_rollout_ref.rollout.free_cache_engine=False",
    "actor_rollout_ref.rollout.enforce_eager=False",
    "actor_rollout_ref.model.enable_activation_offload=True",
    "trainer.device=auto",
)


@pytest.mark.parametrize("words", [(), MACHINE_KEYS], ids=("defaults", "set"))
@pytest.mark.parametrize(
    "start",
    [
        COMMAND,
        (
            "python3",
            "-m",
            "openrlhf.cli.train_ppo_ray",
            "--pretrain",
            "m",
            "--prompt_data",
            "d",
            "--remote_rm_url",
            "u",
        ),
    ],
    ids=("verl", "openrlhf"),
)
def test_the_translation_does_not_depend_on_the_machine(start, words, monkeypatch, capsys):
    """A laptop and a machine with GPUs print the same."""
    outputs = []
    for has_cuda, num_cpus in ((False, 2), (True, 64)):
        monkeypatch.setattr(device, "_has_cuda", lambda has_cuda=has_cuda: has_cuda)
        monkeypatch.setattr("os.cpu_count", lambda num_cpus=num_cpus: num_cpus)
        status = convert.run(parse(convert, "--json", "--", *start, *(words if start is COMMAND else ())))
        outputs.append((status, json.loads(capsys.readouterr().out)))
    assert outputs[0] == outputs[1]
