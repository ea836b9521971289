"""Engine and sampling, loggers, multi-turn, profiling, preprocessing YAMLs."""

import pytest

from burnish.config import load
from burnish.dialects.mindspeed.dialect import MindSpeed

from .configs import items, refusals, translate

ROLLOUT = "actor_rollout_ref.rollout"
SAMPLING = "generate_config.sampling_config"


def test_sampling_config_replaces_the_default():
    """Missing keys get the engine's defaults, not those of the default sampling_config."""
    translation = translate((SAMPLING, {"temperature": 0.7, "max_tokens": 32}))
    assert translation.settings[f"{ROLLOUT}.temperature"] == 0.7
    assert translation.settings[f"{ROLLOUT}.top_k"] == 50
    assert not items(translation, f"{SAMPLING}.top_k")[0].explicit


def test_default_sampling_config():
    translation = translate(SAMPLING, ("generate_config.max_model_len", 192))
    assert translation.settings[f"{ROLLOUT}.temperature"] == 0.2
    assert translation.settings["data.max_response_length"] == 128


def test_missing_temperature_is_refused():
    refused = refusals(translate((SAMPLING, {"max_tokens": 32})))
    assert "temperature: 1.0" in refused[f"{SAMPLING}.temperature"]


def test_missing_max_tokens_is_the_engines_default():
    translation = translate((SAMPLING, {"temperature": 1.0}), ("generate_config.max_model_len", 192))
    assert translation.settings["data.max_response_length"] == 128


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_num_seqs", 64),
        ("max_num_batched_tokens", 1024),
        ("gpu_memory_utilization", 0.9),
        ("enforce_eager", False),
        ("enable_prefix_caching", True),
    ],
)
def test_engine_keys(key, value):
    assert translate((f"generate_config.{key}", value)).settings[f"{ROLLOUT}.{key}"] == value


def test_small_defaults_are_set_explicitly():
    settings = translate("generate_config.max_num_seqs").settings
    assert settings[f"{ROLLOUT}.max_num_seqs"] == 1
    assert settings[f"{ROLLOUT}.max_num_batched_tokens"] == 2048


@pytest.mark.parametrize("key", ["torchair_graph", "num_scheduler_steps"])
def test_keys_without_effect(key):
    value = True if key == "torchair_graph" else 4
    assert items(translate((f"generate_config.{key}", value)), f"generate_config.{key}")[0].status == "inert"


def test_wandb_disables_tensorboard():
    names = (("rl_config.wandb_project", "p"), ("rl_config.wandb_exp_name", "e"), ("rl_config.wandb_save_dir", "w"))
    translation = translate(("rl_config.use_wandb", True), ("rl_config.use_tensorboard", True), *names)
    assert translation.settings["trainer.logger"] == ["console", "file", "wandb"]
    assert translation.settings["trainer.experiment_name"] == "e"
    assert translation.environment == {"WANDB_DIR": "w"}
    assert items(translation, "rl_config.use_tensorboard")[0].status == "inert"


def test_tensorboard_folder():
    translation = translate(("rl_config.use_tensorboard", True))
    assert translation.settings["trainer.logger"] == ["console", "file", "tensorboard"]
    assert translation.environment == {"TENSORBOARD_DIR": "runs"}


def test_swanlab():
    names = (
        ("rl_config.swanlab_project", "p"),
        ("rl_config.swanlab_exp_name", "e"),
        ("rl_config.swanlab_mode", "local"),
    )
    translation = translate(("rl_config.use_swanlab", True), *names)
    assert "swanlab" in translation.settings["trainer.logger"]
    assert translation.environment == {"SWANLAB_MODE": "local"}


def test_wandb_requires_names():
    assert "wandb_exp_name" in refusals(translate(("rl_config.use_wandb", True)))["rl_config.wandb_exp_name"]


TOOLS = {
    "multi_turn_enable": True,
    "tool_config_path": "tools.yaml",
    "max_tool_calls": 3,
    "max_parallel_calls": 1,
    "max_total_response_length": 64,
    "max_tool_response_length": 128,
    "tool_response_truncate_side": "middle",
    "tool_parser_format": "hermes",
}


def tools(**changes):
    return translate(*((f"rl_config.{key}", value) for key, value in {**TOOLS, **changes}.items()))


def test_multi_turn():
    translation = tools()
    assert items(translation, "rl_config.multi_turn_enable")[0].status == "kept"
    assert translation.settings[f"{ROLLOUT}.multi_turn.max_user_turns"] == 3
    assert translation.settings["data.max_response_length"] == 64
    assert translation.exit_status == 0


def test_the_truncated_side_is_converted():
    """MindSpeed RL names the side that is kept."""
    key = f"{ROLLOUT}.multi_turn.tool_response_truncate_side"
    for theirs, ours in (("left", "right"), ("right", "left"), ("middle", "middle")):
        translation = tools(tool_response_truncate_side=theirs)
        assert translation.settings[key] == ours
    (item,) = items(tools(tool_response_truncate_side="left"), "rl_config.tool_response_truncate_side")
    assert item.status == "converted" and "the side that is kept" in item.why


def test_limits_of_one_turn_and_of_all_turns():
    translation = tools(max_total_response_length=128)
    assert translation.settings["data.max_response_length"] == 128
    assert translation.settings[f"{ROLLOUT}.multi_turn.max_turn_length"] == 64
    assert translation.exit_status == 0
    assert f"{ROLLOUT}.multi_turn.max_turn_length" not in tools().settings
    assert "rl_config.max_total_response_length" in refusals(tools(max_total_response_length=32))


def test_multi_turn_keys_without_multi_turn_are_inert():
    translation = tools(multi_turn_enable=False)
    assert items(translation, "rl_config.tool_config_path")[0].status == "inert"
    assert translation.settings["data.max_response_length"] == 64


def test_partial_rollout_is_pending_and_excludes_guarantee_order():
    split = ("rl_config.partial_rollout_max_split", 4)
    assert items(translate(split), split[0])[0].status == "pending"
    assert "rl_config.guarantee_order" in refusals(translate(split, ("rl_config.guarantee_order", True)))


def test_images_are_read_from_verls_column():
    written = {"is_multimodal": True, "colocate_actor_and_vit": True, "vit_resource": {"num_npus": 2}}
    translation = translate(*((f"rl_config.{name}", value) for name, value in written.items()))
    assert {found.status for name in written for found in items(translation, f"rl_config.{name}")} <= {
        *("converted", "inert")
    }
    assert translation.settings["data.image_key"] == "images"
    assert translation.settings["data.max_images_per_prompt"] == 1  # MindSpeed RL's default
    assert "actor_rollout_ref.actor.freeze_vision_tower" not in translation.settings


def test_reused_features_need_a_frozen_tower():
    translation = translate(("rl_config.is_multimodal", True), ("rl_config.reuse_image_embeds", True))
    assert translation.settings["actor_rollout_ref.actor.freeze_vision_tower"] is True
    assert "not trained" in items(translation, "rl_config.reuse_image_embeds")[0].why
    text = translate(("rl_config.reuse_image_embeds", True))
    assert items(text, "rl_config.reuse_image_embeds")[0].status == "inert"
    assert "actor_rollout_ref.actor.freeze_vision_tower" not in text.settings


def test_msprobe_warns_and_does_not_refuse():
    translation = translate(("msprobe_config", {"msprobe": True, "dump_path": "d", "actor_train_dump": True}))
    item = items(translation, "msprobe_config.msprobe")[0]
    assert item.status == "inert"
    assert item.why.startswith("warning: no ")
    assert {found.status for found in translation.items if found.theirs.startswith("msprobe_config")} == {"inert"}
    assert translation.exit_status == 0


def test_the_profiler_is_converted():
    given = {"profile": True, "mstx": True, "profile_step_start": 2, "profile_step_end": 4, "profile_level": "level2"}
    given |= {"profile_with_memory": True, "profile_save_path": "p"}
    translation = translate(("profiler_config", {"integrated": given}))
    assert translation.exit_status == 0
    settings = translation.settings
    assert (settings["global_profiler.tool"], settings["trainer.profile_steps"]) == ("npu", [2, 3])
    options = "trainer.npu_profile.options"
    assert [settings[f"{options}.{name}"] for name in ("level", "with_memory", "save_path")] == ["level2", True, "p"]
    assert settings["actor_rollout_ref.actor.profiler.all_ranks"] is True
    assert items(translation, "profiler_config.integrated.mstx")[0].status == "inert"


def test_a_stage_of_the_profiler_is_a_role_phase_by_phase():
    given = {"profile": True, "stage": "actor_update", "profile_ranks": [0, 1]}
    settings = translate(("profiler_config", {"integrated": given})).settings
    assert settings["actor_rollout_ref.actor.profiler.discrete"] is True
    assert settings["actor_rollout_ref.actor.profiler.ranks"] == [0, 1]
    assert not any(key.startswith("actor_rollout_ref.rollout.profiler") for key in settings)


def test_disabled_profiler_is_inert():
    translation = translate(("profiler_config", {"integrated": {"profile": False, "profile_level": "level1"}}))
    assert items(translation, "profiler_config.integrated.profile_level")[0].status == "inert"
    assert "profiler_config.integrated.profil" in refusals(
        translate(("profiler_config", {"integrated": {"profil": 1}}))
    )


def test_disabled_msprobe_is_inert():
    off = translate(("msprobe_config", {"msprobe": False, "dump_path": "d"}))
    assert items(off, "msprobe_config.dump_path")[0].status == "inert"


PREPROCESSING = {
    "input": "./dataset/deepscaler.json",
    "tokenizer_name_or_path": "./model",
    "output_prefix": "./dataset/data",
    "handler_name": "R1AlpacaStyleInstructionHandler",
    "prompt_type": "qwen_r1",
    "workers": 8,
    "map_keys": {"prompt": "problem", "query": "", "response": "answer", "system": ""},
    "dataset_additional_keys": ["labels"],
}


def test_preprocessing_file():
    translation = MindSpeed().translate_config(PREPROCESSING)
    assert translation.exit_status == 0
    cfg = load(translation.overrides(), check=False).cfg
    assert cfg.data.train_files == ["./dataset/deepscaler.json"]
    assert cfg.data.handler.name == "R1AlpacaStyleInstructionHandler"
    assert cfg.data.handler.map_keys == {"prompt": "problem", "query": "", "response": "answer", "system": ""}
    assert cfg.data.handler.prompt_type == "qwen_r1"
    assert {item.theirs for item in translation.items} == PREPROCESSING.keys()


def test_unsupported_preprocessing_options():
    pairs = MindSpeed().translate_config({**PREPROCESSING, "handler_name": "AlpacaStylePairwiseHandler"})
    assert [*refusals(pairs)] == ["handler_name"]
    packed = MindSpeed().translate_config({**PREPROCESSING, "pack": True, "handler_nam": "x"})
    assert "Did you mean handler_name?" in refusals(packed)["handler_nam"]
    assert "fine-tuning" in refusals(packed)["pack"]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("handler_name", "R1AlpacaStyleInstructHandler", "Did you mean 'R1AlpacaStyleInstructionHandler'?"),
        ("prompt_type", "qwen_r2", "Did you mean 'qwen_r1'?"),
        ("interleave_probs", "a,b", "0.25,0.75"),
        ("map_keys", {"prompt": {"x": "y"}}, "must be text"),
        ("map_keys", ["prompt"], "must be"),
    ],
)
def test_unknown_preprocessing_names(key, value, text):
    assert text in refusals(MindSpeed().translate_config({**PREPROCESSING, key: value}))[key]


def test_interleave_probabilities():
    several = {**PREPROCESSING, "input": "a.json,b.json", "interleave_probs": "0.25,0.75"}
    settings = MindSpeed().translate_config(several).settings
    assert (settings["data.train_files"], settings["data.train_probs"]) == (["a.json", "b.json"], [0.25, 0.75])


def test_default_prompt_type():
    bare = {key: value for key, value in PREPROCESSING.items() if key != "prompt_type"}
    assert MindSpeed().translate_config(bare).settings["data.handler.prompt_type"] == "empty"
