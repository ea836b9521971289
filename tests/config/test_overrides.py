"""Hydra's grammar and composition, as entries."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from burnish.config import load
from burnish.config.overrides import (
    entry_of,
    is_group,
    read_file,
    read_mapping,
    read_overrides,
    split_overrides,
)
from burnish.errors import UserError


def entries(*texts):
    parsed, errors = read_overrides(texts)
    assert errors == []
    return [entry_of(override) for override in parsed]


def test_the_grammar():
    found = entries("a.b=1", "+c='x, y'", "++d=[1,'2']", "e={f:null}", "~g", "h=", "i=/p/a.parquet,/p/b.parquet")
    assert [entry.value for entry in found] == [
        1,
        "x, y",
        [1, "2"],
        {"f": None},
        None,
        "",
        ["/p/a.parquet", "/p/b.parquet"],
    ]
    assert [entry.key for entry in found] == ["a.b", "c", "d", "e", "g", "h", "i"]
    assert [entry.remove for entry in found] == [False, False, False, False, True, False, False]


def test_syntax_errors_come_together():
    parsed, errors = read_overrides(["a=1", "b=(", "c=<d>"])
    assert len(parsed) == 1
    assert len(errors) == 2
    assert all(isinstance(error, UserError) for error in errors)


def test_ranges_are_refused():
    parsed, _ = read_overrides(["a=range(1,3)"])
    with pytest.raises(UserError, match="sweeps"):
        entry_of(parsed[0])


def test_groups_are_folders(tmp_path):
    (tmp_path / "model").mkdir()
    parsed, _ = read_overrides(["model=small", "data=x"])
    assert [is_group(one, str(tmp_path)) for one in parsed] == [True, False]


def test_files_compose(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "one.yaml").write_text("x: 1\n")
    (tmp_path / "part" / "two.yaml").write_text("x: 2\n")
    (tmp_path / "main.yaml").write_text(
        "defaults:\n  - part: one\n  - _self_\ntrainer:\n  seed: 4\n  experiment_name: e-${trainer.seed}\n"
    )
    plain = {entry.key: entry.value for entry in read_file(str(tmp_path), "main", [])}
    assert plain == {"part.x": 1, "trainer.seed": 4, "trainer.experiment_name": "e-${trainer.seed}"}
    groups, _ = read_overrides(["part=two"])
    chosen = {entry.key: entry.value for entry in read_file(str(tmp_path), "main.yaml", groups)}
    assert chosen["part.x"] == 2


def test_a_file_may_build_on_verls_own(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "hydra:\n  searchpath:\n    - file://verl/trainer/config\ndefaults:\n  - ppo_megatron_trainer\n  - _self_\n"
        "data:\n  max_prompt_length: 9\n"
    )
    found = {entry.key: entry.value for entry in read_file(str(tmp_path), "mine", [])}
    assert found["actor_rollout_ref.actor.strategy"] == "megatron"
    assert found["data.max_prompt_length"] == 9


def test_a_parsed_file_is_read_like_one_on_disk(tmp_path):
    (tmp_path / "base.yaml").write_text("trainer:\n  seed: 3\n")
    content = {"defaults": ["ppo_megatron_trainer", "base", "_self_"], "data": {"max_prompt_length": 9}}
    found = {entry.key: entry.value for entry in read_mapping(content, str(tmp_path), "the file")}
    assert found["actor_rollout_ref.actor.strategy"] == "megatron"
    assert (found["trainer.seed"], found["data.max_prompt_length"]) == (3, 9)
    assert [entry.origin for entry in read_mapping({"data": {"seed": 1}}, ".", "the file")] == ["the file"]


def test_verls_files_need_not_exist(tmp_path):
    assert read_file(str(tmp_path), "ppo_trainer", []) == []
    found = {entry.key: entry.value for entry in read_file(None, "ppo_megatron_trainer.yaml", [])}
    assert found["actor_rollout_ref.actor.strategy"] == "megatron"


def test_missing_and_broken_files(tmp_path):
    (tmp_path / "main.yaml").write_text("a: [1\n")
    with pytest.raises(UserError, match="no such config file") as caught:
        read_file(str(tmp_path), "mian", [])
    assert caught.value.hint == "--config-name main"
    with pytest.raises(UserError):
        read_file(str(tmp_path), "main", [])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("conf", "mine"),
        ("conf", "mine.yaml"),
        (None, "conf/mine.yaml"),
        (None, "./conf/mine"),
        ("conf/mine.yaml", None),
    ],
)
def test_the_file_may_be_named_in_any_way(path, name, tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("defaults: [base, _self_]\ntrainer: {seed: 8}\n")
    (tmp_path / "conf" / "base.yaml").write_text("data: {seed: 9}\n")
    monkeypatch.chdir(tmp_path)
    for root in ("", f"{tmp_path}/"):
        named = {"config_path": path and root + path, "config_name": name and (name if path else root + name)}
        cfg = load(**named, check=False).cfg
        assert (cfg.trainer.seed, cfg.data.seed) == (8, 9)


def test_a_folder_without_a_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="--config-name NAME"):
        load(config_path=str(tmp_path), check=False)


def split(overrides):
    """Words as they are, entries as (key, value)."""
    return [word if isinstance(word, str) else (word.key, word.value) for word in split_overrides(overrides)]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), []),
        ("", []),
        ({}, []),
        (["a.b=1", "~c"], ["a.b=1", "~c"]),
        ("a.b=1 c='x y'", ["a.b=1", "c=x y"]),
        ("a.b=1 \\\n    c=2  # why\n d=3", ["a.b=1", "c=2", "d=3"]),
        ({"a.b": 1, "c": {"d": "x", "e.f": None}}, [("a.b", 1), ("c.d", "x"), ("c.e.f", None)]),
        (["a=1", {"b": {"c": 2}}, "d=3"], ["a=1", ("b.c", 2), "d=3"]),
        (OmegaConf.create({"a": {"b": "${c}"}, "c": [1]}), [("a.b", "${c}"), ("c", [1])]),
        ({"+a": 1, "++b.c": 2}, [("a", 1), ("b.c", 2)]),
        ({"a": Path("x") / "y", "b": (Path("z"), 1)}, [("a", "x/y"), ("b", ["z", 1])]),
        ({"a": np.int64(3), "b": np.float32(0.5), "c": {"z", "y"}}, [("a", 3), ("b", 0.5), ("c", ["y", "z"])]),
    ],
)
def test_overrides_of_python(overrides, words):
    assert split(overrides) == words


@pytest.mark.parametrize("overrides", [5, None, b"a=1", [3], [("a", 1)], {3: 4}, {"a": {3: 4}}, "a='x"])
def test_other_forms_of_overrides_are_refused(overrides):
    with pytest.raises(UserError) as caught:
        split_overrides(overrides)
    assert caught.value.key == "overrides"


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.seed=3", "data.train_files=[a.parquet,b.parquet]", "actor_rollout_ref.actor.optim.lr=2e-6"],
        "trainer.seed=3 data.train_files=a.parquet,b.parquet actor_rollout_ref.actor.optim.lr=2e-6",
        {
            "trainer.seed": 3,
            "data.train_files": ["a.parquet", "b.parquet"],
            "actor_rollout_ref.actor.optim.lr": 2e-6,
        },
        {
            "trainer": {"seed": "3"},
            "data": {"train_files": "a.parquet,b.parquet"},
            "actor_rollout_ref": {"actor": {"optim": {"lr": 2e-6}}},
        },
        [
            {"trainer": {"seed": 1}},
            "trainer.seed=3",
            {"data.train_files": (Path("a.parquet"), "b.parquet")},
            "actor_rollout_ref.actor.optim.lr=2e-6",
        ],
    ],
    ids=["list", "string", "dict", "nested", "mixed"],
)
def test_all_forms_give_the_same_config(overrides):
    cfg = load(overrides, check=False).cfg
    assert (cfg.trainer.seed, cfg.data.train_files) == (3, ["a.parquet", "b.parquet"])
    assert cfg.actor_rollout_ref.actor.optim.lr == 2e-6


def test_a_mapping_may_remove_a_setting_and_is_checked_like_text():
    assert load(["trainer.seed=3", {"~trainer.seed": None}], check=False).settings == {}
    with pytest.raises(UserError, match=r"Did you mean trainer\.seed"):
        load({"trainer": {"sed": 3}}, check=False)
    with pytest.raises(UserError, match="is a section"):
        load({"trainer": 3}, check=False)
    with pytest.raises(UserError, match="same key"):
        load(
            {"actor_rollout_ref.actor.optim": {"lr_scheduler_type": "cosine", "warmup_style": "constant"}}, check=False
        )
