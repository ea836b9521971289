"""Secrets do not leave the process: run folder, console, loggers, error messages, dumps, converted commands."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from urllib.parse import quote

import pytest
import yaml

from burnish.cli.main import main
from burnish.config import load
from burnish.config.jobs import JOBS
from burnish.config.tree import to_plain, tree
from burnish.errors import UserError, UserErrors
from burnish.log.console import say
from burnish.log.folder import RunFolder
from burnish.log.logger import Loggers, RunInfo
from burnish.loop.experiment import describe_experiment
from burnish.redact import HIDDEN, is_secret, looks_secret, redact, redact_command, redact_text, remember
from burnish.reward.limits import worker_environment
from burnish.reward.output import OutputLog

from .attacks import attack

VALUE = "Zx9/q+7=pw d"  # with characters that URLs, JSON and shells write in other ways
REQUIRED = ["actor_rollout_ref.model.path=m", "data.train_files=t.parquet"]
KWARGS = "custom_reward_function.reward_kwargs"


@attack("secrets", "a server repeats a key of the environment in its error message")
def test_a_key_of_the_environment_repeated(monkeypatch):
    monkeypatch.setenv("SCORER_API_KEY", VALUE)
    assert redact_text(f"401: '{VALUE}' is no key") == f"401: '{HIDDEN}' is no key"


@attack("secrets", "a secret repeated in another spelling: quoted in a URL, in JSON, in a header")
def test_other_spellings(monkeypatch):
    monkeypatch.setenv("SCORER_PASS", VALUE)
    basic = base64.b64encode(f"user:{VALUE}".encode()).decode()
    texts = [
        quote(VALUE),
        quote(VALUE, safe=""),
        json.dumps({"a": VALUE}),
        f"Authorization: Basic {basic}",
        repr([VALUE]),
    ]
    for text in texts:
        shown = redact_text(f"sent {text} and failed")
        assert HIDDEN in shown and "Zx9" not in shown and basic not in shown


SECRET_NAMES = """
judge_token service_key DB_PASS db_password client_secret aws_credentials x-api-key authKey license_key
smtp.pass MYSQL_PWD github_pat ACCESS_TOKEN_2 privateKey my_webhook sentry_dsn session_cookie
proxy_authorization refreshToken wandb_key SecretKey ssh_passphrase deploy-token
"""


@attack("secrets", "names of secrets beyond api_key")
@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names(name):
    value = "Zq9-unguessable"
    shown = [
        json.dumps(redact({"a": {name: value}, "b": [{name: [value]}]})),
        redact_text(f"{name}={value}"),
        redact_text(f"{{'{name}': '{value}', 'n': 1}}"),
        redact_text(yaml.safe_dump({name: value})),
        " ".join(redact_command(["run", f"x.{name}={value}", f"--{name}", value, f"--{name}={value}"])),
        UserError("is wrong", key=f"x.{name}", value=value).text(),
        UserError(f"cannot parse the override '{name}={value}['").text(),
    ]
    assert not [text for text in shown if "unguessable" in text]
    assert worker_environment({name.upper().replace("-", "_"): value}, ())[1]  # as from the workers of rewards


HARMLESS = {
    **{"tokenizer": "a/b-1", "eos_token": "</s>", "pad_token": "[PAD]", "pad_token_id": "0", "image_key": "images_2"},
    **{"prompt_key": "Problem1", "reward_fn_key": "data_source", "max_tokens": "512", "max_token_len": "16384"},
    **{"stop_token_ids": [1], "loss_agg_mode": "token-mean", "key": "Value1", "author": "Ann1", "passes": "3"},
    **{"pass_env": ["A_B"], "forward_pass": "2", "tokenizer_path": "/m/tok1", "best_metric_key": "val-core/x"},
    **{"revision": "0123456789abcdef0123456789abcdef01234567", "answer_key": "final1", "sort_key": "Date1"},
    **{"monkey": "x1", "bypass": "a1", "compass": "N1", "api_key": "${oc.env:API_KEY}"},
}


@attack("secrets", "false alarms: settings that only sound like secrets")
def test_harmless_settings_are_shown():
    assert redact(HARMLESS) == HARMLESS
    for job in JOBS:
        for key, leaf in tree(job).leaves.items():
            assert not is_secret(key, "Some-value-1") and redact({key: leaf.default}) == {key: leaf.default}
    prose = "the token budget is 512; basic mathematics; bearer of news; key idea: pass@8 = 0.5; see https://host:8000/v1?page=2"
    assert redact_text(prose) == prose
    assert not any(map(looks_secret, ("PATH", "PWD", "TOKENIZERS_PARALLELISM", "HF_HOME", "LANG", "XAUTHORITY_X")))


URLS = {
    "signed URL of S3": "https://b.s3.amazonaws.com/k?X-Amz-Algorithm=A&X-Amz-Credential=AK%2Fx&X-Amz-Signature=LEAK&X-Amz-Expires=9",
    "temporary credentials": "https://b.s3.amazonaws.com/k?X-Amz-Security-Token=LEAK",
    "signed URL of GCS": "https://storage.googleapis.com/b/k?GoogleAccessId=x&Signature=LEAK&Expires=1",
    "SAS of Azure": "https://a.blob.core.windows.net/c/k?sv=2022-11-02&se=2030&sig=LEAK%3D",
    "token in the query": "https://host/v1?token=LEAK&page=2",
    "token in the fragment": "https://host/cb#access_token=LEAK",
    "password": "https://user:LEAK@host/x",
    "password with separators": "redis://:p:LEAK@x@host:6379/0",
    "token as user": "https://LEAK@github.com/a/b.git",
    "database": "postgresql+psycopg://u:LEAK@db:5432/x",
    "Slack": "https://hooks.slack.com/services/T00/B00/LEAK",
    "Feishu": "https://open.feishu.cn/open-apis/bot/v2/hook/LEAK-1234",
    "Lark": "https://open.larksuite.com/open-apis/bot/v2/hook/LEAK",
    "DingTalk": "https://oapi.dingtalk.com/robot/send?access_token=LEAK",
    "WeCom": "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=LEAK",
    "Discord": "https://discord.com/api/webhooks/123/LEAK",
    "Teams": "https://x.webhook.office.com/webhookb2/LEAK/IncomingWebhook/y",
    "Telegram": "https://api.telegram.org/bot12345678:LEAKabcdefghijklmnopqrstuvwxyz/sendMessage",
}


@attack("secrets", "signed URLs, webhooks and passwords in URLs")
@pytest.mark.parametrize("name", URLS)
def test_urls(name):
    url = URLS[name]
    for text in (url, f"GET {url}: 403", json.dumps({"url": url}), str(redact({"remote_url": url, "x": [url]}))):
        assert "LEAK" not in redact_text(text)
    assert redact_text(url).startswith(url.partition("://")[0])  # the rest of it is still of use


CONNECTIONS = {
    "ADO": "Server=tcp:h,1433;User ID=sa;Password=LEAK;Encrypt=yes",
    "libpq": "host=h port=5432 user=u password=LEAK dbname=d",
    "Azure storage": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=LEAK==;EndpointSuffix=core.windows.net",
    "service bus": "Endpoint=sb://h/;SharedAccessKeyName=k;SharedAccessKey=LEAK=",
    "header": "curl -H 'Authorization: Token LEAK' https://h",
    "header of a key": "headers={'x-api-key': 'LEAK'}",
    "proxy header": "Proxy-Authorization: Basic TEVBSw1=LEAK",
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nLEAK\n-----END OPENSSH PRIVATE KEY-----",
    "flag of a command": "server --port 80 --api-key LEAK9 --model m",
}


@attack("secrets", "connection strings, headers and key files in messages")
@pytest.mark.parametrize("name", CONNECTIONS)
def test_connection_strings(name):
    assert "LEAK" not in redact_text(f"could not connect: {CONNECTIONS[name]}")


@attack("secrets", "a value interpolated from the environment into the config")
@pytest.mark.parametrize(
    ("key", "variable"), [("auth", "JUDGE_LOGIN"), ("endpoint", "JUDGE_TOKEN"), ("other", "PLAIN_NAME")]
)
def test_interpolated_values(key, variable, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, "Val9-from-outside")
    loaded = load([*REQUIRED, f"{KWARGS}.{key}=${{oc.env:{variable}}}", f"{KWARGS}.path=${{oc.env:{variable}}}/x"])
    assert loaded.cfg.custom_reward_function.reward_kwargs[key] == "Val9-from-outside"  # the run itself has it
    RunFolder(tmp_path).describe(loaded.yaml(), ["burnish", "train"])
    loggers = Loggers(["file", "tensorboard"])
    loggers.start(RunInfo("p", "n", tmp_path, to_plain(loaded.cfg), 1))
    loggers.close()
    experiment = describe_experiment(loaded.cfg, "train", {})
    (tmp_path / "state.json").write_text(json.dumps(experiment.state_dict()))
    assert_nowhere(tmp_path, "Val9-from-outside")
    assert f"${{oc.env:{variable}}}/x" in (tmp_path / "config.yaml").read_text()


def assert_nowhere(folder, secret: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert [str(path) for path in files if secret.encode() in path.read_bytes()] == []


@attack("secrets", "the record that a resume compares")
def test_the_resume_comparison_notices_a_change_and_shows_no_value(monkeypatch):
    records = []
    for value in ("Val9-one-secret", "Val9-two-secret"):
        monkeypatch.setenv("PLAIN_NAME", value)
        overrides = [*REQUIRED, f"{KWARGS}.x=${{oc.env:PLAIN_NAME}}", f"{KWARGS}.api_key={value}"]
        records.append(describe_experiment(load(overrides).cfg, "train", {}))
    changes = [change for group in records[1].changes(records[0].state_dict()) for change in group]
    texts = [change.text() for change in changes]
    assert len(texts) == 1 and "reward_kwargs" in texts[0] and "Val9" not in str([texts, records[0].state_dict()])


@attack("secrets", "settings of the config, in the run folder and in loggers")
def test_the_run_folder(tmp_path):
    secrets = [f"{KWARGS}.judge_token=LEAK-1", f"{KWARGS}.nested.db_pass=LEAK-2", f"{KWARGS}.url='https://u:LEAK-3@h/'"]
    secrets.append("reward.remote_url='https://h/score?sig=LEAK-4'")
    loaded = load([*REQUIRED, *secrets])
    RunFolder(tmp_path).describe(loaded.yaml(), ["burnish", "train", *secrets])
    loggers = Loggers(["file", "tensorboard"])
    loggers.start(RunInfo("p", "n", tmp_path, to_plain(loaded.cfg), 1))
    loggers.note(f"the judge said LEAK-1 and {secrets[3]}")
    loggers.close()
    OutputLog(tmp_path / "reward.log").write("sample", "using LEAK-1 and password=LEAK-5")
    assert_nowhere(tmp_path, "LEAK")


@attack("secrets", "an error of the config that quotes a secret")
def test_errors_of_the_config():
    secret = "LEAK9-value"
    wrong = [
        "trainer.total_epochs=no",
        f"{KWARGS}.judge_token={secret}",
        f"trainer.api_key={secret}",
        f"a.db_pass={secret}[",
    ]
    with pytest.raises(UserErrors) as caught:
        load([*REQUIRED, *wrong])
    assert secret not in caught.value.text() and secret not in str(caught.value) and HIDDEN in caught.value.text()


def leaky(words: list[str], capfd) -> str:
    main(words)
    printed = capfd.readouterr()
    return printed.out + printed.err


VERL = ["python3", "-m", "verl.trainer.main_ppo", *REQUIRED, f"+{KWARGS}.judge_token=LEAK-9", f"+{KWARGS}.n=3"]
VERL += [f"+{KWARGS}.url='https://h/v1?sig=LEAK-8'", "+unknown.section.api_key=LEAK-7"]
OPENRLHF = [
    "python3",
    "-m",
    "openrlhf.cli.train_ppo_ray",
    "--pretrain",
    "m",
    "--use_wandb",
    "LEAK-6",
    "--wandb_keyy",
    "LEAK-5",
]


@attack("secrets", "commands that are converted, checked or shown")
@pytest.mark.parametrize("flags", [["convert"], ["convert", "--json"], ["convert", "--yaml"], ["convert", "--all"]])
@pytest.mark.parametrize("command", [VERL, OPENRLHF], ids=["verl", "openrlhf"])
def test_converted_commands(flags, command, capfd):
    printed = leaky([*flags, "--", *command], capfd)
    assert "LEAK" not in printed and (HIDDEN in printed or "--json" in flags or "--yaml" in flags)
    if "--json" in flags:
        assert json.loads(printed)["report"]


@attack("secrets", "the composed config, and the doctor's report")
def test_shown_configs(capfd):
    shown = leaky(["train", *REQUIRED, f"{KWARGS}.judge_token=LEAK-9", "--cfg"], capfd)
    shown += leaky(["doctor", "--no-files", "--", *VERL], capfd) + leaky(
        ["doctor", "--json", "--no-files", "--", *VERL], capfd
    )
    assert "LEAK" not in shown and HIDDEN in shown


@attack("secrets", "a traceback and a library's warning that quote a secret")
def test_tracebacks(monkeypatch):
    code = (
        "import logging; from burnish.escape import escape_output; from burnish.redact import remember\n"
        "url = 'https://u:' + 'LEAK' + '-4@h/?sig=' + 'LEAK' + '-5';\n"
        "escape_output(); remember('LEAK' + '-from-config'); logging.warning('sent %s', 'LEAK' + '-from-config')\n"
        "raise ValueError('the server refused ' + 'LEAK' + '-from-config and ' + 'LEAK' + '-from-env and ' + url)"
    )
    environment = {**os.environ, "JUDGE_KEY": "LEAK-from-env"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "LEAK-" not in done.stderr and done.stderr.count(HIDDEN) == 5


@attack("secrets", "messages on the console")
def test_messages(capsys):
    remember("LEAK-42x")
    say("connecting with LEAK-42x")
    assert capsys.readouterr().out == f"connecting with {HIDDEN}\n"


@attack("secrets", "short secrets and words that are secrets by chance")
def test_short_secrets(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    monkeypatch.setenv("OTHER_PASSWORD", "test")
    monkeypatch.setenv("CACHE_KEY_COUNT", "100000")
    assert redact_text("login hunter2 failed in tests/test after 100000 steps") == (
        f"login {HIDDEN} failed in tests/test after 100000 steps"
    )


@attack("secrets", "what reward workers are not shown is in no message either")
def test_withheld_variables(monkeypatch):
    for name in ("JUDGE_SESSION_TOKEN", "X_AUTH_Y", "SIGNING_KEYS", "MY_KEY"):
        monkeypatch.setenv(name, f"Val9-{name}")
        assert looks_secret(name)
        assert redact_text(f"got Val9-{name}!") == f"got {HIDDEN}!"


LONG = (
    "a",
    "=a",
    "'",
    "a: ",
    "-a ",
    "://",
    "a.b.",
    "eyJ",
    "key=",
    "PRIVATE KEY-----",
    'a="\\',
    "x='a,",
    "?a&",
    "authorization: ",
)


@attack("secrets", "a very long text in patterns that backtrack")
@pytest.mark.parametrize("piece", LONG)
def test_redaction_takes_linear_time(piece):
    def seconds(length: int) -> float:
        started = time.process_time()
        redact_text(piece * (length // len(piece)))
        return time.process_time() - started

    assert seconds(64_000) < 80 * max(seconds(4_000), 0.002)


@attack("secrets", "another user of the machine reads prompts and weights in the run folder")
def test_others_cannot_enter_a_new_run_folder(tmp_path):
    before = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "runs" / "first").path
        (tmp_path / "mine").mkdir(mode=0o755)
        kept = RunFolder(tmp_path / "mine").path
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert kept.stat().st_mode & 0o777 == 0o755  # a folder that was there keeps its mode


@pytest.mark.long
@attack("secrets", "a whole run, with secrets in the environment, the config and a URL")
def test_a_whole_run(tiny_folder, tmp_path):
    """Nothing that the run writes or prints contains them, in any process."""
    (tmp_path / "reward.py").write_text(
        "def compute_score(solution_str, ground_truth, judge_token, url):\n"
        "    print('asking', url, 'with', judge_token)\n"
        "    raise ValueError(f'{url} refused {judge_token}')\n"
    )
    rows = [
        {"prompt": f"{n}+{n}=", "data_source": "sums", "reward_model": {"ground_truth": str(2 * n)}} for n in range(4)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        **{"actor_rollout_ref.model.path": tiny_folder, "data.train_files": tmp_path / "train.jsonl"},
        **{"data.train_batch_size": 2, "data.max_response_length": 4, "actor_rollout_ref.rollout.n": 2},
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        **{
            "algorithm.adv_estimator": "grpo",
            "trainer.total_training_steps": 1,
            "trainer.default_local_dir": tmp_path / "run",
        },
        **{
            "trainer.logger": "[console,file,tensorboard]",
            "reward.failure_threshold": "null",
            "trainer.val_before_train": "false",
        },
        **{"custom_reward_function.path": tmp_path / "reward.py", f"+{KWARGS}.judge_token": "LEAK-token-1"},
        **{f"+{KWARGS}.url": "${oc.env:JUDGE_URL}"},
    }
    environment = {**os.environ, "JUDGE_URL": "https://u:LEAK-2@judge/v1?sig=LEAK-3", "JUDGE_API_KEY": "LEAK-key-4"}
    command = [sys.executable, "-m", "burnish", "train", *(f"{key}={value}" for key, value in settings.items())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "LEAK" not in done.stdout + done.stderr and "refused" in done.stdout
    assert_nowhere(tmp_path / "run", "LEAK")
