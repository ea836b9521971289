"""--plain: lines instead of a live display, also in the processes of a script."""

from __future__ import annotations

import io
import os

import pytest

from burnish.cli.main import command_parser, main
from burnish.cli.parser import plain_output
from burnish.log.console import PLAIN, Console, is_interactive


def test_a_script_passes_it_on_and_the_caller_keeps_its_environment(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv(PLAIN, raising=False)
    script = tmp_path / "run.sh"
    script.write_text(f'echo "plain=${PLAIN}"\n')
    assert main(["run", "--plain", str(script)]) == 0
    assert "plain=1\n" in capfd.readouterr().out
    assert PLAIN not in os.environ
    assert main(["run", str(script), "--plain"]) == 0  # an argument of the script
    assert "plain=\n" in capfd.readouterr().out


def test_a_terminal_is_not_redrawn(monkeypatch):
    monkeypatch.delenv(PLAIN, raising=False)
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    assert is_interactive(console)
    with plain_output(True):
        assert not is_interactive(console)
    assert is_interactive(console)


@pytest.mark.parametrize("command", ["train", "sft", "demo", "run"])
def test_the_commands_that_train_have_it(command):
    assert command_parser(command).parse_args(["--plain"]).plain
