"""burnish completion: bash's function is run; the scripts of other shells are checked as text."""

import shutil
import subprocess

import pytest

from burnish.cli.completion import SHELLS, all_completions
from burnish.cli.main import COMMANDS, main
from burnish.config.tree import tree

# Splits a line as bash does before it calls the function: at spaces and at `=`.
HARNESS = """
source "$1"
while IFS= read -r line; do
    COMP_LINE=$line COMP_POINT=${#line}
    read -ra COMP_WORDS <<< "${line//=/ = }"
    [[ $line == *[[:space:]=] ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _burnish
    echo "${COMPREPLY[*]}"
done
complete -p burnish
"""
LINES = {
    "burnish ": " ".join(COMMANDS),
    "burnish tr": "train",
    "burnish --ver": "--version",
    "burnish train --js": "--json",
    "burnish train a=b --config-n": "--config-name",
    "burnish train --cfg ": "job",
    "burnish train actor_roll": "actor_rollout_ref.",
    "burnish train actor_rollout_ref.actor.opt": "actor_rollout_ref.actor.optim.",
    "burnish train a=b trainer.se": "trainer.seed=",
    "burnish train ++trainer.se": "++trainer.seed=",
    "burnish train data.shuffle=": "true false",
    "burnish train algorithm.adv_estimator=grpo_p": "grpo_passk",
    "burnish train +algorithm.adv_estimator=grpo_p": "grpo_passk",
    "burnish sft data.train_batch_s": "data.train_batch_size=",
    "burnish explain trainer.se": "trainer.seed",
    "burnish explain --lang ": "en zh",
    "burnish data ": "gsm8k math geo3k jsonl env vision-shapes check",
    "burnish data check --tok": "--tokenizer",
    "burnish schema g": "generate",
    "burnish completion ": "bash zsh fish",
    "burnish help do": "doctor",
    "burnish train no.such.key": "",
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder, completions = tmp_path_factory.mktemp("completion"), all_completions()
    for shell, entry in SHELLS.entries.items():
        (folder / shell).write_text(entry.load()(completions), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def replies(scripts):
    """What bash offers for each line."""
    command = ["bash", "--norc", "-c", HARNESS, "bash", str(scripts / "bash")]
    done = subprocess.run(command, input="\n".join(LINES) + "\n", capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_completes_commands_flags_keys_and_values(replies):
    assert dict(zip(LINES, replies, strict=False)) == LINES
    assert replies[-1] == "complete -o default -F _burnish burnish"


def test_bash_completes_files_where_a_key_takes_any_text(scripts):
    command = ["bash", "--norc", "-c", HARNESS, "bash", str(scripts / "bash")]
    line = f"burnish train data.train_files={scripts}/ba\n"
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == str(scripts / "bash")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command_flag_and_key(shell, scripts):
    text = (scripts / shell).read_text(encoding="utf-8")
    assert [name for name in COMMANDS if name not in text] == []
    assert [key for key in tree("train").leaves if key not in text] == []
    assert "config-name" in text and "grpo_passk" in text
    if shutil.which(shell):  # checks the syntax without running it
        assert subprocess.run([shell, "-n", str(scripts / shell)], capture_output=True).returncode == 0


def test_the_command_prints_the_script(capsys, scripts):
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == (scripts / "bash").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["completion", "bsh"])
    assert "Did you mean bash?" in capsys.readouterr().err
