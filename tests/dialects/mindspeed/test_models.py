"""The model library has the values of MindSpeed RL's files, and is compared with config.json."""

import json
from pathlib import Path

import pytest

from burnish.dialects.mindspeed.model_library import MODELS, mismatches, read_hf_config, replaced_values, summarize
from burnish.dialects.mindspeed.translator import plain_key

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


def test_library_matches_mindspeeds_files():
    if not CASES.exists():
        pytest.skip("shared folder is not here")
    seen = set()
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if "/model/" not in case["file"]:
            continue
        for name, entry in case["config"].items():
            wrong = {
                key: (value, MODELS[name].get(plain_key(key)))
                for key, value in entry.items()
                if not isinstance(value, bool) and _number(value) is not None
                if _number(value) != MODELS[name].get(plain_key(key))
            }
            assert wrong == {}, name
            seen.add(name)
    assert seen == MODELS.keys()


def _number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def test_summary_of_a_model():
    assert summarize(MODELS["qwen25_7b"]) == "28 layers, hidden size 3584, 28 heads in 4 KV groups"
    assert summarize(MODELS["qwen3_30b_a3b"]).endswith("128 experts, 8 active")


def test_same_model_matches():
    assert list(mismatches(MODELS["qwen25_7b"], QWEN)) == []
    assert list(replaced_values(MODELS["qwen25_7b"], QWEN)) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_hidden_layers", 24, "num_layers is 28, but 24 in config.json"),
        ("num_key_value_heads", 2, "num_query_groups is 4, but 2 in config.json"),
        ("vocab_size", 160000, "padded_vocab_size is 152064, but config.json has 160000 tokens"),
    ],
)
def test_other_model_does_not_match(name, value, text):
    assert list(mismatches(MODELS["qwen25_7b"], {**QWEN, name: value})) == [text]


def test_noop_layers_are_not_counted():
    shape = {**MODELS["qwen25_7b"], "num_layers": 30, "noop_layers": "0,29"}
    assert list(mismatches(shape, QWEN)) == []


def test_different_epsilon_is_only_reported():
    assert list(replaced_values({"norm_epsilon": 1e-5}, QWEN)) == ["norm_epsilon is 1e-06 as in config.json, not 1e-05"]


def test_missing_config_json_is_none(tmp_path):
    assert read_hf_config("model", str(tmp_path)) is None


def model(folder, **changes):
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({**QWEN, **changes}))
    (folder / "model" / "model.safetensors").write_bytes(b"")


CHOSEN = (("defaults", [{"model": ["qwen25_7b"]}]), ("megatron_training.model", "qwen25_7b"))


def test_library_entry_that_matches_config_json(tmp_path, monkeypatch):
    model(tmp_path)
    monkeypatch.chdir(tmp_path)
    translation = translate(*CHOSEN)
    assert translation.exit_status == 0
    assert "config.json, which matches" in items(translation, "defaults.model")[0].why


def test_library_entry_of_another_model_is_refused(tmp_path, monkeypatch):
    model(tmp_path, num_hidden_layers=2)
    monkeypatch.chdir(tmp_path)
    refused = refusals(translate(*CHOSEN))
    assert "num_layers is 28, but 2 in config.json" in refused["megatron_training.model"]


@pytest.mark.parametrize("defaults", [[{"model": ["qwen25_7b"]}], [{"model": "qwen25_7b"}, "_self_"]])
def test_defaults_as_list_or_scalar(defaults):
    translation = translate(("defaults", defaults), ("megatron_training.model", "qwen25_7b"))
    assert translation.exit_status == 0
    assert items(translation, "defaults.model")[0].value == "qwen25_7b"


def test_unknown_model_is_refused_with_a_suggestion():
    refused = refusals(translate(("defaults", [{"model": "qwen25_8b"}]), ("megatron_training.model", "qwen25_8b")))
    assert "Did you mean 'qwen25_7b'?" in refused["defaults.model"]


def test_section_must_select_from_the_defaults():
    refused = refusals(translate(("defaults", [{"model": "qwen3_8b"}]), ("actor_config.model", "qwen25_7b")))
    assert refused == {"actor_config.model": "not a model of defaults: qwen3_8b"}


def test_user_defined_model_next_to_the_config(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("mine:\n  num_layers: 2\n  hidden_size: 64\n  moe_num: 3\n")
    translation = translate(
        ("defaults", [{"model": "mine"}]), ("megatron_training.model", "mine"), folder=str(tmp_path)
    )
    assert items(translation, "defaults.model")[0].why.startswith("2 layers, hidden size 64")
    assert [*refusals(translation)] == ["model.mine.moe_num"]
