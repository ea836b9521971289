"""The command: its version, help, mistyped words, flags among overrides, --cfg, --json, Ctrl-C."""

import ast
import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import burnish
from burnish.cli import main as command
from burnish.cli.main import COMMANDS, command_parser, main
from burnish.errors import UserError
from burnish.log.console import say

ROOT = Path(__file__).parents[2]
MODEL, FILES = "actor_rollout_ref.model.path=m", "data.train_files=t.parquet"


def refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version(flag, capsys):
    with pytest.raises(SystemExit) as stop:
        main([flag])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"burnish {burnish.__version__}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_command_it_lists_the_commands(words, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS] == [*COMMANDS]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", [*COMMANDS, "data gsm8k", "data check"])
def test_the_help_of_a_command_fits_80_columns_and_shows_an_example(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    texts = []
    for words in ([*name.split(), "--help"], ["help", *name.split()]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert max(map(len, texts[0].splitlines())) <= 80
    if " " not in name:
        assert f"example:\n  burnish {name}" in texts[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "no such command: trian. Did you mean train?"),
        (["help", "evla"], "no such command: evla. Did you mean eval?"),
        (["xyzzy"], "no such command: xyzzy"),
        (["--verison"], "no such flag: --verison. Did you mean --version?"),
        (["train", "--jsno", "a=b"], "no such flag: --jsno. Did you mean --json?"),
        (["train", "a=b", "--config-nam=x", "--confg-path", "x"], "no such flag: --confg-path. Did you mean --config"),
        (["train", "a=b", "-x"], "no such flag: -x"),
        (
            ["data", "chekc", "f"],
            "'chekc' is not one of gsm8k, math, geo3k, jsonl, env, vision-shapes, check. Did you mean check?",
        ),
        (["data", "check", "--tokeniser", "x", "f"], "no such flag: --tokeniser. Did you mean --tokenizer?"),
        (["export", "a", "b", "--crtic"], "no such flag: --crtic. Did you mean --critic?"),
        (["export", "a", "b", "c"], "unexpected argument: c"),
        (["explain", "--lang", "zn"], "'zn' is not one of en, zh"),
        (["train", "--config-name"], "expected one argument"),
        (["train", "--config-name", "--cfg"], "expected one argument"),
    ],
)
def test_a_mistyped_word_is_refused_with_the_nearest(words, message, capsys):
    printed = refused(words, capsys)
    assert message in printed
    assert "Type: burnish" in printed and "--help" in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    ("words", "overrides", "flags"),
    [
        (["a=b", "--json", "x=y"], ["a=b", "x=y"], {"json": True}),
        (["a=b", "--config-name", "n", "x=y", "--cfg", "~z"], ["a=b", "x=y", "~z"], {"config_name": "n", "cfg": "job"}),
        (["--cfg", "job", "a=b"], ["a=b"], {"cfg": "job"}),
        (["a=b", "--cfg=job", "c=d"], ["a=b", "c=d"], {"cfg": "job"}),
        (["-c", "job", "a=b", "--resolve"], ["a=b"], {"cfg": "job"}),
        (["a=b", "--cfg"], ["a=b"], {"cfg": "job"}),
        (["-cn", "n", "a=b", "-cp", "p"], ["a=b"], {"config_name": "n", "config_path": "p"}),
        (["a=b", "-cp=p", "--config-n=n"], ["a=b"], {"config_name": "n", "config_path": "p"}),
        (["a=b", "--config-dir", "p", "c=d"], ["a=b", "c=d"], {"config_path": "p"}),
        (["a=b", "--config-name", "-n", "c=-1"], ["a=b", "c=-1"], {"config_name": "-n"}),
        (["--config-name=--n", "c=--x"], ["c=--x"], {"config_name": "--n"}),
        (["a=b", "--json", "--", "--cfg", "x=y"], ["a=b", "--cfg", "x=y"], {"json": True, "cfg": None}),
        (["--", "a=b"], ["a=b"], {"json": False}),
        (["a=b", "--traceback", "c=d"], ["a=b", "c=d"], {"traceback": True}),
        ([], [], {"json": False, "cfg": None}),
    ],
)
@pytest.mark.parametrize("name", ["train", "eval"])
def test_flags_may_stand_anywhere_among_overrides(name, words, overrides, flags):
    args = vars(command_parser(name).parse_args(words))
    assert args["overrides"] == overrides
    assert {flag: args[flag] for flag in flags} == flags


def test_flags_may_stand_among_keys_and_before_the_words_of_another_command(capsys):
    assert main(["explain", "data.seed", "--json", "trainer.seed"]) == 0
    assert [row["key"] for row in json.loads(capsys.readouterr().out)] == ["data.seed", "trainer.seed"]
    args = command_parser("run").parse_args(["--", "python3", "-m", "verl.trainer.main_ppo", "--json", "--", "x"])
    assert args.words[-3:] == ["--json", "--", "x"]
    args = command_parser("doctor").parse_args(["--json", "--", "python3", "-m", "x", "--cfg"])
    assert args.json and args.words[-4:] == ["python3", "-m", "x", "--cfg"]


def test_values_of_flags_may_start_with_a_dash():
    args = command_parser("data").parse_args(["gsm8k", "src", "--instruction", "- think", "out", "--system", "--x"])
    assert (args.source, args.out, args.instruction, args.system) == ("src", "out", "- think", "--x")
    assert command_parser("demo").parse_args(["--seed", "-1", "--json"]).seed == -1
    args = command_parser("export").parse_args(["--base", "-model", "run", "--critic", "--", "-out"])
    assert (args.base, str(args.checkpoint), str(args.out), args.critic) == ("-model", "run", "-out", True)


def test_cfg_prints_the_composed_config(capsys, tmp_path):
    assert main(["train", MODEL, "--cfg", "job", FILES, "trainer.seed=7"]) == 0
    printed = capsys.readouterr()
    config = yaml.safe_load(printed.out)
    assert config["trainer"]["seed"] == 7 and config["actor_rollout_ref"]["model"]["path"] == "m"
    assert printed.err == ""
    (tmp_path / "mine.yaml").write_text("trainer: {seed: 8}\n")
    assert main(["train", "-cp", str(tmp_path), MODEL, FILES, "-cn", "mine", "--cfg"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["seed"] == 8


def test_cfg_prints_a_config_that_a_run_would_refuse_and_says_so(capsys):
    assert main(["train", "trainer.seed=7", "--cfg", "job"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["trainer"]["seed"] == 7
    assert "would refuse this config" in printed.err and "actor_rollout_ref.model.path" in printed.err
    assert main(["train", "trainer.sed=7", "--cfg", "job"]) == 1
    assert "trainer.seed" in capsys.readouterr().err


@dataclass
class Outcome:
    folder: Path
    metrics: dict
    status = 130


@pytest.mark.parametrize(("name", "function"), [("train", "loop.api.train"), ("sft", "jobs.sft.fit.sft")])
def test_json_is_all_of_standard_output(name, function, capsys, monkeypatch):
    def run(loaded):
        say("step 1")
        return Outcome(Path("runs/x"), {"loss": 0.5, "ratio": float("nan")})

    monkeypatch.setattr(f"burnish.{function}_loaded", run)
    keys = [MODEL, FILES] if name == "train" else ["model.partial_pretrain=m", FILES]
    assert main([name, keys[0], "--json", keys[1]]) == 130
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"folder": "runs/x", "metrics": {"loss": 0.5, "ratio": None}}
    assert printed.err == "step 1\n"
    assert main([name, *keys]) == 130
    assert capsys.readouterr().out == "step 1\n"


@pytest.mark.parametrize("line", ["--traceback train", "train --traceback", "train a.b=1 --traceback c=d"])
def test_traceback_raises_the_error(line):
    with pytest.raises(UserError):
        main(line.split())


def test_a_command_loads_only_its_own_module():
    code = "import sys; from burnish.cli.main import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
    code += "print(sorted(name for name in sys.modules if name.startswith(('burnish.c', 'hydra'))))"
    loaded = [f"burnish.cli.{name}" for name in ("main", "parser", "pipes")]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == ["burnish.cli", *loaded]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ImportError])
def test_ctrl_c_in_a_command_gives_130_without_a_traceback(error, capsys, monkeypatch):
    def interrupted(args):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error("an extension's own words") from None

    monkeypatch.setattr("burnish.cli.schema.run", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        assert main(["schema"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "interrupted\n"


def test_an_error_without_ctrl_c_is_raised(monkeypatch):
    monkeypatch.setattr("burnish.cli.schema.run", lambda args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["schema"])


def test_ctrl_c_during_an_import_and_while_the_process_ends(tmp_path):
    """A process of its own: it is interrupted while it imports a command, and again while it ends."""
    code = f"""
        import atexit, os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
        sys.path.insert(0, {str(ROOT)!r})
        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == "burnish.config.jobs":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
        sys.argv = ["burnish", "schema"]
        from burnish.__main__ import main
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        status = main()
        print(status, flush=True)
        sys.exit(status)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("130\n", "interrupted\n")
    assert done.returncode == -signal.SIGINT


def test_a_background_job_ignores_ctrl_c():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from burnish.__main__ import main\n"
    code += "import os; import burnish.cli.schema as schema\n"
    code += "schema.run = lambda args: os.kill(os.getpid(), signal.SIGINT) or 7\nprint(main(['schema']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"


def test_every_command_has_a_module_with_its_parser():
    assert all(command_parser(name).prog == f"burnish {name}" for name in COMMANDS)
    modules = Path(command.__file__).parent.glob("*.py")
    assert {path.stem for path in modules if "\ndef add_parser(" in path.read_text(encoding="utf-8")} == set(COMMANDS)
