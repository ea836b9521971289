"""Scripts, commands and configs that are only looked at: convert, doctor and rehearse run none of their code, show them
no secrets and no private files, and end in bounded time."""

from __future__ import annotations

import json
import os
import threading
import time
from argparse import ArgumentParser

import pytest

from burnish.cli import convert, doctor, rehearse
from burnish.cli.scripts.record import record_script
from burnish.cli.scripts.visible import Visible, shown_environment, without_secrets
from burnish.demo.tiny import make_tokenizer
from burnish.dialects.translate import translate_command
from burnish.errors import UserError
from burnish.rehearsal import isolated
from burnish.user_code import is_importable

from .attacks import attack

KIND = "scripts that are only looked at"
SECRET = "S3cretOfTheUser"
TRAIN = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/there/gsm8k/train.parquet"
    " data.val_files=null data.train_batch_size=16 actor_rollout_ref.rollout.n=2"
    " actor_rollout_ref.actor.ppo_mini_batch_size=16 trainer.n_gpus_per_node=2"
)
MODEL = "actor_rollout_ref.model.path=Qwen/Qwen3-8B"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with private files, and a project in it, which is the current folder."""
    home = tmp_path / "home"
    for name in (".ssh/id_rsa", ".config/gh/hosts.yml", "notes/passwords.txt", "project/.env", "other/plain.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"oauth_token: {SECRET}\n")
    (home / "project" / "here").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "project" / "here")
    return home


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("0123456789+=")


def record(home, text, **kwargs):
    script = home / "project" / "here" / "run.sh"
    script.write_text(text)
    return record_script(script, cwd=script.parent, **kwargs)


def everything(recording):
    return repr([*recording, recording.notes])


def run(module, *words):
    parser = ArgumentParser()
    module.add_parser(parser.add_subparsers())
    return module.run(parser.parse_args([module.__name__.rpartition(".")[2], *words]))


READS = [
    "K=$(cat ~/.ssh/id_rsa)",
    "K=$(< $HOME/.ssh/id_rsa)",
    "D=$HOME; K=$(cat $D/.s*/*)",
    "K=$(cat ~/../*/.s*/* ../../.ss?/id_* ~/*/*.txt ~/{.ssh,.config/gh}/*)",
    "K=$(find ~ ../.. -name id_rsa -exec cat {} \\; ; find ~ -name hosts.yml | xargs cat)",
    "mapfile -t K < ~/.config/gh/hosts.yml; K=${K[*]}",
    "source ~/.config/gh/hosts.yml; K=$(cat ~/.config/gh/hosts.yml)",
    "exec 9<~/notes/passwords.txt; read -u 9 K",
    "K=$(python3 -c \"import os; print(open(os.path.expanduser('~/.ssh/id_rsa')).read())\")",
    "K=$(cat ../.env ../../other/plain.txt)",
    "cp -r ~ copy; K=$(grep -r token copy ~ ../.. 2>/dev/null)",
    "ln -s ~/.ssh/id_rsa key; K=$(cat key)",
    "K=$(cat innocent.txt)",
    "K=$(jq -R . ~/notes/passwords.txt; sed p ~/.ssh/id_rsa; awk 1 ~/.ssh/id_rsa; od -c ~/.ssh/id_rsa)",
]


@pytest.mark.parametrize("read", READS)
@attack(KIND, "read private files of the home folder, by name, glob, link, redirection and program")
def test_private_files_are_not_shown(home, read):
    (home / "project" / "here" / "innocent.txt").symlink_to(home / ".ssh" / "id_rsa")
    recording = record(home, f'{read}\npython3 -m x a=1 "$K"\nK2=$K python3 -m y\n')
    assert SECRET not in everything(recording).replace("\\n", "")
    assert [command.words[2] for command in recording if command.words[:2] == ("python3", "-m")] == ["x", "y"]


@attack(KIND, "read a private file that is named in the text (control: --trust shows it)")
def test_trust_shows_what_is_otherwise_hidden(home):
    text = 'python3 -m x "$(cat ~/.ssh/id_rsa)"\n'
    assert f"oauth_token: {SECRET}" in record(home, text, trust=True)[0].words
    recording = record(home, text)
    assert recording[0].words == ("python3", "-m", "x", "")
    assert any(".ssh/id_rsa: a private file, not shown to the script" in note for note in recording.notes)


@attack(KIND, "read files of the home folder by lying in it, or in the folder of everybody")
def test_a_script_in_the_home_folder_sees_only_itself(home, tmp_path, monkeypatch):
    for folder in (home, tmp_path / "shared"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777 if folder != home else 0o755)
        (folder / "plan.txt").write_text(SECRET)
        (folder / "run.sh").write_text('python3 -m x "$(cat *.txt notes/*)"\n')
        monkeypatch.chdir(folder)
        recording = record_script("run.sh")
        assert recording[0].words[:3] == ("python3", "-m", "x") and SECRET not in everything(recording)


VARIABLES = {
    "HF_TOKEN": f"hf_{SECRET}{SECRET}",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "DATABASE_URL": f"postgres://user:{SECRET}@db/x",
    "MY_PASS": SECRET,
    "OPAQUE": f"aB3{SECRET}xYz9Q8w7E6r5T4",
}


@pytest.mark.parametrize(
    "read",
    [
        'K="$HF_TOKEN $AWS_SECRET_ACCESS_KEY $DATABASE_URL $MY_PASS $OPAQUE"',
        "K=$(env; printenv; set; declare -p; export)",
        "K=$(cat /proc/self/environ /proc/$$/environ /proc/1/environ /proc/*/environ | tr '\\0' ' ')",
        "K=$(python3 -c 'import os; print(os.environ)')",
        'K=${!HF@} K="$K ${!AWS*}"; for n in HF_TOKEN MY_PASS OPAQUE; do K+=${!n}; done',
    ],
)
@attack(KIND, "read secrets of the environment, by name and from /proc")
def test_secrets_of_the_environment_are_hidden(home, monkeypatch, read):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DATA_ROOT", "/there/mine")
    recording = record(home, f'{read}\npython3 -m x "$K" $DATA_ROOT\n[ -n "$HF_TOKEN" ] && python3 -m y\n')
    assert SECRET not in everything(recording)
    runs = [command.words for command in recording if command.words[:2] == ("python3", "-m")]
    assert [words[2] for words in runs] == ["x", "y"] and runs[0][-1] == "/there/mine"


@attack(KIND, "read secrets of the environment where the machine has no namespaces")
def test_the_fallback_hides_secrets_too(home, monkeypatch):
    from burnish.cli.scripts import record as module

    monkeypatch.setattr(module, "isolation", lambda: type("None", (), {"strong": False}))
    monkeypatch.setenv("HF_TOKEN", VARIABLES["HF_TOKEN"])
    recording = record(home, "python3 -m x a=$HF_TOKEN b=${HF_TOKEN:-none} c=${OTHER:-$HF_TOKEN}\n")
    assert recording[0].words == ("python3", "-m", "x", "a=<hidden>", "b=<hidden>", "c=<hidden>")


@attack(KIND, "write to the recorder's pipe: broken, huge and endless records")
def test_forged_records_are_ignored(home):
    forged = [
        "",
        "command",
        "command\\tfolder\\t-1\\ta\\t",
        "command\\t/\\t99\\ta\\t",
        "command\\t/\\tNaN\\ta\\t",
        "note",
    ]
    lines = "".join(f"printf '{i}+{text}\\n{i}.\\n' >&$BURNISH_RECORDS\n" for i, text in enumerate(forged))
    noise = "head -c 100000 /dev/urandom >&$BURNISH_RECORDS\necho >&$BURNISH_RECORDS\n"
    recording = record(home, f"{lines}{noise}python3 -m x\n")
    assert [command.words for command in recording if command.words[0] == "python3"] == [("python3", "-m", "x")]


@attack(KIND, "hang the recorder: a FIFO among the files that the script names")
def test_a_fifo_does_not_block(home):
    fifo = home / "project" / "here" / "pipe"
    os.mkfifo(fifo)
    assert record(home, f"[ -e {fifo} ]\npython3 -m x\n")[0].words == ("python3", "-m", "x")


@attack(KIND, "fill the report: thousands of launch commands")
def test_the_number_of_translations_is_bounded(home, capsys, monkeypatch):
    from burnish.cli import launch_input

    monkeypatch.setattr(launch_input, "MAX_LAUNCHES", 2)
    script = home / "project" / "here" / "run.sh"
    script.write_text(f"for i in 1 2 3 4 5; do {TRAIN} {MODEL}; done\n")
    assert run(convert, "--yaml", str(script)) == 0
    printed = capsys.readouterr()
    assert printed.out.count("# burnish train") == 2 and "starts 5 translatable commands" in printed.err


CONFIGS = {
    "a config elsewhere": f"{TRAIN} {MODEL} --config-path ~/.config/gh --config-name hosts",
    "a folder above": f"{TRAIN} {MODEL} --config-path ../../.config/gh --config-name hosts",
    "a link in its folder": f"{TRAIN} {MODEL} --config-path conf --config-name linked",
    "defaults of another folder": f"{TRAIN} {MODEL} --config-path conf --config-name climbing",
    "a search path": f"{TRAIN} {MODEL} --config-path conf --config-name searching",
    "the folder of a command": f"cd ~/.config/gh && {TRAIN} {MODEL} --config-path . --config-name hosts",
    "MindSpeed RL": "python3 cli/train_grpo.py --config-dir ~/.config/gh --config-name hosts",
}


@pytest.mark.long
@pytest.mark.parametrize("command", CONFIGS.values(), ids=CONFIGS)
@attack(KIND, "let convert print a private YAML file as a config, directly, by a link, by Hydra's defaults")
def test_private_configs_are_not_printed(home, capsys, command):
    here = home / "project" / "here"
    (here / "conf").mkdir()
    (here / "conf" / "linked.yaml").symlink_to(home / ".config" / "gh" / "hosts.yml")
    (home / ".config" / "gh" / "hosts.yaml").write_text(f"oauth_token: {SECRET}\n")
    (here / "conf" / "climbing.yaml").write_text("defaults: [../../../.config/gh/hosts]\n")
    search = f"hydra: {{searchpath: ['file://{home}/.config/gh']}}\ndefaults: [hosts]\n"
    (here / "conf" / "searching.yaml").write_text(search)
    if "linked" in command or "climbing" in command or "searching" in command:
        for name in {"linked", "climbing", "searching"} - {command.rpartition(" ")[2]}:
            (here / "conf" / f"{name}.yaml").unlink()
    (here / "run.sh").write_text(f"{command}\n")
    for words in (["--json"], ["--all"]):
        assert run(convert, *words, str(here / "run.sh")) != 0
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err


@attack(KIND, "print a secret by interpolation: ${oc.env:...} in an override or a YAML")
def test_interpolations_see_no_secrets(home, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", VARIABLES["HF_TOKEN"])
    here = home / "project" / "here"
    (here / "run.sh").write_text(f"{TRAIN} 'actor_rollout_ref.model.path=${{oc.env:HF_TOKEN}}'\n")
    (here / "a.yaml").write_text("actor_rollout_ref: {model: {path: '${oc.env:HF_TOKEN}'}}\ntrainer: {nnodes: 1}\n")
    for file in ("run.sh", "a.yaml"):
        run(convert, "--json", str(here / file))
        run(doctor, "--json", "--no-files", str(here / file))
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
    assert os.environ["HF_TOKEN"] == VARIABLES["HF_TOKEN"], "the environment is restored"


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A file that Python code writes when it runs; and the code."""
    marker = tmp_path / "marker"
    return marker, f"open({str(marker)!r}, 'a').write('ran ')\n"


def own_code(folder, code):
    """A model folder whose config and tokenizer need Python code of the folder."""
    folder.mkdir(exist_ok=True)
    auto = {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.MyModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": auto, "vocab_size": 8}))
    tokenizer = {"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": ["mine.MyTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "mine.py").write_text(
        f"{code}from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizer\n"
        "class Mine(PretrainedConfig): pass\n"  # classes of its own: transformers marks them as those of a folder
        "class MyModel(PreTrainedModel): pass\n"
        "class MyTokenizer(PreTrainedTokenizer): pass\n"
    )
    return folder


def rows(folder):
    row = {"prompt": [{"role": "user", "content": "1+1="}], "data_source": "openai/gsm8k"}
    (folder / "t.jsonl").write_text(json.dumps(row | {"reward_model": {"ground_truth": "2"}}) + "\n")
    return folder / "t.jsonl"


@attack(KIND, "trust_remote_code=True in a script: doctor runs code of the model folder that it names")
def test_doctor_runs_no_code_of_the_model_folder(home, trap, capsys):
    marker, code = trap
    here = home / "project" / "here"
    model = own_code(here / "model", code)
    trust = "actor_rollout_ref.model.trust_remote_code=True data.trust_remote_code=True"
    (here / "run.sh").write_text(
        f"{TRAIN} {trust} actor_rollout_ref.model.path={model} data.train_files={rows(here)} data.tokenizer={model}\n"
    )
    run(doctor, "--json", str(here / "run.sh"))
    assert not marker.exists()
    assert "the model's own Python code was not run" in capsys.readouterr().out
    run(doctor, "--json", "--trust", str(here / "run.sh"))
    assert marker.read_text().startswith("ran"), "the attack works where the user trusts the script"


FILES = (
    "custom_reward_function.path=mine.py data.custom_cls.path=mine.py data.custom_cls.name=Rows"
    " algorithm.adv_estimator=mine.py:advantage actor_rollout_ref.actor.policy_loss.loss_mode=mine.py:loss",
    "custom_reward_function.path=pkg://evil.module actor_rollout_ref.model.external_lib=evil.module",
)


@pytest.mark.long
@pytest.mark.parametrize("setting", FILES, ids=["files", "packages"])
@attack(KIND, "Python files named by a script: convert, doctor and rehearse import them in this process")
def test_python_files_are_not_imported_here(home, trap, capsys, monkeypatch, setting):
    marker, code = trap
    here = home / "project" / "here"
    (here / "evil").mkdir()
    for name in ("mine.py", "evil/__init__.py", "evil/module.py"):
        (here / name).write_text(f"{code}compute_score = Rows = advantage = loss = print\n")
    monkeypatch.syspath_prepend(str(here))
    (here / "run.sh").write_text(f"{TRAIN} {MODEL} {setting}\n")
    run(convert, str(here / "run.sh"))
    run(doctor, "--json", str(here / "run.sh"))
    calls = []
    monkeypatch.setattr(isolated, "call_isolated", lambda target, arguments, **kwargs: calls.append(kwargs) or [])
    run(rehearse, "--json", str(here / "run.sh"))
    capsys.readouterr()
    assert not marker.exists()
    assert len(calls) == 1 and calls[0]["network"] is False, "the run itself would be isolated"
    assert all(not home.is_relative_to(path) for path in calls[0]["readable"])


@attack(KIND, "find a module by importing the packages that contain it")
def test_finding_a_module_imports_nothing(home, trap, monkeypatch):
    marker, code = trap
    (home / "project" / "here" / "evil").mkdir()
    (home / "project" / "here" / "evil" / "__init__.py").write_text(code)
    (home / "project" / "here" / "evil" / "module.py").write_text(code)
    monkeypatch.syspath_prepend(str(home / "project" / "here"))
    assert is_importable("evil.module") and not is_importable("evil.other") and not is_importable("no.such")
    assert not marker.exists()


SPY = """
import os, json, socket
def tried(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "possible"
tried(lambda: open(MARKER, "w"))  # where the file system is discarded at the end
raise ImportError(json.dumps({
    "environment": str(dict(os.environ)),
    "key": tried(lambda: open(os.path.expanduser("~/.ssh/id_rsa"))),
    "beside": tried(lambda: open(os.path.join(os.path.dirname(__file__), "new"), "w")),
    "network": tried(lambda: socket.create_connection(("127.0.0.1", PORT), 1)),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
}))
"""


@attack(KIND, "an imported file reads secrets and keys, writes files, and opens connections")
def test_an_imported_file_is_isolated(home, trap, monkeypatch):
    import socket

    from burnish.doctor.files import UserFile, check_user_file

    marker, _ = trap
    monkeypatch.setenv("HF_TOKEN", VARIABLES["HF_TOKEN"])
    path = home / "project" / "here" / "mine.py"
    with socket.create_server(("127.0.0.1", 0)) as server:
        path.write_text(SPY.replace("MARKER", repr(str(marker))).replace("PORT", str(server.getsockname()[1])))
        finding = check_user_file(UserFile("custom_reward_function.path", str(path), "compute_score"))
    assert finding is not None
    report = json.loads(finding.text[finding.text.index("{") : finding.text.rindex("}") + 1])
    assert SECRET not in report.pop("environment")
    assert report.pop("processes") < 10
    assert "possible" not in report.values(), report
    assert not marker.exists() and not (path.parent / "new").exists()


@pytest.mark.long
@attack(KIND, "a reward file of a rehearsed script reads secrets and keys, writes files, and opens connections")
def test_a_rehearsed_reward_file_is_isolated(home, trap, monkeypatch, capsys):
    marker, _ = trap
    monkeypatch.setenv("HF_TOKEN", VARIABLES["HF_TOKEN"])
    here = home / "project" / "here"
    spy = SPY.replace("MARKER", repr(str(marker))).replace("PORT", "9").replace("ImportError", "ValueError")
    body = "\n".join(f"    {line}" for line in spy.strip().splitlines())
    (here / "mine.py").write_text(f"def compute_score(*args, **kwargs):\n{body}\n")
    (here / "run.sh").write_text(f"{TRAIN} {MODEL} custom_reward_function.path=mine.py\n")
    assert run(rehearse, "--json", str(here / "run.sh")) == 1
    printed = capsys.readouterr().out
    assert SECRET not in printed and "possible" not in printed and '\\"key\\": \\"FileNotFoundError\\"' in printed
    assert not marker.exists() and not (here / "new").exists()


@attack(KIND, "an imported file where the machine cannot isolate it")
def test_without_isolation_files_are_not_imported(home, trap, monkeypatch):
    from burnish.doctor import files

    marker, code = trap
    (home / "project" / "here" / "mine.py").write_text(code)
    monkeypatch.setattr(files, "can_isolate", lambda: False)
    finding = files.check_user_file(files.UserFile("custom_reward_function.path", "mine.py", None))
    assert finding is not None and "not imported" in finding.text and "--trust" in finding.type
    monkeypatch.setattr(isolated, "can_isolate", lambda: False)
    report = rehearse_words(f"{TRAIN} {MODEL} custom_reward_function.path=mine.py")
    assert any("cannot isolate the code of others" in finding.text for finding in report.findings)
    assert not marker.exists()


def rehearse_words(command, **kwargs):
    from burnish.rehearsal.rehearse import rehearse as rehearse_translation

    return rehearse_translation(translate_command(command.split()), **kwargs)


@attack(KIND, "trust_remote_code=True in a command: rehearse runs code of the model folder that it names")
def test_rehearse_runs_no_code_of_the_model_folder(home, trap, monkeypatch):
    from burnish.rehearsal import run as run_module

    marker, code = trap
    model = own_code(home / "project" / "here" / "model", code)
    plans = []
    monkeypatch.setattr(run_module, "run_job", plans.append)
    trust = "actor_rollout_ref.model.trust_remote_code=True critic.model.trust_remote_code=True"
    report = rehearse_words(f"{TRAIN} {trust} actor_rollout_ref.model.path={model}")
    assert not marker.exists()
    assert [plan.settings["actor_rollout_ref.model.trust_remote_code"] for plan in plans] == [False]
    assert any("own Python code did not run" in line for line in report.not_tested)


@attack(KIND, "keep doctor busy for ever with a chat template")
def test_an_endless_chat_template_is_given_up(home, monkeypatch, tokenizer):
    from burnish.config import load
    from burnish.doctor import files

    monkeypatch.setattr(files, "TEMPLATE_TIMEOUT", 0.5)
    model = home / "project" / "here" / "model"
    tokenizer.save_pretrained(model)
    loops = "".join(f"{{% for {letter} in range(90) %}}" for letter in "abcd")
    template = f"'{loops}{{{{ 1 }}}}{'{% endfor %}' * 4}'"
    (model / "chat_template.jinja").write_text(template.strip("'"))
    cfg = load([f"actor_rollout_ref.model.path={model}"], check=False).cfg
    row = json.loads(rows(home / "project" / "here").read_text())
    num_threads = len(threading.enumerate())
    finding = files.check_template(cfg, row)
    assert finding is not None and "takes longer than" in finding.text
    deadline = time.monotonic() + 60
    while len(threading.enumerate()) > num_threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(threading.enumerate()) <= num_threads  # it does not go on in the background
    loops = "".join(f"{{% for {letter} in range(90) %}}" for letter in "abc")
    (model / "chat_template.jinja").write_text(f"{loops}{{{{ 'x' * 100 }}}}{'{% endfor %}' * 3}")
    monkeypatch.setattr(files, "TEMPLATE_TIMEOUT", 60)
    finding = files.check_template(cfg, row)
    assert finding is not None and "makes 72,900,000 characters of a prompt" in finding.text


@attack(KIND, "let doctor open private or remote files as data or as a chat template")
def test_doctor_opens_no_private_or_remote_files(home, monkeypatch, tokenizer):
    from burnish.config import load
    from burnish.doctor import files

    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps({SECRET: 1}))
    (home / "innocent.json").symlink_to(home / ".docker" / "config.json")
    monkeypatch.setattr("burnish.storage._fetched", lambda url, key: pytest.fail("it must not connect"))
    model = home / "project" / "here" / "model"
    tokenizer.save_pretrained(model)
    for name in (home / ".docker" / "config.json", home / "innocent.json"):
        cfg = load([f"data.train_files={name}"], check=False).cfg
        (finding,) = files.check_data(cfg.data, "data.train_files", cfg.data.train_files).findings
        assert "not opened" in finding.text and SECRET not in finding.text
    for template in ("http://127.0.0.1:9/x.jinja", str(home / ".ssh" / "id_rsa")):
        words = [f"actor_rollout_ref.model.path={model}", f"actor_rollout_ref.model.custom_chat_template={template}"]
        finding = files.check_template(load(words, check=False).cfg, {"prompt": []})
        assert finding is not None and "not opened" in finding.text


@attack(KIND, "names and values of variables that may be secrets")
def test_placeholders_and_what_stays_visible():
    kept = {
        "HOME": "/there",
        "WORLD_SIZE": "8",
        "MODEL": "Qwen/Qwen2.5-7B-Instruct",
        "TOKENIZERS_PARALLELISM": "false",
        "RUN": "qwen2.5-7b-grpo-gsm8k-seed42-2024-01-01",
        "EMPTY": "",
    }
    assert shown_environment(kept) == kept
    assert set(shown_environment(VARIABLES).values()) == {"<hidden>"}
    with without_secrets():
        assert SECRET not in str(dict(os.environ))


@attack(KIND, "links, hidden folders and names of keys inside the script's folder")
def test_visible_files(home):
    here = home / "project" / "here"
    for name in (
        "a.txt",
        "sub/b.sh",
        ".hidden/c.txt",
        "server.pem",
        "my_secrets.yaml",
        "tokenizer.json",
        "api_key.txt",
    ):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("x")
    (here / "out").symlink_to(home / "other")
    visible = Visible.of(here / "run.sh", here)
    names = {str(path.relative_to(here)) for path in visible.nearby() if visible.text(path) is not None}
    assert names == {"a.txt", "sub/b.sh", "tokenizer.json"}
    assert visible.text(here / "out" / "plain.txt") is None and visible.text(here / ".." / ".env") is None
    with pytest.raises(UserError, match="no such script"):
        record_script(here / "none.sh")
