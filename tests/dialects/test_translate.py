"""Recognition of commands and YAML files, and translation of every block of the seeds."""

import re
from pathlib import Path

import pytest

from burnish.dialects.report import CONVERTED, KEPT, REFUSED
from burnish.dialects.translate import knows_command, translate_command, translate_yaml
from burnish.dialects.yaml_file import parse_yaml
from burnish.errors import UserError

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
BLOCK = re.compile(r"^ *(`{3,})(\w+)\n(.*?)^ *\1", re.DOTALL | re.MULTILINE)


def write(folder, text, name="run.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def blocks(seed):
    if not SEEDS.is_dir():
        pytest.skip("shared folder is not here")
    text = next(SEEDS.glob(f"{seed}_*.txt")).read_text(encoding="utf-8")
    return [(language, body) for _, language, body in BLOCK.findall(text)]


@pytest.mark.parametrize(("seed", "count"), [("000", 0), ("001", 13), pytest.param("002", 22, marks=pytest.mark.long)])
def test_every_block_of_the_seeds_translates(seed, count, tmp_path):
    seed_blocks = blocks(seed)
    assert {language for language, _ in seed_blocks} <= {"yaml", "bash", "python"}
    configs = [body for language, body in seed_blocks if language == "yaml"]
    assert len(configs) == count
    for body in configs:
        translation = translate_yaml(write(tmp_path, body))
        assert translation.items, body
        assert [item for item in translation.items if item.status == REFUSED] == [], body
        assert isinstance(translation.config(), dict)
    for body in [body for language, body in seed_blocks if language == "bash"]:
        assert translate_command(["bash", "-c", body]).count(REFUSED) == 0


def test_commands_find_their_dialect():
    assert translate_command(["python3", "-m", "verl.trainer.main_eval"]).dialect == "verl"
    assert translate_command(["burnish", "eval"]).job == "eval"
    assert knows_command(["python3", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "m"])
    assert not knows_command(["python3", "-m", "pip", "install", "x"])
    assert not knows_command(["ls"])


def test_unknown_programs_are_refused():
    with pytest.raises(UserError, match=r"my\.program: not a program that Burnish can translate"):
        translate_command(["python3", "-m", "my.program", "a=1"])
    with pytest.raises(UserError, match="not a program"):
        translate_command(["burnish", "explain", "trainer.seed"])


def test_standalone_yaml_has_burnishs_defaults(tmp_path):
    path = write(tmp_path, "data:\n  max_prompt_length: 9\ntrainer:\n  total_epochs: 2\n")
    translation = translate_yaml(path, ["trainer.total_epochs=3"])
    assert (translation.dialect, translation.job) == ("verl", "train")
    assert translation.settings == {"data.max_prompt_length": 9, "trainer.total_epochs": 3}


def test_yaml_that_inherits_from_verl_has_verls_defaults(tmp_path):
    path = write(tmp_path, "defaults:\n  - ppo_trainer\n  - _self_\ndata:\n  max_prompt_length: 9\n")
    translation = translate_yaml(path)
    assert translation.settings["actor_rollout_ref.rollout.name"] == "vllm"
    assert translation.settings["data.max_prompt_length"] == 9


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("data:\n  path: x\n  response_key: r\n", "eval"),
        ("optim:\n  lr_scheduler: wsd\n", "sft"),
        ("data:\n  path: x\n  n_samples: 2\nrollout:\n  top_k: 3\n", "generate"),
        ("algorithm:\n  adv_estimator: grpo\n", "train"),
    ],
)
def test_job_of_a_yaml(text, job, tmp_path):
    assert translate_yaml(write(tmp_path, text)).job == job


def test_tool_file_is_referenced_by_a_key(tmp_path):
    path = write(tmp_path, "tools:\n  - class_name: my.Tool\n")
    (item,) = translate_yaml(path).items
    assert (item.status, item.ours_value) == (CONVERTED, path)
    assert item.ours == "actor_rollout_ref.rollout.multi_turn.tool_config_path"


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n", "a: [1\n", "nothing_known:\n  x: 1\n"])
def test_non_configs_are_refused(text, tmp_path):
    with pytest.raises(UserError):
        translate_yaml(write(tmp_path, text))


def test_missing_file_is_refused():
    with pytest.raises(UserError, match=r"no_such\.yaml"):
        translate_yaml("no_such.yaml")


def test_repeated_sections_are_merged(tmp_path):
    text = "trainer:\n  seed: 1\ndata:\n  seed: 2\ntrainer:\n  nnodes: 1\n  seed: 1\n"
    translation = translate_yaml(write(tmp_path, text))
    assert translation.settings == {"trainer.seed": 1, "trainer.nnodes": 1, "data.seed": 2}
    assert translation.count(KEPT) == 3


def test_conflicting_duplicate_key_is_refused():
    with pytest.raises(UserError, match="seed is set twice, to 1 and to 2"):
        parse_yaml("trainer:\n  seed: 1\n  seed: 2\n")


def test_tab_before_a_comment_is_accepted():
    assert parse_yaml("a:\n  b: false\t# why\n  c: 'x\ty'\n") == {"a": {"b": False, "c": "x\ty"}}


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("openbmb/MiniCPM-o-2_6", "MiniCPM-V"),
        ("zai-org/GLM-4.1V-9B-Thinking", "GLM-V"),
        ("OpenGVLab/InternVL3-8B", "InternVL"),
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf/", "LLaVA"),
        ("moonshotai/Kimi-VL-A3B-Instruct", "Kimi-VL"),
        ("Qwen/Qwen2-Audio-7B", "audio models"),
        ("Qwen/Qwen2.5-Omni-7B", "Qwen-Omni"),
        ("mistralai/Pixtral-12B-2409", "Pixtral"),
        ("google/gemma-3n-E4B-it", "Gemma 3n and 4"),
        *((name, None) for name in ("Qwen/Qwen2.5-7B", "/vl/models/text", "zai-org/glm-4-9b", "google/gemma-3-1b-it")),
        *((name, None) for name in ("Qwen/Qwen2.5-VL-7B-Instruct", "/models/Qwen3-VL-8B/", "google/gemma-3-4b-it")),
        *((name, None) for name in ("HuggingFaceTB/SmolVLM-256M-Instruct", "HuggingFaceM4/Idefics3-8B-Llama3")),
    ],
)
def test_multimodal_models_of_other_families_are_refused_by_name(path, family):
    words = ["python3", "-m", "verl.trainer.main_ppo", f"actor_rollout_ref.model.path={path}"]
    items = [item for item in translate_command(words).items if item.ours == "actor_rollout_ref.model.path"]
    assert [item.status == REFUSED for item in items] == [family is not None]
    assert family is None or f"the family {family} " in items[0].why
