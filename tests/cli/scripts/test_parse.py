"""Parsing of simple scripts on systems without process isolation."""

from pathlib import Path

import pytest

from burnish.cli.scripts import record
from burnish.cli.scripts.parse import parse_script
from burnish.cli.scripts.record import record_script
from burnish.errors import UserError

SCRIPT = """#!/bin/bash
set -x
# a comment
export WANDB_MODE=offline
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B}
FILES="['a.parquet', 'b.parquet']"
ARGS="data.x=1 data.y=2"
NOW=$(date +%s)
ray stop --force; sleep 3
FOO=1 python3 -m verl.trainer.main_ppo \\
    actor_rollout_ref.model.path=$MODEL \\
    "data.train_files=$FILES" $ARGS trainer.x='$HOME' $@ 2>&1 | tee log.txt
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
   --pretrain $MODEL \\
   --max_len 2048
EOF
if_not_a_keyword=1
deepspeed --module $training_commands > out.log &
"""


def parse(text, *args):
    return parse_script(text, Path("run.sh"), args, Path("here"), {})


def test_simple_script():
    recording = parse(SCRIPT, "a=1", "b=2")
    env = {"WANDB_MODE": "offline"}
    assert [(command.words, command.env) for command in recording] == [
        (("ray", "stop", "--force"), env),
        (("sleep", "3"), env),
        (
            ("python3", "-m", "verl.trainer.main_ppo", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B",
             "data.train_files=['a.parquet', 'b.parquet']", "data.x=1", "data.y=2", "trainer.x=$HOME", "a=1", "b=2"),
            env | {"FOO": "1"},
        ),
        (("tee", "log.txt"), env),
        (("deepspeed", "--module", "openrlhf.cli.train_sft", "--pretrain", "Qwen/Qwen2.5-0.5B", "--max_len", "2048"),
         env),
    ]  # fmt: skip
    assert "parsed, not run" in recording.notes[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("for i in 1 2; do python3 -m x; done", "`for`"),
        ("if true; then python3 -m x; fi", "`if`"),
        ("run() { python3 -m x; }", r"`run\(\)`"),
        ("python3 -m x a=$(date)", "in the command of python3"),
        ("A=$(date)\npython3 -m x a=$A", "in the command of python3"),
        ("A=(x y)\npython3 -m x ${A[@]}", "array"),
    ],
)
def test_unsupported_syntax_is_refused(text, what):
    with pytest.raises(UserError, match=f"run.sh contains .*{what}") as caught:
        parse(text)
    assert "burnish convert -- COMMAND" in caught.value.text()


def test_used_without_isolation(monkeypatch, tmp_path):
    weak = type("Weak", (), {"strong": False})
    monkeypatch.setattr(record, "isolation", weak)
    monkeypatch.setattr(record, "spawn_isolated", None)
    (tmp_path / "s.sh").write_text(f"touch {tmp_path}/made\npython3 -m x $1\n")
    recording = record_script(tmp_path / "s.sh", ["y"], cwd=tmp_path)
    assert [command.words for command in recording] == [("touch", f"{tmp_path}/made"), ("python3", "-m", "x", "y")]
    assert not (tmp_path / "made").exists()
