"""Translation of verl commands."""

import json
from pathlib import Path

import pytest

from burnish.config import load
from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED
from burnish.dialects.translate import translate_command
from burnish.dialects.verl.programs import find_program, module_of
from burnish.dialects.yaml_file import reading_only

CASES = Path(__file__).parents[3] / "shared" / "cases" / "verl.jsonl"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# (key, value) of the cases that are expected to be refused.
EXPECTED_REFUSALS = {
    ("actor_rollout_ref.model.path", "<path_to_dsv3_config>"),  # a placeholder that Hydra cannot parse either
    ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size", 4),  # of a script with LoRA: not supported together
    *(("actor_rollout_ref.model.path", name) for name in ("openbmb/MiniCPM-o-2_6", "zai-org/GLM-4.1V-9B-Thinking")),
    *(("actor_rollout_ref.rollout.tensor_model_parallel_size", size) for size in (16, 32)),  # of vLLM, over nodes of 8
    ("actor_rollout_ref.rollout.name", "trtllm"),
    ("data.train_batch_size", 0),  # of a script with 12 ranks, over which 128 x 16 responses do not divide
}


def verl(*argv, entry="verl.trainer.main_ppo", before=("python3", "-m"), folder="."):
    return translate_command([*before, entry, *argv], folder)


def item_of(translation, theirs):
    items = [item for item in translation.items if item.theirs == theirs]
    assert len(items) == 1, [item.theirs for item in translation.items]
    return items[0]


def cases():
    if not CASES.exists():
        pytest.skip("shared folder is not here")
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def check_case(case):
    translation = verl(*case["argv"], entry=case["entry"])
    assert translation.dialect == "verl"
    reported = {item.theirs.lstrip("~") for item in translation.items if item.explicit}
    written = {word.lstrip("+~").partition("=")[0] for word in case["argv"]}
    assert written <= reported, f"{case['name']}: dropped {written - reported}"
    refused = {(item.theirs, item.value) for item in translation.items if item.status == REFUSED}
    assert refused <= EXPECTED_REFUSALS, case["name"]


def test_some_cases_translate():
    for case in cases()[::9]:
        check_case(case)


@pytest.mark.long
def test_every_case_translates():
    jobs = set()
    for case in cases():
        check_case(case)
        jobs.add(find_program(case["entry"]).job)
    assert jobs == {"train", "sft", "eval", "generate"}


def test_refusals_in_the_cases():
    seen = {
        (key, value) for case in cases() for key, _, value in (word.lstrip("+").partition("=") for word in case["argv"])
    }
    assert seen >= {(key, str(value)) for key, value in EXPECTED_REFUSALS}


@pytest.mark.parametrize(
    ("entry", "job"),
    [
        ("verl.trainer.main_ppo", "train"),
        ("verl/trainer/main_ppo.py", "train"),
        ("/x/verl/verl/trainer/main_ppo.py", "train"),
        ("main_ppo.py", "train"),
        ("recipe.dapo.main_dapo", "train"),
        ("recipe/dapo/src/main_dapo.py", "train"),
        ("verl.trainer.fsdp_sft_trainer", "sft"),
        ("verl.trainer.sft_trainer", "sft"),
        ("verl.trainer.main_generation", "generate"),
        ("verl.trainer.main_generation_server", "generate"),
        ("verl.trainer.main_eval", "eval"),
        ("recipe.r1.main_eval", "eval"),
    ],
)
def test_programs(entry, job):
    assert find_program(entry).job == job


@pytest.mark.parametrize("entry", ["verl.model_merger", "train.py", "my.main_ppo", "openrlhf.cli.train_sft", "verl"])
def test_other_programs_are_unknown(entry):
    assert find_program(entry) is None


def test_module_of_a_file():
    assert module_of("/a/verl/verl/trainer/main_ppo.py") == "verl.trainer.main_ppo"


def test_same_keys_are_kept():
    translation = verl(
        "algorithm.adv_estimator=grpo", f"{ACTOR}.optim.lr=1e-6", "+data.seed=3", "trainer.logger=console"
    )
    assert item_of(translation, "algorithm.adv_estimator").status == KEPT
    rate, seed, logger = (item_of(translation, key) for key in (f"{ACTOR}.optim.lr", "data.seed", "trainer.logger"))
    assert (rate.status, rate.ours_value) == (KEPT, 1e-6)
    assert (seed.status, seed.ours_value) == (KEPT, 3)
    assert (logger.status, logger.ours_value) == (KEPT, ["console"])


def test_aliases_and_values_are_converted():
    translation = verl(
        "custom_reward_function.path=f.py",
        f"{ACTOR}.optim.lr_scheduler_type=cosine",
        f"{ACTOR}.checkpoint.contents=[model]",
        f"{ROLLOUT}.top_k=0",
        f"{ROLLOUT}.name=naive",
    )
    schedule = item_of(translation, f"{ACTOR}.optim.lr_scheduler_type")
    assert (schedule.status, schedule.ours, schedule.ours_value) == (CONVERTED, f"{ACTOR}.optim.warmup_style", "cosine")
    assert "newer verl's name" in schedule.why
    contents = [item.ours for item in translation.items if item.theirs == f"{ACTOR}.checkpoint.contents"]
    assert contents == [f"{ACTOR}.checkpoint.save_contents", f"{ACTOR}.checkpoint.load_contents"]
    top_k = item_of(translation, f"{ROLLOUT}.top_k")
    assert (top_k.status, top_k.ours_value, top_k.why) == (CONVERTED, -1, "0 is written -1 here")
    assert item_of(translation, f"{ROLLOUT}.name").ours_value == "hf"


def test_spellings_in_verls_documentation():
    translation = verl(
        f"{ROLLOUT}.multi_turn=true",
        f"{ROLLOUT}.tool_kwargs.tools_config_file=tools.yaml",
        f"{ROLLOUT}.interaction_config_file=users.yaml",
        "actor_rollout_ref.model.external_libs=my.models",
    )
    turns = item_of(translation, f"{ROLLOUT}.multi_turn")
    assert (turns.status, turns.ours, turns.ours_value) == (CONVERTED, f"{ROLLOUT}.multi_turn.enable", True)
    tools = item_of(translation, f"{ROLLOUT}.tool_kwargs.tools_config_file")
    assert (tools.status, tools.ours) == (CONVERTED, f"{ROLLOUT}.multi_turn.tool_config_path")
    assert item_of(translation, "actor_rollout_ref.model.external_libs").ours_value == ["my.models"]


def test_unknown_key_is_refused_with_a_suggestion():
    translation = verl("algorithm.adv_estimater=grpo")
    item = item_of(translation, "algorithm.adv_estimater")
    assert item.status == REFUSED
    assert "Did you mean algorithm.adv_estimator?" in item.why
    assert translation.exit_status == 3


def test_invalid_values_are_refused():
    translation = verl("algorithm.adv_estimator=gpro", f"{ROLLOUT}.n=0", "data.seed=[1", "trainer.seed=${no.such}")
    assert "Did you mean 'grpo'?" in item_of(translation, "algorithm.adv_estimator").why
    assert "out of range" in item_of(translation, f"{ROLLOUT}.n").why
    assert "cannot parse" in item_of(translation, "data.seed").why
    assert "cannot resolve the interpolation" in item_of(translation, "trainer.seed").why
    assert translation.count(REFUSED) == 4


def test_conflicting_aliases_are_refused():
    translation = verl(f"{ACTOR}.optim.warmup_style=constant", f"{ACTOR}.optim.lr_scheduler_type=cosine")
    assert "have different values" in item_of(translation, f"{ACTOR}.optim.lr_scheduler_type").why


def test_double_kl_is_refused():
    translation = verl(f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=true")
    refused = [item for item in translation.items if item.status == REFUSED]
    assert ["twice" in item.why for item in refused] == [True]


def test_last_override_wins_and_the_first_is_inert():
    translation = verl(f"{ROLLOUT}.n=2", f"{ROLLOUT}.n=4")
    first, last = [item for item in translation.items if item.theirs == f"{ROLLOUT}.n"]
    assert (first.status, last.status, last.ours_value) == (INERT, KEPT, 4)
    assert "set again later" in first.why
    assert translation.settings[f"{ROLLOUT}.n"] == 4


def test_verls_defaults_are_set_explicitly():
    translation = verl("data.train_files=x.parquet")
    defaults = {item.ours: item for item in translation.items if not item.explicit}
    assert defaults[f"{ROLLOUT}.name"].ours_value == "vllm"
    assert (defaults["trainer.n_gpus_per_node"].status, defaults["trainer.n_gpus_per_node"].ours_value) == (KEPT, 8)
    assert defaults[f"{ACTOR}.clip_ratio_high"].ours_value == 0.2
    assert defaults["trainer.logger"].why == "verl's default; Burnish's is [console,file]"
    assert "data.train_files" not in defaults
    assert translation.settings["trainer.logger"] == ["console", "wandb"]
    assert translation.settings["critic.model.path"] == "~/models/deepseek-llm-7b-chat"  # PPO has a critic


def test_default_without_effect_is_reported_but_not_set():
    translation = verl("algorithm.adv_estimator=grpo")
    for key in ("critic.model.path", "reward_model.model.path", "actor_rollout_ref.model.use_remove_padding"):
        assert item_of(translation, key).status == INERT
        assert key not in translation.settings


def test_clip_ratio_alone_is_inert_in_verl():
    item = item_of(verl(f"{ACTOR}.clip_ratio=0.1"), f"{ACTOR}.clip_ratio")
    assert item.status == INERT
    assert f"{ACTOR}.clip_ratio_low=0.1" in item.why
    free = verl(f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_low=null", f"{ACTOR}.clip_ratio_high=null")
    assert item_of(free, f"{ACTOR}.clip_ratio").status == KEPT


def test_burnish_command_keeps_burnishs_defaults():
    translation = translate_command(["burnish", "train", f"{ROLLOUT}.n=4"])
    assert translation.job == "train"
    assert translation.settings == {f"{ROLLOUT}.n": 4}
    assert translate_command(["burnish", "sft", "optim.lr=1e-4"]).job == "sft"


def test_config_contains_only_differences():
    translation = verl("data.train_files=x.parquet", f"{ROLLOUT}.n=4", f"{ACTOR}.ppo_epochs=1")
    config = translation.config()
    assert config["actor_rollout_ref"]["rollout"]["n"] == 4
    assert "ppo_epochs" not in config["actor_rollout_ref"]["actor"]
    assert "rollout_n" not in config["critic"]  # follows rollout.n
    assert load(translation.overrides(), check=False).cfg == load(values=translation.settings, check=False).cfg


def test_config_names_of_verl_resolve_without_its_files():
    translation = verl("--config-path=config", "--config-name=ppo_megatron_trainer.yaml", f"{ROLLOUT}.name=hf")
    assert item_of(translation, "--config-name").status == KEPT
    assert item_of(translation, f"{ACTOR}.strategy").value == "megatron"
    assert not item_of(translation, f"{ACTOR}.strategy").explicit
    assert item_of(translation, f"{ROLLOUT}.tensor_model_parallel_size").value == 1  # not the other file's 2
    turns = verl("--config-name", "gsm8k_multiturn_grpo")
    assert turns.settings[f"{ROLLOUT}.name"] == "sglang"
    assert turns.settings["data.max_prompt_length"] == 1024


def test_user_config_file_is_explicit(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("defaults:\n  - ppo_trainer\n  - _self_\ndata:\n  seed: 5\n")
    translation = verl("--config-path=conf", "--config-name=mine", folder=str(tmp_path))
    assert item_of(translation, "data.seed").explicit
    assert item_of(translation, f"{ROLLOUT}.name").ours_value == "vllm"


def test_entries_of_a_file_that_the_command_removes_have_no_effect(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults:\n  - ppo_trainer\n  - _self_\ndata:\n  seed: 5\n  shuffle: false\n")
    translation = verl("--config-name=mine", "~data.seed", "data.shuffle=", folder=str(tmp_path))
    seed = [item for item in translation.items if item.theirs == "data.seed"]
    assert [(item.status, item.value, item.why) for item in seed] == [
        (INERT, 5, "removed by a later entry: its default applies")
    ]
    assert "data.seed" not in translation.settings
    entry = "recipe.one_step_off_policy.main_ppo"
    built_in = verl("--config-name=one_step_off_ppo_trainer", "rollout.nnodes=", entry=entry)
    assert "rollout.nnodes" not in built_in.settings


SEARCHED = "hydra:\n  searchpath:\n    - {}\ndefaults:\n  - ppo_megatron_trainer\n  - _self_\ndata:\n  seed: 5\n"


@pytest.mark.parametrize(
    ("path", "accepted"),
    [
        ("file://verl/trainer/config", True),
        ("shared", True),
        ("pkg://os", False),
        ("file://../x", False),
        ("${x}", False),
    ],
)
def test_search_paths_of_a_file_that_is_only_looked_at(path, accepted, tmp_path, monkeypatch):
    """verl's own files name verl's tree, which need not exist; packages would be imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text(SEARCHED.format("conf"))  # folders may name one another
    (tmp_path / "conf" / "mine.yaml").write_text(SEARCHED.format(path))
    with reading_only(lambda file: file.resolve().is_relative_to(tmp_path.resolve())):
        translation = verl("--config-path=conf", "--config-name=mine")
    assert (item_of(translation, "--config-name").status == KEPT) is accepted
    assert (translation.settings.get("data.seed") == 5) is accepted


def test_a_search_path_to_files_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.yaml").write_text("data: {seed: 7}\n")
    (tmp_path / "conf" / "mine.yaml").write_text(SEARCHED.format("private"))
    with reading_only(lambda file: "private" not in file.parts):
        item = item_of(verl("--config-path=conf", "--config-name=mine"), "--config-name")
    assert item.status == REFUSED and "not read" in item.why


def test_missing_config_is_refused():
    item = item_of(verl("--config-name=ppo_trainr"), "--config-name")
    assert item.status == REFUSED
    assert "ppo_trainer" in item.why


def test_hydra_flags():
    translation = verl("hydra.run.dir=out", "--cfg", "job", "--multirun", "~data.seed", "--nonsense", "--help")
    assert translation.prints_config
    assert item_of(translation, "--help").status == REFUSED
    assert item_of(translation, "hydra.run.dir").status == INERT
    assert (item_of(translation, "--cfg").status, item_of(translation, "--cfg").value) == (INERT, "job")
    assert item_of(translation, "--multirun").status == REFUSED
    assert item_of(translation, "--nonsense").status == REFUSED
    assert item_of(translation, "~data.seed").status == CONVERTED


def test_dapo_has_its_own_defaults():
    translation = verl(entry="recipe.dapo.main_dapo")
    assert translation.settings["reward_model.reward_manager"] == "dapo"
    assert translation.settings["trainer.project_name"] == "verl-dapo"


def test_recipe_with_its_own_loop_is_refused():
    translation = verl(f"{ROLLOUT}.n=4", entry="recipe.prime.main_prime")
    assert item_of(translation, "recipe.prime.main_prime").status == REFUSED
    assert translation.settings[f"{ROLLOUT}.n"] == 4


@pytest.mark.parametrize(
    ("entry", "mode", "bypass"),
    [
        ("recipe.one_step_off_policy.main_ppo", "one_step_off", None),
        ("recipe.one_step_off_policy.async_main_ppo", "one_step_off", None),
        ("verl.experimental.fully_async_policy.fully_async_main", "queue", True),
    ],
)
def test_asynchronous_programs(entry, mode, bypass):
    translation = verl("trainer.n_gpus_per_node=1", entry=entry)
    assert translation.settings["async_training.mode"] == mode
    assert translation.settings.get("async_training.use_rollout_log_probs") is bypass
    item = item_of(translation, entry)
    assert (item.status, item.ours, item.ours_value) == (CONVERTED, "actor_rollout_ref.hybrid_engine", False)
    assert translation.settings["rollout.n_gpus_per_node"] == 8


def test_newer_sft_program_uses_conversations():
    translation = verl("model.path=m", "engine=fsdp", entry="verl.trainer.sft_trainer")
    assert translation.settings["data.multiturn.enable"] is True
    assert translation.settings["model.partial_pretrain"] == "m"
    assert item_of(translation, "engine").status == INERT


def test_torchrun_sets_the_number_of_processes():
    before = ("torchrun", "--nproc_per_node=4", "--nnodes", "2", "-m")
    entry = "verl.trainer.fsdp_sft_trainer"
    translation = verl("trainer.n_gpus_per_node=8", entry=entry, before=before)
    assert translation.settings["trainer.n_gpus_per_node"] == 4
    assert translation.settings["trainer.nnodes"] == 2
    assert item_of(translation, "--nproc_per_node").status == CONVERTED
    assert item_of(translation, "trainer.n_gpus_per_node").status == INERT
    assert "trainer.n_gpus_per_node" not in verl(entry=entry).settings
    unknown = verl(entry=entry, before=("torchrun", "--nproc_per_node=auto", "-m"))
    assert item_of(unknown, "--nproc_per_node").status == REFUSED
    alone = verl("ulysses_sequence_parallel_size=4", entry=entry)
    assert alone.settings["trainer.n_gpus_per_node"] == 4
    assert verl(entry="verl.trainer.sft_trainer_ray").settings["trainer.n_gpus_per_node"] == 8


def test_one_process_has_nothing_pending():
    translation = verl("trainer.nnodes=1", "trainer.n_gpus_per_node=1", f"{ROLLOUT}.tensor_model_parallel_size=1")
    for key in ("trainer.nnodes", "trainer.n_gpus_per_node", f"{ROLLOUT}.tensor_model_parallel_size"):
        assert item_of(translation, key).status == KEPT


def test_secrets_are_only_in_the_environment():
    translation = verl(before=("WANDB_API_KEY=geheim", "VLLM_USE_V1=1", "python3", "-m"))
    assert translation.environment == {"WANDB_API_KEY": "geheim"}
    assert "geheim" not in str([item.plain() for item in translation.items])


def test_generation_server():
    """Its keys are those of training, and so are its defaults."""
    argv = (f"{ROLLOUT}.n=4", f"{ROLLOUT}.temperature=0.5", "actor_rollout_ref.model.path=m", "data.train_files=[a]")
    translation = verl(*argv, "+data.output_path=o", entry="verl.trainer.main_generation_server")
    assert (translation.job, translation.exit_status) == ("generate", 0)
    cfg = load(values=translation.settings, job="generate").cfg
    assert (cfg.data.path, cfg.data.n_samples, cfg.data.output_path, cfg.model.path) == ("a", 4, "o", "m")
    assert (cfg.rollout.temperature, cfg.rollout.top_k, cfg.rollout.top_p) == (0.5, -1, 1.0)
    older = verl("model.path=m", entry="verl.trainer.main_generation")
    assert load(values=older.settings, job="generate", check=False).cfg.rollout.top_p == 0.7


IMPORTANCE = "algorithm.rollout_is"


def test_the_generation_server_accepts_keys_of_training_that_it_does_not_use():
    server = "verl.trainer.main_generation_server"
    keys = (
        "data.train_batch_size",
        "actor_rollout_ref.model.use_remove_padding",
        f"{ACTOR}.optim.lr",
        "critic.ppo_epochs",
    )
    translation = verl(*(f"{key}=1" for key in keys), f"{ROLLOUT}.n=2", entry=server)
    assert [item_of(translation, key).status for key in keys] == [INERT] * 4
    assert "a setting of `burnish train`" in item_of(translation, "critic.ppo_epochs").why
    assert translation.settings["data.n_samples"] == 2
    typo = verl(f"{ROLLOUT}.temperatur=1", "data.train_batch_sze=1", entry=server)
    assert [item.theirs for item in typo.items if item.status == REFUSED and item.explicit] == [
        f"{ROLLOUT}.temperatur",
        "data.train_batch_sze",
    ]
    assert item_of(verl("data.train_batch_size=1", entry="verl.trainer.main_generation"), "data.train_batch_size").why


def test_importance_weights_of_0_6():
    argv = (
        f"{IMPORTANCE}=True",
        f"{IMPORTANCE}_threshold=3",
        f"{IMPORTANCE}_level=sequence",
        f"{IMPORTANCE}_mode=truncate",
    )
    translation = verl(*argv, f"{IMPORTANCE}_veto_threshold=1e-4", f"{IMPORTANCE}_threshold_lower=0.5")
    correction = load(values=translation.settings, check=False).cfg.algorithm.rollout_correction
    assert (correction.rollout_is, correction.rollout_is_threshold) == ("sequence", "3")
    assert (correction.rollout_token_veto_threshold, correction.rollout_is_threshold_lower) == (1e-4, None)
    off = verl(f"{IMPORTANCE}=True", f"{IMPORTANCE}_threshold=null")
    logged = verl(f"{IMPORTANCE}=False", f"{IMPORTANCE}_threshold=2.0")
    assert {item_of(case, IMPORTANCE).status for case in (off, logged)} == {INERT}
    masked = verl(f"{IMPORTANCE}=True", f"{IMPORTANCE}_threshold=2.0", f"{IMPORTANCE}_mode=mask")
    assert "rollout_rs" in item_of(masked, f"{IMPORTANCE}_mode").why


@pytest.mark.parametrize(
    ("override", "status", "why"),
    [
        ("hydra/job_logging=disabled", INERT, "a setting of Hydra"),
        ("actor@actor_rollout_ref.actor=megatron_actor", REFUSED, "selects a file of verl's config tree"),
        (f"{ACTOR}.fsdp_config.grad_offload=True", INERT, "gradients are freed"),
        (f"{ACTOR}._target_=verl.workers.config.FSDPActorConfig", INERT, "names a class"),
        (f"{ROLLOUT}.n_val=8", REFUSED, f"{ROLLOUT}.val_kwargs.n=8"),
        ("data.max_obs_length=500", REFUSED, "Search-R1"),
        ("reward_model.reward_manager=rate_limited", CONVERTED, "naive"),
        ("+reward_model.max_rpm=10", REFUSED, "not limited by rate"),
        ("algorithm.lam=0.5", INERT, "advantage estimator does not use it"),
        ("algorithm.kl_ctrl.kl_coef=0.5", INERT, "the KL is not in the reward"),
        ("critic.optim.lr=1", INERT, "no critic"),
    ],
)
def test_settings_without_effect_and_foreign_ones(override, status, why):
    name = override.partition("=")[0].lstrip("+")
    item = item_of(verl("algorithm.adv_estimator=grpo", override), name)
    assert (item.status, why in item.why) == (status, True), item.why


def test_transfer_queue_has_the_results_of_main_ppo():
    switches = ("+trainer.num_global_batch=1", "+trainer.num_data_storage_units=8")
    names = ("--config-path=config", "--config-name=transfer_queue_ppo_megatron_trainer")
    translation = verl(*names, *switches, entry="recipe.transfer_queue.main_ppo")
    assert [item.theirs for item in translation.items if item.status == REFUSED] == []
    assert item_of(translation, "trainer.num_global_batch").status == INERT
    assert translation.settings == verl("--config-name=ppo_megatron_trainer").settings


def test_names_in_verls_patches_for_ascend():
    translation = verl(f"+{ROLLOUT}.dp_model_parallel_size=2", f"+{ROLLOUT}.rollout_world_size=8")
    assert translation.settings[f"{ROLLOUT}.data_parallel_size"] == 2
    assert item_of(translation, f"{ROLLOUT}.rollout_world_size").status == INERT


def test_sizes_of_megatron_may_be_repeated_in_its_overrides():
    fields = f"{ACTOR}.megatron.override_transformer_config"
    sizes = ("--config-name=ppo_megatron_trainer", f"{ACTOR}.megatron.context_parallel_size=2")
    same = verl(*sizes, f"+{fields}.context_parallel_size=2")
    assert item_of(same, f"{fields}.context_parallel_size").status == INERT
    other = verl(*sizes, f"+{fields}.context_parallel_size=4")
    (refused,) = [item for item in other.items if item.status == REFUSED]
    assert refused.theirs == f"{fields}.context_parallel_size"
    assert f"Type: {ACTOR}.megatron.context_parallel_size=4" in refused.why


@pytest.mark.parametrize(
    ("override", "why"),
    [
        (
            "algorithm.adv_estimator=gdpo",
            "gdpo (an advantage per component of the reward) is not supported. Allowed: gae",
        ),
        ("trainer.logger=[console,clearml]", "clearml (a logger of verl) is not supported. Allowed: console"),
        ("data.prompt_key='${'", "no viable alternative at input '${'"),
        ("trainer.project_name=a,b", "must be str. Allowed: str. Type: trainer.project_name=\"'a,b'\""),
        ("trainer.logger=[console,wanb]", "'wanb' is not an allowed value. Did you mean 'wandb'? Allowed: console"),
    ],
)
def test_values_that_are_not_allowed(override, why):
    (refused,) = [item for item in verl(override).items if item.status == REFUSED]
    assert refused.why.startswith(why)
    assert ("Type: trainer.logger=[console,wandb]" in refused.why) is ("wanb" in override)


def test_debugging_switches_that_are_off_have_no_effect():
    for name in ("debug", "vs_debug", "trainer.dump_high_diff_tokens"):
        assert item_of(verl(f"+{name}=False"), name).status == INERT
        assert item_of(verl(f"+{name}=True"), name).status == REFUSED


def test_split_placement_has_the_results_of_main_ppo():
    translation = verl(
        "algorithm.adv_estimator=gae", entry="examples/split_placement/main_ppo_split.py", before=("python3",)
    )
    assert (translation.job, translation.exit_status) == ("train", 0)
