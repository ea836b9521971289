"""`burnish view` as a command."""

import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from burnish.cli.main import main
from burnish.cli.view import memory_plan
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.view.runs import RunReader

from .chromium import viewer


def test_an_export(run_folder, tmp_path, capsys):
    assert main(["view", str(run_folder), "--export", str(tmp_path / "page.html"), "--steps", "1"]) == 0
    assert "page.html" in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_folder_without_runs(tmp_path, capsys):
    assert main(["view", str(tmp_path)]) == 1
    assert "no run in" in capsys.readouterr().err


def test_the_plan_is_of_the_model_in_the_run_folder(run_folder):
    assert memory_plan(RunReader(run_folder)) is None
    make_model(run_folder / "model", make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
    (run_folder / "config.yaml").write_text("actor_rollout_ref:\n  model: {path: model}\ntrainer: {device: cpu}\n")
    plan = memory_plan(RunReader(run_folder))
    assert {"rollout", "update actor"} <= {phase["phase"] for phase in plan["phases"]}


@pytest.mark.long  # a process of its own
def test_the_printed_url_opens_the_page(run_folder):
    with viewer(run_folder) as url:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"burnish view" in opener.open(url).read()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url.partition("/open/")[0])


@pytest.mark.long
def test_starting_loads_no_torch(run_folder):
    code = (
        "import sys; from burnish.cli import view; from burnish.view import server, export, runs\n"
        f"runs.find_runs([__import__('pathlib').Path({str(run_folder)!r})])[0].step_file(4)\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
