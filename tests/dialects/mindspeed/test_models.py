"""The model library has the numbers of the files it stands for, and is compared with a config.json that is here."""

import json
from pathlib import Path

import pytest

from burnish.dialects.mindspeed.models import SHAPES, disagreements, in_words, other_numbers, read_hf_config
from burnish.dialects.mindspeed.reading import plain_key

from .configs import items, refusals, translate

CASES = Path(__file__).parents[4] / "shared" / "cases" / "mindspeed.jsonl"
QWEN = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
}


def test_numbers_of_the_library_are_those_of_the_files():
    if not CASES.exists():
        pytest.skip("shared folder is not here")
    seen = set()
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if "/model/" not in case["file"]:
            continue
        for name, entry in case["config"].items():
            wrong = {
                key: (value, SHAPES[name].get(plain_key(key)))
                for key, value in entry.items()
                if not isinstance(value, bool) and _number(value) is not None
                if _number(value) != SHAPES[name].get(plain_key(key))
            }
            assert wrong == {}, name
            seen.add(name)
    assert seen == SHAPES.keys()


def _number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def test_a_shape_in_words():
    assert in_words(SHAPES["qwen25_7b"]) == "28 layers of 3584, 28 heads in 4 groups"
    assert in_words(SHAPES["qwen3_30b_a3b"]).endswith("128 experts, 8 at a time")


def test_the_same_model_agrees():
    assert list(disagreements(SHAPES["qwen25_7b"], QWEN)) == []
    assert list(other_numbers(SHAPES["qwen25_7b"], QWEN)) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_hidden_layers", 24, "num_layers is 28, config.json says 24"),
        ("num_key_value_heads", 2, "num_query_groups is 4, config.json says 2"),
        ("vocab_size", 160000, "padded_vocab_size is 152064, config.json has 160000 tokens"),
    ],
)
def test_another_model_does_not(name, value, said):
    assert list(disagreements(SHAPES["qwen25_7b"], {**QWEN, name: value})) == [said]


def test_layers_that_only_fill_a_pipeline_do_not_count():
    shape = {**SHAPES["qwen25_7b"], "num_layers": 30, "noop_layers": "0,29"}
    assert list(disagreements(shape, QWEN)) == []


def test_an_epsilon_that_differs_is_told_and_not_refused():
    assert list(other_numbers({"norm_epsilon": 1e-5}, QWEN)) == ["norm_epsilon 1e-06 of config.json holds, not 1e-05"]


def test_a_config_json_that_is_not_here_is_none(tmp_path):
    assert read_hf_config("model", str(tmp_path)) is None


def model(folder, **changes):
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({**QWEN, **changes}))
    (folder / "model" / "model.safetensors").write_bytes(b"")


CHOSEN = (("defaults", [{"model": ["qwen25_7b"]}]), ("megatron_training.model", "qwen25_7b"))


def test_a_translation_compares_the_library_with_the_model_that_is_here(tmp_path, monkeypatch):
    model(tmp_path)
    monkeypatch.chdir(tmp_path)
    translation = translate(*CHOSEN)
    assert translation.exit_status == 0
    assert "config.json agrees" in items(translation, "defaults.model")[0].why


def test_a_library_entry_of_another_model_is_refused(tmp_path, monkeypatch):
    model(tmp_path, num_hidden_layers=2)
    monkeypatch.chdir(tmp_path)
    refused = refusals(translate(*CHOSEN))
    assert "num_layers is 28, config.json says 2" in refused["megatron_training.model"]


@pytest.mark.parametrize("defaults", [[{"model": ["qwen25_7b"]}], [{"model": "qwen25_7b"}, "_self_"]])
def test_the_library_is_named_by_a_list_or_a_scalar(defaults):
    translation = translate(("defaults", defaults), ("megatron_training.model", "qwen25_7b"))
    assert translation.exit_status == 0
    assert items(translation, "defaults.model")[0].value == "qwen25_7b"


def test_an_unknown_model_is_refused_with_what_was_meant():
    refused = refusals(translate(("defaults", [{"model": "qwen25_8b"}]), ("megatron_training.model", "qwen25_8b")))
    assert "Did you mean 'qwen25_7b'?" in refused["defaults.model"]


def test_a_section_selects_among_the_defaults():
    refused = refusals(translate(("defaults", [{"model": "qwen3_8b"}]), ("actor_config.model", "qwen25_7b")))
    assert refused == {"actor_config.model": "is not among the models of defaults: qwen3_8b"}


def test_a_model_of_the_users_own_stands_beside_the_config(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("mine:\n  num_layers: 2\n  hidden_size: 64\n  moe_num: 3\n")
    translation = translate(
        ("defaults", [{"model": "mine"}]), ("megatron_training.model", "mine"), folder=str(tmp_path)
    )
    assert items(translation, "defaults.model")[0].why.startswith("2 layers of 64")
    assert [*refusals(translation)] == ["model.mine.moe_num"]
