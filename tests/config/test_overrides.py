"""Hydra's grammar and composition, as entries."""

import pytest

from burnish.config.overrides import entry_of, is_group, read_file, read_mapping, read_overrides
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
