"""Known commands and files, stages, and validation of keys."""

import pytest
import yaml
from omegaconf import OmegaConf

from burnish.config import load
from burnish.dialects.invocation import Invocation, parse_commands
from burnish.dialects.mindspeed.dialect import MindSpeed
from burnish.dialects.mindspeed.schema import MEGATRON, SECTIONS
from burnish.dialects.translate import translate_command, translate_yaml
from burnish.errors import NotSupportedYet, UserError

from .configs import BASE, config, items, refusals, translate

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


@pytest.fixture
def tree(tmp_path):
    """A folder with MindSpeed RL's layout: cli/ and configs/."""
    (tmp_path / "cli").mkdir()
    (tmp_path / "configs").mkdir()
    OmegaConf.save(OmegaConf.create(BASE), tmp_path / "configs" / "small.yaml")
    return tmp_path


def run(tree, *argv, entry="cli/train_grpo.py"):
    return MindSpeed().translate_command(Invocation(entry, argv), str(tree))


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("python cli/train_grpo.py --config-name grpo_qwen25_7b_A3", True),
        ("python3 ../MindSpeed-RL/cli/train_dapo.py --config-name x", True),
        ("python -m cli.train_ppo --config-name x", True),
        ("python train_grpo.py --config-name x", True),
        ("python train_grpo.py --model x", False),
        ("python3 -m verl.trainer.main_ppo a=b", False),
        ("python cli/train_sft.py --config-name x", True),  # refused by name
        ("python train_dpo.py --beta 0.1", False),
    ],
)
def test_known_commands(words, known):
    assert MindSpeed().knows_command(parse_commands(words.split())[0]) is known


def test_known_files():
    assert MindSpeed().knows_config(BASE)
    assert MindSpeed().knows_config({"input": "a.json", "handler_name": "AlpacaStyleInstructionHandler"})
    assert not MindSpeed().knows_config({"env_vars": {}})
    assert not MindSpeed().knows_config({"data": {}, "actor_rollout_ref": {}})


def test_small_config_loads():
    translation = translate()
    assert translation.exit_status == 0
    assert translation.count("pending") == 0
    cfg = load(translation.overrides()).cfg
    assert cfg.algorithm.adv_estimator == "grpo"
    assert cfg.trainer.seed == 1234
    assert cfg.actor_rollout_ref.actor.clip_ratio_c is None
    assert cfg.actor_rollout_ref.actor.kl_loss_coef == 0.01
    assert cfg.actor_rollout_ref.model.enable_gradient_checkpointing is False
    assert cfg.reward.verifiers == ["base_acc"]


def test_hardware_note():
    (item,) = [item for item in translate().items if "NPU" in item.why and not item.explicit]
    assert "trainer.device=auto" in item.why


def test_command_with_config_name(tree):
    translation = run(tree, "--config-name", "small", "rl_config.n_samples_per_prompt=8", "+rl_config.lam=0.5")
    assert translation.settings[f"{ROLLOUT}.n"] == 8
    assert items(translation, "rl_config.lam")[0].value == 0.5


@pytest.mark.parametrize(
    "options",
    [("--config-name=small.yaml",), ("-cn", "small"), ("--config-dir", "configs", "--config-name", "small")],
)
def test_spellings_of_the_config_name(tree, options):
    assert run(tree, *options).settings["data.train_batch_size"] == 8


def test_config_path_is_relative_to_script_or_working_directory(tree):
    for path in ("../configs", "configs"):
        assert run(tree, "--config-path", path, "--config-name", "small").exit_status == 0


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--config-name", "smal"), "--config-name small"),
        ((), "--config-name: missing"),
        (("--config-name",), "value missing"),
        (("--multi", "--config-name", "small"), "unknown option"),
        (("--config-name", "small", "a=[1"), "cannot parse the override"),
    ],
)
def test_invalid_commands(tree, argv, text):
    with pytest.raises(UserError, match=text.replace("[", r"\[")):
        run(tree, *argv)


def test_model_group_on_the_command_line(tree):
    translation = run(tree, "--config-name", "small", "model=qwen3_8b", "+megatron_training.model=qwen3_8b")
    assert items(translation, "defaults.model")[0].value == "qwen3_8b"


def test_removed_key(tree):
    assert "megatron_training.train_iters" in refusals(
        run(tree, "--config-name", "small", "~megatron_training.train_iters")
    )


def test_removed_key_is_reported(tree):
    (item,) = items(run(tree, "--config-name", "small", "~actor_config.finetune"), "~actor_config.finetune")
    assert (item.status, item.why) == ("converted", "removed: its default applies")


def test_exponents_are_numbers(tree):
    path = tree / "configs" / "small.yaml"
    path.write_text(path.read_text().replace("lr: 1.0e-06", "lr: 1e-6"))
    assert translate_yaml(str(path)).settings[f"{ACTOR}.optim.lr"] == 1e-6
    assert translate(("actor_config.lr", "3e-7")).settings[f"{ACTOR}.optim.lr"] == 3e-7


def test_script_and_stage_must_match(tree):
    refused = refusals(run(tree, "--config-name", "small", entry="cli/train_dapo.py"))
    assert "run cli/train_grpo.py" in refused["megatron_training.stage"]
    missing = refusals(run(tree, "--config-name", "small", "~megatron_training.stage"))
    assert "ray_grpo for train_grpo" in missing["megatron_training.stage"]


def test_unsupported_stage_is_refused_and_its_keys_reported():
    translation = translate(("megatron_training.stage", "dpo"))
    assert [*refusals(translation)] == ["megatron_training.stage"]
    assert {"actor_config.lr", "rl_config.mini_batch_size"} <= {item.theirs for item in translation.items}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("rl_config.n_sample_per_prompt", 4, "Did you mean n_samples_per_prompt?"),
        ("actor_config.learning_rate", 1e-6, "unknown key"),
        ("rl_config.actor_resource.num_gpus", 4, "num_npus only"),
        ("generate_config.sampling_config.best_of", 2, "unknown key"),
        ("megatron_config", {"lora_r": 8}, "Did you mean megatron_training?"),
        ("rl_config.clip_ratio", "abc", "must be a number"),
        ("rl_config.blocking", 1, "must be true or false"),
        ("rl_config.actor_resource", 8, "num_npus: 8"),
        ("generate_config.sampling_config", 1.0, "must be a mapping"),
        ("rl_config.verifier_function", "acc", "must be a list"),
        ("actor_config.lora_filter", True, "unknown key"),
        ("megatron_training.stage", {"x": "ray_grpo"}, "single value"),
        ("actor_config.model", ["a"], "single value"),
        ("rl_config.adv_estimator", ["group_norm"], "single value"),
        ("rl_config.num_cpus_for_local_task", float("nan"), "finite"),
        ("megatron_training.train_iters", 1.5, "whole number"),
        ("rl_config", 5, "must be a mapping"),
    ],
)
def test_invalid_keys_and_types(key, value, text):
    assert text in refusals(translate((key, value)))[key]


def test_whole_numbers_may_be_written_with_a_point():
    translation = translate(("megatron_training.train_iters", 20.0), ("megatron_training.global_batch_size", 16.0))
    assert refusals(translation) == {}
    assert translation.settings["trainer.total_training_steps"] == 20


@pytest.mark.parametrize("line", ["null: 1", "1.5: !!set {a}", "x: ${y", "? [a, b]\n: 1"])
def test_values_that_are_no_config_are_errors(line, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"{yaml.safe_dump(BASE)}{line}\n", encoding="utf-8")
    with pytest.raises(UserError):
        translate_yaml(str(path))


def test_dates_are_text(tmp_path):
    path = tmp_path / "config.yaml"
    names = {"use_wandb": True, "wandb_project": "p"}
    text = yaml.safe_dump(config(*((f"rl_config.{name}", value) for name, value in names.items())))
    path.write_text(
        text.replace("wandb_project: p", "wandb_project: 2026-11-19\n  wandb_exp_name: 2026-11-19 10:00:00")
    )
    settings = translate_yaml(str(path)).settings
    assert settings["trainer.project_name"] == "2026-11-19"
    assert settings["trainer.experiment_name"] == "2026-11-19 10:00:00"


def test_dashes_in_keys():
    translation = translate(("actor_config.min-lr", 1e-7), ("actor_config.lr_decay_style", "cosine"))
    assert translation.exit_status == 0
    assert items(translation, "actor_config.min-lr")[0].ours == f"{ACTOR}.optim.min_lr_ratio"


def test_keys_of_the_previous_version():
    translation = translate(("megatron_training.moe_intermediate_size", 8), ("actor_config.qk_rope_head_dim", 4))
    assert translation.exit_status == 0


def test_precedence():
    """Class default < model library < megatron_training < actor_config."""
    chosen = (("defaults", [{"model": "qwen3_30b_a3b"}]), ("megatron_training.model", "qwen3_30b_a3b"))

    def coef(*changes):
        return translate(*chosen, *changes).settings[f"{ACTOR}.aux_loss_coef"] * 8

    assert coef() == pytest.approx(0.001)
    assert coef(("megatron_training.moe_aux_loss_coeff", 0.01)) == pytest.approx(0.01)
    both = (("megatron_training.moe_aux_loss_coeff", 0.01), ("actor_config.moe_aux_loss_coeff", 0.1))
    assert coef(*both) == pytest.approx(0.1)
    first = items(translate(*chosen, *both), "megatron_training.moe_aux_loss_coeff")[0]
    assert (first.status, first.why) == ("inert", "actor_config.moe_aux_loss_coeff overrides it")


@pytest.mark.parametrize("section", ["ref_config", "reward_config"])
def test_sections_not_allowed_with_integrated_workers(section):
    changes = (section, {"micro_batch_size": 1}), ("rl_config.use_integrated_worker", True)
    assert "Remove the section" in refusals(translate(*changes))[section]
    separate = translate((section, {"micro_batch_size": 1}), ("rl_config.use_integrated_worker", False))
    assert section not in refusals(separate)
    assert items(separate, f"{section}.micro_batch_size")[0].status == "inert"


@pytest.mark.parametrize(
    "change",
    [
        ("ref_config.micro_batch_size", 2),
        ("reward_config.micro_batch_size", 2),
        ("rl_config.reference_resource", {"num_npus": 1}),
    ],
)
def test_separate_workers_imply_an_older_release(change):
    translation = translate(change)
    assert refusals(translation) == {}
    (note,) = translation.notes
    assert "use_integrated_worker: false" in note and "entropy_coeff: 0.001" in note
    assert translation.settings[f"{ACTOR}.entropy_coeff"] == 0.001
    assert translation.settings[f"{ACTOR}.kl_loss_type"] == "kl"
    written = translate(change, ("rl_config.entropy_coeff", 0.5), ("rl_config.kl_penalty", "low_var_kl"))
    assert "entropy_coeff" not in written.notes[0]
    assert written.settings[f"{ACTOR}.entropy_coeff"] == 0.5


def test_separate_workers_share_the_devices_of_policy_and_engine():
    translation = translate(("rl_config.use_integrated_worker", False))
    assert translation.exit_status == 0
    assert "actor_rollout_ref.hybrid_engine" not in translation.settings
    refused = refusals(
        translate(("rl_config.reward_resource", {"num_npus": 4}), ("rl_config.use_integrated_worker", True))
    )
    assert "remove this key" in refused["rl_config.reward_resource"]


@pytest.mark.parametrize("key", ["rl_config.colocate_all_models", "rl_config.enable_sharding_validate"])
def test_keys_of_older_releases_are_inert(key):
    assert items(translate((key, True)), key)[0].status == "inert"
    assert items(translate(("generate_config.micro_batch_size", 4)), "generate_config.micro_batch_size")[0].why


def test_every_key_is_handled():
    """With all keys set at once, each has an item, and none is refused as not supported."""
    values = {"recompute_granularity": "full", "recompute_method": "block"}
    for stage in ("ray_grpo", "ray_dapo", "ray_ppo"):
        written = config(("megatron_training.stage", stage))
        for section in ("megatron_training", "rl_config", "generate_config"):
            for key, value in SECTIONS[section].items():
                written[section].setdefault(key, values.get(key, 1) if value is None else value)
        for name in ("critic_config", "vit_config"):
            written[name] = {key: values.get(key, 1) if value is None else value for key, value in MEGATRON.items()}
        for resource in ("reference_resource", "reward_resource", "critic_resource", "vit_resource"):
            written["rl_config"][resource] = {"num_npus": 1}
        translation = MindSpeed().translate_config(written)
        reported = {item.theirs for item in translation.items}
        nested = {"rl_config.actor_resource", "generate_config.sampling_config"}
        keys = {f"{section}.{key}" for section in written for key in written[section]} - nested
        assert keys - reported == set()
        fallbacks = ("a valid MindSpeed RL key, but not supported", "depends on a refused setting; fix that first")
        assert [item.theirs for item in translation.items if item.why in fallbacks] == []


@pytest.mark.parametrize(
    ("script", "config", "reason"),
    [
        ("cli/train_dpo.py", {"dpo": {"stage": "dpo"}}, "preference training"),
        ("cli/train_orm.py", {"reward": {"stage": "orm", "model": "qwen25_7b"}}, "training reward models"),
        ("cli/train_sft.py", {"sft": {"tokenizer_name_or_path": "m"}}, "use `burnish sft`"),
    ],
)
def test_other_kinds_of_training_are_refused_by_name(script, config, reason, tmp_path):
    with pytest.raises(NotSupportedYet, match=reason):
        translate_command(["torchrun", "--nproc_per_node", "8", script, "--config-name", "x"])
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(NotSupportedYet, match=reason):
        translate_yaml(str(file))
