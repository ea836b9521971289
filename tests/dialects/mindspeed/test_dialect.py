"""Commands and files: what is recognised, which stage it is, and that strict keys stay strict."""

import pytest
from omegaconf import OmegaConf

from burnish.config import load
from burnish.dialects.invocation import Invocation, read_command
from burnish.dialects.mindspeed.dialect import MindSpeed
from burnish.dialects.mindspeed.sections import MEGATRON, SECTIONS
from burnish.dialects.read import translate_yaml
from burnish.errors import UserError

from .configs import BASE, config, items, refusals, translate

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


@pytest.fixture
def tree(tmp_path):
    """A folder like MindSpeed RL's own: cli/ and configs/."""
    (tmp_path / "cli").mkdir()
    (tmp_path / "configs").mkdir()
    OmegaConf.save(OmegaConf.create(BASE), tmp_path / "configs" / "small.yaml")
    return tmp_path


def run(tree, *argv, entry="cli/train_grpo.py"):
    return MindSpeed().read_command(Invocation(entry, argv), str(tree))


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("python cli/train_grpo.py --config-name grpo_qwen25_7b_A3", True),
        ("python3 ../MindSpeed-RL/cli/train_dapo.py --config-name x", True),
        ("python -m cli.train_ppo --config-name x", True),
        ("python train_grpo.py --config-name x", True),
        ("python train_grpo.py --model x", False),
        ("python3 -m verl.trainer.main_ppo a=b", False),
        ("python cli/train_sft.py --config-name x", False),
    ],
)
def test_which_commands_are_known(words, known):
    assert MindSpeed().knows_command(read_command(words.split())) is known


def test_which_files_are_known():
    assert MindSpeed().knows_config(BASE)
    assert MindSpeed().knows_config({"input": "a.json", "handler_name": "AlpacaStyleInstructionHandler"})
    assert not MindSpeed().knows_config({"env_vars": {}})
    assert not MindSpeed().knows_config({"data": {}, "actor_rollout_ref": {}})


def test_a_small_config_is_a_run_that_loads():
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


def test_what_it_means_on_other_hardware_is_one_item():
    said = [item for item in translate().items if "NPU" in item.why and not item.given]
    assert len(said) == 1
    assert "trainer.device=auto" in said[0].why


def test_a_command_names_its_config(tree):
    translation = run(tree, "--config-name", "small", "rl_config.n_samples_per_prompt=8", "+rl_config.lam=0.5")
    assert translation.settings[f"{ROLLOUT}.n"] == 8
    assert items(translation, "rl_config.lam")[0].value == 0.5


@pytest.mark.parametrize(
    "options",
    [("--config-name=small.yaml",), ("-cn", "small"), ("--config-dir", "configs", "--config-name", "small")],
)
def test_ways_to_name_it(tree, options):
    assert run(tree, *options).settings["data.train_batch_size"] == 8


def test_a_config_path_counts_from_the_script_or_from_here(tree):
    for path in ("../configs", "configs"):
        assert run(tree, "--config-path", path, "--config-name", "small").exit_status == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--config-name", "smal"), "--config-name small"),
        ((), "no config is named"),
        (("--config-name",), "has no value"),
        (("--multi", "--config-name", "small"), "no such option"),
        (("--config-name", "small", "a=[1"), "cannot parse the override"),
    ],
)
def test_commands_that_cannot_be_read(tree, argv, said):
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        run(tree, *argv)


def test_the_model_group_is_chosen_on_the_command(tree):
    translation = run(tree, "--config-name", "small", "model=qwen3_8b", "+megatron_training.model=qwen3_8b")
    assert items(translation, "defaults.model")[0].value == "qwen3_8b"


def test_a_key_can_be_taken_away(tree):
    assert "megatron_training.train_iters" in refusals(
        run(tree, "--config-name", "small", "~megatron_training.train_iters")
    )


def test_numbers_with_an_exponent_are_numbers(tree):
    path = tree / "configs" / "small.yaml"
    path.write_text(path.read_text().replace("lr: 1.0e-06", "lr: 1e-6"))
    assert translate_yaml(str(path)).settings[f"{ACTOR}.optim.lr"] == 1e-6
    assert translate(("actor_config.lr", "3e-7")).settings[f"{ACTOR}.optim.lr"] == 3e-7


def test_the_script_and_the_stage_agree(tree):
    refused = refusals(run(tree, "--config-name", "small", entry="cli/train_dapo.py"))
    assert "run cli/train_grpo.py" in refused["megatron_training.stage"]
    missing = refusals(run(tree, "--config-name", "small", "~megatron_training.stage"))
    assert "ray_grpo for train_grpo" in missing["megatron_training.stage"]


def test_a_stage_that_does_not_run_is_refused_and_its_keys_are_told():
    translation = translate(("megatron_training.stage", "dpo"))
    assert [*refusals(translation)] == ["megatron_training.stage"]
    assert {"actor_config.lr", "rl_config.mini_batch_size"} <= {item.theirs for item in translation.items}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rl_config.n_sample_per_prompt", 4, "Did you mean n_samples_per_prompt?"),
        ("actor_config.learning_rate", 1e-6, "no such key"),
        ("rl_config.actor_resource.num_gpus", 4, "num_npus and nothing else"),
        ("generate_config.sampling_config.best_of", 2, "no such key"),
        ("megatron_config", {"lora_r": 8}, "Did you mean megatron_training?"),
        ("rl_config.clip_ratio", "abc", "must be a number"),
        ("rl_config.blocking", 1, "must be true or false"),
        ("rl_config.actor_resource", 8, "num_npus: 8"),
        ("generate_config.sampling_config", 1.0, "keys of its own"),
        ("rl_config.verifier_function", "acc", "must be a list"),
        ("actor_config.lora_filter", True, "no such key"),
    ],
)
def test_strict_keys(key, value, said):
    assert said in refusals(translate((key, value)))[key]


def test_a_dash_is_an_underscore():
    translation = translate(("actor_config.min-lr", 1e-7), ("actor_config.lr_decay_style", "cosine"))
    assert translation.exit_status == 0
    assert items(translation, "actor_config.min-lr")[0].ours == f"{ACTOR}.optim.min_lr_ratio"


def test_names_of_the_version_before_are_known():
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
    assert (first.status, first.why) == ("inert", "actor_config.moe_aux_loss_coeff comes after it")


@pytest.mark.parametrize("section", ["ref_config", "reward_config"])
def test_sections_that_integrated_workers_do_not_have(section):
    assert "Leave the section out" in refusals(translate((section, {"micro_batch_size": 1})))[section]
    apart = translate((section, {"micro_batch_size": 1}), ("rl_config.use_integrated_worker", False))
    assert section not in refusals(apart)
    assert items(apart, f"{section}.micro_batch_size")[0].status == "inert"


def test_every_known_key_is_read_by_somebody():
    """All keys at once, each with its default's value or a plain one: each gets an item, and none of them is 'known,
    and nothing here can do it'."""
    plain = {"recompute_granularity": "full", "recompute_method": "block"}
    for stage in ("ray_grpo", "ray_dapo", "ray_ppo"):
        made = config(("megatron_training.stage", stage))
        for section in ("megatron_training", "rl_config", "generate_config"):
            for key, value in SECTIONS[section].items():
                made[section].setdefault(key, plain.get(key, 1) if value is None else value)
        for name in ("critic_config", "vit_config"):
            made[name] = {key: plain.get(key, 1) if value is None else value for key, value in MEGATRON.items()}
        for resource in ("reference_resource", "reward_resource", "critic_resource", "vit_resource"):
            made["rl_config"][resource] = {"num_npus": 1}
        translation = MindSpeed().read_config(made)
        told = {item.theirs for item in translation.items}
        nested = {"rl_config.actor_resource", "generate_config.sampling_config"}
        written = {f"{section}.{key}" for section in made for key in made[section]} - nested
        assert written - told == set()
        unread = ("is known, and nothing here can do it", "depends on what is refused; mend that first")
        lost = [item.theirs for item in translation.items if item.why in unread]
        assert lost == []
